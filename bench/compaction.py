"""Compaction: how long cleaning takes, its memory, and what appends beside it come to.

One process with a store on disk, as the broker has it: records of 100 bytes in Kafka's batches of
100, closed segments, one cleaning. Appends beside it come one after the other, each waits until it
is on disk. In turns of a second the cleaner goes on and stands still, at most PAIRS times while it
reads the log into its index; printed are the medians of the pairs. Then it goes on alone, and its
time and the growth of the process's memory are those of this rest.

`python -m bench.compaction RECORDS KEYS` measures one size, in a process of its own.
"""

from __future__ import annotations

import asyncio
import os
import random
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory

from router.broker.compaction import Cleaner, CleanerPace, Compactor, KeyIndexes
from router.broker.consume import Partition
from router.broker.entries import ENTRY_FORMATS, keep_messages, latest_time
from router.broker.storage import KAFKA_FORMAT, Store, StoreOptions
from router.broker.topics.topics import TopicOptions, Topics
from router.clocks import wall_ms
from router.model import Message, TopicName
from router.model.policies import Policies

BATCH = 100
VALUE = b"v" * 84
TOPIC = TopicName("public", "default", "table")
POLICIES = Policies(cleanup_policy="compact", min_cleanable_dirty_ratio=0.0)
SEGMENT = 8 << 20
PAIRS = 8
TURN_SECONDS = 1.0
SIZES = (24_000, 2_400), (24_000, 24_000)
"""Records and keys for each second of the benchmark's time."""


class HeldPace(CleanerPace):
    """Pauses, also as long as `goes_on` is not set."""

    goes_on: asyncio.Event

    async def pause(self) -> None:
        """Sleep as the broker's does, then until the cleaner may go on."""
        await super().pause()
        await self.goes_on.wait()


def compaction(seconds: float) -> None:
    """Measure two sizes."""
    for records, keys in SIZES:
        size = [str(int(seconds * records)), str(int(seconds * keys))]
        command = [sys.executable, "-m", "bench.compaction", *size]
        subprocess.run(command, check=True, timeout=3_600)


def _wall() -> float:
    return wall_ms() / 1000


async def _cleaning(folder: Path, records: int, keys: int) -> None:
    store = await Store.open(
        folder, StoreOptions(segment=SEGMENT), _wall, None, latest_time, keep_messages
    )
    topics = Topics(store, TopicOptions(), _wall, ENTRY_FORMATS)
    pace = HeldPace(store)
    pace.goes_on = asyncio.Event()
    indexes = KeyIndexes(store, folder, ENTRY_FORMATS, pace.pause)
    await topics.create(TOPIC, policies=POLICIES)
    (partition,) = topics.partitions(topics.known(TOPIC))
    for number, payload in enumerate(_batches(records, keys)):
        partition.ledger.append(payload, KAFKA_FORMAT, BATCH, wall_ms(), lambda _: None)
        if number % 100 == 0:
            await store.synced()
    await store.delete_before(partition.ledger, 0)  # all stands in segments
    before, held = partition.ledger.size_bytes, _memory("VmRSS")
    _reset_peak()
    cleaner = Cleaner(topics, indexes, Compactor(indexes), pace.discount)
    cleaning = asyncio.create_task(cleaner.clean_all())
    ratios = await _beside(store, partition, pace.goes_on, cleaning)
    pace.goes_on.set()
    began, used = time.perf_counter(), time.process_time()
    await cleaning
    took, used = time.perf_counter() - began, time.process_time() - used
    print(
        f"{records:,} records of {keys:,} keys, load average {os.getloadavg()[0]:.1f}: cleaned in"
        f" {took:.1f} s, {used:.1f} s of processor time, {records / took:,.0f} records/s;"
        f" {partition.ledger.messages:,} left, {before / 1e6:,.0f} -> "
        f"{partition.ledger.size_bytes / 1e6:,.0f} MB; memory {held:.0f} MiB, peak"
        f" {_memory('VmHWM'):.0f}",
        flush=True,
    )
    if ratios:
        rates, alone, beside = (median(column) for column in zip(*ratios, strict=True))
        print(
            f"    appends beside the cleaner to without it, {len(ratios)} pairs: {rates:.2f} of the"
            f" rate; p50 {1e3 * alone:.2f} -> {1e3 * beside:.2f} ms"
        )
    await indexes.close()
    await store.close()


async def _beside(
    store: Store, partition: Partition, goes_on: asyncio.Event, cleaning: asyncio.Task[None]
) -> list[tuple[float, float, float]]:
    """Return ratios of rates, and medians without and beside the cleaner, of each pair of turns."""
    pairs: list[tuple[float, float, float]] = []
    while len(pairs) < PAIRS:
        waits = {}
        for active in (True, False) if len(pairs) % 2 else (False, True):
            if active:
                goes_on.set()
            waits[active] = await _append(store, partition, TURN_SECONDS)
            goes_on.clear()
        if cleaning.done():
            break
        ratio = len(waits[True]) / len(waits[False])
        pairs.append((ratio, median(waits[False]), median(waits[True])))
    return pairs


def _reset_peak() -> None:
    """Have the largest memory of this process be that of now."""
    Path("/proc/self/clear_refs").write_text("5")


def _memory(field: str) -> float:
    """Return a figure of this process's memory, in MiB."""
    lines = Path("/proc/self/status").read_text().splitlines()
    (found,) = (line for line in lines if line.startswith(f"{field}:"))
    return int(found.split()[1]) / 1024


def _batches(records: int, keys: int) -> Iterator[bytes]:
    chosen = random.Random(7)
    for _ in range(records // BATCH):
        messages = [Message(VALUE, b"key-%d" % chosen.randrange(keys)) for _ in range(BATCH)]
        yield ENTRY_FORMATS[KAFKA_FORMAT].from_messages(messages, 1)


async def _append(store: Store, partition: Partition, seconds: float) -> list[float]:
    """Append until a time is over; return the seconds of each append."""
    payload = ENTRY_FORMATS[KAFKA_FORMAT].from_messages([Message(VALUE, b"beside")], 1)
    waits = []
    deadline = time.perf_counter() + seconds
    while time.perf_counter() < deadline:
        began = time.perf_counter()
        partition.ledger.append(payload, KAFKA_FORMAT, 1, wall_ms(), lambda _: None)
        await store.synced()
        waits.append(time.perf_counter() - began)
    return waits


if __name__ == "__main__":
    with TemporaryDirectory(dir=os.environ.get("BENCH_DIR")) as data:
        asyncio.run(_cleaning(Path(data), *map(int, sys.argv[1:3])))
