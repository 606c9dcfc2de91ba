"""Entries that are not to be delivered yet, chunks that belong together, and the end of a topic."""

from __future__ import annotations

import asyncio
import itertools
import pickle
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from router.broker.consume import PartitionSubscription, SubscriptionType
from router.broker.consume.dispatch import individual
from router.broker.consume.dispatch.individual import Delayed
from router.broker.storage import Ack
from router.model import Message
from router.wire.pulsar import join_payload
from router.wire.pulsar import pulsar_pb2 as pb
from tests.unit.broker.consume.dispatch.bench import on_a_partition, skip

pytestmark = pytest.mark.timeout(30)


def delayed(subscription: PartitionSubscription) -> int:
    """How many entries are put aside until their time."""
    dispatcher = subscription.dispatcher
    assert isinstance(dispatcher, individual.Individual)
    return len(dispatcher.delayed)


# What the clock of the bench shows, in milliseconds.
NOW = 1_000_000


@given(
    waiting=st.lists(st.tuples(st.integers(1, 50), st.integers(0, 2**16 - 1))),
    at=st.integers(0, 60),
)
def test_entries_come_out_once_their_time_has_come_the_earliest_first(
    waiting: list[tuple[int, int]], at: int
) -> None:
    now = 0
    aside = Delayed(lambda: now, lambda: None)
    for entry, (when, slot) in enumerate(waiting):
        assert aside.put_aside(entry, when, slot)
    now = at
    aside.look()
    out = []
    while (due := aside.due()) is not None:
        out.append((waiting[due[0]][0], due[1], due[0]))
    assert out == sorted((w, slot, n) for n, (w, slot) in enumerate(waiting) if w <= at)
    assert len(aside) == len(waiting) - len(out)


@pytest.mark.parametrize("kind", [SubscriptionType.SHARED, SubscriptionType.KEY_SHARED])
async def test_reading_stops_when_too_much_is_put_aside(
    folder: Path, monkeypatch: pytest.MonkeyPatch, kind: SubscriptionType
) -> None:
    monkeypatch.setattr(individual, "MAX_DELAYED_ENTRIES", 2)
    async with on_a_partition(folder) as bench:
        subscription = await bench.subscription()
        consumer = bench.consumer(subscription, "a", kind, permits=9)
        for n in range(3):
            await bench.publish(1, messages=[Message(b"v", key=b"k", deliver_at=NOW + 100 + n)])
            await bench.publish(1, messages=[Message(b"v", key=b"k")])
        assert bench.notes.entries() == [1]
        assert delayed(subscription) == 2
        subscription.acknowledge(consumer, [Ack(1)], None)
        dispatcher = subscription.dispatcher
        subscription.detach(consumer)
        assert isinstance(dispatcher, individual.Individual)
        assert not dispatcher.delayed


@pytest.mark.parametrize("kind", [SubscriptionType.SHARED, SubscriptionType.KEY_SHARED])
async def test_timer_delivers_what_has_become_due(folder: Path, kind: SubscriptionType) -> None:
    seconds = 1_000.0
    async with on_a_partition(folder, clock=lambda: seconds) as bench:
        subscription = await bench.subscription()
        bench.consumer(subscription, "a", kind, permits=9)
        await bench.publish(1, messages=[Message(b"v", deliver_at=NOW + 20)])
        assert bench.notes.entries() == []
        seconds += 0.02
        await asyncio.wait_for(bench.notes.something.wait(), 10)
        assert bench.notes.entries() == [0]


@pytest.mark.parametrize("before", range(8))
@pytest.mark.parametrize("kind", [SubscriptionType.SHARED, SubscriptionType.KEY_SHARED])
async def test_what_becomes_due_between_two_readings_of_the_clock_is_delivered(
    folder: Path, kind: SubscriptionType, before: int
) -> None:
    """As the wall clock is slewed, the timer may fire in the millisecond before."""
    passing: Iterator[int] = itertools.repeat(NOW)
    async with on_a_partition(folder, clock=lambda: next(passing) / 1000) as bench:
        subscription = await bench.subscription()
        consumer = bench.consumer(subscription, "a", kind, permits=9)
        await bench.publish(1, messages=[Message(b"v", deliver_at=NOW + 60_000)])
        passing = itertools.count(NOW + 60_000 - before)
        subscription.flow(consumer, 1)
        await asyncio.wait_for(bench.notes.something.wait(), 10)
        assert bench.notes.entries() == [0]


