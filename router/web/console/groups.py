"""The page of all groups, with their lag."""

from __future__ import annotations

from typing import Any, Final

import structlog
from flask import Response, request

from router.errors import BadRequestError, NotAllowedError, NotSupportedError, TopicNotFoundError
from router.model import Principal, Subscription, TopicName
from router.services.group_details import GroupDetails, shown_target
from router.services.groups import ResetTarget, moment, positions
from router.web.access import Right
from router.web.console import charts, commands, shown
from router.web.console.context import PageViews, paged, words
from router.web.console.fields import Fields
from router.web.console.pages import CONFIRMED, FAILS, PAGED, action, page
from router.web.openapi.description import choice, one_of, text
from router.web.requests import Query, group_name

PAGE_TOPICS: Final = 50
"""Topics whose groups are on one page: each is described by the store."""
PAGE_GROUPS: Final = 500
"""Groups of one page: of more it says how many are left out."""
TIME: Final = "time"
POSITION: Final = "position"
PLACES: Final = ("earliest", "latest", TIME, POSITION)
MISSING: Final = {
    TIME: "Give a time with its zone, such as 2026-11-01T00:00Z.",
    POSITION: "Give positions such as 5:17:0 (ledger, entry, partition), with commas between them.",
}
NOT_MANAGED: Final = "You may not manage this topic."

PATH: Final = "/console/topics/<topic>/groups/<group>"

_log = structlog.get_logger(__name__)


class GroupPageViews(PageViews):
    """The views of `/console/groups`."""

    @page(
        "GET /console/groups",
        text("q", "Groups whose names hold this."),
        text("topic", "Groups of this topic."),
        PAGED,
    )
    def groups(self) -> Response:
        """Answer the groups of the topics that the caller may see, with their lag."""
        principal, query = self._context.principal(), Query(request.environ)
        search, only = words(query, "q"), words(query, "topic")
        topics = [
            i
            for i in self._context.visible(principal, self._services.topics)
            if only in {"", i.topic.local}
        ]
        page = paged(query, topics, PAGE_TOPICS)
        rows, reasons = list[dict[str, Any]](), set[str]()
        for info in page.rows:
            rows += self._rows(principal, info.topic, search.lower(), reasons)
        url = commands.url("topics", only or "TOPIC", "groups")
        data = {
            "search": search,
            "topic": only,
            "page": page.page,
            "pages": page.pages,
            "groups": rows[:PAGE_GROUPS],
            "left_out": max(0, len(rows) - PAGE_GROUPS),
            "note": " ".join(sorted(reasons)),
            "places": PLACES,
            "commands": [
                commands.curl(principal, url),
                commands.router("groups", "list", only or "TOPIC"),
            ],
        }
        return self._context.pages.answer("groups.html", data)

    def _rows(
        self, principal: Principal, topic: TopicName, search: str, reasons: set[str]
    ) -> list[dict[str, Any]]:
        try:
            found = self._services.groups.listed(topic)
        except (NotSupportedError, NotAllowedError) as error:
            reasons.add(f"This store does not say which groups there are: {error}.")
            return []
        except TopicNotFoundError:
            return []  # it was deleted since the list was made
        managed = bool(found) and self._context.may(principal, topic, Right.MANAGE)
        return [
            {
                "group": group.name,
                "topic": topic.local,
                "lag": group.backlog,
                "members": group.consumers,
                "last_used": group.last_used_ms or None,
                "may_reset": managed,
            }
            for group in found
            if group.durable and search in group.name.lower()
        ]


class GroupDetailViews(PageViews):
    """The views of `/console/topics/<topic>/groups/<group>`."""

    @page(f"GET {PATH}", fails=(*FAILS, "subscription-not-found"))
    def group(self, topic: str, group: str) -> Response:
        """Answer the page of a group."""
        principal, name = self._context.authorized(topic, Right.VIEW)
        subscription = Subscription(name, group_name(group))
        may = self._context.may(principal, name, Right.MANAGE)
        reason = "" if may else NOT_MANAGED
        drawn: dict[str, Any] = {
            "charts": [],
            "histories": {},
            "now": self._services.histories.now_ms(),
        }
        try:
            details = self._services.inspection.details(subscription)
            found = details.as_json()
            drawn |= self._charts(subscription, details)
        except (NotSupportedError, NotAllowedError) as error:
            reason = f"This store does not say where its groups stand: {error}."
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
        return self._context.pages.answer("group.html", data)

    @page(
        f"GET {PATH}/reset",
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
        sentence, lines = MISSING.get(to, ""), list[str]()
        if where := given.get(to, to):
            sentence = self._services.groups.preview(subscription, _target(to, where)).sentence()
            lines = _resetting(principal, subscription, where)
        data = {
            "topic": subscription.topic.local,
            "group": subscription.name,
            "to": to,
            **given,
            "places": PLACES,
            "preview": sentence,
            "commands": lines,
        }
        return self._context.pages.answer("reset.html", data)

    @action(
        f"POST {PATH}/reset",
        "to",
        optional=("time", "position", "back"),
        kinds={"to": one_of(["earliest", "latest", TIME, POSITION])},
        fails=("subscription-not-found", "subscription-busy", "bad-read-option"),
    )
    def reset(self, topic: str, group: str) -> Response:
        """Move a group to the beginning, the end, a time, or positions."""
        principal, subscription = self._managed(topic, group)
        fields = Fields(request.environ)
        to = fields.text("to")
        where = fields.text(to, "").strip() if to in MISSING else to
        self._services.groups.reset(subscription, place := _target(to, where))
        names = {"topic": subscription.topic.local, "group": subscription.name}
        _log.info("group-reset", **names, to=shown_target(place), user=principal.name)
        data = {**names, "to": where, "commands": _resetting(principal, subscription, where)}
        if fields.text("back", "") == "group":
            return self._context.pages.done(data, _path(subscription))
        return self._context.pages.done(data, "/console/groups", topic=names["topic"])

    @action(
        f"POST {PATH}/delete",
        "confirm",
        kinds=CONFIRMED,
        fails=("subscription-not-found", "subscription-busy"),
    )
    def delete_group(self, topic: str, group: str) -> Response:
        """Delete a group that no consumer reads, when its name is written once more."""
        principal, subscription = self._managed(topic, group)
        if Fields(request.environ).text("confirm", "").strip() != subscription.name:
            raise BadRequestError(f"confirm: write {subscription.name} to delete the group.")
        self._services.groups.delete(subscription)
        names = {"topic": subscription.topic.local, "group": subscription.name}
        _log.info("group-deleted", **names, user=principal.name)
        data = {**names, "deleted": True, "commands": _deleting(principal, subscription)}
        return self._context.pages.done(data, "/console/groups", topic=names["topic"])

    def _charts(self, subscription: Subscription, details: GroupDetails) -> dict[str, Any]:
        """Return the charts of where a group stands, which is noted."""
        now, lag = self._services.histories.now_ms(), details.group.backlog
        series = subscription.topic, subscription.name
        samples = self._services.histories.note(series, details.stored, lag)
        return {
            "charts": [charts.chart(kind, samples, now) for kind in ("lag", "delivered")],
            "histories": {subscription.name: charts.series(samples)},
        }

    def _managed(self, topic: str, group: str) -> tuple[Principal, Subscription]:
        principal, name = self._context.authorized(topic, Right.MANAGE)
        return principal, Subscription(name, group_name(group))


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
    names = subscription.topic.local, "groups", subscription.name
    return commands.path("console", "topics", *names)


def _url(subscription: Subscription) -> str:
    return commands.url("topics", subscription.topic.local, "groups", subscription.name)


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
