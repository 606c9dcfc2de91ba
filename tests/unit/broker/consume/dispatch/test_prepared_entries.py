"""Entries of another format, which their readers' connection prepares before they are delivered."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from router.broker.consume import SubscriptionType
from router.broker.consume.dispatch.dispatcher import MAX_PREPARED_BYTES
from router.model import Message
from tests.unit.broker.consume.dispatch.bench import Bench, on_a_partition

pytestmark = pytest.mark.timeout(30)
KINDS = pytest.mark.parametrize("kind", list(SubscriptionType))
OTHER_FORMAT = 99
ALONE = [Message(bytes(MAX_PREPARED_BYTES))]
"""Of an entry that is not prepared together with others."""


async def prepared_for(bench: Bench, *numbers: int) -> dict[int, asyncio.Future[Any]]:
    """Have these entries wait, each for a future of its own."""
    bench.notes.entry_format = OTHER_FORMAT
    loop = asyncio.get_running_loop()
    waiting: dict[int, asyncio.Future[Any]] = {number: loop.create_future() for number in numbers}
    bench.notes.prepared.update(waiting)
    return waiting


async def finish(bench: Bench, number: int) -> None:
    """End the work on an entry, as far as the event loop."""
    bench.notes.prepared.pop(number).set_result(None)
    for _ in range(10):
        await asyncio.sleep(0)


@KINDS
async def test_entries_behind_one_that_is_prepared_wait_in_order(
    folder: Path, kind: SubscriptionType
) -> None:
    async with on_a_partition(folder) as bench:
        await prepared_for(bench, 1, 3)
        subscription = await bench.subscription()
        bench.consumer(subscription, "a", kind, permits=100)
        await bench.publish(5, messages=ALONE)
        assert bench.notes.entries() == [0]
        await finish(bench, 1)
        assert bench.notes.entries() == [0, 1, 2]
        await finish(bench, 3)
        assert bench.notes.entries() == [0, 1, 2, 3, 4]


@KINDS
async def test_entries_from_disk_are_prepared_too(folder: Path, kind: SubscriptionType) -> None:
    async with on_a_partition(folder) as bench:
        await bench.publish(3, messages=ALONE)
        await prepared_for(bench, 0, 2)
        subscription = await bench.subscription()
        bench.partition.ledger.cached = lambda entry: None  # type: ignore[method-assign]
        bench.consumer(subscription, "a", kind, permits=100)
        while 2 not in bench.notes.entries():
            for number in list(bench.notes.prepared):
                await finish(bench, number)
            await asyncio.sleep(0)
        assert bench.notes.entries() == [0, 1, 2]


async def test_a_consumer_that_goes_leaves_the_work_to_others(folder: Path) -> None:
    async with on_a_partition(folder) as bench:
        waiting = await prepared_for(bench, 0)
        await bench.publish(2, messages=ALONE)
        one, other = [await bench.subscription(name) for name in ("one", "other")]
        consumer = bench.consumer(one, "gone", SubscriptionType.EXCLUSIVE, permits=9)
        bench.consumer(other, "stays", SubscriptionType.EXCLUSIVE, permits=9)
        one.detach(consumer)
        await asyncio.sleep(0)
        assert not waiting[0].cancelled()
        await finish(bench, 0)
        assert bench.notes.entries("gone") == []
        assert bench.notes.entries("stays") == [0, 1]


async def test_delivery_is_settled_when_what_is_prepared_was_sent(folder: Path) -> None:
    async with on_a_partition(folder) as bench:
        await prepared_for(bench, 1)
        subscription = await bench.subscription()
        await bench.publish(2, messages=ALONE)
        bench.consumer(subscription, "a", SubscriptionType.EXCLUSIVE, permits=9)
        settled: list[list[int]] = []
        subscription.when_settled(lambda: settled.append(bench.notes.entries()))
        await asyncio.sleep(0)
        assert settled == []
        await finish(bench, 1)
        assert settled == [[0, 1]]


@KINDS
async def test_an_entry_that_cannot_be_prepared_is_skipped(
    folder: Path, kind: SubscriptionType
) -> None:
    async with on_a_partition(folder) as bench:
        await prepared_for(bench, 1)
        bench.notes.unreadable.add(1)
        subscription = await bench.subscription()
        await bench.publish(3, messages=ALONE)
        consumer = bench.consumer(subscription, "a", kind, permits=3)
        await finish(bench, 1)
        assert bench.notes.entries() == [0, 2]
        assert consumer.permits == 1
        assert bench.partition.context.tally.damaged == 1


async def test_an_entry_that_is_delivered_again_is_prepared_again(folder: Path) -> None:
    async with on_a_partition(folder) as bench:
        await prepared_for(bench, 0)
        subscription = await bench.subscription()
        await bench.publish(2, messages=ALONE)
        consumer = bench.consumer(subscription, "a", SubscriptionType.SHARED, permits=9)
        await finish(bench, 0)
        await prepared_for(bench, 1)
        subscription.redeliver(consumer, [0, 1])
        assert bench.notes.entries() == [0, 1, 0]
        await finish(bench, 1)
        assert bench.notes.entries() == [0, 1, 0, 1]


@KINDS
async def test_small_entries_in_memory_are_prepared_together(
    folder: Path, kind: SubscriptionType
) -> None:
    async with on_a_partition(folder) as bench:
        await prepared_for(bench, 1, 2)
        subscription = await bench.subscription()
        await bench.publish(4)
        bench.consumer(subscription, "a", kind, permits=100)
        await finish(bench, 1)
        assert bench.notes.entries() == []
        await finish(bench, 2)
        assert bench.notes.entries() == [0, 1, 2, 3]
