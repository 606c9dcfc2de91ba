"""Connections without a greenlet, and the greenlets that take their steps.

What a suspended connection waits for calls back: the event loop, when its client sent something or
left; an event, when that for which the application waits is there; a timer, when it waited for long
enough. It then adds a job to the worker's greenlet pool. One greenlet of the pool runs many jobs in
turn, as long as none of them waits; a job that waits keeps its greenlet, and the jobs behind it get
another. So a worker has a stack for each job that computes or waits for the disk or the network,
and none for a connection that is idle.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Generator
from dataclasses import dataclass, field
from inspect import GEN_RUNNING, getgeneratorstate
from typing import Any, Final, Protocol

from gevent import get_hub
from greenlet import getcurrent, greenlet

from router.clocks.steps import YIELD_TO_LOOP, Event, Wait

MAX_SPARE_GREENLETS: Final = 64
"""So many greenlets stay when there is nothing to do: a new one costs more than a short job."""
_READ: Final = 1


class GreenletPool:
    """Runs jobs in the order of `add`; made, and used, in the event loop's thread."""

    def __init__(self) -> None:
        self._hub = get_hub()
        self._jobs: deque[Callable[[], None]] = deque()
        self._spare: list[Any] = []
        self._called = False

    def add(self, job: Callable[[], None]) -> None:
        """Run a job soon; the job raises nothing. Never waits."""
        self._jobs.append(job)
        if not self._called:
            self._called = True
            self._hub.loop.run_callback(self._start)

    def _start(self) -> None:
        """Hand the jobs to greenlets; called by the event loop, and never waits."""
        self._called = False
        while self._jobs:
            runner = self._spare.pop() if self._spare else greenlet(self._run, self._hub)
            runner.switch()  # until it waits, or has nothing left to do

    def _run(self) -> None:
        jobs = self._jobs
        while True:
            while jobs:
                jobs.popleft()()
            if len(self._spare) >= MAX_SPARE_GREENLETS:
                return
            self._spare.append(getcurrent())
            self._hub.switch()


class Owner(Protocol):
    """The worker as far as its suspended connections use it."""

    log: Any
    greenlets: GreenletPool

    def release(self, connection: SuspendedConnection) -> None:
        """Close the client of a connection that has ended; called once."""
        ...


class Served(Protocol):
    """What serves the requests of a connection without a step, as far as it can."""

    def take(self) -> bool:
        """Take what the client sent; return whether there is no step to be taken."""
        ...

    def begin(self) -> bool:
        """Begin the request that the last step left to be begun; return whether there is one."""
        ...

    def early(self) -> None:
        """Learn that the client sent something, or left, while its request is served."""
        ...


@dataclass(eq=False, slots=True)
class SuspendedConnection:
    """Takes the steps of one connection, each in a greenlet of the pool.

    Where the steps wait for the client, `served` is asked first whether there is a request to
    begin, and when the client sent something whether that needs a step at all.
    """

    _owner: Owner
    client: Any
    slot: str
    _steps: Generator[Wait | None, None, None]
    _served: Served | None = None
    _watcher: Any = field(init=False)
    _watched: bool = field(default=False, init=False)
    _idle: bool = field(default=False, init=False)
    _event: Event | None = field(default=None, init=False)
    _job: Callable[[], None] | None = field(default=None, init=False)
    _timer: Any = field(default=None, init=False)
    _idle_watcher: Any = field(default=None, init=False)

    def __post_init__(self) -> None:
        self._watcher = get_hub().loop.io(self.client.fileno(), _READ)

    def resume(self) -> None:
        """Take the next step, which may wait in this greenlet. Raises nothing."""
        try:
            wait = next(self._steps)
        except StopIteration:
            self.end()
        except OSError as error:
            self._owner.log.debug("The connection is lost: %s", error)
            self.end()
        except Exception:
            self._owner.log.exception("A connection failed")
            self.end()
        else:
            self._suspend(wait)

    def end(self) -> None:
        """Stop all waits, close the steps and release the client; callable twice."""
        watcher, self._watcher = self._watcher, None
        if watcher is None:
            return
        self._stop_waiting()
        watcher.stop()
        watcher.close()
        self._served = self._job = None
        try:
            # A step under way fails as its socket is closed; `_suspend` then closes the rest.
            if getgeneratorstate(self._steps) != GEN_RUNNING:
                self._steps.close()
        finally:
            self._owner.release(self)

    def _suspend(self, wait: Wait | None) -> None:
        if self._watcher is None:
            self._steps.close()
            return
        if wait is not None:
            self.wait_for(wait, self.resume)
        elif self._served is None or not self._served.begin():
            self.rest()

    def wait_for(self, wait: Wait, job: Callable[[], None]) -> None:
        """Run a job in a greenlet when the wait is over; an end of the connection ends the wait."""
        if self._watcher is None:
            return
        self._job = job
        self._event, seconds = wait
        if seconds is not None:
            self._timer = get_hub().loop.timer(max(0.0, seconds))
            self._timer.start(self._called)
        if self._event is YIELD_TO_LOOP:
            self._idle_watcher = get_hub().loop.idle()
            self._idle_watcher.start(self._called)
        else:
            self._event.call(self._called)

    def go_on(self) -> None:
        """Take the next step soon; never waits."""
        self._owner.greenlets.add(self.resume)

    def rest(self) -> None:
        """Wait for the client again, after a request that took no step."""
        if self._watcher is None:
            return
        self._idle = True
        # The watcher stays on while a request is served: there is nothing to be seen then.
        if not self._watched:
            self._watched = True
            self._watcher.start(self._readable)

    def _take(self) -> None:
        if self._served is None or not self._served.take():
            self.resume()

    def _readable(self) -> None:
        """Go on with a connection that waits for its client; called by the event loop."""
        if self._idle:
            self._idle = False
            self._owner.greenlets.add(self._take)
        else:
            # The next request came early, or the client left; the loop would say so all the time.
            self._watcher.stop()
            self._watched = False
            if self._served is not None:
                self._served.early()

    def _called(self) -> None:
        """Go on: the event was set, or the time is over."""
        if self._event is not None:
            self._stop_waiting()
            job, self._job = self._job, None
            self._owner.greenlets.add(job or self.resume)

    def _stop_waiting(self) -> None:
        event, self._event = self._event, None
        if event is not None:
            event.clear()
        timer, self._timer = self._timer, None
        if timer is not None:
            timer.stop()
            timer.close()
        idle_watcher, self._idle_watcher = self._idle_watcher, None
        if idle_watcher is not None:
            idle_watcher.stop()
            idle_watcher.close()
