"""The DMaaP Message Router's `/admin`: who polls now, and which addresses are served nothing.

The original keeps consumers in each node's memory, which this administration shows and empties.
Here no consumer stays anywhere between polls: what can be shown is which groups have a poll open.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from flask import Response, request

from router.access.addresses import normal
from router.access.authorizer import unproven
from router.errors import KeyNotFoundError, PathNotFoundError, TopicNotFoundError
from router.services.blacklist import WorkerBlacklist
from router.services.keys import ApiKey
from router.services.manage import TopicManagement
from router.web import forms, requests
from router.web.access import ApiKeys, RequestAuthorizer
from router.web.front import check_administrator
from router.web.openapi import description as api
from router.web.requests import consumer_name, decode
from router.web.topic_access import TopicAccess

# The groups of each topic are one request to the store.
MAX_TOPICS: Final = 1_000


_LIST_FAILS: Final = (*api.STORE, "conflict", "read-body-too-large")
FIELDS: Final = ("email", "description")


_KEY: Final[Mapping[str, api.Form]] = {
    "key": str,
    "aux": api.shape({"email": str, "description": str}),
}
_ABOUT: Final = api.BodyDescription(
    {api.JSON: api.shape({}, {"email": str | None, "description": str | None})},
    "What the key is for.",
    examples={api.JSON: {"email": "anna@example.com", "description": "orders of the shop"}},
)


def _both(route: str) -> tuple[str, str]:
    """Return a route as the original has it, and below `/v1`."""
    return route, route.replace(" ", " /v1", 1)


def _addresses(method: str) -> tuple[str, ...]:
    # A network's address has a slash, which some clients escape and some do not.
    return (
        *_both(f"{method} /admin/blacklist/<ip>"),
        *_both(f"{method} /admin/blacklist/<ip>/<bits>"),
    )


@dataclass(frozen=True, slots=True)
class AdminViews:
    """The views of `/admin` and `/v1/admin`."""

    callers: TopicAccess
    topics: TopicManagement
    blocked: WorkerBlacklist

    @api.operation(
        *_both("GET /admin/consumerCache"),
        answers=api.answers_json(
            api.shape(
                {"consumers": [api.shape({"name": str, "consumers": int})], "complete": bool}
            ),
            "The groups.",
        ),
        fails=(*api.STORE, "not-allowed", "not-supported"),
    )
    def consumers(self) -> Response:
        """Answer which groups have open polls, in the original's shape and with counts."""
        check_administrator(self.callers.access, self.blocked, request.environ)
        home = self.callers.topic_name("x")
        listed = self.topics.listed(home.tenant, home.namespace)
        found = []
        for info in listed[:MAX_TOPICS]:
            try:
                groups = self.topics.described(info.topic).subscriptions
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
        return forms.answer({"consumers": found, "complete": len(listed) <= MAX_TOPICS})

    @api.operation(
        *_both("POST /admin/dropConsumerCache"),
        answers={200: api.ReplyDescription("Done.", {api.HTML: str})},
        fails=(*api.STORE, "read-body-too-large"),
    )
    def drop_consumers(self) -> Response:
        """Do nothing, successfully: there is no cache."""
        check_administrator(self.callers.access, self.blocked, request.environ)
        requests.no_body(request.environ, forms.MAX_BODY)
        return forms.sentence("Consumer cache cleared successfully")

    @api.operation(
        *_both("GET /admin/blacklist"),
        answers=api.answers_json(api.shape({"blacklist": [str]}), "The addresses."),
    )
    def blacklist(self) -> Response:
        """Answer the addresses and networks that are served nothing."""
        check_administrator(self.callers.access, self.blocked, request.environ)
        return forms.answer({"blacklist": self.blocked.names()})

    @api.operation(
        *_addresses("POST"), answers=api.answers_nothing("It is listed."), fails=_LIST_FAILS
    )
    def list_address(self, ip: str, bits: str | None = None) -> Response:
        """Serve an address or network nothing from now on."""
        check_administrator(self.callers.access, self.blocked, request.environ)
        requests.no_body(request.environ, forms.MAX_BODY)
        self.blocked.add(_address(ip, bits))
        return Response(status=204)

    @api.operation(
        *_addresses("DELETE"),
        answers=api.answers_nothing("It is listed no more."),
        fails=(*_LIST_FAILS, "path-not-found"),
    )
    def unlist_address(self, ip: str, bits: str | None = None) -> Response:
        """Serve an address or network again."""
        check_administrator(self.callers.access, self.blocked, request.environ)
        requests.no_body(request.environ, forms.MAX_BODY)
        address = _address(ip, bits)
        if not self.blocked.remove(address):
            raise PathNotFoundError(f"{normal(address)} is not on the blacklist.")
        return Response(status=204)


