"""Server-sent events: messages as they come, in the format that browsers' EventSource reads.

Theory of operation. The body of the answer is an iterator that the server writes piece by piece;
each piece holds whole events. It reads on only when the last piece is written, so what waits for a
slow client is one piece and the system's own buffers; a client that takes nothing for a while is
cut off. Each event's `id` is where to go on: a browser that lost the connection sends the last one
it had back, as `Last-Event-ID`, and gets what follows it. The first thing sent is such an id
without an event, so that one who had no event yet goes on where it began.

Every message is sent: a slow client slows its stream down, and reads later what is kept. Only a
client that asks for a sample (`?sample=N`, messages a second at most) does not get the rest, and
a `skipped` event says how many those were.

The stream ends when its client leaves, its time is over, the worker stops, or the store fails; the
last sends an `error` event with what the dialect says of it. Browsers come back by themselves.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Generator, Iterator
from dataclasses import dataclass, field
from typing import Final, NamedTuple, Protocol, TypeAlias
from wsgiref.types import WSGIEnvironment

from flask import Response

from router.errors import RouterError
from router.model import Stored
from router.services.consume import ClientGoneError, PollMailbox
from router.web import offload
from router.web.requests import Query

RETRY_MS: Final = 2_000
ALIVE: Final = b":\n\n"
MIMETYPE: Final = "text/event-stream"
MAX_SAMPLE: Final = 1_000_000
"""Messages a second."""
_SAMPLE_SECONDS: Final = 1.0
HEADERS: Final = {
    "Cache-Control": "no-store",
    # nginx would collect the events until its buffer is full.
    "X-Accel-Buffering": "no",
}


class StreamSource(Protocol):
    """Where the messages come from."""

    def __iter__(self) -> Iterator[list[Stored]]:
        """Give messages as they come, and nothing as a sign of life."""
        ...

    def close(self) -> None:
        """End."""
        ...


class EventIds(Protocol):
    """The ids of events, which say where to go on."""

    def begin(self) -> str | None:
        """Return where the stream begins, None: it does not say."""
        ...

    def after(self, stored: Stored) -> str:
        """Return where to go on behind a message."""
        ...


class EventFormat(NamedTuple):
    """How a dialect writes events: their ids, messages as lines, and failures as lines."""

    ids: EventIds
    line: Callable[[Stored], bytes]
    failure: Callable[[RouterError], bytes]


Begin: TypeAlias = "Callable[[PollMailbox, offload.Watch], tuple[StreamSource, EventFormat]]"
"""Begins a stream: returns its messages, and how they are written."""


class StreamPace:
    """Limits the messages of each second, and counts those left out."""

    def __init__(self, rate: int, clock: Callable[[], float] = time.monotonic) -> None:
        self._rate = rate
        self._clock = clock
        self._began = -_SAMPLE_SECONDS
        self._left = 0
        self._skipped = 0
        self._last: dict[int, Stored] = {}

    def passes(self) -> bool:
        """Return whether the next message may be sent."""
        now = self._clock()
        if now - self._began >= _SAMPLE_SECONDS:
            self._began, self._left = now, self._rate
        if not self._left:
            return False
        self._left -= 1
        return True

    def skip(self, stored: Stored) -> None:
        """Count a message that is not sent."""
        self._skipped += 1
        self._last[stored.position.partition] = stored

    def notice(self, after: Callable[[Stored], str]) -> bytes:
        """Return the event that says how many were skipped since the last one, if any were.

        `after` says where reading goes on; it is given the last of each partition.
        """
        count, place = self._skipped, ""
        for stored in self._last.values():
            place = after(stored)
        self._skipped = 0
        self._last.clear()
        if not count:
            return b""
        return b"id: %s\nevent: skipped\ndata: %d\n\n" % (place.encode(), count)


@dataclass(eq=False)
class EventStream:
    """The body of an answer that goes on; `pace`: that of a sample, None: all is sent."""

    _source: StreamSource
    _form: EventFormat
    _watch: offload.Watch
    _write_timeout: float
    _pace: StreamPace | None = None
    _pieces: Generator[bytes] = field(init=False)

    def __post_init__(self) -> None:
        self._pieces = self._run()

    def __iter__(self) -> Iterator[bytes]:
        return self._pieces

    def close(self) -> None:
        """End the stream; called by the server however it ended."""
        self._pieces.close()
        self._source.close()
        self._watch.close()

    def _run(self) -> Generator[bytes]:
        self._watch.bound_write(self._write_timeout)
        place = self._form.ids.begin()
        yield b"retry: %d\n%s\n" % (
            RETRY_MS,
            b"" if place is None else b"id: %s\n" % place.encode(),
        )
        try:
            for messages in self._source:
                yield self._piece(messages) or ALIVE
            if self._pace is not None and (notice := self._pace.notice(self._form.ids.after)):
                yield notice
        except ClientGoneError:
            return
        except RouterError as error:
            yield b"event: error\ndata: %s\n\n" % self._form.failure(error)

    def _piece(self, messages: list[Stored]) -> bytes:
        if self._pace is None:
            return b"".join(map(self._event, messages))
        return b"".join(self._sampled(self._pace, messages))

    def _sampled(self, pace: StreamPace, messages: list[Stored]) -> Iterator[bytes]:
        for stored in messages:
            if pace.passes():
                yield pace.notice(self._form.ids.after)
                yield self._event(stored)
            else:
                pace.skip(stored)
        if not messages:
            yield pace.notice(self._form.ids.after)

    def _event(self, stored: Stored) -> bytes:
        place = self._form.ids.after(stored)
        return b"id: %s\ndata: %s\n\n" % (place.encode(), self._form.line(stored))


def is_requested(environ: WSGIEnvironment, query: Query) -> bool:
    """Return whether a request asks for a stream: `?stream`, or by what it accepts."""
    accepted: str = environ.get("HTTP_ACCEPT", "")
    preferred = accepted.partition(",")[0].partition(";")[0].strip()
    return query.flag("stream", default=preferred == MIMETYPE)


def pace(query: Query) -> StreamPace | None:
    """Return the pace of the sample that a request asks for, None: it asks for all messages."""
    rate = query.number("sample", 0, MAX_SAMPLE, "messages a second")
    return StreamPace(rate) if rate else None


def last_event(environ: WSGIEnvironment, query: Query) -> str | None:
    """Return the id of the last event that the client had, None: it had none."""
    return environ.get("HTTP_LAST_EVENT_ID") or query.text("last_event_id") or None


def answer(
    environ: WSGIEnvironment, begin: Begin, write_timeout: float, pace: StreamPace | None = None
) -> Response:
    """Return an answer that goes on; HEAD reads nothing."""
    if environ["REQUEST_METHOD"] == "HEAD":
        return Response(b"", mimetype=MIMETYPE, headers=HEADERS)
    mailbox = PollMailbox()
    watch = offload.Watch(environ.get("gunicorn.socket"), mailbox.wake)
    try:
        source, form = begin(mailbox, watch)
    except BaseException:
        watch.close()
        raise
    stream = EventStream(source, form, watch, write_timeout, pace)
    return Response(stream, mimetype=MIMETYPE, headers=HEADERS)
