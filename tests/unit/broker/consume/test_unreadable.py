"""Entries that a client's protocol has no form for: the others go on, and it is counted."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from router.broker.consume import SubscriptionType
from router.broker.storage import Ack
from tests.unit.broker.consume.dispatch.bench import on_a_partition

pytestmark = pytest.mark.timeout(30)


@pytest.mark.parametrize("kind", list(SubscriptionType))
async def test_entries_that_cannot_be_sent_are_skipped_and_the_others_go_on(
    folder: Path, kind: SubscriptionType
) -> None:
    async with on_a_partition(folder) as bench:
        bench.notes.unreadable = {0, 2, 3, 5}
        subscription = await bench.subscription()
        await bench.publish(6, batch=2)
        consumer = bench.consumer(subscription, "a", kind, permits=6)
        settled = asyncio.Event()
        subscription.when_settled(settled.set)
        await settled.wait()
        assert bench.notes.entries() == [1, 4]
        assert consumer.permits == 2
        assert bench.partition.context.tally.damaged == 4
        acks = [Ack(entry) for entry in (1, 4)]
        subscription.acknowledge(consumer, acks, None)
        assert subscription.cursor.mark_delete == 5
        assert consumer.held == {}


async def test_the_end_of_a_topic_is_reached_behind_an_entry_that_cannot_be_sent(
    folder: Path,
) -> None:
    async with on_a_partition(folder) as bench:
        bench.notes.unreadable = {1}
        subscription = await bench.subscription()
        await bench.publish(2)
        await bench.partition.terminate()
        consumer = bench.consumer(subscription, "a", SubscriptionType.SHARED, permits=9)
        subscription.acknowledge(consumer, [Ack(0)], None)
        assert bench.notes.ended == []
        await asyncio.sleep(0)
        assert bench.notes.ended == ["a"]


async def test_a_consumer_that_goes_leaves_what_was_skipped_skipped(folder: Path) -> None:
    async with on_a_partition(folder) as bench:
        bench.notes.unreadable = {0}
        subscription = await bench.subscription()
        await bench.publish(2)
        consumer = bench.consumer(subscription, "a", SubscriptionType.EXCLUSIVE, permits=1)
        subscription.detach(consumer)
        await asyncio.sleep(0)
        assert subscription.cursor.mark_delete == 0
        bench.consumer(subscription, "b", SubscriptionType.EXCLUSIVE, permits=1)
        assert bench.notes.got == [("b", 1, 0)]


@pytest.mark.parametrize("kind", list(SubscriptionType))
async def test_consumer_that_was_closed_by_a_seek_is_sent_nothing_more(
    folder: Path, kind: SubscriptionType
) -> None:
    async with on_a_partition(folder) as bench:
        bench.notes.unreadable = {0}
        subscription = await bench.subscription()
        await bench.publish(3)
        bench.consumer(subscription, "a", kind, permits=1)
        await subscription.reset_durably(0)
        await asyncio.sleep(0)
        assert bench.notes.got == []
