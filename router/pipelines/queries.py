"""The streaming queries of one run: started, looked at, started again where that helps, stopped."""

from __future__ import annotations

import contextlib
import math
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, Final, TypeVar

import structlog

from router.errors import RouterError, TooManyRequestsError
from router.pipelines.failures import misses_file, sentence
from router.pipelines.progress import PipelineProgress

if TYPE_CHECKING:
    from pyspark.sql.streaming.query import StreamingQuery

# Spark gives a Python worker 10 s to start, which no setting changes and a busy machine exceeds.
# Nothing was read or written then, and a query begins where its checkpoint says anyway. A broker of
# ours checks no more passwords for a moment, which Spark's Kafka connector takes for a wrong one.
TRANSIENT: Final = (
    "Python worker failed to connect back",
    "[CANNOT_OPEN_SOCKET]",
    f"SaslAuthenticationException: {TooManyRequestsError.code}: ",
)
# One worker at a time: together they are what keeps the machine busy.
RESTART_SECONDS: Final = 11.0

_log = structlog.get_logger(__name__)

T = TypeVar("T")


class RunFailedError(RouterError):
    """The pipeline ended with a failure; the sentence says which."""


def is_transient(error: BaseException) -> bool:
    """Return whether a failure of Spark's passes: see TRANSIENT."""
    return any(mark in str(error) for mark in TRANSIENT)


@dataclass(frozen=True, slots=True)
class Retries:
    """Repeats a call for `retry_seconds` while its failure is one that passes.

    `wait` waits for so many seconds, and returns True where the run is to stop.
    """

    retry_seconds: float
    wait: Callable[[float], bool]
    clock: Callable[[], float] = time.monotonic

    def call(self, call: Callable[[], T]) -> T:
        """Return what the call returns; raise what it raises otherwise, or at last."""
        until = self.clock() + self.retry_seconds
        while True:
            try:
                return call()
            except Exception as error:
                if not is_transient(error) or self.clock() >= until or self.wait(RESTART_SECONDS):
                    raise
                _log.warning("pipeline.retrying", reason=sentence(error))


@dataclass(slots=True)
class _Query:
    start: Callable[[], StreamingQuery]
    query: StreamingQuery
    batches: int = 0
    failing_since: float | None = None
    restarted: float = 0.0
    reread: bool = False

    def has_recovered(self, now: float, seconds: float) -> bool:
        """Return whether it runs that long, or has ended well: one that is idle has no batches."""
        return not self.query.isActive or now - self.restarted > seconds


class Queries:
    """Queries by the names of their sinks; used by one thread.

    One that ends with a failure that passes is started again, for `retry_seconds` in which it
    brings no batch and does not run that long. One that misses a file of a table is once, when
    `reread` has looked for the new ones and returns True: none is being written.
    """

    def __init__(
        self, progress: PipelineProgress, retries: Retries, reread: Callable[[], bool]
    ) -> None:
        self._progress = progress
        self._reread = reread
        self._retries = retries
        self._retry_seconds = retries.retry_seconds
        self._clock = retries.clock
        self._not_before = -math.inf
        self._queries: dict[str, _Query] = {}

    def names(self) -> list[str]:
        """Return the names."""
        return sorted(self._queries)

    def start(self, name: str, start: Callable[[], StreamingQuery]) -> None:
        """Start a query; `start` may be called again."""
        again = partial(self._retries.call, start)
        self._queries[name] = _Query(again, again())

    def running(self) -> bool:
        """Return whether any query runs, or will be started again."""
        return any(
            one.query.isActive or one.failing_since is not None for one in self._queries.values()
        )

    def check(self, reasons: Mapping[str, str]) -> None:
        """Restart queries that ended before they began; raise RunFailedError for what failed."""
        for name, one in self._queries.items():
            now, error = self._clock(), one.query.exception()
            batches = self._progress.batches(name)
            recovered = error is None and one.has_recovered(now, self._retry_seconds)
            if batches > one.batches or recovered:
                one.batches, one.failing_since, one.reread = batches, None, False
            if error is None:
                continue
            missed = misses_file(error)
            if one.failing_since is None:
                one.failing_since = now
                if missed:
                    # A job that overwrites the table removes its files before it writes new ones.
                    self._not_before = now + RESTART_SECONDS
            late = now - one.failing_since > self._retry_seconds
            if late or (one.reread if missed else not is_transient(error)):
                raise RunFailedError(f"sink {name}: {reasons.get(name) or sentence(error)}")
            if now >= self._not_before:
                self._not_before = now + RESTART_SECONDS
                if missed and not self._reread():
                    continue
                _log.warning("pipeline.restarting", sink=name, reason=sentence(error))
                one.reread = missed
                one.query, one.restarted = one.start(), now

    def between(self, name: str, before: int) -> bool:
        """Return whether the batch is over that was under way when `before` were done."""
        query = self._queries[name].query
        if not query.isActive or self._progress.batches(name) > before:
            return True
        status: dict[str, Any] = query.status
        return not status.get("isTriggerActive", False)

    def stop(self, name: str) -> None:
        """Stop a query, whatever it does."""
        self._queries[name].query.stop()

    def runs(self) -> list[str]:
        """Return the ids of the runs, as Spark's events name them."""
        return [str(one.query.runId) for one in self._queries.values()]

    def stop_all(self) -> None:
        """Stop all queries; never raises."""
        for one in self._queries.values():
            # The run has its own reason to end; what a query says now changes nothing.
            with contextlib.suppress(Exception):
                one.query.stop()
