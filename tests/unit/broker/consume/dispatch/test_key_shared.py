"""Bounds of key-shared delivery, and who may share a subscription."""

from __future__ import annotations

from pathlib import Path

import pytest

from router.broker.consume import KeyPolicy, SubscriptionType
from router.broker.consume.dispatch import key_shared
from router.broker.consume.membership.hashing import murmur3, slot_of_hash
from router.broker.storage import Ack
from router.errors import SubscriptionBusyError
from router.model import Message
from tests.unit.broker.consume.dispatch.bench import on_a_partition, skip

pytestmark = pytest.mark.timeout(30)

LOW = KeyPolicy(sticky=True, ranges=((0, 32_767),))
HIGH = KeyPolicy(sticky=True, ranges=((32_768, 65_535),))


def key_in(policy: KeyPolicy) -> bytes:
    ((first, last),) = policy.ranges
    keys = (b"key%d" % n for n in range(1_000))
    return next(key for key in keys if first <= slot_of_hash(murmur3(key)) <= last)


LOW_KEY, HIGH_KEY = key_in(LOW), key_in(HIGH)


async def test_reading_ahead_stops_when_too_much_waits_for_a_slow_consumer(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(key_shared, "MAX_PARKED_PER_CONSUMER", 5)
    async with on_a_partition(folder) as bench:
        subscription = await bench.subscription()
        slow = bench.consumer(subscription, "slow", SubscriptionType.KEY_SHARED, keys=LOW)
        bench.consumer(subscription, "quick", SubscriptionType.KEY_SHARED, permits=99, keys=HIGH)
        for key in (LOW_KEY, HIGH_KEY):
            await bench.publish(9, messages=[Message(b"v", key=key)])
        await bench.publish(3, messages=[Message(b"v", key=LOW_KEY)])
        await bench.publish(1, messages=[Message(b"v", key=HIGH_KEY)])
        # Ten may wait; the tenth is one of the three, and ends reading.
        assert bench.notes.entries("quick") == list(range(9, 18))
        subscription.flow(slow, 3)
        assert bench.notes.entries("slow") == [0, 1, 2]
        assert bench.notes.entries("quick") == [*range(9, 18), 21]


async def test_acknowledged_entries_do_not_count_as_waiting(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(key_shared, "MAX_PARKED_PER_CONSUMER", 1)
    monkeypatch.setattr(key_shared, "MAX_STALE", 1)
    async with on_a_partition(folder) as bench:
        subscription = await bench.subscription()
        bench.consumer(subscription, "slow", SubscriptionType.KEY_SHARED, keys=LOW)
        quick = bench.consumer(
            subscription, "quick", SubscriptionType.KEY_SHARED, permits=9, keys=HIGH
        )
        await bench.publish(4, messages=[Message(b"v", key=LOW_KEY)])
        await bench.publish(1, messages=[Message(b"v", key=HIGH_KEY)])
        assert bench.notes.entries() == []
        subscription.acknowledge(quick, [Ack(n) for n in range(4)], None)
        assert bench.notes.entries() == [4]


async def test_consumers_of_one_subscription_must_be_alike(folder: Path) -> None:
    async with on_a_partition(folder) as bench:
        subscription = await bench.subscription()
        bench.consumer(subscription, "a", SubscriptionType.KEY_SHARED)
        with pytest.raises(SubscriptionBusyError, match="key_shared mode of 'AUTO_SPLIT'"):
            bench.consumer(subscription, "b", SubscriptionType.KEY_SHARED, keys=LOW)
        with pytest.raises(SubscriptionBusyError, match="does not allow out of order"):
            bench.consumer(
                subscription, "b", SubscriptionType.KEY_SHARED, keys=KeyPolicy(out_of_order=True)
            )
        assert [consumer.name for consumer in subscription.consumers] == ["a"]


async def test_what_is_skipped_is_neither_held_nor_waiting(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(key_shared, "MAX_PARKED_PER_CONSUMER", 2)
    async with on_a_partition(folder) as bench:
        subscription = await bench.subscription()
        quick = bench.consumer(
            subscription, "quick", SubscriptionType.KEY_SHARED, permits=9, keys=HIGH
        )
        await bench.publish(1, messages=[Message(b"v", key=HIGH_KEY)])
        # Nobody's keys: two may wait, and end reading.
        await bench.publish(4, messages=[Message(b"v", key=LOW_KEY)])
        await bench.publish(1, messages=[Message(b"v", key=HIGH_KEY)])
        assert bench.notes.entries() == [0]
        skip(bench, subscription, 4)
        assert bench.notes.entries() == [0, 5]
        assert list(quick.held) == [5]
