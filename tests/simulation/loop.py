"""One scheduler with a virtual clock, and an event loop on it for each simulated process.

Theory of operation. The scheduler runs one callback at a time. When none is ready the clock jumps
to the next timer, so that hours take seconds. A process is a `ProcessLoop`: an asyncio event loop
whose callbacks stand in the scheduler with those of all others. A killed process is a loop whose
callbacks are never run again, without any of its `finally` blocks; a paused one keeps its callbacks
for later.

Threads are lanes: a job of an executor is one step of the scheduler, which begins when a thread of
the executor is free. What it returns arrives after the time that its work took, as the disk says.
"""

from __future__ import annotations

import asyncio
import heapq
import itertools
from collections import deque
from collections.abc import Callable
from contextvars import Context, copy_context
from random import Random
from typing import Any, Final

from tests.simulation.seeded import CLOCK

TICK_SECONDS: Final = 1e-6
"""The time that one round of ready callbacks takes."""
LOOK_SECONDS: Final = 0.05
"""How often it is looked whether a run has ended."""
JOB_SECONDS: Final = (10e-6, 200e-6)
"""How long a job waits for its thread to run."""

asyncio_events: Any = asyncio.events


class PowerCutError(BaseException):
    """The power goes while a thread works; not for `except Exception`."""


class Handle:
    """A callback that is due."""

    __slots__ = ("_when", "args", "callback", "context", "is_cancelled", "loop")

    def __init__(
        self,
        loop: ProcessLoop,
        callback: Callable[..., object],
        args: tuple[Any, ...],
        context: Context | None,
        when: float = 0.0,
    ) -> None:
        self.loop, self.callback, self.args = loop, callback, args
        self.context = context if context is not None else copy_context()
        self.is_cancelled = False
        self._when = when

    def cancel(self) -> None:
        self.is_cancelled = True
        self.callback, self.args = _nothing, ()

    def cancelled(self) -> bool:
        return self.is_cancelled

    def when(self) -> float:
        return self._when


def _nothing() -> None:
    """Stand in for a callback that was cancelled."""


class Scheduler:
    """Runs the callbacks of all processes, in the order of the virtual time."""

    def __init__(self) -> None:
        self.ready: deque[Handle] = deque()
        self._timers: list[tuple[float, int, Handle]] = []
        self._numbers = itertools.count()
        self._running: ProcessLoop | None = None
        self.steps = 0

    def at(self, when: float, handle: Handle) -> None:
        heapq.heappush(self._timers, (when, next(self._numbers), handle))

    def run(self, until: float, ended: Callable[[], bool]) -> None:
        """Run callbacks until a time, or until a look finds that the run has `ended`."""
        clock, ready, timers, look_at = CLOCK, self.ready, self._timers, 0.0
        pop = heapq.heappop
        try:
            while True:
                now = clock.now
                if look_at <= now:
                    if ended():
                        return
                    look_at = now + LOOK_SECONDS
                while timers and timers[0][2].is_cancelled:
                    pop(timers)
                if not ready:
                    if not timers or timers[0][0] > until:
                        clock.now = max(now, until)
                        return
                    now = max(now, timers[0][0])
                while timers and timers[0][0] <= now:
                    ready.append(pop(timers)[2])
                clock.now = now + TICK_SECONDS
                self._run_ready()
        finally:
            self._running = None
            asyncio_events._set_running_loop(None)

    def _run_ready(self) -> None:
        """Run the callbacks that are due now."""
        ready, running = self.ready, self._running
        for _ in range(len(ready)):
            handle = ready.popleft()
            if handle.is_cancelled:
                continue
            loop = handle.loop
            if loop.is_stopped:
                loop.put_off(handle)
                continue
            self.steps += 1
            if loop is not running:
                asyncio_events._set_running_loop(loop)
                self._running = running = loop
            try:
                handle.context.run(handle.callback, *handle.args)
            except PowerCutError:
                loop.power_cut()
            except Exception as error:  # noqa: BLE001 - the loop goes on, as asyncio's does
                context = {"message": "exception in a callback", "exception": error}
                loop.call_exception_handler(context)


