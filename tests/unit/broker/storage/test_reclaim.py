"""Space of deleted messages is given back, and what is left is read as before."""

from __future__ import annotations

import asyncio
import errno
import random
import shutil
import sqlite3
from collections.abc import Coroutine
from contextlib import closing, suppress
from dataclasses import replace
from pathlib import Path
from typing import Any, TypeVar

import pytest

from router.broker.disk import row_sums
from router.broker.folder import MARK
from router.broker.storage import PULSAR_FORMAT, DamagedError, Entry, Ledger, Store, StoreError
from router.broker.storage.files import check, repair
from tests.unit.broker.storage.disks import Faults, MemoryDisk
from tests.unit.broker.storage.rig import (
    NOW_MS,
    SMALL,
    clock,
    fill,
    ignore,
    killed,
    one_ledger,
    opened,
    payload,
    read_all,
    run,
    synced,
    until,
)
from tests.unit.broker.storage.test_crashes import STEP

T = TypeVar("T")
OPTIONS = replace(SMALL, journal=10**6, reclaim_bytes=1, cache=0)


async def filled(store: Store, count: int = 60) -> Ledger:
    """Return a ledger with entries of one message, in closed segments but for the last ones."""
    ledger = await one_ledger(store)
    await fill(store, ledger, [payload(n) for n in range(count)])
    await store._checkpointer.checkpoint()
    assert len(ledger.segments) > 3
    return ledger


def run_for(work: Coroutine[Any, Any, T]) -> T:
    return asyncio.run(work)


def size_on_disk(folder: Path) -> int:
    return sum(path.stat().st_size for path in (folder / "data" / "ledgers").rglob("*.seg"))


async def test_entries_whose_messages_are_deleted_go_and_the_others_are_read_as_before(
    folder: Path,
) -> None:
    async with opened(folder, OPTIONS) as store:
        ledger = await filled(store)
        before, segments = ledger.size_bytes, ledger.segments
        store.delete_messages(ledger, [(n, n + 1) for n in range(0, 60, 3)])
        given = await store.reclaim(ledger)
        assert given == before - ledger.size_bytes > before // 3
        assert size_on_disk(folder) == ledger.size_bytes
        bounds = segments[0].first_entry, segments[-1].next_entry
        assert (ledger.segments[0].first_entry, ledger.segments[-1].next_entry) == bounds
        last = segments[-1].first_entry
        left = [n for n in range(60) if n % 3 == 2 or n >= last]
        assert [(e.entry_id, e.index, e.payload) for e in await read_all(ledger)] == [
            (n, n, payload(n)) for n in left
        ]
        for number in range(last):
            entry = await ledger.entry_of_number(number)
            assert entry == next(n for n in left if n >= number)
            assert await ledger.number_before(entry) == entry
            assert await ledger.number_before(entry + 1) == entry + 1
            (found,) = await ledger.read(number, 1, 1)
            assert found.entry_id == entry
            assert number <= await ledger.number_before(number) <= entry
        assert await ledger.find_time(NOW_MS) == left[0]
        assert await store.reclaim(ledger) == 0
    assert check(folder / "data") == []
    async with opened(folder, OPTIONS) as store:
        ledger = await one_ledger(store)
        assert [entry.entry_id for entry in await read_all(ledger)] == left


async def test_small_neighbours_share_a_file_as_long_as_they_fit(folder: Path) -> None:
    async with opened(folder, OPTIONS) as store:
        ledger = await filled(store)
        count = len(ledger.segments)
        keep = {n for n in range(60) if n % 10 == 5}
        store.delete_messages(ledger, [(n, n) for n in range(60) if n not in keep])
        await store.reclaim(ledger)
        assert len(ledger.segments) < count // 2
        assert ledger.segments[0].size < 2 * OPTIONS.segment
        found = [entry.entry_id for entry in await read_all(ledger)]
        assert [n for n in found if n < ledger.segments[-1].first_entry] == sorted(
            n for n in keep if n < ledger.segments[-1].first_entry
        )
    assert check(folder / "data") == []


