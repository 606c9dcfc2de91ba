"""The page of all topics: finding, creating, deleting."""

from __future__ import annotations

from typing import Any, Final

from flask import Response, request

from router.errors import BadRequestError, NotAllowedError, NotSupportedError, TopicNotFoundError
from router.model import Principal, TopicInfo
from router.model.policies import CLEANUP_POLICIES, Policies
from router.services.history import rate
from router.services.manage import NewTopic
from router.services.rights import TopicRights
from router.web.access import Right
from router.web.console import charts, commands
from router.web.console.context import PageViews, paged, words
from router.web.console.fields import Fields
from router.web.console.pages import CONFIRMED, PAGED, WHOLE_NUMBER, action, page
from router.web.console.topic import CLEANUPS, creating, read_time, write_time
from router.web.openapi.description import NAME, choice, one_of, text
from router.web.requests import Query

PAGE_TOPICS: Final = 50
"""Topics of one page: each is described by the store."""


class TopicListViews(PageViews):
    """The views of `/console/topics`."""

    @page(
        "GET /console/topics",
        text("q", "Topics whose names hold this."),
        PAGED,
        choice("dialog", ("create",), "Which dialog is open."),
    )
    def topics(self) -> Response:
        """Answer the topics that the caller may see, those with a text in their names."""
        principal, query = self._context.principal(), Query(request.environ)
        search = words(query, "q")
        able = self._services.topics.capabilities()
        visible = [] if able.topics else self._context.visible(principal, self._services.topics)
        found = [info for info in visible if search.lower() in info.topic.local.lower()]
        page = paged(query, found, PAGE_TOPICS)
        histories = dict[str, list[list[int]]]()
        data = {
            "search": search,
            **page.data(),
            "topics": [self._row(info, histories) for info in page.rows],
            "histories": histories,
            "now": self._services.histories.now_ms(),
            "dialog": query.choice("dialog", ("create",), ""),
            "cannot": {"topics": able.topics, "policies": able.topics or able.policies},
            "cleanups": CLEANUPS,
            "commands": _listing(principal),
        }
        return self._context.pages.answer("topics.html", data)

    @action(
        "POST /console/topics",
        "name",
        optional=("partitions", "retention", "cleanup"),
        kinds={
            "name": {"type": "string", "pattern": NAME},
            "partitions": WHOLE_NUMBER,
            "cleanup": one_of(["", *CLEANUP_POLICIES]),
        },
        fails=("topic-exists", "conflict"),
    )
    def create(self) -> Response:
        """Create a topic, which is then its creator's."""
        principal, fields = self._context.principal(), Fields(request.environ)
        local = fields.text("name").strip()
        # A name in a form is as it is: nothing in it is an escape.
        topic = self._context.topic_name(local.replace("%", "%25"))
        retention = read_time("retention", fields.text("retention", ""))
        policies = Policies(retention, cleanup_policy=fields.text("cleanup", "") or None)
        new = NewTopic(topic, fields.number("partitions"), policies)
        self._context.access.authorize(principal, topic, Right.CREATE)
        self._services.topics.check(new)
        made = self._services.rights.create(
            topic,
            TopicRights(principal.name),
            lambda: self._services.topics.exists(topic),
            lambda: self._services.topics.create(new),
        )
        data = {
            "topic": topic.local,
            "created": made,
            "commands": creating(principal, topic, new.partitions or 0, policies),
        }
        return self._context.pages.done(data, commands.path("console", "topics", topic.local))

    @action("POST /console/topics/<topic>/delete", "confirm", kinds=CONFIRMED, fails=("conflict",))
    def delete(self, topic: str) -> Response:
        """Delete a topic whose name was written once more."""
        _, name = self._context.authorized(topic, Right.DELETE)
        if Fields(request.environ).text("confirm", "").strip() != name.local:
            raise BadRequestError(f"confirm: write {name.local} to delete the topic.")
        self._services.rights.delete(name, lambda: self._services.topics.delete(name))
        return self._context.pages.done({"topic": name.local, "deleted": True}, "/console/topics")

    def _row(self, info: TopicInfo, histories: dict[str, list[list[int]]]) -> dict[str, Any]:
        """Return what the table says of a topic, and note it; None: the store does not say."""
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
            stats = self._services.topics.described(info.topic)
        except (NotSupportedError, NotAllowedError, TopicNotFoundError):
            return row  # the last: it was deleted since the list was made
        messages = sum(partition.messages for partition in stats.partitions)
        samples, now = self._services.histories.note_topic(stats), self._services.histories.now_ms()
        histories[info.topic.local] = charts.series(samples, charts.MAX_ROW_SAMPLES)
        return row | {
            "messages": messages,
            "rate": rate(samples, now, messages),
            "chart": charts.chart("rate", samples, now),
            "bytes": sum(partition.bytes for partition in stats.partitions),
            "groups": len({group.name for group in stats.subscriptions if group.durable}),
        }


def _listing(principal: Principal) -> list[str]:
    url = commands.url("topics")
    return [commands.curl(principal, url), commands.router("topics", "list")]