class Lane:
    """The threads of one executor: jobs in their order, a few at a time."""

    def __init__(self, loop: ProcessLoop, threads: int) -> None:
        self._loop = loop
        self._free = threads
        self._jobs: deque[tuple[Callable[[], Any], Callable[[Any, BaseException | None], None]]]
        self._jobs = deque()

    def submit(
        self, work: Callable[[], Any], done: Callable[[Any, BaseException | None], None]
    ) -> None:
        self._jobs.append((work, done))
        self._start()

    def _start(self) -> None:
        if self._free and self._jobs:
            self._free -= 1
            loop = self._loop
            loop.call_later(loop.chance.uniform(*JOB_SECONDS), self._run, *self._jobs.popleft())

    def _run(
        self, work: Callable[[], Any], done: Callable[[Any, BaseException | None], None]
    ) -> None:
        loop = self._loop
        result, error = None, None
        asyncio_events._set_running_loop(None)
        loop.outbox = []
        try:
            result = work()
        except Exception as problem:  # noqa: BLE001 - for who waits for the job
            error = problem
        finally:
            calls, loop.outbox = loop.outbox, None
            asyncio_events._set_running_loop(loop)
        loop.call_later(loop.elapsed() + TICK_SECONDS, self._end, result, error, done, calls)

    def _end(
        self,
        result: Any,
        error: BaseException | None,
        done: Callable[[Any, BaseException | None], None],
        calls: list[tuple[Callable[..., object], tuple[Any, ...]]],
    ) -> None:
        for call, args in calls:
            self._loop.call_soon(call, *args)
        done(result, error)
        self._free += 1
        self._start()


class ProcessLoop:
    """The event loop of one simulated process: what asyncio and the broker call of one."""

    def __init__(self, name: str, scheduler: Scheduler, chance: Random) -> None:
        self.name = name
        self.chance = chance
        self.is_dead = False
        self.is_stopped = False
        self.outbox: list[tuple[Callable[..., object], tuple[Any, ...]]] | None = None
        self.elapsed: Callable[[], float] = lambda: 0.0
        self.power_cut: Callable[[], None] = _nothing
        self.on_error: Callable[[dict[str, Any]], None] = lambda _context: None
        self.serve: Callable[[Any, Any], Any] = lambda _factory, _sock: None
        self._scheduler = scheduler
        self._ready = scheduler.ready
        self._put_off: list[Handle] = []
        self._lanes: dict[Any, Lane] = {}

    def kill(self) -> None:
        """Run nothing of this process any more."""
        self.is_dead = self.is_stopped = True
        self._put_off.clear()

    def pause(self) -> None:
        """Run nothing until `resume`."""
        self.is_stopped = True

    def resume(self) -> None:
        """Go on, with what came meanwhile."""
        if not self.is_dead:
            self.is_stopped = False
            self._ready.extend(self._put_off)
            self._put_off.clear()

    def put_off(self, handle: Handle) -> None:
        if not self.is_dead:
            self._put_off.append(handle)

    # What asyncio calls.

    def time(self) -> float:
        return CLOCK.now

    def call_soon(self, callback: Any, *args: Any, context: Context | None = None) -> Any:
        handle = Handle(self, callback, args, context)
        self._ready.append(handle)
        return handle

    def call_soon_threadsafe(
        self, callback: Any, *args: Any, context: Context | None = None
    ) -> Any:
        if self.outbox is None:
            return self.call_soon(callback, *args, context=context)
        self.outbox.append((callback, args))
        return None

    def call_at(
        self, when: float, callback: Any, *args: Any, context: Context | None = None
    ) -> Any:
        handle = Handle(self, callback, args, context, when)
        self._scheduler.at(when, handle)
        return handle

    def call_later(
        self, delay: float, callback: Any, *args: Any, context: Context | None = None
    ) -> Any:
        return self.call_at(CLOCK.now + max(0.0, delay), callback, *args, context=context)

    def create_future(self) -> asyncio.Future[Any]:
        own: Any = self
        return asyncio.Future(loop=own)

    def create_task(
        self, coro: Any, *, name: str | None = None, context: Context | None = None
    ) -> asyncio.Task[Any]:
        own: Any = self
        return asyncio.Task(coro, loop=own, name=name, context=context)

    def run_in_executor(self, executor: Any, func: Any, *args: Any) -> Any:
        future = self.create_future()

        def done(result: Any, error: BaseException | None) -> None:
            if future.done():
                return
            if error is not None:
                future.set_exception(error)
            else:
                future.set_result(result)

        self.lane(executor).submit(lambda: func(*args), done)
        return future

    def lane(self, executor: Any) -> Lane:
        """Return the threads of an executor."""
        if executor not in self._lanes:
            self._lanes[executor] = Lane(self, getattr(executor, "_max_workers", 4))
        return self._lanes[executor]

    async def create_server(self, protocol_factory: Any, *_: Any, sock: Any, **__: Any) -> Any:
        return self.serve(protocol_factory, sock)

    async def create_unix_server(self, protocol_factory: Any, *_: Any, sock: Any, **__: Any) -> Any:
        return self.serve(protocol_factory, sock)

    def call_exception_handler(self, context: dict[str, Any]) -> None:
        if not self.is_dead:
            self.on_error(context)

    def get_debug(self) -> bool:
        return False

    def is_running(self) -> bool:
        return not self.is_dead

    def is_closed(self) -> bool:
        return self.is_dead
