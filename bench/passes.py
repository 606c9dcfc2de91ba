"""What a broker does by itself over all that it holds, on a folder and in a process alone.

The store is opened without listeners, as the broker opens it, so that nothing but the operation is
measured: opening, a pass of retention and of unused groups, and a collection of the gauges. All is
processor time, since what else the machine does would count otherwise. Of the last two the longest
piece is taken, too: for so long the event loop serves nothing else.
"""

from __future__ import annotations

import asyncio
import gc
import multiprocessing
import os
import statistics
import time
from collections.abc import Awaitable, Callable
from concurrent.futures import ProcessPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import uvloop

from router.broker.node.registry import FileRegistry
from router.broker.storage_mode import open_storage
from router.broker.topics.gauges import LogGauges
from router.broker.topics.maintenance import Maintenance
from router.settings import load

ROUNDS = 5


@dataclass(frozen=True)
class Cost:
    """The medians of an operation: milliseconds of all threads, and of the loop's longest piece."""

    total: float
    longest: float


@dataclass(frozen=True)
class Passes:
    """Opening: seconds of processor time, and bytes; a pass of retention; the gauges."""

    open_seconds: float
    open_bytes: int
    retention: Cost
    gauges: Cost


def measure(folder: Path) -> Passes:
    """Measure on the folder of a router that was stopped, in a process of its own."""
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(1, context) as pool:
        return pool.submit(_measure, folder).result(600)


def _measure(folder: Path) -> Passes:
    return uvloop.run(_all(folder))


async def _all(folder: Path) -> Passes:
    settings = load(None, {}).replaced("bench", retention__max_groups="100000")
    registry = await FileRegistry.open(folder)
    gc.collect()
    before, began = _resident(), time.process_time()
    storage = await open_storage(folder, settings, registry)
    opened, grown = time.process_time() - began, _resident() - before
    assert storage.topics is not None
    maintenance = Maintenance(storage.topics)
    gauges = LogGauges(storage.topics.store, 100, lambda: next(_later))
    try:
        retention = await _cost(maintenance.maintain)
        collection = await _cost(gauges.collect)
    finally:
        await storage.close()
        await registry.close()
    return Passes(opened, grown, retention, collection)


_later = iter(range(0, 1_000_000, 1_000))
"""A clock by which every collection is due."""


async def _cost(operation: Callable[[], Awaitable[object]]) -> Cost:
    totals, longest = [], []
    for _ in range(ROUNDS):
        pieces: list[float] = []
        ticking = asyncio.create_task(_tick(pieces))
        await asyncio.sleep(0.01)
        pieces.clear()
        used = time.process_time()
        await operation()
        totals.append((time.process_time() - used) * 1000)
        await asyncio.sleep(0.002)
        ticking.cancel()
        with suppress(asyncio.CancelledError):
            await ticking
        longest.append(max(pieces))
    return Cost(statistics.median(totals), statistics.median(longest))


async def _tick(pieces: list[float]) -> None:
    """Collect how many milliseconds the loop's thread computed without serving this task."""
    last = time.thread_time()
    while True:
        await asyncio.sleep(0)
        now = time.thread_time()
        pieces.append((now - last) * 1000)
        last = now


def _resident() -> int:
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE")
