"""The page of one group: who reads it and where it stands; moving it, deleting it."""

from __future__ import annotations

from typing import Any, Final

import structlog
from flask import Blueprint, Response, request

from router.errors import BadRequestError, NotAllowedError, NotSupportedError
from router.model import Principal, Subscription
from router.services.group_details import GroupDetails, GroupInspection, shown_target
from router.services.groups import Groups, ResetTarget, moment, positions
from router.services.history import Histories
from router.web.access import Right
from router.web.addresses import root
from router.web.console import charts, commands, shown
from router.web.console.described import FAILS, action, page
from router.web.console.fields import Fields
from router.web.console.parts import Parts, words
from router.web.names import group_name
from router.web.openapi.description import choice, text
from router.web.parameters import Query

TIME: Final = "time"
POSITION: Final = "position"
PLACES: Final = ("earliest", "latest", TIME, POSITION)
MISSING: Final = {
    TIME: "Give a time with its zone, such as 2026-11-01T00:00Z.",
    POSITION: "Give positions such as 5:17:0 (ledger, entry, partition), with commas between them.",
}
NOT_MANAGED: Final = "You may not manage this topic."

_log = structlog.get_logger(__name__)


class GroupDetailViews:
    """The views of `/console/topics/<topic>/groups/<group>`."""

    def __init__(
        self, parts: Parts, groups: Groups, inspection: GroupInspection, histories: Histories
    ) -> None:
        self._parts = parts
        self._histories = histories
        self._groups = groups
        self._inspection = inspection

    def add(self, routes: Blueprint) -> None:
        """Add the routes."""
        path = "/console/topics/<topic>/groups/<group>"
        routes.get(path)(self.group)
        routes.get(f"{path}/reset")(self.preview)
        routes.post(f"{path}/reset")(self.reset)
        routes.post(f"{path}/delete", endpoint="delete_group")(self.delete)

    @page(fails=(*FAILS, "subscription-not-found"))
    def group(self, topic: str, group: str) -> Response:
        """Answer the page of a group."""
        principal, name = self._parts.principal(), self._parts.topic_name(topic)
        subscription = Subscription(name, group_name(group))
        self._parts.access.demand(principal, name, Right.VIEW)
        may = self._parts.may(principal, name, Right.MANAGE)
        reason = "" if may else NOT_MANAGED
        drawn: dict[str, Any] = {"charts": [], "histories": {}, "now": self._histories.now_ms()}
        try:
            details = self._inspection.details(subscription)
            found = details.as_json()
            drawn |= self._charts(subscription, details)
        except (NotSupportedError, NotAllowedError) as error:
            reason = f"This store does not tell where its groups stand: {error}."
            found = _UNKNOWN | {"name": subscription.name, "untold": reason}
        consumers = found["consumers"]
        busy = f"{consumers} consumers read it: stop them first." if consumers else ""
        data = {
            "topic": name.local,
            "group": subscription.name,
            "details": found,
            "last_used": shown.at(found["last_used"]) if found["last_used"] else "not known",
            "places": PLACES,
            "no_reset": reason,
            "no_delete": reason or busy,
            "commands": _looking(principal, subscription),
            **drawn,
        }
        return self._parts.pages.answer("group.html", data)

    @page(
        choice("to", PLACES, "Where the group goes."),
        text("time", "The time, where that is a time."),
        text("position", "The positions, where those are positions."),
        fails=(*FAILS, "subscription-not-found"),
    )
    def preview(self, topic: str, group: str) -> Response:
        """Answer what a reset would change, and the form that asks for it."""
        principal, subscription = self._managed(topic, group)
        query = Query(request.environ)
        to = query.choice("to", PLACES, PLACES[0])
        given = {TIME: words(query, "time").strip(), POSITION: words(query, "position").strip()}
        told, lines = MISSING.get(to, ""), list[str]()
        if where := given.get(to, to):
            told = self._groups.preview(subscription, _target(to, where)).sentence()
            lines = _resetting(principal, subscription, where)
        data = {
            "topic": subscription.topic.local,
            "group": subscription.name,
            "to": to,
            **given,
            "places": PLACES,
            "preview": told,
            "commands": lines,
        }
        return self._parts.pages.answer("reset.html", data)

    @action(
        "to",
        optional=("time", "position", "back"),
        fails=("subscription-not-found", "subscription-busy", "bad-read-option"),
    )
    def reset(self, topic: str, group: str) -> Response:
        """Move a group to the beginning, the end, a time, or positions."""
        principal, subscription = self._managed(topic, group)
        fields = Fields(request.environ)
        to = fields.text("to")
        where = fields.text(to, "").strip() if to in MISSING else to
        self._groups.reset(subscription, place := _target(to, where))
        names = {"topic": subscription.topic.local, "group": subscription.name}
        _log.info("group-reset", **names, to=shown_target(place), user=principal.name)
        data = {**names, "to": where, "commands": _resetting(principal, subscription, where)}
        if fields.text("back", "") == "group":
            return self._parts.pages.done(data, _path(subscription))
        return self._parts.pages.done(data, "/console/groups", topic=names["topic"])

    @action("confirm", fails=("subscription-not-found", "subscription-busy"))
    def delete(self, topic: str, group: str) -> Response:
        """Delete a group that no consumer reads, when its name is written once more."""
        principal, subscription = self._managed(topic, group)
        if Fields(request.environ).text("confirm", "").strip() != subscription.name:
            raise BadRequestError(f"confirm: write {subscription.name} to delete the group.")
        self._groups.delete(subscription)
        names = {"topic": subscription.topic.local, "group": subscription.name}
        _log.info("group-deleted", **names, user=principal.name)
        data = {**names, "deleted": True, "commands": _deleting(principal, subscription)}
        return self._parts.pages.done(data, "/console/groups", topic=names["topic"])

    def _charts(self, subscription: Subscription, details: GroupDetails) -> dict[str, Any]:
        """Return the charts of where a group stands, which is noted."""
        now, lag = self._histories.now_ms(), details.group.backlog
        series = subscription.topic, subscription.name
        samples = self._histories.note(series, details.stored, lag)
        return {
            "charts": [charts.chart(kind, samples, now) for kind in ("lag", "delivered")],
            "histories": {subscription.name: charts.told(samples)},
        }

    def _managed(self, topic: str, group: str) -> tuple[Principal, Subscription]:
        """Return who asks for which group, if they may manage its topic."""
        principal, name = self._parts.principal(), self._parts.topic_name(topic)
        subscription = Subscription(name, group_name(group))
        self._parts.access.demand(principal, name, Right.MANAGE)
        return principal, subscription


