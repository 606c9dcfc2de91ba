"""The page of all groups: their lag, and moving them."""

from __future__ import annotations

from typing import Any, Final

import structlog
from flask import Blueprint, Response, request

from router.errors import NotAllowedError, NotSupportedError, TopicNotFoundError
from router.model import Principal, Subscription, TopicName
from router.services.groups import Groups, Preview, moment
from router.services.manage import Topics
from router.web.access import Right
from router.web.addresses import root
from router.web.console import commands
from router.web.console.fields import Fields
from router.web.console.parts import Parts, words
from router.web.names import consumer_name
from router.web.parameters import Query

PAGE_TOPICS: Final = 50
"""Topics whose groups are on one page: each is described by the store."""
MOST_PAGES: Final = 1_000_000
TIME: Final = "time"
PLACES: Final = ("earliest", "latest", TIME)

_log = structlog.get_logger(__name__)


class GroupPageViews:
    """The views of `/console/groups`."""

    def __init__(self, parts: Parts, topics: Topics, groups: Groups) -> None:
        self._parts = parts
        self._topics = topics
        self._groups = groups

    def add(self, routes: Blueprint) -> None:
        """Add the routes."""
        routes.get("/console/groups", endpoint="groups")(self.listed)
        routes.get("/console/topics/<topic>/groups/<group>/reset")(self.preview)
        routes.post("/console/topics/<topic>/groups/<group>/reset")(self.reset)

    def listed(self) -> Response:
        """Answer the groups of the topics that the caller may see, with their lag."""
        principal, query = self._parts.principal(), Query(request.environ)
        search, only = words(query, "q"), words(query, "topic")
        page = max(query.number("page", 1, MOST_PAGES), 1)
        topics = [
            i for i in self._parts.visible(principal, self._topics) if only in {"", i.topic.local}
        ]
        first = (page - 1) * PAGE_TOPICS
        rows = [
            row
            for info in topics[first : first + PAGE_TOPICS]
            for row in self._rows(principal, info.topic)
            if search.lower() in row["group"].lower()
        ]
        url = f"{root(request.environ)}/topics/{commands.segment(only) or 'TOPIC'}/groups"
        data = {
            "search": search,
            "topic": only,
            "page": page,
            "pages": max(1, -(-len(topics) // PAGE_TOPICS)),
            "groups": rows,
            "commands": [
                commands.curl(principal, url),
                commands.router("groups", "list", only or "TOPIC"),
            ],
        }
        return self._parts.pages.answer("groups.html", data)

    def preview(self, topic: str, group: str) -> Response:
        """Answer what a reset would change, and the form that asks for it."""
        principal, subscription = self._managed(topic, group)
        query = Query(request.environ)
        to, time = query.choice("to", PLACES, PLACES[0]), words(query, "time").strip()
        found, lines = None, list[str]()
        if to != TIME or time:
            where = time if to == TIME else to
            found = self._groups.preview(subscription, moment("to", where))
            lines = _resetting(principal, subscription, where)
        data = {
            "topic": subscription.topic.local,
            "group": subscription.name,
            "to": to,
            "time": time,
            "places": PLACES,
            "preview": _told(found),
            "commands": lines,
        }
        return self._parts.pages.answer("reset.html", data)

    def reset(self, topic: str, group: str) -> Response:
        """Move a group to the beginning, the end, or a time."""
        principal, subscription = self._managed(topic, group)
        fields = Fields(request.environ)
        to = fields.text("to")
        where = fields.text("time", "").strip() if to == TIME else to
        self._groups.reset(subscription, moment("to", where))
        names = {"topic": subscription.topic.local, "group": subscription.name}
        _log.info("group-reset", **names, to=where, user=principal.name)
        data = {**names, "to": where, "commands": _resetting(principal, subscription, where)}
        return self._parts.pages.done(data, "/console/groups", topic=names["topic"])

    def _managed(self, topic: str, group: str) -> tuple[Principal, Subscription]:
        """Return who asks for which group, if they may manage its topic."""
        principal, name = self._parts.principal(), self._parts.topic_name(topic)
        subscription = Subscription(name, consumer_name(group, "group"))
        self._parts.access.demand(principal, name, Right.MANAGE)
        return principal, subscription

    def _rows(self, principal: Principal, topic: TopicName) -> list[dict[str, Any]]:
        try:
            found = self._groups.listed(topic)
        except (NotSupportedError, NotAllowedError, TopicNotFoundError):
            return []  # the last: it was deleted since the list was made
        managed = bool(found) and self._parts.may(principal, topic, Right.MANAGE)
        return [
            {
                "group": group.name,
                "topic": topic.local,
                "lag": group.backlog,
                "members": group.consumers,
                "may_reset": managed,
            }
            for group in found
            if group.durable
        ]


def _told(preview: Preview | None) -> str:
    """Return what a reset would change, as a sentence."""
    if preview is None:
        return "Give a time with its zone, such as 2026-11-01T00:00Z."
    least, most = preview.least, preview.most
    after = str(most) if least == most else f"between {least} and {most}"
    return f"Lag now: {preview.lag}. Lag after the reset: {after}."


def _resetting(principal: Principal, subscription: Subscription, to: str) -> list[str]:
    topic, group = subscription.topic.local, subscription.name
    path = f"/topics/{commands.segment(topic)}/groups/{commands.segment(group)}/reset"
    url = f"{root(request.environ)}{path}?to={commands.segment(to)}"
    return [
        commands.curl(principal, url, "-X", "POST"),
        commands.router("groups", "reset", topic, group, "--to", to),
    ]
