"""Reading a topic of a router elsewhere without a group: a stream that survives its connections.

Each event says where to go on, and each new connection begins there: behind the last message that
was handed on. Nothing is missing then, and nothing comes twice.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from typing import Final

from router.backends import Start
from router.cli.connection import Tail
from router.cli.formats import stored
from router.cli.http_client import HttpClient, Request, SilenceError
from router.cli.server_sent import events
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
        request = Request("GET", self._path, self._query, headers=headers)
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
