"""The page of one topic: publishing, its messages, its groups, what it is."""

from __future__ import annotations

from typing import Any, Final
from urllib.parse import quote

from flask import Blueprint, Response, request

from router.errors import BadRequestError, NotAllowedError, NotSupportedError
from router.model import Principal, TopicName, TopicStats
from router.quoting import quoted
from router.services.groups import Group, grouped
from router.services.manage import Topics
from router.services.publish import Published, Publisher
from router.services.read import Reading
from router.waiting import Steps, finish
from router.web import bodies
from router.web.access import Right
from router.web.addresses import root
from router.web.console import commands, shown
from router.web.console.described import action, page
from router.web.console.fields import Fields
from router.web.console.message_tab import UNTOLD, VIEWS, MessageTab
from router.web.console.parts import Parts
from router.web.console.selection import SELECTION
from router.web.openapi.description import choice, number
from router.web.parameters import Query

TABS: Final = ("publish", "messages", "groups", "settings")
FORMATS: Final = {
    "Text": "text/plain",
    "JSON": "application/json",
    "Cambria": "application/cambria",
}
LINE_CHARACTERS: Final = 20_000
"""Of a message that is repeated in a command."""
MOST_STORED: Final = 1_000_000


class TopicPageViews:
    """The views of `/console/topics/<topic>`."""

    def __init__(
        self,
        parts: Parts,
        topics: Topics,
        reading: Reading,
        publishing: tuple[bodies.BodyReader, Publisher],
    ) -> None:
        self._parts = parts
        self._topics = topics
        self._reading = reading
        self._messages = MessageTab(parts, reading)
        self._reader, self._publisher = publishing

    def add(self, routes: Blueprint) -> None:
        """Add the routes."""
        routes.get("/console/topics/<topic>")(self.topic)
        routes.post("/console/topics/<topic>/publish")(self.publish)

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
        if tab == "publish":
            data |= self._publishing(query)
        elif tab == "messages":
            data |= self._messages.data(principal, name, stats, query)
        elif tab == "groups":
            data |= _groups(principal, name, stats)
        else:
            data |= self._settings(principal, name, stats)
        return self._parts.pages.answer(f"topic_{tab}.html", data)

    @action(
        optional=("format", "key", "message"),
        fails=(
            "bad-framing",
            "bad-json",
            "message-too-large",
            "publish-refused",
            "disk-full",
            "topic-terminated",
            "topic-held",
            "quota-exceeded",
            "partial-publish",
            "outcome-unknown",
        ),
    )
    def publish(self, topic: str) -> Response:
        """Store what a form holds."""
        principal, name = self._parts.principal(), self._parts.topic_name(topic)
        self._parts.access.demand(principal, name, Right.PUBLISH)
        fields = Fields(request.environ)
        chosen, key, message = (fields.text(field, "") for field in ("format", "key", "message"))
        if chosen not in FORMATS:
            known = ", ".join(FORMATS)
            raise BadRequestError(f"format: expected one of {known}, not {quoted(chosen, 40)}.")
        body = bodies.Body(FORMATS[chosen], "", message.encode(), key.encode() or None)
        count = finish(self._published(principal, name, body)).count
        data = {
            "stored": count,
            "status": _stored(count),
            "commands": _publishing(principal, name, (chosen, key, message)),
        }
        path = f"/console/topics/{commands.segment(name.local)}"
        return self._parts.pages.done(data, path, stored=str(count), **{"with": chosen})

    def _published(
        self, principal: Principal, name: TopicName, body: bodies.Body
    ) -> Steps[Published]:
        messages, reserved = yield from self._reader.messages(body)
        with reserved:
            return (yield from self._publisher.publishing(name, messages, principal, None))

    def _stats(self, name: TopicName) -> TopicStats | None:
        """Return what the store tells of a topic; raise TopicNotFoundError."""
        try:
            return self._topics.described(name)
        except (NotSupportedError, NotAllowedError):
            self._reading.partitions(name)
            return None

    def _publishing(self, query: Query) -> dict[str, Any]:
        count = query.number("stored", -1, MOST_STORED)
        return {
            "formats": list(FORMATS),
            "format": query.choice("with", tuple(FORMATS), "Text"),
            "status": "" if count < 0 else _stored(count),
        }

    def _settings(
        self, principal: Principal, name: TopicName, stats: TopicStats | None
    ) -> dict[str, Any]:
        url = f"{root(request.environ)}/topics/{commands.segment(name.local)}"
        data: dict[str, Any] = {
            "rows": {},
            "note": UNTOLD,
            "commands": [
                commands.curl(principal, url),
                commands.curl(principal, url, "-X", "DELETE"),
                commands.router("topics", "delete", name.local),
            ],
        }
        if stats is None:
            return data
        policies = stats.info.policies
        rows = {
            "Full name": str(name),
            "Partitions": max(1, stats.info.partitions),
            "Messages": sum(part.messages for part in stats.partitions),
            "Size": shown.size(sum(part.bytes for part in stats.partitions)),
            "Retention": _bound(policies.retention_ms, "ms"),
            "Retention by size": _bound(policies.retention_bytes, "bytes"),
            "Backlog quota": _bound(policies.backlog_bytes, "bytes"),
            "Created": shown.at(stats.info.created_ms) if stats.info.created_ms else "unknown",
        }
        return data | {"rows": rows, "note": ""}


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


def _stored(count: int) -> str:
    return f"{count} message stored" if count == 1 else f"{count} messages stored"


def _bound(value: int | None, unit: str) -> str:
    if value is None:
        return "as settings say"
    return "no bound" if value < 0 else f"{value} {unit}"


def _publishing(principal: Principal, name: TopicName, sent: tuple[str, str, str]) -> list[str]:
    chosen, key, message = sent
    if len(message) > LINE_CHARACTERS:
        return []
    query = f"?partitionKey={quote(key, safe='')}" if key else ""
    url = f"{root(request.environ)}/events/{commands.segment(name.local)}{query}"
    # --data would read a file for a text that begins with @.
    kind = ("-H", f"Content-Type: {FORMATS[chosen]}", "--data-raw", message)
    lines = [commands.curl(principal, url, *kind)]
    if chosen == "Text":
        keyed = ["--key", key] if key else []
        lines.append(commands.piped(message, ["pub", name.local, *keyed]))
    return lines
