"""Compaction: how long cleaning takes, its memory, and what an append waits for beside it.

One process with a store on disk, as the broker has it: records of 100 bytes in Kafka's batches of
100, closed segments, one cleaning. Appends beside it come one after the other, each waits until it
is on disk.
"""

from __future__ import annotations

import asyncio
import random
import resource
import time
from collections.abc import Iterator
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory

from router.broker.compaction import Cleaner, Compactor, KeyIndexes, Pace
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
ALONE_SECONDS = 5.0


def compaction(seconds: float) -> None:
    """Print a table: records, keys, seconds of a cleaning, memory, and appends beside it."""
    records = max(100_000, int(seconds * 20_000))
    print("records  keys     beside  clean s  records/s  left     MiB peak  append p50 ms")
    for keys in (records // 100, records // 10):
        for beside in (False, True):
            with TemporaryDirectory() as folder:
                asyncio.run(_cleaning(Path(folder), records, keys, beside=beside))


def _wall() -> float:
    return wall_ms() / 1000


async def _cleaning(folder: Path, records: int, keys: int, *, beside: bool) -> None:
    store = await Store.open(
        folder, StoreOptions(segment=1 << 20), _wall, None, latest_time, keep_messages
    )
    topics = Topics(store, TopicOptions(), _wall, ENTRY_FORMATS)
    pace = Pace(store)
    indexes = KeyIndexes(store, folder, ENTRY_FORMATS, pace.pause)
    await topics.create(TOPIC, policies=POLICIES)
    (partition,) = topics.partitions(topics.known(TOPIC))
    for number, payload in enumerate(_batches(records, keys)):
        partition.ledger.append(payload, KAFKA_FORMAT, BATCH, wall_ms(), lambda _: None)
        if number % 100 == 0:
            await store.synced()
    await store.delete_before(partition.ledger, 0)  # all stands in segments
    alone = median(await _append(store, partition, ALONE_SECONDS)) if beside else 0.0
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    began = time.perf_counter()
    cleaning = asyncio.create_task(
        Cleaner(topics, indexes, Compactor(indexes), pace.discount).clean_all()
    )
    waits = await _append(store, partition, 3_600.0, cleaning) if beside else []
    await cleaning
    took = time.perf_counter() - began
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    shown = f"{1e3 * alone:.2f} -> {1e3 * median(waits):.2f}" if waits else "-"
    print(
        f"{records:<8} {keys:<8} {beside!s:<7} {took:<8.1f} {records / took:<10.0f}"
        f" {partition.ledger.messages:<8} {(peak - before) / 1024:<9.0f} {shown}"
    )
    await indexes.close()
    await store.close()


def _batches(records: int, keys: int) -> Iterator[bytes]:
    chosen = random.Random(7)
    for _ in range(records // BATCH):
        messages = [Message(VALUE, b"key-%d" % chosen.randrange(keys)) for _ in range(BATCH)]
        yield ENTRY_FORMATS[KAFKA_FORMAT].from_messages(messages, 1)


async def _append(
    store: Store, partition: Partition, seconds: float, until: asyncio.Task[None] | None = None
) -> list[float]:
    """Append until a time is over or a task is done; return the seconds of each append."""
    payload = ENTRY_FORMATS[KAFKA_FORMAT].from_messages([Message(VALUE, b"beside")], 1)
    waits = []
    deadline = time.perf_counter() + seconds
    while time.perf_counter() < deadline and not (until is not None and until.done()):
        began = time.perf_counter()
        partition.ledger.append(payload, KAFKA_FORMAT, 1, 1, lambda _: None)
        await store.synced()
        waits.append(time.perf_counter() - began)
    return waits
