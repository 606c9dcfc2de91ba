"""PIP 64's reading of a partition, and the streams of a partition and of a whole topic."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import orjson
from flask import Blueprint, Response, request

from router.backends import Start
from router.errors import BadReadOptionError, BadRequestError, RouterError
from router.model import NOT_PARTITIONED, Position, Stored, TopicName
from router.services.consume import PollMailbox
from router.services.groups import moment
from router.services.read import After, Feed, ReadBounds, Reading, Whence
from router.settings import Settings
from router.web import forms, offload, streams
from router.web.access import Right
from router.web.openapi.description import (
    EVENTS,
    JSON,
    Reply,
    operation,
    text,
)
from router.web.openapi.description import flag as flag_of
from router.web.openapi.description import moment as moment_of
from router.web.openapi.names import ID, PLACE
from router.web.parameters import BYTES, MILLISECONDS, Query, number
from router.web.pulsar_rest import ids, paths, schemas, shapes
from router.web.pulsar_rest.errors import number_of
from router.web.pulsar_rest.produce import Parts, messages_answer
from router.web.pulsar_rest.values import Shown

if TYPE_CHECKING:
    from _typeshed.wsgi import WSGIEnvironment


@dataclass(frozen=True, slots=True)
class FetchDefaults:
    """What a reading request takes when it does not say, and at most; times in seconds."""

    timeout: float
    max_timeout: float
    limit: int
    max_bytes: int
    write_timeout: float

    @classmethod
    def of(cls, settings: Settings) -> FetchDefaults:
        """Read them."""
        return cls(
            settings.seconds("consume.timeout"),
            settings.seconds("consume.max_timeout"),
            settings.number("consume.limit"),
            settings.number("consume.max_bytes"),
            settings.seconds("stream.write_timeout"),
        )

    def bounds(self, query: Query) -> ReadBounds:
        """Return what a request asks for; raise BadReadOptionError."""
        default, most = round(self.timeout * 1000), round(self.max_timeout * 1000)
        limit = query.number("max_messages", self.limit, self.limit)
        max_bytes = query.number("max_bytes", self.max_bytes, self.max_bytes, BYTES)
        return ReadBounds(
            query.number("timeout", default, most, MILLISECONDS) / 1000,
            limit or self.limit,
            max_bytes or self.max_bytes,
        )


class Places:
    """How events say where to go on, for one partition or several of a feed."""

    def __init__(self, feed: Feed, *, single: bool) -> None:
        self._feed = feed
        self._single = single
        self._partitions = sorted(feed.whence)

    def begin(self) -> str:
        """Return where the stream begins."""
        return ids.write_marks([self._feed.whence[partition] for partition in self._partitions])

    def behind(self, stored: Stored) -> str:
        """Return where to go on behind a message."""
        self._feed.had(stored)
        return ids.write(stored.position) if self._single else self.begin()


class TopicEvents:
    """Events of a topic whose messages are shown by their schemas."""

    def __init__(self, places: Places, shown: Shown) -> None:
        self._places = places
        self._shown = shown

    def place(self) -> str:
        """Return where the stream begins."""
        return self._places.begin()

    def event(self, stored: Stored) -> tuple[str, bytes]:
        """Return where to go on behind a message, and the message."""
        return self._places.behind(stored), self._shown.line(stored)

    def behind(self, stored: Stored) -> str:
        """Return where to go on behind a message that is not sent."""
        return self._places.behind(stored)

    def failure(self, error: RouterError) -> bytes:
        """Return a failure."""
        return failure(error)


class ReadViews:
    """The views that read without a subscription."""

    def __init__(self, parts: Parts, reading: Reading, defaults: FetchDefaults) -> None:
        self._parts = parts
        self._reading = reading
        self._defaults = defaults

    def add(self, routes: Blueprint) -> None:
        """Add the routes."""
        paths.route(routes, "GET", "/partitions/<partition>/messages", self.read_partition)
        paths.route(routes, "GET", "/messages", self.stream_topic)

    @operation(
        *shapes.FETCHING,
        *shapes.RESUMING,
        text("start", "A message's id, which is included, `earliest`, `latest` or a time.", PLACE),
        text("after", "A message's id, which is not included.", f"^{ID}$"),
        flag_of("include_schema", "Add the schemas that the messages were written by."),
        answers={
            200: Reply("Messages.", {JSON: shapes.MESSAGES, streams.MIMETYPE: EVENTS}),
        },
        fails=(*shapes.READ_FAILS, "message-over-max-bytes"),
        refuses={422: shapes.NUMBERED},
    )
    def read_partition(
        self, domain: str, tenant: str, namespace: str, topic: str, partition: str
    ) -> Response:
        """Answer messages of a partition from a position on, once or as a stream."""
        environ = request.environ
        name = self._allowed(paths.topic_name(domain, tenant, namespace, topic))
        query = Query(environ)
        bounds, shown = self._defaults.bounds(query), self._shown(name, query)
        with_schemas = query.flag("include_schema", default=False)
        found = self._reading.partition(name, number("partition", partition))
        begin = start(query, found)
        if streams.wanted(environ):
            starts = resumed(environ, query, [found]) or {found: begin}
            return self._stream(shown, starts, query, single=True)
        if environ["REQUEST_METHOD"] == "HEAD":
            return forms.answer({})
        with self._parts.tracing.receiving(environ, name.local, "") as operation:
            messages = held(
                environ, lambda caller: self._reading.read(name, found, begin, bounds, caller)
            )
            operation.received(messages)
        told: dict[str, object] = {"messages": [shown.message(stored) for stored in messages]}
        if with_schemas:
            told["schemas"] = shown.schemas()
        return messages_answer(self._parts.unsent, told)

    @operation(
        shapes.STREAM,
        *shapes.RESUMING,
        shapes.SCHEMA_TYPE,
        moment_of("start", "Where the stream begins; the earliest if it does not say."),
        text("after", "Refused: a message is in one partition."),
        answers={200: Reply("Messages as server-sent events.", {streams.MIMETYPE: EVENTS})},
        fails=shapes.READ_FAILS,
        refuses={422: shapes.NUMBERED},
    )
    def stream_topic(self, domain: str, tenant: str, namespace: str, topic: str) -> Response:
        """Answer the messages of all partitions as a stream."""
        environ = request.environ
        name = self._allowed(paths.topic_name(domain, tenant, namespace, topic))
        if not streams.wanted(environ):
            raise BadReadOptionError(
                "A whole topic is read as a stream (?stream), or by partition."
            )
        query = Query(environ)
        shown, given = self._shown(name, query), start(query, None)
        partitions = streamed(self._reading.partitions(name))
        if isinstance(given, Position | After):
            raise BadReadOptionError("start: a message is in one partition; read that one.")
        begin = dict.fromkeys(partitions, given)
        starts = resumed(environ, query, partitions) or begin
        # A topic of one partition may have several when its reader comes back.
        return self._stream(shown, starts, query, single=partitions == [NOT_PARTITIONED])

    def _allowed(self, topic: TopicName) -> TopicName:
        access = self._parts.access
        access.demand(access.principal(request.environ), topic, Right.SUBSCRIBE)
        return topic

    def _shown(self, topic: TopicName, query: Query) -> Shown:
        text = query.text("schema_type")
        named = None if text is None else schemas.named(text)
        return Shown(topic, self._parts.schemas, named)

    def _stream(
        self, shown: Shown, starts: Mapping[int, Whence], query: Query, *, single: bool
    ) -> Response:
        pace = streams.pace(query)

        def begin(
            mailbox: PollMailbox, watch: offload.Watch
        ) -> tuple[streams.Source, streams.Words]:
            stream = self._reading.stream(shown.topic, starts, mailbox, watch)
            places = Places(stream.feed, single=single)
            return stream, TopicEvents(places, shown)

        return streams.answer(request.environ, begin, self._defaults.write_timeout, pace)


def failure(error: RouterError) -> bytes:
    """Return a failure as an `error` event has it."""
    return orjson.dumps({"error_code": number_of(error), "message": str(error)})


def held(
    environ: WSGIEnvironment,
    take: Callable[[tuple[PollMailbox, offload.Watch]], Sequence[Stored]],
) -> Sequence[Stored]:
    """Have messages taken while the client is watched: when it leaves, the wait ends."""
    mailbox = PollMailbox()
    watch = offload.Watch(environ.get("gunicorn.socket"), mailbox.wake)
    try:
        return take((mailbox, watch))
    finally:
        watch.close()


def start(query: Query, partition: int | None) -> Whence:
    """Read where reading begins: `start`, which includes a message, or `after`, which does not.

    The earliest that is kept where neither is there. Raises BadReadOptionError.
    """
    given, after = query.text("start"), query.text("after")
    if given is not None and after is not None:
        raise BadReadOptionError("start and after: one of them.")
    if after is not None:
        return After(_own(after, partition))
    if given is None:
        return Start.EARLIEST
    try:
        return moment("start", given)
    except BadReadOptionError as error:
        try:
            return _own(given, partition)
        except BadRequestError:
            raise BadReadOptionError(f"{str(error)[:-1]}, or a message's id.") from error


def streamed(partitions: list[int]) -> list[int]:
    """Return the partitions of one stream; raise BadReadOptionError if a place in all is too long.

    A client that came back with such a place would be refused.
    """
    if len(partitions) > ids.MOST_MARKS:
        raise BadReadOptionError(
            f"A stream has at most {ids.MOST_MARKS} partitions, the topic {len(partitions)}."
        )
    return partitions


def resumed(
    environ: WSGIEnvironment, query: Query, partitions: Sequence[int]
) -> dict[int, Whence] | None:
    """Return where a client that comes back goes on, None: it does not come back.

    Partitions that came since begin with their first message. Raises BadRequestError.
    """
    last = streams.last_event(environ, query)
    if last is None:
        return None
    marks = ids.read_marks(last)
    if len(marks) > len(partitions):
        raise BadRequestError(f"Last-Event-ID is of {len(marks)} partitions, of {len(partitions)}.")
    if len(marks) < len(partitions) and isinstance(marks[0], After) and "." not in last:
        raise BadRequestError("Last-Event-ID is of one partition; this stream has several.")
    found: dict[int, Whence] = dict.fromkeys(partitions, Start.EARLIEST)
    for partition, mark in zip(partitions, marks, strict=False):
        found[partition] = _placed(mark, partition)
    return found


def _placed(mark: Whence, partition: int) -> Whence:
    if isinstance(mark, After):
        return After(replace(mark.position, partition=partition))
    return replace(mark, partition=partition) if isinstance(mark, Position) else mark


def _own(text: str, partition: int | None) -> Position:
    """Read a message's id; raise BadReadOptionError for one of another partition."""
    position = ids.read(text)
    if partition is None:
        return position
    named = max(position.partition, 0)
    if position.partition != NOT_PARTITIONED and named != max(partition, 0):
        raise BadReadOptionError(f"The message is in partition {named}.")
    return replace(position, partition=partition)