@pytest.mark.parametrize("kind", [SubscriptionType.SHARED, SubscriptionType.KEY_SHARED])
async def test_timer_is_set_though_the_clock_was_set_back(
    folder: Path, kind: SubscriptionType
) -> None:
    seconds = 1_000.0
    async with on_a_partition(folder, clock=lambda: seconds) as bench:
        subscription = await bench.subscription()
        consumer = bench.consumer(subscription, "a", kind, permits=9)
        await bench.publish(1, messages=[Message(b"v", deliver_at=NOW + 20)])
        seconds = 2_000.0
        subscription.flow(consumer, 1)
        await asyncio.wait_for(bench.notes.something.wait(), 10)
        bench.notes.something.clear()
        seconds = 1_000.0
        await bench.publish(1, messages=[Message(b"v", deliver_at=NOW + 20)])
        assert bench.notes.entries() == [0]
        seconds += 0.02
        await asyncio.wait_for(bench.notes.something.wait(), 10)
        assert bench.notes.entries() == [0, 1]


def chunk(number: int, chunks: int, uuid: str) -> bytes:
    metadata = pb.MessageMetadata(
        producer_name="p",
        sequence_id=1,
        publish_time=1,
        uuid=uuid,
        chunk_id=number,
        num_chunks_from_msg=chunks,
        total_chunk_msg_size=chunks,
    )
    return join_payload(metadata, b"v")


async def test_chunks_wait_for_the_consumer_that_has_the_first_and_hold_up_no_others(
    folder: Path,
) -> None:
    async with on_a_partition(folder) as bench:
        subscription = await bench.subscription()
        a = bench.consumer(subscription, "a", SubscriptionType.SHARED, permits=1)
        b = bench.consumer(subscription, "b", SubscriptionType.SHARED, permits=9)
        for number in range(3):
            await bench.publish(1, payload=chunk(number, 3, "u"))
        await bench.publish(2)
        assert bench.notes.got == [("a", 0, 0), ("b", 3, 0), ("b", 4, 0)]
        subscription.flow(a, 1)
        assert bench.notes.entries("a") == [0, 1]
        # When it goes, all of them go to one other.
        bench.consumer(subscription, "c", SubscriptionType.SHARED, permits=9)
        subscription.detach(a)
        taker = next(name for name, entry, _ in bench.notes.got[4:] if entry == 0)
        assert sorted(bench.notes.entries(taker))[:3] == [0, 1, 2]
        subscription.detach(b)


@pytest.mark.parametrize("kind", list(SubscriptionType))
async def test_consumers_are_told_of_the_end_once_all_is_acknowledged(
    folder: Path, kind: SubscriptionType
) -> None:
    async with on_a_partition(folder) as bench:
        subscription = await bench.subscription()
        consumer = bench.consumer(subscription, "a", kind, permits=9)
        await bench.publish(2)
        await bench.partition.terminate()
        assert bench.notes.ended == []
        subscription.acknowledge(consumer, [Ack(1)], None)
        assert bench.notes.ended == []
        subscription.acknowledge(consumer, [Ack(0)], None)
        subscription.acknowledge(consumer, [Ack(0)], None)
        assert bench.notes.ended == ["a"]
        subscription.detach(consumer)
        bench.consumer(subscription, "b", kind)
        assert bench.notes.ended == ["a", "b"]


async def test_consumers_without_a_backlog_are_told_of_the_end_when_it_comes(folder: Path) -> None:
    async with on_a_partition(folder) as bench:
        subscription = await bench.subscription()
        bench.consumer(subscription, "a", SubscriptionType.SHARED, permits=9)
        await bench.partition.terminate()
        assert bench.notes.ended == ["a"]


async def test_what_is_skipped_is_not_put_aside_any_more(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(individual, "MAX_DELAYED_ENTRIES", 2)
    async with on_a_partition(folder) as bench:
        subscription = await bench.subscription()
        bench.consumer(subscription, "a", SubscriptionType.SHARED, permits=9)
        await bench.publish(2, messages=[Message(b"v", deliver_at=NOW + 60_000)])
        await bench.publish(1)
        assert bench.notes.entries() == []
        skip(bench, subscription, 1)
        assert bench.notes.entries() == [2]
        assert delayed(subscription) == 0


async def test_chunks_are_remembered_in_little_space_however_they_are_called(folder: Path) -> None:
    async with on_a_partition(folder) as bench:
        subscription = await bench.subscription()
        bench.consumer(subscription, "a", SubscriptionType.SHARED, permits=99)
        for number in range(20):
            metadata = pb.MessageMetadata(
                producer_name="p",
                sequence_id=number,
                publish_time=1,
                uuid=f"{number}" + "u" * 100_000,
                num_chunks_from_msg=2,
                chunk_id=0,
            )
            await bench.publish(1, payload=join_payload(metadata, b"v"))
        assert len(bench.notes.entries()) == 20
        dispatcher = subscription.dispatcher
        assert dispatcher is not None
        assert len(pickle.dumps(list(vars(vars(dispatcher)["_chunks"])["_takers"]))) < 10_000
