"""The one connection to a broker that all calls of a worker share, opened again when it is lost.

Theory of operation. The first caller that needs the connection and finds none dials; the others
wait for the outcome, each up to its own deadline. After a failure no caller dials for a while
(0.1 s, doubled up to 5 s), and a call whose deadline comes first fails with BackendUnavailableError
and `retry_after`. No caller dials right after a success either: a peer that closes connections at
once is not dialled all the time.
There is no thread that reconnects in the background: a worker without requests needs no broker.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from threading import Condition
from typing import Any, Final

from router.clocks.backoff import Backoff
from router.errors import BackendUnavailableError, NotServedError
from router.errors.quoting import failure_text
from router.pulsar_client.connection import PulsarConnection, PulsarConnectionLostError
from router.wire.pulsar import pulsar_pb2 as pb

MIN_PAUSE_SECONDS: Final = 0.1
MAX_PAUSE_SECONDS: Final = 5.0

Dial = Callable[[float], PulsarConnection]
"""Opens a connection by a deadline; raises OSError or BackendUnavailableError."""

Make = Callable[[int], pb.BaseCommand]
"""Builds a request with this request id."""


class PulsarLink:
    """A connection that is there when one can be had."""

    def __init__(self, dial: Dial) -> None:
        self._dial = dial
        self._changed = Condition()
        self._connection: PulsarConnection | None = None
        self._dialing = False
        self._closed = False
        self._backoff = Backoff(MIN_PAUSE_SECONDS, MAX_PAUSE_SECONDS)
        self._not_before = 0.0
        self._failure = ""
        self._failures = 0

    def connection(self, deadline: float, *, again: bool = True) -> PulsarConnection:
        """Return a live connection; raise BackendUnavailableError when there is none in time.

        `again`: dial until the deadline, rather than give up with the first dial that fails, this
        caller's or another's.
        """
        failures = self._failures
        while True:
            connection = self._connection
            if connection is not None and connection.error is None:
                return connection
            if not again and self._failures != failures:
                raise self._unavailable(time.monotonic())
            if not self._turn(deadline):
                continue
            try:
                return self._open(deadline)
            except NotServedError:
                raise
            except BackendUnavailableError:
                if not again or time.monotonic() >= deadline:
                    raise

    def call(self, make: Make, deadline: float, *, again: bool = True) -> Any:
        """Send a request and return its answer's body; `again`: repeat it on a new connection.

        Raises BackendUnavailableError, BackendTimeoutError, and what the broker answered.
        """
        while True:
            connection = self.connection(deadline)
            request_id = connection.next_id()
            try:
                return connection.call(request_id, make(request_id), deadline)
            except PulsarConnectionLostError:
                if not again or time.monotonic() >= deadline:
                    raise

    def close(self) -> None:
        """Close for good; calls under way fail with BackendUnavailableError."""
        with self._changed:
            self._closed = True
            connection, self._connection = self._connection, None
            self._changed.notify_all()
        if connection is not None:
            connection.close()

    def _turn(self, deadline: float) -> bool:
        """Wait until it is this caller's turn to dial (True), or something changed (False)."""
        with self._changed:
            if self._closed:
                raise NotServedError("the backend is closed")
            now = time.monotonic()
            if not self._dialing and now >= self._not_before:
                alive = self._connection is not None and self._connection.error is None
                self._dialing = not alive
                return not alive
            if now >= deadline:
                raise self._unavailable(now)
            until = deadline if self._dialing else min(deadline, self._not_before)
            self._changed.wait(max(0.0, until - now))
            return False

    def _open(self, deadline: float) -> PulsarConnection:
        connection, failure = None, ""
        try:
            connection = self._dial(deadline)
        except BackendUnavailableError as error:
            failure = str(error)
            raise
        except OSError as error:
            failure = f"the backend cannot be reached: {failure_text(error)}"
            raise BackendUnavailableError(failure, retry_after=self._backoff.seconds) from error
        finally:
            closed = self._dialed(connection, failure)
        if closed:
            connection.close()
            raise NotServedError("the backend is closed")
        return connection

    def _dialed(self, connection: PulsarConnection | None, failure: str) -> bool:
        with self._changed:
            self._dialing = False
            self._failure = failure
            self._failures += connection is None
            if connection is not None:
                self._backoff.reset()
            pause = MIN_PAUSE_SECONDS if connection is not None else self._backoff.next()
            self._not_before = time.monotonic() + pause
            if not self._closed:
                self._connection = connection
            self._changed.notify_all()
            return self._closed

    def _unavailable(self, now: float) -> BackendUnavailableError:
        failure = self._failure or "the backend does not answer in time"
        return BackendUnavailableError(
            failure, retry_after=max(MIN_PAUSE_SECONDS, self._not_before - now)
        )
