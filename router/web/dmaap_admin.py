"""The DMaaP Message Router's `/admin`: who polls now, and which addresses are served nothing.

The original keeps consumers in each node's memory, which this administration shows and empties.
Here no consumer stays anywhere between polls: what can be shown is which groups have a poll open.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from flask import Blueprint, Response, request

from router.access.blacklist import normal
from router.errors import ForbiddenError, PathNotFoundError, TopicNotFoundError
from router.model import TopicName
from router.services.blacklist import Blacklist
from router.services.manage import Topics
from router.web import forms, intake
from router.web.access import Access
from router.web.front import check_address
from router.web.names import decode
from router.web.openapi.description import (
    HTML,
    STORE,
    TEXT,
    WHOLE,
    Reply,
    answers_json,
    answers_nothing,
    array,
    operation,
    shape,
)

# Each topic is asked for its groups, one after the other.
MOST_TOPICS: Final = 1_000


_LIST_FAILS: Final = (*STORE, "conflict", "read-body-too-large")


class AdminViews:
    """The views of `/admin` and `/v1/admin`."""

    def __init__(
        self,
        access: Access,
        topics: Topics,
        blacklist: Blacklist,
        topic_name: Callable[[str], TopicName],
    ) -> None:
        self._access = access
        self._topics = topics
        self._blacklist = blacklist
        self._topic_name = topic_name

    def blueprint(self) -> Blueprint:
        """Return the routes."""
        routes = Blueprint("admin", __name__)
        for root in ("/admin", "/v1/admin"):
            routes.get(f"{root}/consumerCache")(self.consumers)
            routes.post(f"{root}/dropConsumerCache")(self.drop_consumers)
            routes.get(f"{root}/blacklist")(self.blacklist)
            # A network's address has a slash, which some clients escape and some do not.
            for path in ("<ip>", "<ip>/<bits>"):
                routes.post(f"{root}/blacklist/{path}")(self.list_address)
                routes.delete(f"{root}/blacklist/{path}")(self.unlist_address)
        return routes

    @operation(
        answers=answers_json(
            shape(
                {
                    "consumers": array(shape({"name": TEXT, "consumers": WHOLE})),
                    "complete": {"type": "boolean"},
                }
            ),
            "The groups.",
        ),
        fails=(*STORE, "not-allowed", "not-supported"),
    )
    def consumers(self) -> Response:
        """Answer which groups have open polls, in the original's shape and with counts."""
        self._demand_administrator()
        home = self._topic_name("x")
        listed = self._topics.listed(home.tenant, home.namespace)
        found = []
        for info in listed[:MOST_TOPICS]:
            try:
                groups = self._topics.described(info.topic).subscriptions
            except TopicNotFoundError:
                continue  # deleted since
            open_now: dict[str, int] = {}
            for group in groups:
                open_now[group.name] = open_now.get(group.name, 0) + group.consumers
            found += [
                {"name": f"{info.topic.local}::{name}", "consumers": count}
                for name, count in sorted(open_now.items())
                if count
            ]
        return forms.answer({"consumers": found, "complete": len(listed) <= MOST_TOPICS})

    @operation(answers={200: Reply("Done.", {HTML: TEXT})}, fails=(*STORE, "read-body-too-large"))
    def drop_consumers(self) -> Response:
        """Do nothing, successfully: there is no cache."""
        self._demand_administrator()
        intake.no_body(request.environ, forms.MAX_BODY)
        return forms.sentence("Consumer cache cleared successfully")

    @operation(answers=answers_json(shape({"blacklist": array(TEXT)}), "The addresses."))
    def blacklist(self) -> Response:
        """Answer the addresses and networks that are served nothing."""
        self._demand_administrator()
        return forms.answer({"blacklist": self._blacklist.names()})

    @operation(answers=answers_nothing("It is listed."), fails=_LIST_FAILS)
    def list_address(self, ip: str, bits: str | None = None) -> Response:
        """Serve an address or network nothing from now on."""
        self._demand_administrator()
        intake.no_body(request.environ, forms.MAX_BODY)
        self._blacklist.add(_address(ip, bits))
        return Response(status=204)

    @operation(
        answers=answers_nothing("It is listed no more."), fails=(*_LIST_FAILS, "path-not-found")
    )
    def unlist_address(self, ip: str, bits: str | None = None) -> Response:
        """Serve an address or network again."""
        self._demand_administrator()
        intake.no_body(request.environ, forms.MAX_BODY)
        address = _address(ip, bits)
        if not self._blacklist.remove(address):
            raise PathNotFoundError(f"{normal(address)} is not on the blacklist.")
        return Response(status=204)

    def _demand_administrator(self) -> None:
        """Raise ForbiddenError unless an administrator asks, or this machine where is none."""
        principal = self._access.principal(request.environ)
        if self._access.may_administer(principal, request.environ):
            return
        check_address(self._blacklist, request.environ)
        name = principal.name or "(no user)"
        raise ForbiddenError(f"Access denied for {name}: this is for administrators.")


def _address(ip: str, bits: str | None) -> str:
    return decode(ip) if bits is None else f"{decode(ip)}/{decode(bits)}"
