"""The page of all topics: finding, creating, deleting."""

from __future__ import annotations

from typing import Any, Final

from flask import Blueprint, Response, request

from router.errors import BadRequestError, NotAllowedError, NotSupportedError, TopicNotFoundError
from router.model import Policies, Principal, TopicInfo
from router.services.history import Histories
from router.services.manage import NewTopic, Topics
from router.services.rates import Rates
from router.services.rights import Rights, TopicRights
from router.web.access import Right
from router.web.addresses import root
from router.web.console import charts, commands
from router.web.console.described import action, page
from router.web.console.fields import Fields
from router.web.console.parts import Parts, words
from router.web.console.topic_settings import creating, read_time, write_time
from router.web.openapi.description import choice, number, text
from router.web.parameters import Query

PAGE_TOPICS: Final = 50
"""Topics of one page: each is described by the store."""
MOST_PAGES: Final = 1_000_000


class TopicListViews:
    """The views of `/console/topics`."""

    def __init__(
        self, parts: Parts, topics: Topics, rights: Rights, looks: tuple[Rates, Histories]
    ) -> None:
        self._parts = parts
        self._rates, self._histories = looks
        self._topics = topics
        self._rights = rights

    def add(self, routes: Blueprint) -> None:
        """Add the routes."""
        routes.get("/console")(self.listed)
        routes.get("/console/topics", endpoint="topics")(self.listed)
        routes.post("/console/topics")(self.create)
        routes.post("/console/topics/<topic>/delete")(self.delete)

    @page(
        text("q", "Topics whose names hold this."),
        number("page", "Which page, from 1 on."),
        choice("dialog", ("create",), "Which dialog is open."),
    )
    def listed(self) -> Response:
        """Answer the topics that the caller may see, those with a text in their names."""
        principal, query = self._parts.principal(), Query(request.environ)
        search, page = words(query, "q"), query.number("page", 1, MOST_PAGES)
        able = self._topics.capabilities()
        visible = [] if able.topics else self._parts.visible(principal, self._topics)
        found = [info for info in visible if search.lower() in info.topic.local.lower()]
        first = (max(page, 1) - 1) * PAGE_TOPICS
        histories = dict[str, list[list[int]]]()
        data = {
            "search": search,
            "page": max(page, 1),
            "pages": max(1, -(-len(found) // PAGE_TOPICS)),
            "found": len(found),
            "topics": [self._row(info, histories) for info in found[first : first + PAGE_TOPICS]],
            "histories": histories,
            "now": self._histories.now_ms(),
            "dialog": query.choice("dialog", ("create",), ""),
            "cannot": {"topics": able.topics, "policies": able.topics or able.policies},
            "commands": _listing(principal),
        }
        return self._parts.pages.answer("topics.html", data)

    @action("name", optional=("partitions", "retention"), fails=("topic-exists", "conflict"))
    def create(self) -> Response:
        """Create a topic, which is then its creator's."""
        principal, fields = self._parts.principal(), Fields(request.environ)
        local = fields.text("name").strip()
        # A name in a form is as it is: nothing in it is an escape.
        topic = self._parts.topic_name(local.replace("%", "%25"))
        retention = read_time("retention", fields.text("retention", ""))
        new = NewTopic(topic, fields.number("partitions"), Policies(retention))
        self._parts.access.demand(principal, topic, Right.CREATE)
        self._topics.check(new)
        made = self._rights.create(
            topic,
            TopicRights(principal.name),
            lambda: self._topics.exists(topic),
            lambda: self._topics.create(new),
        )
        data = {
            "topic": topic.local,
            "created": made,
            "commands": creating(principal, topic, new.partitions or 0, retention),
        }
        return self._parts.pages.done(data, f"/console/topics/{commands.segment(topic.local)}")

    @action("confirm", fails=("conflict",))
    def delete(self, topic: str) -> Response:
        """Delete a topic whose name was written once more."""
        principal, name = self._parts.principal(), self._parts.topic_name(topic)
        self._parts.access.demand(principal, name, Right.DELETE)
        if Fields(request.environ).text("confirm", "").strip() != name.local:
            raise BadRequestError(f"confirm: write {name.local} to delete the topic.")
        self._rights.delete(name, lambda: self._topics.delete(name))
        return self._parts.pages.done({"topic": name.local, "deleted": True}, "/console/topics")

    def _row(self, info: TopicInfo, histories: dict[str, list[list[int]]]) -> dict[str, Any]:
        """Return what the table says of a topic, and note it; None: the store does not tell."""
        row: dict[str, Any] = {
            "name": info.topic.local,
            "partitions": max(1, info.partitions),
            "retention": write_time(info.policies.retention_ms),
            "rate": None,
            "messages": None,
            "bytes": None,
            "groups": None,
            "chart": None,
        }
        try:
            stats = self._topics.described(info.topic)
        except (NotSupportedError, NotAllowedError, TopicNotFoundError):
            return row  # the last: it was deleted since the list was made
        messages = sum(partition.messages for partition in stats.partitions)
        samples = self._histories.note_topic(stats)
        histories[info.topic.local] = charts.told(samples, charts.MAX_ROW_SAMPLES)
        return row | {
            "messages": messages,
            "rate": self._rates.look(info.topic, messages),
            "chart": charts.chart("rate", samples, self._histories.now_ms()),
            "bytes": sum(partition.bytes for partition in stats.partitions),
            "groups": len({group.name for group in stats.subscriptions if group.durable}),
        }


def _listing(principal: Principal) -> list[str]:
    url = f"{root(request.environ)}/topics"
    return [commands.curl(principal, url), commands.router("topics", "list")]