_UNKNOWN: Final[dict[str, Any]] = {
    "backlog": None,
    "consumers": 0,
    "durable": True,
    "last_used": None,
    "members": None,
    "more_members": False,
    "trouble": None,
    "partitions": [],
}


def _target(to: str, where: str) -> ResetTarget:
    """Return where a form moves a group; raise BadReadOptionError."""
    return positions(to, where) if to == POSITION else moment(to if to == TIME else "to", where)


def _path(subscription: Subscription) -> str:
    topic, group = subscription.topic.local, subscription.name
    return f"/console/topics/{commands.segment(topic)}/groups/{commands.segment(group)}"


def _url(subscription: Subscription) -> str:
    topic, group = subscription.topic.local, subscription.name
    path = f"/topics/{commands.segment(topic)}/groups/{commands.segment(group)}"
    return root(request.environ) + path


def _looking(principal: Principal, subscription: Subscription) -> list[str]:
    topic, group = subscription.topic.local, subscription.name
    return [
        commands.curl(principal, _url(subscription)),
        commands.router("groups", "show", topic, group),
        *_deleting(principal, subscription),
    ]


def _deleting(principal: Principal, subscription: Subscription) -> list[str]:
    return [
        commands.curl(principal, _url(subscription), "-X", "DELETE"),
        commands.router("groups", "delete", subscription.topic.local, subscription.name),
    ]


def _resetting(principal: Principal, subscription: Subscription, to: str) -> list[str]:
    url = f"{_url(subscription)}/reset?to={commands.segment(to)}"
    return [
        commands.curl(principal, url, "-X", "POST"),
        commands.router("groups", "reset", subscription.topic.local, subscription.name, "--to", to),
    ]
