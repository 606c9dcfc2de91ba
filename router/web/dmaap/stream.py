"""`GET /events/{topic}?stream`: all messages of a topic as server-sent events, without a group.

A poll's address with a group and an id stays a poll: a stream acknowledges nothing, so it has no
use for them. Events carry what a line of NDJSON carries, or a CloudEvent.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Final
from wsgiref.types import WSGIEnvironment

import orjson
from flask import Response, request

from router.backends import Start
from router.errors import RouterError
from router.model import Principal, Stored, TopicName
from router.services.consume import PollMailbox
from router.services.read import TopicReader
from router.web import bodies, offload, streams
from router.web.access import Right
from router.web.dmaap.errors import TABLE
from router.web.dmaap.events import incomplete
from router.web.media import names_events
from router.web.openapi import description as api
from router.web.pulsar_rest.read import Places, resumed, streamed
from router.web.requests import Query
from router.web.topic_access import TopicAccess

STREAMED: Final = (
    api.moment("from", "Where the stream begins."),
    api.number("sample", "Messages a second at most; what is left out is counted."),
    api.text("last_event_id", "The same as the header `Last-Event-ID`.", api.MARKS),
    api.header("Last-Event-ID", "Where to go on: the id of the last event that the client had."),
)
STREAM_FAILS: Final = (*api.TOPIC, *api.STORE, "missing-consumer", "read-failed", "not-allowed")


@dataclass(frozen=True, slots=True)
class EventStreams:
    """The view of streams."""

    callers: TopicAccess
    reading: TopicReader
    start: Start
    write_timeout: float

    @api.operation(
        "GET /events/<topic>",
        api.flag("stream", "Has to be true unless `Accept` begins with `text/event-stream`."),
        *STREAMED,
        answers={
            200: api.ReplyDescription(
                "Messages as server-sent events.", {streams.MIMETYPE: api.EVENTS}
            )
        },
        fails=STREAM_FAILS,
    )
    def stream(self, topic: str) -> Response:
        """Answer the messages of a topic as they come, if a stream is requested."""
        if not streams.is_requested(request.environ, Query(request.environ)):
            raise incomplete(topic, "a group and a consumer id")
        return self.serve(*self.callers.authorized(topic))

    def serve(self, principal: Principal, name: TopicName) -> Response:
        """Answer the messages of a topic as they come, to one who may read it."""
        self.callers.access.authorize(principal, name, Right.SUBSCRIBE)
        return self.follow(name, _writer(request.environ, name))

    def follow(self, name: TopicName, written: Callable[[Stored], bytes]) -> Response:
        """Answer the messages of a topic as they come, written as the caller does."""
        environ, query = request.environ, Query(request.environ)
        pace = streams.pace(query)
        given = query.moment("from")
        start = self.start if given is None else given
        partitions = streamed(self.reading.partitions(name))
        starts = resumed(environ, query, partitions) or dict.fromkeys(partitions, start)

        def begin(
            mailbox: PollMailbox, watch: offload.Watch
        ) -> tuple[streams.StreamSource, streams.EventFormat]:
            stream = self.reading.stream(name, starts, mailbox, watch)
            places = Places(stream.feed, single=False)
            return stream, streams.EventFormat(places, written, failure)

        return streams.answer(environ, begin, self.write_timeout, pace)


def _writer(environ: WSGIEnvironment, topic: TopicName) -> Callable[[Stored], bytes]:
    """Return what writes a message: as a line of NDJSON, or a CloudEvent where Accept names it."""
    if names_events(environ.get("HTTP_ACCEPT")):
        return partial(bodies.event_line, source=f"/events/{topic.local}")
    return lambda stored: orjson.dumps(bodies.line(stored))


def failure(error: RouterError) -> bytes:
    """Return what an event says of a failure, as JSON."""
    return orjson.dumps({"mrErrorCode": TABLE[error.code].code, "errorMessage": str(error)})
