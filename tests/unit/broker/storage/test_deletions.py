"""Messages that are deleted one by one stay deleted, and take whole segments with them."""

from __future__ import annotations

import asyncio
import random
import sqlite3
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from router.broker.disk import row_sums
from router.broker.storage import PULSAR_FORMAT, Ack, Ledger, StoreError, StoreOptions
from router.broker.storage.deleted_ranges import DeletedRanges
from router.broker.storage.files import check, repair
from router.broker.storage.retention import RetentionLimits, removable
from router.broker.storage.segments import Segment
from tests.unit.broker.storage.disks import Faults, HeldDisk, MemoryDisk
from tests.unit.broker.storage.rig import (
    NOW_MS,
    SMALL,
    clock,
    deleted_numbers,
    fill,
    ignore,
    killed,
    one_ledger,
    opened,
    payload,
    read_all,
    run,
    synced,
)

BIG_JOURNAL = replace(SMALL, journal=10**6)


def spans(ledger: Ledger) -> list[tuple[int, int]]:
    return list(ledger.deleted_numbers.ranges())


def first_live(ledger: Ledger) -> int:
    return ledger.deleted_numbers.first_live(ledger.first_number)


@pytest.mark.parametrize("close", [opened, killed])
async def test_deletions_of_a_ledger_that_is_otherwise_at_rest_outlive_the_process(
    folder: Path, close: object
) -> None:
    async with opened(folder) as store:
        await fill(store, await one_ledger(store), [payload(n) for n in range(10)])
    process = opened if close is opened else killed
    async with process(folder) as store:
        ledger = await one_ledger(store)
        assert store.delete_messages(ledger, [(2, 3), (3, 5), (9, 20)]) == 5
        await synced(store)
    for _ in range(2):
        async with opened(folder) as store:
            ledger = await one_ledger(store)
            assert spans(ledger) == [(2, 5), (9, 9)]
            assert (ledger.messages, first_live(ledger)) == (5, 0)
            assert len(await read_all(ledger)) == 10
    assert check(folder / "data") == []


async def test_messages_that_are_not_durable_yet_may_be_deleted(folder: Path) -> None:
    done: list[bool] = []
    async with killed(folder) as store:
        ledger = await one_ledger(store)
        ledger.append(b"one", PULSAR_FORMAT, 3, NOW_MS, ignore)
        assert store.delete_messages(ledger, [(0, 1)], lambda: done.append(True)) == 2
        assert (ledger.deleted_numbers.contains(1), first_live(ledger), done) == (True, 2, [])
        await synced(store)
        assert done == [True]
        assert store.delete_messages(ledger, [(0, 1)], lambda: done.append(True)) == 0
        assert len(done) == 2
    async with opened(folder) as store:
        assert spans(await one_ledger(store)) == [(0, 1)]


@pytest.mark.parametrize("lost", [[(8, 12), (14, 15)], [(8, 10)]])
async def test_deletions_of_numbers_that_were_lost_do_not_delete_what_gets_them_again(
    folder: Path, lost: list[tuple[int, int]]
) -> None:
    """As a power cut in relaxed mode leaves it: the metadata knows more than the journal."""
    async with opened(folder) as store:
        await fill(store, await one_ledger(store), [payload(n) for n in range(10)])
    with closing(sqlite3.connect(folder / "data" / "metadata.db")) as connection, connection:
        row_sums.install(connection)
        connection.executemany("INSERT INTO deleted VALUES (1, ?, ?)", [(3, 3), *lost])
    async with killed(folder) as store:
        ledger = await one_ledger(store)
        assert spans(ledger) == [(3, 3), (8, 9)]
        await fill(store, ledger, [payload(n) for n in range(10)])
    async with opened(folder) as store:
        ledger = await one_ledger(store)
        assert (spans(ledger), ledger.next_index) == ([(3, 3), (8, 9)], 20)


