"""Deleted messages on their way to consumers: passed over without being read, and without alarm."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from router.broker.consume import BacklogCounter, SubscriptionType
from router.broker.disk.files import Disk
from router.broker.pulsar.positions import last_visible_entry
from router.broker.storage import Ack, bits, words
from router.broker.topics.descriptions import topic_stats
from tests.unit.broker.consume.dispatch.bench import on_a_partition
from tests.unit.broker.storage.rig import until

STORED = 3_000


def recorded_reads(monkeypatch: pytest.MonkeyPatch) -> list[Path]:
    """Return a list to which the segments go that are opened for reading from now on."""
    reads = list[Path]()
    whole = Disk.open

    def open_counted(disk: Disk, path: Path, flags: int) -> int:
        if path.suffix == ".seg" and flags == os.O_RDONLY:
            reads.append(path)
        return whole(disk, path, flags)

    monkeypatch.setattr(Disk, "open", open_counted)
    return reads


@pytest.mark.parametrize("kind", list(SubscriptionType))
async def test_a_long_run_of_deleted_messages_is_not_read(
    folder: Path, monkeypatch: pytest.MonkeyPatch, kind: SubscriptionType
) -> None:
    reads = recorded_reads(monkeypatch)
    async with on_a_partition(folder, cache=0) as bench:
        await bench.publish(STORED)
    async with on_a_partition(folder, cache=0) as bench:
        ledger = bench.partition.ledger
        bench.partition.store.delete_messages(ledger, [(1, STORED - 2)])
        subscription = await bench.subscription()
        bench.consumer(subscription, "a", kind, permits=10_000)
        await until(lambda: len(bench.notes.got) == 2)
        assert bench.notes.entries() == [0, STORED - 1]
        assert 1 <= len(reads) <= 3
        assert bench.partition.context.tally.damaged == 0
        assert await BacklogCounter().backlog(bench.partition.visible, subscription.cursor) == 2


async def test_a_reader_passes_over_segments_that_are_gone_without_alarm(folder: Path) -> None:
    async with on_a_partition(folder, segment=1_000, cache=0) as bench:
        await bench.publish(40)
    async with on_a_partition(folder, segment=1_000, cache=0) as bench:
        ledger, store = bench.partition.ledger, bench.partition.store
        reader = bench.partition.read_from("r", 0)
        middle = ledger.segments[1:3]
        store.delete_messages(ledger, [(middle[0].first_index, middle[1].next_index - 1)])
        await store.retain(1_000_000)
        assert middle[0] not in ledger.segments
        bench.consumer(reader, "a", SubscriptionType.EXCLUSIVE, permits=100)
        left = [*range(middle[0].first_entry), *range(middle[1].next_entry, 40)]
        await until(lambda: bench.notes.entries() == left)
        assert bench.partition.context.tally.damaged == 0


@pytest.mark.parametrize("kind", list(SubscriptionType))
async def test_gaps_of_reclaimed_entries_are_passed_over_with_the_read_that_meets_them(
    folder: Path, monkeypatch: pytest.MonkeyPatch, kind: SubscriptionType
) -> None:
    async with on_a_partition(folder, segment=20_000, cache=0) as bench:
        await bench.publish(600)
    async with on_a_partition(folder, segment=20_000, cache=0, reclaim_bytes=1) as bench:
        ledger, store = bench.partition.ledger, bench.partition.store
        store.delete_messages(ledger, [(n, n) for n in range(1, 600, 2)])
        assert await store.reclaim(ledger) > 0
        reads = recorded_reads(monkeypatch)
        subscription = await bench.subscription()
        bench.consumer(subscription, "a", kind, permits=10_000)
        await until(lambda: len(bench.notes.got) == 300)
        assert sorted(bench.notes.entries()) == list(range(0, 600, 2))
        assert len(reads) < 20
        assert bench.partition.context.tally.damaged == 0
        visible, cursor = bench.partition.visible, subscription.cursor
        assert await BacklogCounter().backlog(visible, cursor) == 300
        cursor.apply(Ack(300, cumulative=True))
        assert await BacklogCounter().backlog(visible, cursor) == 149
        assert cursor.mark_delete == 301


async def test_the_last_entry_is_the_last_with_messages_that_are_left(folder: Path) -> None:
    async with on_a_partition(folder) as bench:
        await bench.publish(5, batch=3)
        ledger, store = bench.partition.ledger, bench.partition.store
        subscription = await bench.subscription()
        consumer = bench.consumer(subscription, "a", SubscriptionType.SHARED)

        async def last(*, unacknowledged: bool = False) -> int | None:
            return await last_visible_entry(subscription, unacknowledged=unacknowledged)

        assert await last() == 4
        store.delete_messages(ledger, [(13, 14)])
        assert await last() == 4
        store.delete_messages(ledger, [(9, 12)])
        assert await last() == 2
        bench.partition.subscriptions["s"].flow(consumer, 100)
        assert bench.notes.entries() == [0, 1, 2]
        # What is acknowledged of an entry and what is deleted of it are all of it.
        store.delete_messages(ledger, [(6, 6)])
        subscription.cursor.apply(ack(2, 0b001))
        assert (await last(), await last(unacknowledged=True)) == (2, 1)
        store.delete_messages(ledger, [(0, 8)])
        assert await last() is None


async def test_consumers_of_a_terminated_topic_reach_its_end_if_that_is_deleted(
    folder: Path,
) -> None:
    async with on_a_partition(folder) as bench:
        await bench.publish(3, batch=2)
        ledger, store = bench.partition.ledger, bench.partition.store
        await store.terminate(ledger)
        store.delete_messages(ledger, [(0, 0), (2, 5)])
        subscription = await bench.subscription()
        consumer = bench.consumer(subscription, "a", SubscriptionType.SHARED, permits=10)
        assert bench.notes.entries() == [0]
        assert bits(bench.notes.ack_sets[0]) == 0b10
        assert bench.notes.ended == []
        subscription.acknowledge(consumer, [ack(0)], None)
        assert bench.notes.ended == ["a"]


def ack(entry: int, left: int = 0) -> Ack:
    return Ack(entry, ack_set=tuple(words(left)))


async def test_a_partition_ends_where_it_did_when_its_last_messages_are_deleted(
    folder: Path,
) -> None:
    """A copy takes a topic that ends before its last place for one that was created again."""
    async with on_a_partition(folder, segment=1 << 20, cache=0) as bench:
        await bench.publish(5, batch=3)
        ledger, store = bench.partition.ledger, bench.partition.store
        (record,) = store.topics()
        for gone, first, left, deleted in (
            ((12, 14), 0, 12, 3),
            ((0, 3), 1, 8, 4),
            ((4, 10), 3, 1, 5),
            ((11, 11), 0, 0, 0),
        ):
            store.delete_messages(ledger, [gone])
            (found,) = (await topic_stats(record, [bench.partition], None)).partitions
            shown = (found.first_entry, found.messages, found.deleted, found.next_entry)
            assert shown == (first, left, deleted, 5)
