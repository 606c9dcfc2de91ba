"""Reading a topic of a router elsewhere without a group: a stream that survives its connections.

Each event says where to go on, and each new connection begins there: behind the last message that
was handed on. Nothing is missing then, and nothing comes twice. Server-sent events are
read as a client reads them (WHATWG HTML, 9.2.6), from pieces of any size.
"""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Final

from router.backends import Start
from router.cli.connection import Tail
from router.cli.formats import stored
from router.cli.http_client import HttpClient, HttpRequest, SilenceError
from router.errors import (
    BackendTimeoutError,
    BackendUnavailableError,
    OverloadedError,
    PathNotFoundError,
    RouterError,
    TooManyRequestsError,
    TopicNotFoundError,
)
from router.model import Stored

HEARTBEAT_SECONDS: Final = 60.0
"""Silence after which a connection counts as lost; servers send a comment sooner."""
RESUME_SECONDS: Final = 30.0
"""How long a stream is tried again of which nothing comes."""
PAUSE_SECONDS: Final = 0.5
MAX_EVENT_BYTES: Final = 64 << 20
_LINE_END: Final = re.compile(rb"\r\n|\n|\r")


class RemoteTail:
    """A stream, and where it is."""

    def __init__(
        self,
        client: HttpClient,
        path: str,
        tail: Tail,
        report: Callable[[str], None],
        clock: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        self._client = client
        self._path = path
        self._silence = tail.silence
        self._report = report
        self._clock = clock
        self._sleep = sleep
        start = tail.start
        self._place = start if isinstance(start, str) else None
        self._query = {"stream": "true"}
        if not isinstance(start, str):
            self._query["from"] = start.value if isinstance(start, Start) else str(start)
        self._message_at = self._alive_at = clock()

    def batches(self) -> Iterator[list[Stored]]:
        """Yield messages, or nothing as a sign of life, until the silence is as long as agreed.

        Raises TopicNotFoundError, and BackendUnavailableError if the server stays away.
        """
        while (left := self._left()) > 0:
            try:
                yield from self._connection(left)
            except SilenceError:
                continue
            except PathNotFoundError as error:
                raise TopicNotFoundError(str(error)) from error
            except BackendUnavailableError as error:
                if self._place is None:
                    raise
                self._again(error)
            except (OverloadedError, TooManyRequestsError, BackendTimeoutError) as error:
                self._again(error)

    def _again(self, error: RouterError) -> None:
        """Wait, so that the stream is tried again; raise the error if it was for too long."""
        pause = error.retry_after or PAUSE_SECONDS
        if self._clock() + pause - self._alive_at > RESUME_SECONDS:
            raise error
        self._report(f"{error} Trying again.")
        self._sleep(pause)

    def _left(self) -> float:
        """Return for how many seconds the connection may be silent."""
        if self._silence is None:
            return HEARTBEAT_SECONDS
        return min(HEARTBEAT_SECONDS, self._message_at + self._silence - self._clock())

    def _connection(self, silence: float) -> Iterator[list[Stored]]:
        """Yield what one connection brings; it ends with a comment where silence is counted."""
        headers = {"Accept": "text/event-stream"}
        if self._place is not None:
            headers["Last-Event-ID"] = self._place
        request = HttpRequest("GET", self._path, self._query, headers=headers)
        with self._client.stream(request, silence) as pieces:
            for event in events(pieces):
                self._alive_at = self._clock()
                self._place = event.id or self._place
                if event.data is not None:
                    self._message_at = self._alive_at
                    yield [stored(event.data)]
                elif event.id is None and self._silence is not None:
                    return  # the next connection waits for what is left of the silence
                else:
                    yield []


@dataclass(frozen=True, slots=True)
class ServerSentEvent:
    """An event, or a comment or place without `data`; `id`: where to go on, None: not said."""

    data: bytes | None
    id: str | None = None
    name: str = "message"


def events(pieces: Iterable[bytes]) -> Iterator[ServerSentEvent]:
    """Yield events, and one without data for each comment and each place that stands alone.

    Raises BackendUnavailableError for an event named `error`, with which a server ends a stream.
    """
    data: list[bytes] = []
    place: str | None = None
    name = "message"
    for line in _lines(pieces):
        if line:
            field, _, text = line.partition(b":")
            text = text.removeprefix(b" ")
            if not field:
                yield ServerSentEvent(None)
            elif field == b"data":
                data.append(text)
            elif field == b"id":
                place = text.decode("utf-8", "replace")
            elif field == b"event":
                name = text.decode("utf-8", "replace")
            continue
        if name == "error":
            message = b"\n".join(data).decode("utf-8", "replace")
            raise BackendUnavailableError(f"The server ended the stream: {message}")
        if data or place is not None:
            yield ServerSentEvent(b"\n".join(data) if data else None, place, name)
        data, place, name = [], None, "message"


def _lines(pieces: Iterable[bytes]) -> Iterator[bytes]:
    rest = b""
    for piece in pieces:
        text = rest + piece
        # A CR at the end may be half of a CR LF.
        held = b"\r" if text.endswith(b"\r") else b""
        *lines, rest = _LINE_END.split(text.removesuffix(held))
        rest += held
        if len(rest) > MAX_EVENT_BYTES:
            raise RouterError(f"The stream has an event of more than {MAX_EVENT_BYTES} bytes.")
        yield from lines