async def test_segments_without_messages_go_before_their_time_wherever_they_stand(
    folder: Path,
) -> None:
    async with opened(folder, BIG_JOURNAL) as store:
        ledger = await one_ledger(store)
        slow = await store.create_subscription(ledger.id, "slow", -1, {})
        await fill(store, ledger, [payload(n) for n in range(60)])
        await store._checkpointer.checkpoint()
        segments = ledger.segments
        assert len(segments) > 5
        middle, last = segments[2:4], segments[-1]
        size = sum(segment.size for segment in segments)
        for segment in (*middle, last):
            store.delete_messages(ledger, [(segment.first_index, segment.next_index - 1)])
        await store.retain(NOW_MS)
        assert ledger.segments == (*segments[:2], *segments[4:])
        assert ledger.size_bytes == size - sum(segment.size for segment in middle)
        gone = range(middle[0].first_entry, middle[1].next_entry)
        assert list(ledger.gaps()) == [(gone.start, gone.stop - 1)]
        assert all(slow.cursor.is_acked(entry) for entry in gone)
        assert slow.cursor.mark_delete == -1
        store.acknowledge(slow, Ack(gone.start - 1, cumulative=True))
        assert slow.cursor.mark_delete == gone.stop - 1
        kept = [entry.entry_id for entry in await read_all(ledger)]
        assert await ledger.entry_of_number(middle[0].first_index + 1) == gone.stop
        assert await ledger.number_before(gone.start) == gone.start
    assert check(folder / "data") == []
    async with opened(folder, BIG_JOURNAL) as store:
        ledger = await one_ledger(store)
        assert [entry.entry_id for entry in await read_all(ledger)] == kept
        later = await store.create_subscription(ledger.id, "later", -1, {})
        assert later.cursor.is_acked(gone.start)
        assert ledger.messages == len(kept) - (last.next_index - last.first_index)
        assert not set(kept) & set(gone)


