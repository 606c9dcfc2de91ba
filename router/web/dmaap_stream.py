"""`GET /events/{topic}?stream`: all messages of a topic as server-sent events, without a group.

A poll's address with a group and an id stays a poll: a stream acknowledges nothing, so it has no
use for them. Events carry what a line of NDJSON carries, or a CloudEvent.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Final

import orjson
from flask import Blueprint, Response, request

from router.backends import Start
from router.errors import RouterError
from router.model import Principal, Stored, TopicName
from router.services.consume import PollMailbox
from router.services.read import Reading
from router.web import bodies, offload, streams
from router.web.access import Access, Right
from router.web.dmaap import incomplete
from router.web.dmaap_errors import TABLE
from router.web.media import names_events
from router.web.openapi.description import (
    EVENTS,
    STORE,
    TOPIC,
    Reply,
    header,
    moment,
    number,
    operation,
    text,
)
from router.web.openapi.description import flag as flag_of
from router.web.openapi.names import MARKS
from router.web.parameters import Query
from router.web.pulsar_rest.read import Places, resumed, streamed

if TYPE_CHECKING:
    from _typeshed.wsgi import WSGIEnvironment


STREAMED: Final = (
    moment("from", "Where the stream begins."),
    number("sample", "Messages a second at most; what is left out is counted."),
    text("last_event_id", "The same as the header `Last-Event-ID`.", MARKS),
    header("Last-Event-ID", "Where to go on: the id of the last event that the client had."),
)
STREAM_FAILS: Final = (*TOPIC, *STORE, "missing-consumer", "read-failed", "not-allowed")


class EventStreams:
    """The view of streams."""

    def __init__(
        self,
        access: Access,
        reading: Reading,
        topic_name: Callable[[str], TopicName],
        start: Start,
        write_timeout: float,
    ) -> None:
        self._access = access
        self._reading = reading
        self._topic_name = topic_name
        self._start = start
        self._write_timeout = write_timeout

    def blueprint(self) -> Blueprint:
        """Return the routes."""
        routes = Blueprint("event_streams", __name__)
        routes.get("/events/<topic>", endpoint="stream")(self.asked)
        return routes

    @operation(
        flag_of("stream", "Has to be true unless `Accept` begins with `text/event-stream`."),
        *STREAMED,
        answers={200: Reply("Messages as server-sent events.", {streams.MIMETYPE: EVENTS})},
        fails=STREAM_FAILS,
    )
    def asked(self, topic: str) -> Response:
        """Answer the messages of a topic as they come, where a stream is asked for."""
        if not streams.wanted(request.environ):
            raise incomplete(topic, "a group and a consumer id")
        return self.stream(self._access.principal(request.environ), self._topic_name(topic))

    def stream(self, principal: Principal, name: TopicName) -> Response:
        """Answer the messages of a topic as they come, to one who may read it."""
        self._access.demand(principal, name, Right.SUBSCRIBE)
        environ, query = request.environ, Query(request.environ)
        pace, written = streams.pace(query), _writer(environ, name)
        given = query.moment("from")
        start = self._start if given is None else given
        partitions = streamed(self._reading.partitions(name))
        starts = resumed(environ, query, partitions) or dict.fromkeys(partitions, start)

        def begin(
            mailbox: PollMailbox, watch: offload.Watch
        ) -> tuple[streams.Source, streams.Words]:
            stream = self._reading.stream(name, starts, mailbox, watch)
            return stream, _Lines(Places(stream.feed, single=False), written)

        return streams.answer(environ, begin, self._write_timeout, pace)


def _writer(environ: WSGIEnvironment, topic: TopicName) -> Callable[[Stored], bytes]:
    """Return what writes a message: as a line of NDJSON, or a CloudEvent where Accept names it."""
    if names_events(environ.get("HTTP_ACCEPT")):
        return partial(bodies.event_line, source=f"/events/{topic.local}")
    return lambda stored: orjson.dumps(bodies.line(stored))


class _Lines:
    """Messages as lines of JSON."""

    def __init__(self, places: Places, written: Callable[[Stored], bytes]) -> None:
        self._places = places
        self._written = written

    def place(self) -> str:
        """Return where the stream begins."""
        return self._places.begin()

    def event(self, stored: Stored) -> tuple[str, bytes]:
        """Return where to go on behind a message, and the message."""
        return self._places.behind(stored), self._written(stored)

    def behind(self, stored: Stored) -> str:
        """Return where to go on behind a message that is not sent."""
        return self._places.behind(stored)

    def failure(self, error: RouterError) -> bytes:
        """Return a failure."""
        return orjson.dumps({"mrErrorCode": TABLE[error.code].code, "errorMessage": str(error)})