def kept(entry: Entry, live: int) -> bytes:
    """Write an entry of messages with a bar between them again: nothing is left of some."""
    messages = entry.payload.split(b"|")
    return b"|".join(m if live >> place & 1 else b"" for place, m in enumerate(messages))


async def reopened(folder: Path, disk: MemoryDisk) -> Store:
    return await Store.open(folder / "data", OPTIONS, clock, disk, keep_messages=kept)


def batch(number: int) -> bytes:
    return b"|".join(b"%d.%d:" % (number, place) + b"x" * 30 for place in range(3))


async def live_messages(ledger: Ledger) -> dict[int, bytes]:
    found = {}
    for entry in await read_all(ledger):
        for place, message in enumerate(entry.payload.split(b"|")):
            number = entry.index + 1 - entry.messages + place
            if not ledger.deleted_numbers.contains(number):
                found[number] = message
    return found


class Scene:
    """A folder with a ledger of batches of which messages were deleted, to begin from again."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._disk = MemoryDisk()
        (folder / "data").mkdir()
        run(self._begin())
        shutil.copytree(folder / "data", folder / "first")

    async def _begin(self) -> None:
        store = await reopened(self.folder, self._disk)
        ledger = await one_ledger(store)
        for number in range(40):
            ledger.append(batch(number), PULSAR_FORMAT, 3, NOW_MS, ignore)
        await synced(store)
        store.delete_messages(ledger, [(n, n + n % 5) for n in range(0, 120, 6)])
        await store.close()
        self.expected = {
            n: batch(n // 3).split(b"|")[n % 3]
            for n in range(120)
            if not any(first <= n <= first + first % 5 for first in range(0, 120, 6))
        }

    def again(self) -> MemoryDisk:
        """Return the disk as it was, the metadata beside it too."""
        shutil.rmtree(self.folder / "data")
        shutil.copytree(self.folder / "first", self.folder / "data")
        return self._disk.crash(random.Random(0))

    async def check(self, disk: MemoryDisk) -> None:
        """Demand that what is not deleted is there and nothing else, in whichever file."""
        store = await reopened(self.folder, disk)
        ledger = await one_ledger(store)
        assert await live_messages(ledger) == self.expected
        await store.retain(NOW_MS)
        assert store._reclaimer._run is not None
        await store._reclaimer._run
        assert await live_messages(ledger) == self.expected
        assert ledger.size_bytes < 3 * self.size // 4
        names = {path.name for path in disk.names if path.suffix == ".seg"}
        assert names == {store._context.reader.path(1, s).name for s in ledger.segments}
        await store.close()
        assert repair(self.folder / "data", clock, disk) == []

    async def reclaim(self, disk: MemoryDisk, faults: Faults) -> bool:
        """Reclaim on a disk that may fail; return whether the store failed."""
        store = await reopened(self.folder, disk)
        ledger = await one_ledger(store)
        self.size = ledger.size_bytes
        disk.faults = faults
        with suppress(StoreError):
            await store.reclaim(ledger)
        failed = store.failed.done()
        if not faults.dead:
            disk.faults = Faults()
        if not failed and not faults.dead:
            assert await live_messages(ledger) == self.expected
        await store.close()
        return failed

    def operations(self) -> range:
        faults = Faults()
        run_for(self.reclaim(self.again(), faults))
        assert {"write", "sync_data", "sync_folder", "commit", "unlink"} <= set(faults.names)
        return range(1 + random.randrange(STEP), faults.count + 1, STEP)


@pytest.mark.slow
def test_power_cut_at_any_operation_leaves_the_old_segments_or_the_new(folder: Path) -> None:
    scene = Scene(folder)
    for at in scene.operations():
        disk, faults = scene.again(), Faults(at, errno.ENOSPC, dead=True)
        run_for(scene.reclaim(disk, faults))
        try:
            run(scene.check(disk.crash(random.Random(at))))
        except BaseException as error:
            error.add_note(f"operation {at} ({faults.names[at - 1 :][:1]})")
            raise


@pytest.mark.slow
@pytest.mark.parametrize("error", [errno.EIO, errno.ENOSPC])
def test_disk_that_fails_once_leaves_the_old_segments_and_the_store_goes_on(
    folder: Path, error: int
) -> None:
    scene = Scene(folder)
    ended = set()
    for at in scene.operations():
        disk, faults = scene.again(), Faults(at, error)
        failed = run_for(scene.reclaim(disk, faults))
        if failed:
            ended.add(faults.names[at - 1])
            if (mark := folder / "data" / MARK).exists():
                mark.unlink()
        run(scene.check(disk.reread()))
    assert ended <= {"commit", "committed", "free"}


async def test_deletions_meanwhile_are_stored_with_the_gaps_that_they_make(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with killed(folder, OPTIONS) as store:
        ledger = await filled(store)
        drop_deleted = store._sweep.drop_deleted

        async def delete_more(one: Ledger) -> int:
            """Delete behind the checkpoint, and before the deletions are looked at."""
            store.delete_messages(ledger, [(n, n + 1) for n in range(9, 60, 3)])
            return await drop_deleted(one)

        monkeypatch.setattr(store._sweep, "drop_deleted", delete_more)
        store.delete_messages(ledger, [(n, n + 1) for n in range(0, 9, 3)])
        assert await store.reclaim(ledger) > 0
        left = [entry.entry_id for entry in await read_all(ledger)]
        assert len(left) < 30
    assert check(folder / "data") == []
    async with opened(folder, OPTIONS) as store:
        assert [entry.entry_id for entry in await read_all(await one_ledger(store))] == left


@pytest.mark.no_cover
async def test_bit_that_flips_in_a_rewritten_segment_is_found_and_is_no_gap(folder: Path) -> None:
    async with opened(folder, OPTIONS) as store:
        ledger = await filled(store)
        store.delete_messages(ledger, [(n, n + 1) for n in range(0, 60, 3)])
        await store.reclaim(ledger)
        segment = ledger.segments[0]
        path = store._context.reader.path(ledger.id, segment)
        left = {entry.entry_id: entry for entry in await read_all(ledger)}
    data = path.read_bytes()
    for place in range(segment.size):
        path.write_bytes(data[:place] + bytes([data[place] ^ 1 << place % 8]) + data[place + 1 :])
        (finding,) = check(folder / "data")
        assert finding.serious
        assert finding.file == path
        assert finding.span is not None
        assert finding.span[0] <= place < finding.span[1]
        if place % 50:
            continue
        async with opened(folder, OPTIONS) as store:
            found: dict[int, Entry] = {}
            at = 0
            ledger, damaged = await one_ledger(store), 0
            while at < ledger.durable_entry:
                try:
                    entries = await ledger.read(at, 7, 1000)
                except DamagedError as error:
                    at, damaged = error.last + 1, damaged + 1
                    continue
                found |= {entry.entry_id: entry for entry in entries}
                at = entries[-1].entry_id + 1 if entries else ledger.durable_entry
            assert damaged == 1
            assert found.items() <= left.items()
            assert len(found) >= len(left) - 1
    path.write_bytes(data)
    assert check(folder / "data") == []


async def test_damage_in_a_rewritten_segment_is_given_up_and_no_more(folder: Path) -> None:
    async with opened(folder, OPTIONS) as store:
        ledger = await filled(store)
        store.delete_messages(ledger, [(n, n + 1) for n in range(0, 60, 3)])
        await store.reclaim(ledger)
        segment = ledger.segments[0]
        path = store._context.reader.path(ledger.id, segment)
        left = [entry.entry_id for entry in await read_all(ledger)]
    lost, count = left[2], len(list(path.parent.glob("*.seg")))
    data = bytearray(path.read_bytes())
    data[data.index(payload(lost))] ^= 1
    path.write_bytes(data)
    (finding,) = repair(folder / "data", clock)
    assert finding.repaired
    assert check(folder / "data") == []
    parts = {f"{0:020d}-1.seg", f"{lost + 1:020d}.seg"}
    names = {file.name for file in path.parent.glob("*.seg")}
    assert len(names) == count + 1
    assert parts <= names
    async with opened(folder, OPTIONS) as store:
        ledger = await one_ledger(store)
        assert [(hole.first, hole.last) for hole in ledger.holes] == [(lost, lost)]
        assert [entry.entry_id for entry in await read_all(ledger)] == [
            n for n in left if n != lost
        ]
        store.delete_messages(ledger, [(0, 50)])
        await store.reclaim(ledger)
    assert check(folder / "data") == []


async def test_gap_whose_messages_are_not_deleted_is_reported(folder: Path) -> None:
    async with opened(folder, OPTIONS) as store:
        ledger = await filled(store)
        store.delete_messages(ledger, [(n, n + 1) for n in range(0, 60, 3)])
        await store.reclaim(ledger)
    with closing(sqlite3.connect(folder / "data" / "metadata.db")) as connection, connection:
        row_sums.install(connection)
        connection.execute("DELETE FROM deleted WHERE first_number = 3")
    (finding,) = check(folder / "data")
    assert finding.serious
    assert "entries 3 to 4 are gone, and their messages are not deleted" in finding.sentence


async def test_segment_of_which_little_is_deleted_is_left_alone(folder: Path) -> None:
    async with opened(folder, OPTIONS) as store:
        ledger = await filled(store)
        segments = ledger.segments
        store.delete_messages(ledger, [(0, 0)])
        assert (await store.reclaim(ledger), ledger.segments) == (0, segments)
    async with opened(folder, replace(OPTIONS, reclaim_bytes=10**6)) as store:
        ledger = await one_ledger(store)
        first = segments[0]
        store.delete_messages(ledger, [(0, first.next_index - 2)])
        assert (await store.reclaim(ledger), ledger.segments) == (0, segments)


async def test_idle_ledger_is_reclaimed_by_a_sweep(folder: Path) -> None:
    async with opened(folder, OPTIONS) as store:
        ledger = await filled(store)
        size = ledger.size_bytes
        store.delete_messages(ledger, [(n, n + 1) for n in range(0, 60, 3)])
    async with opened(folder, OPTIONS) as store:
        (ledger_id,) = next(iter(store.topics())).ledger_ids
        assert store.idle(ledger_id) is not None
        await store.retain(NOW_MS)
        assert store._reclaimer._run is not None
        assert await store._reclaimer._run > 0
        assert store.ledger(ledger_id).size_bytes < size


async def test_store_that_closes_leaves_a_segment_that_is_half_written(folder: Path) -> None:
    async with opened(folder, OPTIONS) as store:
        ledger = await filled(store)
        store.delete_messages(ledger, [(n, n + 1) for n in range(0, 60, 3)])
        reclaiming = asyncio.ensure_future(store.reclaim(ledger))
        await until(lambda: any((folder / "data").rglob("*-1.seg")))
    await reclaiming
    names = {path.name for path in (folder / "data").rglob("*.seg")}
    async with opened(folder, OPTIONS) as store:
        ledger = await one_ledger(store)
        assert names == {store._context.reader.path(1, s).name for s in ledger.segments}


async def test_topic_that_is_deleted_meanwhile_leaves_no_file(folder: Path) -> None:
    async with opened(folder, OPTIONS) as store:
        ledger = await filled(store)
        store.delete_messages(ledger, [(n, n + 1) for n in range(0, 60, 3)])
        (topic,) = store.topics()
        reclaiming = asyncio.ensure_future(store.reclaim(ledger))
        await until(lambda: any((folder / "data").rglob("*-1.seg")))
        await store.delete_topic(topic.id)
        await reclaiming
        assert not list((folder / "data" / "ledgers").iterdir())
        assert not store.failed.done()
