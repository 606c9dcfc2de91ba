"""Work beside the calls: tasks that end with their owner, and turns for what computes for long.

Theory of operation. The steps of all work at a pace, from one wait to the next, share
MAX_TURN_SECONDS. When these are used up no step begins until as much time has passed again, so that
the loop has half of the time for other clients, however many calls came at once.
"""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine, Generator, Iterator
from contextlib import contextmanager
from typing import Any, Final, Generic, TypeVar

import structlog

from router.broker.nats.protocol.failures import FAILURES

MAX_TURN_SECONDS: Final = 0.02
MAX_PAUSE_SECONDS: Final = 1.0

T = TypeVar("T")

_log = structlog.get_logger(__name__)


def is_cancelled() -> bool:
    """Return whether the task that runs is cancelled, and not only what it waited for."""
    task = asyncio.current_task()
    return task is None or task.cancelling() > 0


@contextmanager
def tolerating(event: str, **place: str) -> Iterator[None]:
    """Let work go on after a step of it that fails, which is logged as `event`.

    So it does if what the step waited for is cancelled, such as a stream that is closed meanwhile.
    """
    try:
        yield
    except FAILURES as failure:
        _log.warning(event, **place, reason=str(failure))
    except asyncio.CancelledError:
        if is_cancelled():
            raise


class Tasks:
    """The tasks of one owner, which end with it."""

    def __init__(self) -> None:
        self._tasks: set[asyncio.Task[None]] = set()

    def __len__(self) -> int:
        return len(self._tasks)

    def __iter__(self) -> Iterator[asyncio.Task[None]]:
        return iter(tuple(self._tasks))

    def start(self, work: Coroutine[Any, Any, None]) -> None:
        """Run work in a task."""
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    def cancel(self) -> None:
        """Have all tasks end soon."""
        for task in self._tasks:
            task.cancel()

    async def close(self) -> None:
        """End all tasks."""
        self.cancel()
        if self._tasks:
            await asyncio.wait(set(self._tasks))


class WorkPace:
    """What the work that shares a pace has used; `run` it on one event loop."""

    def __init__(self) -> None:
        self._used = 0.0
        self._reset_due = False
        self._pause: asyncio.Future[None] | None = None

    async def run(self, work: Coroutine[Any, Any, T]) -> T:
        """Return what the work returns."""
        return await _Paced(self, work)

    async def turn(self) -> None:
        """Return when a step may begin."""
        while self._pause is not None:
            await asyncio.wait((self._pause,))

    def used(self, seconds: float) -> None:
        """Count a step; what is used within one iteration of the loop adds up."""
        loop = asyncio.get_running_loop()
        self._used += seconds
        if self._used > MAX_TURN_SECONDS and self._pause is None:
            self._pause = loop.create_future()
            loop.call_later(min(self._used, MAX_PAUSE_SECONDS), self._go_on, self._pause)
        elif not self._reset_due:
            self._reset_due = True
            loop.call_soon(self._reset)

    def _reset(self) -> None:
        self._reset_due = False
        if self._pause is None:
            self._used = 0.0

    def _go_on(self, pause: asyncio.Future[None]) -> None:
        self._pause, self._used = None, 0.0
        pause.set_result(None)


class _Paced(Generic[T]):
    """Work whose steps are counted."""

    __slots__ = ("_pace", "_work")

    def __init__(self, pace: WorkPace, work: Coroutine[Any, Any, T]) -> None:
        self._pace = pace
        self._work = work

    def __await__(self) -> Generator[Any, Any, T]:
        pace, work, time = self._pace, self._work, asyncio.get_running_loop().time
        failure: BaseException | None = None
        try:
            while True:
                if failure is None:
                    try:
                        yield from pace.turn().__await__()
                    except BaseException as thrown:  # noqa: BLE001 - it is the work's
                        failure = thrown
                began = time()
                try:
                    waits = work.send(None) if failure is None else work.throw(failure)
                except StopIteration as end:
                    result: T = end.value
                    return result
                finally:
                    pace.used(time() - began)
                failure = None
                try:
                    yield waits
                except BaseException as thrown:  # noqa: BLE001 - it is the work's
                    failure = thrown
        finally:
            work.close()