def _address(ip: str, bits: str | None) -> str:
    return decode(ip) if bits is None else f"{decode(ip)}/{decode(bits)}"


@dataclass(frozen=True, slots=True)
class KeyViews:
    """The views of `/apiKeys` and `/v1/apiKeys`."""

    access: RequestAuthorizer
    keys: ApiKeys

    @api.operation(
        *_both("GET /apiKeys"),
        answers=api.answers_json(api.shape({"apiKeys": [str]}), "The names."),
    )
    def names(self) -> Response:
        """Answer the names of all keys."""
        self.access.principal(request.environ)
        return forms.answer({"apiKeys": self.keys.names()})

    @api.operation(
        *_both("GET /apiKeys/<key>"),
        answers=api.answers_json(api.shape(_KEY), "The key."),
        fails=(*api.STORE, "key-not-found"),
    )
    def show(self, key: str) -> Response:
        """Answer what is known of a key, but not its secret."""
        self.access.principal(request.environ)
        return forms.answer(_shown(self.keys.get(consumer_name(key, "key"))))

    @api.operation(
        *_both("POST /apiKeys/create"),
        body=_ABOUT,
        answers=api.answers_json(api.shape({**_KEY, "secret": str}), "The key, with its secret."),
        fails=(*api.STORE, "too-many-requests", "conflict"),
    )
    def create(self) -> Response:
        """Make a key; its secret is in this answer and in no other."""
        environ = request.environ
        self.access.principal(environ)
        values = forms.fields(environ, FIELDS)
        email, description = (forms.text(values, name, "") for name in FIELDS)
        made = self.keys.create(environ.get("REMOTE_ADDR", ""), email, description)
        answer = forms.answer({**_shown(made), "secret": made.secret})
        answer.headers["Cache-Control"] = "no-store"
        return answer

    # The original takes PUT, its own Java client sends PATCH.
    @api.operation(
        *_both("PATCH /apiKeys/<key>"),
        *_both("PUT /apiKeys/<key>"),
        body=_ABOUT,
        answers=api.answers_json(api.shape(_KEY), "The key."),
        fails=(*api.STORE, "key-not-found", "conflict"),
    )
    def update(self, key: str) -> Response:
        """Change address or description of the key that signed."""
        name = self._own(key, "You must authenticate with the key you'd like to update.")
        values = forms.fields(request.environ, FIELDS)
        email, description = (
            None if values.get(field) is None else forms.text(values, field) for field in FIELDS
        )
        return forms.answer(_shown(self.keys.update(name, email, description)))

    @api.operation(
        *_both("DELETE /apiKeys/<key>"),
        answers={200: api.ReplyDescription("The key is deleted.", {api.HTML: str})},
        fails=(*api.STORE, "key-not-found", "conflict", "read-body-too-large"),
    )
    def delete(self, key: str) -> Response:
        """Delete the key that signed."""
        name = self._own(key, "You don't own the API key.")
        requests.no_body(request.environ, forms.MAX_BODY)
        self.keys.delete(name)
        return forms.sentence(f"Api key [{name}] deleted successfully.")

    def _own(self, key: str, otherwise: str) -> str:
        """Return the key's name if it, or an administrator, signed; raise KeyNotFoundError."""
        name = consumer_name(key, "key")
        principal = self.access.principal(request.environ)
        if not self.keys.may_change(principal, name):
            raise KeyNotFoundError(f"{otherwise}{unproven(principal)}")
        return name


def _shown(key: ApiKey) -> dict[str, Any]:
    return {"key": key.name, "aux": {"email": key.email, "description": key.description}}
