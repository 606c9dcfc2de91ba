"""PIP 64's reading of a partition, and the streams of a partition and of a whole topic."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple
from wsgiref.types import WSGIEnvironment

import orjson
from flask import Response, request

from router.backends import Start
from router.errors import BadReadOptionError, BadRequestError, RouterError
from router.model import NOT_PARTITIONED, Position, Schema, Stored, Subscription, TopicName
from router.services.consume import PollMailbox
from router.services.groups import moment
from router.services.read import After, MessageFeed, ReadBounds, StartPosition, TopicReader, placed
from router.settings.options import SettingsOptions, from_setting
from router.web import forms, offload, streams
from router.web.front import DirectAnswer
from router.web.openapi import description as api
from router.web.pulsar_rest import ids, schemas, shapes
from router.web.pulsar_rest.errors import number_of
from router.web.pulsar_rest.produce import RestContext
from router.web.pulsar_rest.values import MessageFormatter
from router.web.requests import BYTES, MILLISECONDS, Query, number


@dataclass(frozen=True, slots=True)
class FetchDefaults(SettingsOptions):
    """What a reading request takes when it does not say, and at most; times in seconds."""

    timeout: float = from_setting("consume.timeout")
    max_timeout: float = from_setting("consume.max_timeout")
    limit: int = from_setting("consume.limit")
    max_bytes: int = from_setting("consume.max_bytes")
    write_timeout: float = from_setting("stream.write_timeout")

    def bounds(self, query: Query) -> ReadBounds:
        """Return what a request asks for; raise BadReadOptionError."""
        default, max_timeout = round(self.timeout * 1000), round(self.max_timeout * 1000)
        limit = query.number("max_messages", self.limit, self.limit)
        max_bytes = query.number("max_bytes", self.max_bytes, self.max_bytes, BYTES)
        return ReadBounds(
            query.number("timeout", default, max_timeout, MILLISECONDS) / 1000,
            limit or self.limit,
            max_bytes or self.max_bytes,
        )


class Places:
    """How events say where to go on, for one partition or several of a feed."""

    def __init__(self, feed: MessageFeed, *, single: bool) -> None:
        self._feed = feed
        self._single = single
        self._partitions = sorted(feed.positions)

    def begin(self) -> str:
        """Return where the stream begins."""
        return ids.write_marks([self._feed.positions[partition] for partition in self._partitions])

    def after(self, stored: Stored) -> str:
        """Return where to go on behind a message."""
        self._feed.had(stored)
        return ids.write(stored.position) if self._single else self.begin()


class ReadViews:
    """The views that read without a subscription."""

    def __init__(self, context: RestContext, reading: TopicReader, defaults: FetchDefaults) -> None:
        self._context = context
        self._reading = reading
        self._defaults = defaults

    @api.operation(
        "GET <topic>/partitions/<partition>/messages",
        *shapes.FETCHING,
        *shapes.RESUMING,
        api.text(
            "start", "A message's id, which is included, `earliest`, `latest` or a time.", api.PLACE
        ),
        api.text(
            "after", "A message's id, which is not included; `start` is ignored.", f"^({api.ID})?$"
        ),
        api.flag("include_schema", "Add the schemas that the messages were written by."),
        answers=shapes.ANSWERED,
        fails=(*shapes.READ_FAILS, "message-over-max-bytes"),
        refuses=shapes.NUMBERED,
    )
    def read_partition(self, partition: str, **path: str) -> Response:
        """Answer messages of a partition from a position on, once or as a stream."""
        environ = request.environ
        name = self._context.readable(path)
        query = Query(environ)
        bounds, formatter = self._defaults.bounds(query), self._formatter(name, query)
        with_schemas = query.flag("include_schema", default=False)
        found = self._reading.partition(name, number("partition", partition))
        begin = start(query, found)
        if streams.is_requested(environ, query):
            starts = resumed(environ, query, [found]) or {found: begin}
            return self._stream(formatter, starts, query, single=True)
        if environ["REQUEST_METHOD"] == "HEAD":
            return forms.answer({})
        mailbox = PollMailbox()
        watch = offload.Watch(environ.get("gunicorn.socket"), mailbox.wake)
        with self._context.receiving(environ, Subscription(name, "")) as operation:
            try:
                messages = self._reading.read(name, found, begin, bounds, (mailbox, watch))
            finally:
                watch.close()
            if operation is not None:
                operation.received(messages)
        fields = {"messages": [formatter.message(stored) for stored in messages]}
        if with_schemas:
            fields["schemas"] = formatter.schemas()
        return DirectAnswer.unsent(self._context.unsent, orjson.dumps(fields)).response()

    @api.operation(
        "GET <topic>/messages",
        api.required(shapes.STREAM._replace(kind=api.ParameterKind.CHOICE, choices=("true",))),
        *shapes.RESUMING,
        shapes.SCHEMA_TYPE,
        api.moment("start", "Where the stream begins; the earliest if it does not say."),
        api.text("after", "Empty: a message is in one partition.", "^$"),
        answers={
            200: api.ReplyDescription(
                "Messages as server-sent events.", {streams.MIMETYPE: api.EVENTS}
            )
        },
        fails=shapes.READ_FAILS,
        refuses=shapes.NUMBERED,
    )
    def stream_topic(self, **path: str) -> Response:
        """Answer the messages of all partitions as a stream."""
        environ = request.environ
        name = self._context.readable(path)
        query = Query(environ)
        if not streams.is_requested(environ, query):
            raise BadReadOptionError(
                "A whole topic is read as a stream (?stream), or by partition."
            )
        formatter, given = self._formatter(name, query), start(query, None)
        partitions = streamed(self._reading.partitions(name))
        if isinstance(given, Position | After):
            raise BadReadOptionError("start: a message is in one partition; read that one.")
        begin = dict.fromkeys(partitions, given)
        starts = resumed(environ, query, partitions) or begin
        # A topic of one partition may have several when its reader comes back.
        return self._stream(formatter, starts, query, single=partitions == [NOT_PARTITIONED])

    def _formatter(self, topic: TopicName, query: Query) -> MessageFormatter:
        named = named_in(query)
        by = None if named is None else named.schema
        return MessageFormatter(topic, self._context.schemas, by)

    def _stream(
        self,
        formatter: MessageFormatter,
        starts: Mapping[int, StartPosition],
        query: Query,
        *,
        single: bool,
    ) -> Response:
        pace = streams.pace(query)

        def begin(
            mailbox: PollMailbox, watch: offload.Watch
        ) -> tuple[streams.StreamSource, streams.EventFormat]:
            stream = self._reading.stream(formatter.topic, starts, mailbox, watch)
            places = Places(stream.feed, single=single)
            return stream, streams.EventFormat(places, formatter.line, failure)

        return streams.answer(request.environ, begin, self._defaults.write_timeout, pace)


def failure(error: RouterError) -> bytes:
    """Return a failure as an `error` event has it."""
    return orjson.dumps({"error_code": number_of(error), "message": str(error)})


class Named(NamedTuple):
    """What a query says of the schema to read by; None: values without one are texts."""

    schema: Schema | None


def named_in(query: Query) -> Named | None:
    """Return the schema that a query names, None: it names none; raise BadReadOptionError."""
    text = query.text("schema_type") or None
    return None if text is None else Named(schemas.named(text))


def start(query: Query, partition: int | None) -> StartPosition:
    """Read where reading begins: `after` a message, else at `start`, which includes a message.

    The earliest that is kept where neither is there. Raises BadReadOptionError.
    """
    given, after = query.text("start") or None, query.text("after") or None
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
    if len(partitions) > ids.MAX_MARKS:
        raise BadReadOptionError(
            f"A stream has at most {ids.MAX_MARKS} partitions, the topic {len(partitions)}."
        )
    return partitions


def resumed(
    environ: WSGIEnvironment, query: Query, partitions: Sequence[int]
) -> dict[int, StartPosition] | None:
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
    found: dict[int, StartPosition] = dict.fromkeys(partitions, Start.EARLIEST)
    for partition, mark in zip(partitions, marks, strict=False):
        found[partition] = placed(mark, partition)
    return found


def _own(text: str, partition: int | None) -> Position:
    """Read a message's id; raise BadReadOptionError for one of another partition."""
    position = ids.read(text)
    if partition is None:
        return position
    named = max(position.partition, 0)
    if position.partition != NOT_PARTITIONED and named != max(partition, 0):
        raise BadReadOptionError(f"The message is in partition {named}.")
    return replace(position, partition=partition)
