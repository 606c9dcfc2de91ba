"""Owns the threads beside the event loop that take entries apart and put them together.

Theory of operation. A batch of thousands of messages takes tens of milliseconds to transcode or to
check, which no other connection should wait for. Python runs one thread at a time, so more than a
few threads would gain nothing but for the decompression; the event loop gets its turn within the
interpreter's switch interval. MAX_QUEUED jobs wait in the threads' queue, further ones as
coroutines of those that want them: a reader has one, a producer what its connection may have in
flight.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Final, ParamSpec, TypeVar

THREADS: Final = 2
MAX_QUEUED: Final = 64

P = ParamSpec("P")
T = TypeVar("T")


class EntryWorkers:
    """Runs pure functions in threads of its own."""

    def __init__(self, threads: int = THREADS, max_queued: int = MAX_QUEUED) -> None:
        self._threads = ThreadPoolExecutor(threads, "entries")
        self._slots = asyncio.Semaphore(max_queued)

    async def run(self, work: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        """Return what a function returns, or raise what it raises; jobs begin in their order."""
        async with self._slots:
            loop = asyncio.get_running_loop()
            return await loop.run_in_executor(self._threads, lambda: work(*args, **kwargs))

    def close(self) -> None:
        """End when the jobs that run have ended; those that wait are cancelled."""
        self._threads.shutdown(wait=False, cancel_futures=True)
