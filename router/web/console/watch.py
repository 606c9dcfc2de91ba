"""The page that watches several topics by a pattern, and the one stream that it follows."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Final
from urllib.parse import urlencode

import orjson
from flask import Response, request

from router.errors import (
    BadReadOptionError,
    BadRequestError,
    NotAllowedError,
    NotSupportedError,
    TopicNotFoundError,
)
from router.model import Principal, Stored, TopicName
from router.services.consume import PollMailbox
from router.services.pages import before
from router.services.read import StartPosition, placed
from router.services.scan import MessageFilter, Places, Start, end_of
from router.services.watch import TopicFeeds, watch
from router.web import bodies, offload, streams
from router.web.access import Right
from router.web.console.context import PageViews, words
from router.web.console.filters import Filter
from router.web.console.masking import Mask, VisibleMessage
from router.web.console.message_tab import SHOWN_MESSAGES, error_of, line_of, masked_line
from router.web.console.pages import FAILS, SIGN_IN, base, page, wants_problem
from router.web.dmaap.stream import failure
from router.web.openapi.description import EVENTS, ReplyDescription, operation, text
from router.web.pulsar_rest import ids
from router.web.requests import Query

MAX_TOPICS: Final = 32
"""Topics of one tail."""
MAX_PARTITIONS: Final = 100
"""Partitions of all of them: each event says where all stand."""
MAX_PATTERN: Final = 250
_PARAMETERS: Final = (
    text("topics", "Names of topics, with `*` for any characters, and commas between."),
)


class WatchViews(PageViews):
    """The views of `/console/watch`."""

    @page("GET /console/watch", *_PARAMETERS, text("filter", "As on the page of a topic."))
    def watch(self) -> Response:
        """Answer the last messages of the topics that match, and where they go on."""
        principal, query = self._context.principal(), Query(request.environ)
        pattern, written = words(query, "topics").strip(), words(query, "filter")
        error, chosen, topics = None, Filter.read({}), list[TopicName]()
        try:
            topics = self._topics(principal, pattern)
            chosen = Filter.read({"filter": written})
        except BadReadOptionError as failed:
            if wants_problem(request.environ):
                raise
            topics, error = [], error_of(failed)
        lines, places = list[tuple[TopicName, VisibleMessage]](), dict[TopicName, Places]()
        note = _too_many(topics)
        for name in () if note else topics:
            mask = self._context.mask(principal, name)
            matches, limit = mask.matching(chosen.matches), SHOWN_MESSAGES // len(topics) + 1
            found, places[name] = self._last(name, limit, matches)
            lines += [(name, mask.shown(stored)) for stored in found]
        note = note or _too_many_partitions(places)
        lines.sort(key=lambda one: one[1].stored.publish_time)
        shown = [
            line_of(one, "text") | {"topic": name.local} for name, one in lines[-SHOWN_MESSAGES:]
        ]
        mark = "" if note or not places else _write(places)
        query_of_stream = urlencode({"topics": pattern, "last_event_id": mark})
        data = {
            "pattern": pattern,
            "filter": written,
            "topics": [name.local for name in topics],
            "messages": shown,
            "stream": f"{base()}/console/watch/stream?{query_of_stream}" if mark else "",
            "note": note or ("" if error else _described(pattern, topics)),
            "error": error,
            "commands": [],
        }
        return self._context.pages.answer("watch.html", data)

    @operation(
        "GET /console/watch/stream",
        *_PARAMETERS,
        text("last_event_id", "The same as the header `Last-Event-ID`."),
        answers={
            200: ReplyDescription("Messages as server-sent events.", {streams.MIMETYPE: EVENTS}),
            **SIGN_IN,
        },
        fails=(*FAILS, "read-failed", "too-many-requests"),
    )
    def watch_stream(self) -> Response:
        """Answer the messages of the topics that match as they come."""
        environ, query = request.environ, Query(request.environ)
        principal = self._context.principal()
        topics = self._topics(principal, words(query, "topics").strip())
        marks = _read(streams.last_event(environ, query) or "")
        starts = {name: self._starts(name, marks.get(name.local)) for name in topics}
        if note := _too_many(topics) or _too_many_partitions(starts):
            raise BadReadOptionError(f"topics: {note}")
        if not starts:
            raise TopicNotFoundError("No topic matches.")
        masks = {name: self._context.mask(principal, name) for name in starts}

        def begin(
            mailbox: PollMailbox, client: offload.Watch
        ) -> tuple[streams.StreamSource, streams.EventFormat]:
            stream = watch(self._services.reading, starts, mailbox, client)
            places = _Places(stream.feed, masks)
            return stream, streams.EventFormat(places, places.line, failure)

        return streams.answer(environ, begin, self._services.streams.write_timeout)

    def _topics(self, principal: Principal, pattern: str) -> list[TopicName]:
        """Return the topics that match and that the principal may browse."""
        if not pattern:
            return []
        matches = _matcher(pattern)
        visible = self._context.visible(principal, self._services.topics)
        return [
            info.topic
            for info in visible
            if matches(info.topic.local) and self._context.may(principal, info.topic, Right.BROWSE)
        ]

    def _last(
        self, name: TopicName, limit: int, matches: MessageFilter
    ) -> tuple[tuple[Stored, ...], Places]:
        """Return the last messages of a topic, and where it goes on behind them."""
        try:
            stats = self._services.topics.described(name)
        except (NotSupportedError, NotAllowedError):
            partitions = self._services.reading.partitions(name)
            return (), dict.fromkeys(partitions, Start.LATEST)
        ends = end_of(stats)
        found = before(self._services.reading, stats, ends, limit, matches)
        return found.messages, ends | found.end

    def _starts(self, name: TopicName, marks: list[StartPosition] | None) -> Places:
        """Return where a topic goes on; one that came since begins with its first message."""
        partitions = self._services.reading.partitions(name)
        starts: Places = dict.fromkeys(partitions, Start.EARLIEST)
        for partition, mark in zip(partitions, marks or [], strict=False):
            starts[partition] = placed(mark, partition)
        return starts


@dataclass(frozen=True, slots=True)
class _Places:
    """How events say where to go on in all topics, and which topic they are of."""

    feeds: TopicFeeds
    masks: Mapping[TopicName, Mask]

    def begin(self) -> str:
        return _write({name: feed.positions for name, feed in self.feeds.feeds.items()})

    def after(self, stored: Stored) -> str:
        self.feeds.feeds[self.feeds.topic].had(stored)
        return self.begin()

    def line(self, stored: Stored) -> bytes:
        topic = self.feeds.topic
        one = self.masks[topic].shown(stored)
        line = masked_line(one) if one.masked else bodies.line(stored)
        return orjson.dumps({"topic": topic.local} | line)


def _matcher(pattern: str) -> Callable[[str], bool]:
    """Return what says whether a name fits; raise BadReadOptionError."""
    if len(pattern) > MAX_PATTERN:
        raise BadReadOptionError(f"topics: expected at most {MAX_PATTERN} characters.")
    # One star is as good as several, and several cost more.
    parts = [re.sub(r"\*+", "*", part.strip()) for part in pattern.split(",") if part.strip()]
    if any(part.count("*") > 4 for part in parts):
        raise BadReadOptionError("topics: expected at most 4 stars in a name.")
    expressions = [re.compile(re.escape(part).replace(r"\*", ".*")) for part in parts]
    return lambda name: any(one.fullmatch(name) for one in expressions)


def _write(places: Mapping[TopicName, Mapping[int, StartPosition]]) -> str:
    """Return where to go on in each topic, as a text."""
    return ";".join(
        f"{name.local}:{ids.write_marks([of[partition] for partition in sorted(of)])}"
        for name, of in places.items()
    )


def _read(written: str) -> dict[str, list[StartPosition]]:
    """Return where to go on, by the names of topics; raise BadReadOptionError."""
    found = {}
    for part in written.split(";", MAX_TOPICS) if written else ():
        name, _, marks = part.partition(":")
        try:
            found[name] = ids.read_marks(marks)
        except BadRequestError as error:
            raise BadReadOptionError(f"last_event_id: {error}") from error
    return found


def _too_many(topics: list[TopicName]) -> str:
    if len(topics) <= MAX_TOPICS:
        return ""
    return f"{len(topics):,} topics match; at most {MAX_TOPICS} are watched at once."


def _too_many_partitions(places: Mapping[TopicName, Places]) -> str:
    count = sum(map(len, places.values()))
    if count <= MAX_PARTITIONS:
        return ""
    return f"They have {count:,} partitions; at most {MAX_PARTITIONS} are watched at once."


def _described(pattern: str, topics: list[TopicName]) -> str:
    if not pattern:
        return "Write names of topics, with * for any characters: orders.*, payments"
    if not topics:
        return "No topic matches that you may read."
    return f"{len(topics)} {'topic' if len(topics) == 1 else 'topics'}: " + ", ".join(
        name.local for name in topics
    )