async def test_what_goes_was_deleted_on_disk_before(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Messages are deleted between the checkpoint of a sweep and the removal of segments."""
    async with killed(folder, BIG_JOURNAL) as store:
        ledger = await one_ledger(store)
        await fill(store, ledger, [payload(n) for n in range(60)])
        checkpoint = store._sweep._checkpoint

        async def then_delete(now_ms: int) -> None:
            await checkpoint(now_ms)
            gone = ledger.segments[2]
            store.delete_messages(ledger, [(gone.first_index, gone.next_index - 1)])

        monkeypatch.setattr(store._sweep, "_checkpoint", then_delete)
        await store._checkpointer.checkpoint()
        first = ledger.segments[0]
        store.delete_messages(ledger, [(first.first_index, first.next_index - 1)])
        await store.retain(NOW_MS)
        (gap,) = ledger.gaps()
        with closing(sqlite3.connect(folder / "data" / "metadata.db")) as connection:
            rows = connection.execute("SELECT first_number, last_number FROM deleted")
            assert gap in rows.fetchall()
    assert check(folder / "data") == []


async def test_a_topic_whose_messages_are_all_deleted_takes_no_space(folder: Path) -> None:
    async with opened(folder) as store:
        ledger = await one_ledger(store)
        await fill(store, ledger, [payload(n) for n in range(30)])
        store.delete_messages(ledger, [(0, 29)])
        assert (ledger.messages, first_live(ledger), ledger.first_number) == (0, 30, 0)
        await store.retain(NOW_MS)
        assert (ledger.first_number, ledger.size_bytes, len(ledger.deleted_numbers)) == (
            30,
            0,
            0,
        )
    async with opened(folder) as store:
        ledger = await one_ledger(store)
        assert (ledger.first_number, spans(ledger), ledger.messages) == (30, [], 0)
        await fill(store, ledger, [b"new"])
        assert ledger.messages == 1


async def test_delete_before_a_number_within_a_segment_is_exact(folder: Path) -> None:
    async with opened(folder) as store:
        ledger = await one_ledger(store)
        await fill(store, ledger, [payload(n) for n in range(30)], each=True)
        for number in (7, 20, 21):
            await store.delete_before(ledger, number)
            assert ledger.first_number <= first_live(ledger) == number
            assert deleted_numbers(ledger) == set(range(number))
    async with opened(folder) as store:
        assert first_live(await one_ledger(store)) == 21


async def test_a_deleted_topic_has_nothing_to_delete(folder: Path) -> None:
    done: list[bool] = []
    async with opened(folder) as store:
        ledger = await one_ledger(store)
        await fill(store, ledger, [b"one"])
        await store.delete_topic(ledger.topic_id)
        assert store.delete_messages(ledger, [(0, 0)], lambda: done.append(True)) == 0
        assert done == [True]
        await store._checkpointer.checkpoint()
    with closing(sqlite3.connect(folder / "data" / "metadata.db")) as connection:
        assert connection.execute("SELECT count(*) FROM deleted").fetchone() == (0,)


@pytest.mark.parametrize("before", [[], [(4, 6)]])
def test_a_repair_of_the_journal_keeps_deletions_before_the_damage(
    folder: Path, before: list[tuple[int, int]]
) -> None:
    """`before`: what was deleted before the last checkpoint."""

    async def work() -> None:
        async with opened(folder, StoreOptions(reserve=0)) as store:
            ledger = await one_ledger(store)
            await fill(store, ledger, [payload(n) for n in range(10)])
            store.delete_messages(ledger, before)
        async with killed(folder, StoreOptions(reserve=0)) as store:
            ledger = await one_ledger(store)
            store.delete_messages(ledger, [(3, 4)])
            await synced(store)
            await fill(store, ledger, [payload(n) for n in range(10, 20)], each=True)

    run(work())
    (journal,) = (folder / "data" / "journal").glob("*.log")
    damaged = bytearray(journal.read_bytes())
    damaged[-500] ^= 1
    journal.write_bytes(damaged)
    assert any(finding.serious for finding in check(folder / "data"))
    repair(folder / "data", clock)
    assert check(folder / "data") == []

    async def after() -> None:
        async with opened(folder) as store:
            ledger = await one_ledger(store)
            assert spans(ledger) == ([(3, 6)] if before else [(3, 4)])

    run(after())


@pytest.mark.parametrize("ranges", [[(0, 5), (3, 7)], [(0, 5), (5, 7)], [(5, 3)]])
def test_deleted_ranges_that_overlap_are_damage_of_the_metadata(
    folder: Path, ranges: list[tuple[int, int]]
) -> None:
    async def work() -> None:
        async with opened(folder) as store:
            await fill(store, await one_ledger(store), [b"one"])

    run(work())
    with closing(sqlite3.connect(folder / "data" / "metadata.db")) as connection, connection:
        row_sums.install(connection)
        connection.executemany("INSERT INTO deleted VALUES (1, ?, ?)", ranges)
    for look in (lambda: check(folder / "data"), lambda: run(work())):
        with pytest.raises(StoreError, match="overlap"):
            look()


@given(st.sets(st.integers(0, 59)), st.integers(-1, 70))
def test_segments_with_messages_go_by_the_rule_and_others_at_once(
    numbers: set[int], retention_ms: int
) -> None:
    segments = [Segment(n, n, n + 10, n + 10, 5, n, n) for n in range(0, 60, 10)]
    deleted = DeletedRanges()
    for number in numbers:
        deleted.add(number, number)
    keep = RetentionLimits(retention_ms, -1, -1)
    going = removable(segments, keep, None, 70, deleted)
    for segment in segments:
        empty = set(range(segment.first_index, segment.next_index)) <= numbers
        due = 0 <= retention_ms <= 70 - segment.max_ms
        last_one = segment is segments[-1] and len(going) < len(segments)
        assert (segment in going) == ((empty or due) and not last_one)


async def test_a_durable_deletion_shows_once_it_is_on_disk_and_outlives_a_checkpoint(
    folder: Path,
) -> None:
    disk = HeldDisk()
    (folder / "data").mkdir()
    async with killed(folder, disk=disk) as store:
        ledger = await one_ledger(store)
        await fill(store, ledger, [payload(n) for n in range(10)])
        disk.hold()
        deleting = asyncio.create_task(store.delete_durably(ledger, [(2, 3), (3, 5)]))
        assert await asyncio.to_thread(disk.held.wait, 10)
        assert (spans(ledger), deleting.done()) == ([], False)
        disk.release()
        assert await deleting == 4
        assert spans(ledger) == [(2, 5)]
        assert await store.delete_durably(ledger, [(4, 5)]) == 0
        await store.delete_before(ledger, 0)
        assert spans(ledger) == [(2, 5)]
    async with opened(folder, disk=disk.crash(random.Random(1))) as store:
        assert spans(await one_ledger(store)) == [(2, 5)]


async def test_a_durable_deletion_that_the_disk_refuses_is_none(folder: Path) -> None:
    faults = Faults(dead=True)
    (folder / "data").mkdir()
    async with killed(folder, disk=MemoryDisk(faults)) as store:
        ledger = await one_ledger(store)
        await fill(store, ledger, [payload(n) for n in range(3)])
        faults.at = faults.count + 1
        for _ in range(2):
            with pytest.raises(StoreError):
                await store.delete_durably(ledger, [(0, 1)])
        assert spans(ledger) == []
