"""Greenlets that run jobs: one of them runs many in turn, as long as none of the jobs waits.

A job that waits keeps its runner, and the jobs behind it get another. Whoever waits for something
that calls back need not wait in a job: it adds one when it is called. So a worker has a stack for
each job that computes or waits for the disk or the network, not for each of its connections.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import Any, Final

from gevent import get_hub
from greenlet import getcurrent, greenlet

SPARE: Final = 64
"""So many runners stay when there is nothing to do: a new one costs more than a short job."""


class Runners:
    """Runs jobs in the order of `add`; made, and used, in the event loop's thread."""

    def __init__(self) -> None:
        self._hub = get_hub()
        self._jobs: deque[Callable[[], None]] = deque()
        self._spare: list[Any] = []
        self._called = False

    def add(self, job: Callable[[], None]) -> None:
        """Have a job run soon; it never raises. Never waits."""
        self._jobs.append(job)
        if not self._called:
            self._called = True
            self._hub.loop.run_callback(self._start)

    def _start(self) -> None:
        """Hand what there is to do to runners; called by the event loop, and never waits."""
        self._called = False
        while self._jobs:
            runner = self._spare.pop() if self._spare else greenlet(self._run, self._hub)
            runner.switch()  # until it waits, or has nothing left to do

    def _run(self) -> None:
        jobs = self._jobs
        while True:
            while jobs:
                jobs.popleft()()
            if len(self._spare) >= SPARE:
                return
            self._spare.append(getcurrent())
            self._hub.switch()
