"""What it costs to give an entry to readers of another format, beside the answer of a thread.

What counts is processor time, the least of several rounds; the answer of a thread is the time that
passes, with an event loop that has nothing else to do.
"""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import Callable

from router.broker.entries import kafka, pulsar
from router.broker.entries.workers import EntryWorkers
from router.model import Message
from router.wire.kafka.record_batches import check_batch, verify_records

ROUNDS = 7
SECONDS_PER_ROUND = 0.1
COUNTS = (1, 10, 32, 100, 1_000, 10_000)
VALUE_BYTES = 100
NOW = 1_700_000_000_000


def microseconds(work: Callable[[], object]) -> float:
    """Return the least processor time of a call."""
    best = float("inf")
    for _ in range(ROUNDS):
        calls, start = 0, time.process_time()
        while (passed := time.process_time() - start) < SECONDS_PER_ROUND or not calls:
            work()
            calls += 1
        best = min(best, passed / calls)
    return best * 1e6


async def answer_of_a_thread() -> float:
    """Return the least time of a job that does nothing, in microseconds."""
    workers = EntryWorkers()
    best = float("inf")
    try:
        for _ in range(2_000):
            start = time.perf_counter()
            await workers.run(int)
            best = min(best, time.perf_counter() - start)
    finally:
        workers.close()
    return best * 1e6


def transcoding(_: float = 0.0) -> None:
    """Print a line for each size of an entry."""
    print(f"answer of a thread: {asyncio.run(answer_of_a_thread()):.0f} us")
    print("messages   kafka->pulsar   pulsar->kafka   check_batch   verify_records (us)")
    for count in COUNTS:
        found = " ".join(f"{one:15.1f}" for one in costs(count))
        print(f"{count:8} {found}")


def costs(count: int) -> tuple[float, ...]:
    """Return the microseconds of each operation on an entry of so many messages."""
    messages = [
        Message(os.urandom(VALUE_BYTES), b"key-%d" % number, event_time=NOW + number // 10)
        for number in range(count)
    ]
    batch = kafka.from_messages(messages, NOW)
    entry = pulsar.from_messages(messages, NOW)
    header = check_batch(batch)
    return (
        microseconds(lambda: pulsar.from_messages(kafka.to_messages(batch), NOW)),
        microseconds(lambda: kafka.from_messages(pulsar.to_messages(entry), NOW)),
        microseconds(lambda: check_batch(batch)),
        microseconds(lambda: verify_records(header, batch, kafka.MAX_RECORDS_BYTES)),
    )
