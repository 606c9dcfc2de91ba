"""The page of one topic: publishing, its messages, its groups, what it is."""

from __future__ import annotations

from typing import Any, Final

from flask import Blueprint, Response, request

from router.errors import NotAllowedError, NotSupportedError
from router.model import Principal, TopicName, TopicStats
from router.services.groups import Group, grouped
from router.services.history import Histories
from router.services.manage import Topics
from router.services.read import Reading
from router.web.access import Right
from router.web.addresses import root
from router.web.console import charts, commands
from router.web.console.described import page
from router.web.console.message_tab import UNTOLD, VIEWS, MessageTab
from router.web.console.parts import Parts
from router.web.console.publish_tab import FORMATS, PublishTab
from router.web.console.selection import SELECTION
from router.web.console.topic_settings import SettingsTab
from router.web.openapi.description import choice, number
from router.web.parameters import Query

TABS: Final = ("publish", "messages", "groups", "settings")


class TopicPageViews:
    """The views of `/console/topics/<topic>`."""

    def __init__(
        self,
        parts: Parts,
        topics: Topics,
        reading: Reading,
        forms: tuple[PublishTab, SettingsTab],
        histories: Histories,
    ) -> None:
        self._histories = histories
        self._parts = parts
        self._topics = topics
        self._reading = reading
        self._messages = MessageTab(parts, reading)
        self._publish, self._settings = forms

    def add(self, routes: Blueprint) -> None:
        """Add the routes."""
        routes.get("/console/topics/<topic>")(self.topic)

    @page(
        choice("tab", TABS, "Which tab."),
        *SELECTION,
        choice("view", VIEWS, "How values are shown."),
        number("stored", "How many messages were stored, which the page says."),
        choice("with", FORMATS, "Which format is chosen."),
    )
    def topic(self, topic: str) -> Response:
        """Answer one of the tabs of a topic's page."""
        principal, name = self._parts.principal(), self._parts.topic_name(topic)
        self._parts.access.demand(principal, name, Right.VIEW)
        query = Query(request.environ)
        tab = query.choice("tab", TABS, TABS[0])
        query.choice("view", VIEWS, VIEWS[0])  # refused on any tab, if there is no such one
        data = {
            "topic": name.local,
            "tab": tab,
            "tabs": TABS,
            "may": {
                right.value: self._parts.may(principal, name, right)
                for right in (Right.PUBLISH, Right.SUBSCRIBE, Right.MANAGE, Right.DELETE)
            },
        }
        stats = self._stats(name)
        data |= self._charts(name, stats)
        if tab == "publish":
            data |= self._publish.data(name, query)
        elif tab == "messages":
            data |= self._messages.data(principal, name, stats, query)
        elif tab == "groups":
            data |= _groups(principal, name, stats)
        else:
            data |= self._settings.data(principal, name, stats)
        return self._parts.pages.answer(f"topic_{tab}.html", data)

    def _stats(self, name: TopicName) -> TopicStats | None:
        """Return what the store tells of a topic; raise TopicNotFoundError."""
        try:
            return self._topics.described(name)
        except (NotSupportedError, NotAllowedError):
            self._reading.partitions(name)
            return None

    def _charts(self, name: TopicName, stats: TopicStats | None) -> dict[str, Any]:
        """Return the charts of what a topic holds, which is noted."""
        now = self._histories.now_ms()
        if stats is None:
            return {"charts": [], "histories": {}, "now": now}
        samples = self._histories.note_topic(stats)
        return {
            "charts": [charts.chart(kind, samples, now) for kind in ("rate", "lag")],
            "histories": {name.local: charts.told(samples)},
            "now": now,
        }


def _groups(principal: Principal, name: TopicName, stats: TopicStats | None) -> dict[str, Any]:
    url = f"{root(request.environ)}/topics/{commands.segment(name.local)}/groups"
    found: list[Group] = [] if stats is None else grouped(stats.subscriptions)
    return {
        "groups": [
            {"group": group.name, "lag": group.backlog, "members": group.consumers}
            for group in found
            if group.durable
        ],
        "note": UNTOLD if stats is None else "",
        "commands": [commands.curl(principal, url), commands.router("groups", "list", name.local)],
    }
