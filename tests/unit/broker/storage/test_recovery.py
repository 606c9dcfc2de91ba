"""Journals of several files: which damage ends what, and what a roll makes durable."""

from __future__ import annotations

import asyncio
import errno
import random
import sqlite3
from collections.abc import Sequence
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import pytest

from router.broker.disk import row_sums
from router.broker.disk.faults import StoreError
from router.broker.disk.files import Disk
from router.broker.storage import Ack, Cursor, Store, checkpointer, journal, recovery
from router.broker.storage import store as store_module
from router.broker.storage.commit_groups import FILE_SIZE, GROUP_HEADER_SIZE, read_records
from router.broker.storage.faults import JournalDamagedError
from router.broker.storage.journal import JournalFiles
from router.broker.storage.recovery import open_journal, sound_commit_groups
from router.model.policies import Policies
from tests.unit.broker.storage.disks import MemoryDisk
from tests.unit.broker.storage.rig import (
    SMALL,
    TOPIC,
    clock,
    fill,
    killed,
    one_ledger,
    opened,
    payload,
    read_all,
    run,
    until,
)

FOLDER = Path("/journal")
BODIES = [[b"first", b"second"], [b"third", b"fourth"], [b"fifth"]]


def write_files(bodies: Sequence[Sequence[bytes]], *, relaxed: bool = False) -> MemoryDisk:
    """Return a disk with a journal file for each list of rounds, numbered from 1."""
    disk = MemoryDisk()
    disk.make_folder(FOLDER)
    files = JournalFiles(disk, FOLDER, 1 << 20, relaxed=relaxed)
    for number, rounds in enumerate(bodies, 1):
        files.start(number, 1 if number == 1 else 0)
        for body in rounds:
            files.write([body])
        files.sync()
    files.close()
    return disk


def content(disk: MemoryDisk, number: int) -> bytearray:
    """Return the bytes of a journal file, to be changed."""
    found = disk.names[FOLDER / f"{number:010d}.log"]
    assert found is not None
    return found.data


def recovered(disk: MemoryDisk, numbers: Sequence[int] = (1, 2, 3)) -> list[bytes]:
    """Return the bodies of the rounds that recovery takes."""
    paths = [FOLDER / f"{number:010d}.log" for number in numbers]
    return [round_.body for _, round_ in sound_commit_groups(disk, paths)]


def place(file: int, number: int) -> tuple[int, int]:
    """Return where a round begins and ends in its file."""
    sizes = [GROUP_HEADER_SIZE + len(body) for body in BODIES[file - 1]]
    begin = FILE_SIZE + sum(sizes[:number])
    return begin, begin + sizes[number]


def test_rounds_of_all_files_are_recovered_in_order() -> None:
    assert recovered(write_files(BODIES)) == [body for bodies in BODIES for body in bodies]


@pytest.mark.parametrize(("file", "number"), [(1, 0), (1, 1), (2, 0), (2, 1)])
@pytest.mark.parametrize("cut", [False, True])
def test_damage_in_an_older_file_is_reported_though_the_later_files_are_sound(
    file: int, number: int, cut: bool
) -> None:
    disk = write_files(BODIES)
    begin, end = place(file, number)
    data = content(disk, file)
    if cut:
        del data[end - 1 :]
    else:
        data[end - 1] ^= 1
    with pytest.raises(JournalDamagedError) as damaged:
        recovered(disk)
    last = number == len(BODIES[file - 1]) - 1 or cut
    assert str(FOLDER / f"{file:010d}.log") in str(damaged.value)
    assert f"bytes {begin} to {len(data) if last else end}" in str(damaged.value)


def test_a_round_cut_short_at_the_very_end_was_promised_to_no_one() -> None:
    disk = write_files(BODIES)
    del content(disk, 3)[-1:]
    assert recovered(disk) == [b"first", b"second", b"third", b"fourth"]


@pytest.mark.parametrize("file", [1, 2])
def test_relaxed_storage_takes_nothing_behind_a_round_that_is_not_sound(file: int) -> None:
    disk = write_files(BODIES, relaxed=True)
    content(disk, file)[place(file, 1)[1] - 1] ^= 1
    assert recovered(disk) == [b"first", b"second", b"third"][: 2 * file - 1]


def test_rounds_that_are_missing_between_two_files_are_damage() -> None:
    disk = write_files(BODIES)
    with pytest.raises(JournalDamagedError, match="commit groups before it are missing"):
        recovered(disk, [1, 3])
    del content(disk, 2)[place(2, 1)[0] :]  # a whole round less, and what is there is sound
    with pytest.raises(JournalDamagedError, match="commit groups before it are missing"):
        recovered(disk)


def test_a_file_that_is_missing_between_others_is_damage() -> None:
    disk = write_files(BODIES)
    files = JournalFiles(disk, FOLDER, 1 << 20, relaxed=False)
    assert open_journal(disk, files, 1, closed=False) == [1, 2, 3]
    assert open_journal(disk, files, 2, closed=False) == [2, 3]
    disk.unlink(FOLDER / "0000000002.log")
    with pytest.raises(JournalDamagedError, match="the file is missing"):
        open_journal(disk, files, 1, closed=False)
    assert open_journal(disk, files, 3, closed=False) == [3]
    disk.unlink(FOLDER / "0000000003.log")
    with pytest.raises(JournalDamagedError, match="the file is missing"):
        open_journal(disk, files, 3, closed=False)
    assert open_journal(disk, files, 3, closed=True) == []


def test_relaxed_storage_has_older_journal_files_on_disk_before_it_begins_another(
    folder: Path,
) -> None:
    disk = MemoryDisk()
    (folder / "data").mkdir()
    options = replace(SMALL, relaxed=True)
    counts = list[int]()

    async def work() -> None:
        async with killed(folder, options, disk) as store:
            ledger = await one_ledger(store)
            async with store._checkpointer.alone():  # so that the older files stay
                for number in range(100):
                    await fill(store, ledger, [payload(number)])
                files = [(p, c) for p, c in disk.names.items() if c and p.suffix == ".log"]
                *older, newest = (c for _, c in sorted(files, key=lambda one: one[0]))
                assert len(older) > 2
                for file in older:
                    assert file.data == file.synced
                counts.extend(sum(payload(n) in c.data for n in range(100)) for c in older)
                assert newest.data

    async def recover(after: MemoryDisk) -> None:
        async with opened(folder, options, after) as store:
            entries = [entry.payload for entry in await read_all(await one_ledger(store))]
            assert entries == [payload(n) for n in range(len(entries))]
            assert len(entries) >= sum(counts)

    run(work())
    run(recover(disk.crash(random.Random(1))))


def test_what_a_checkpoint_takes_from_the_journal_outlasts_a_power_cut(folder: Path) -> None:
    disk = MemoryDisk()
    (folder / "data").mkdir()
    payloads = [payload(n) for n in range(60)]

    async def work() -> None:
        async with killed(folder, SMALL, disk) as store:
            ledger = await one_ledger(store)
            for each in payloads:
                await fill(store, ledger, [each])
            await store._checkpointer.checkpoint()
            assert ledger.segments

    run(work())
    for seed in range(5):
        run(expect_all(folder, disk.crash(random.Random(seed)), payloads))


async def expect_all(folder: Path, disk: MemoryDisk, payloads: list[bytes]) -> None:
    """Demand that a store opens on the disk and holds these."""
    async with killed(folder, SMALL, disk) as store:
        entries = await read_all(await one_ledger(store))
        assert [entry.payload for entry in entries] == payloads


def test_what_was_recovered_outlasts_the_next_power_cut(folder: Path) -> None:
    disk = MemoryDisk()
    (folder / "data").mkdir()
    payloads = [payload(n) for n in range(9)]

    async def work() -> None:
        async with killed(folder, SMALL, disk) as store:
            await fill(store, await one_ledger(store), payloads, each=True)

    run(work())
    for seed in range(3):
        disk = disk.crash(random.Random(seed))
        run(expect_all(folder, disk, payloads))


def test_what_a_segment_holds_beyond_its_synced_size_is_cut_before_it_is_written_again(
    folder: Path,
) -> None:
    options = replace(SMALL, segment=1 << 20)
    payloads = [payload(n) for n in range(20)]

    async def work(added: list[bytes]) -> None:
        async with opened(folder, options) as store:
            await fill(store, await one_ledger(store), added)

    run(work(payloads[:10]))
    (segment,) = (folder / "data" / "ledgers").rglob("*.seg")
    with segment.open("ab") as file:
        file.write(b"begun, and never synced")
    run(work(payloads[10:]))

    async def check() -> None:
        async with opened(folder, replace(options, cache=0)) as store:
            entries = await read_all(await one_ledger(store))
            assert [entry.payload for entry in entries] == payloads

    run(check())


@pytest.mark.parametrize("syncs_all", [False, True])
def test_files_that_are_closed_to_make_room_for_others_are_on_disk_too(
    folder: Path, syncs_all: bool
) -> None:
    disk = MemoryDisk(syncs_all=syncs_all)
    (folder / "data").mkdir()
    partitions = 5
    assert SMALL.open_files // 2 < partitions

    async def work() -> None:
        async with killed(folder, SMALL, disk) as store:
            topic = await store.create_topic(TOPIC, partitions, Policies(), {})
            for place, ledger_id in enumerate(topic.ledger_ids):
                await fill(store, store.ledger(ledger_id), [payload(place)])
            await store._checkpointer.checkpoint()

    async def check(after: MemoryDisk) -> None:
        async with killed(folder, SMALL, after) as store:
            (topic,) = store.topics()
            for place, ledger_id in enumerate(topic.ledger_ids):
                entries = await read_all(store.ledger(ledger_id))
                assert [entry.payload for entry in entries] == [payload(place)]

    run(work())
    for seed in range(3):
        run(check(disk.crash(random.Random(seed))))


class Full(MemoryDisk):
    """A disk on which there is no room for metadata and names, when told so."""

    full = False

    def rename(self, source: Path, target: Path) -> None:
        if self.full:
            raise OSError(errno.ENOSPC, "no room")
        super().rename(source, target)

    def commit(self, connection: sqlite3.Connection) -> None:
        if self.full:
            raise OSError(errno.ENOSPC, "no room")
        super().commit(connection)


def test_the_journal_stays_until_the_metadata_says_that_it_is_not_needed(folder: Path) -> None:
    disk = Full()
    (folder / "data").mkdir()
    payloads = [payload(n) for n in range(60)]

    async def work() -> None:
        async with killed(folder, SMALL, disk) as store:
            ledger = await one_ledger(store)
            async with store._checkpointer.alone():
                for each in payloads:
                    await fill(store, ledger, [each])
                disk.full = True
            with pytest.raises(StoreError):
                await store._checkpointer.checkpoint()

    run(work())
    for seed in range(5):
        run(expect_all(folder, disk.crash(random.Random(seed)), payloads))


def test_the_old_journal_stays_until_what_was_recovered_has_a_name(folder: Path) -> None:
    disk = Full()
    (folder / "data").mkdir()
    payloads = [payload(n) for n in range(9)]

    async def work() -> None:
        async with killed(folder, SMALL, disk) as store:
            await fill(store, await one_ledger(store), payloads, each=True)
        disk.full = True
        with pytest.raises(StoreError):
            await Store.open(folder / "data", SMALL, clock, disk)

    run(work())
    for after in (disk.crash(random.Random(1)), disk.reread()):
        run(expect_all(folder, after, payloads))


@pytest.mark.slow
async def test_relaxed_storage_has_everything_on_disk_soon_after_the_last_round(
    folder: Path,
) -> None:
    disk = MemoryDisk()
    (folder / "data").mkdir()
    options = replace(SMALL, relaxed=True)

    def is_synced() -> bool:
        files = [c for p, c in disk.names.items() if c and p.suffix == ".log"]
        return all(file.data == file.synced for file in files)

    async with killed(folder, options, disk) as store:
        await fill(store, await one_ledger(store), [payload(n) for n in range(9)], each=True)
        await until(is_synced)


async def test_what_a_kill_left_does_not_hold_publishing_up_behind_the_start(folder: Path) -> None:
    payloads = [payload(number) for number in range(20)]
    async with killed(folder, replace(SMALL, cache=1 << 20, journal=1 << 20)) as store:
        await fill(store, await one_ledger(store), payloads)
    # More than fits into the cache, but not so much that it is written before the start.
    async with opened(folder, replace(SMALL, cache=8_000, journal=1 << 20)) as store:
        ledger = await one_ledger(store)
        assert (ledger.flushed_entry, store.congested) == (0, False)
        await until(lambda: ledger.flushed_entry == 20)
        assert [entry.payload for entry in await read_all(ledger)] == payloads


def test_a_journal_file_ends_before_a_start_has_too_much_to_read_however_small_it_is(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(journal, "MAX_PARTS", 60)

    async def work() -> None:
        async with killed(folder, replace(SMALL, cache=1 << 20, journal=1 << 20)) as store:
            ledger = await one_ledger(store)
            await fill(store, ledger, [b"v"] * 50, each=True)
            await until(lambda: ledger.flushed_entry >= 40)
        async with opened(folder) as store:
            assert len(await read_all(await one_ledger(store))) == 50

    run(work())
    assert len(list((folder / "data" / "journal").glob("*.log"))) <= 2


async def test_recovery_writes_away_what_is_much_more_than_the_cache(folder: Path) -> None:
    payloads = [payload(number) for number in range(60)]
    async with killed(folder, replace(SMALL, cache=1 << 20, journal=1 << 20)) as store:
        await fill(store, await one_ledger(store), payloads, each=True)
    async with opened(folder, replace(SMALL, cache=4_000, journal=1 << 20)) as store:
        ledger = await one_ledger(store)
        assert ledger.flushed_entry > 30
        assert [entry.payload for entry in await read_all(ledger)] == payloads


async def test_small_commit_groups_are_joined_by_recovery(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(recovery, "JOINED_BYTES", 1 << 20)
    async with killed(folder, replace(SMALL, cache=1 << 20, journal=1 << 20)) as store:
        await fill(store, await one_ledger(store), [b"v"] * 50, each=True)
    async with killed(folder, replace(SMALL, cache=1 << 20, journal=1 << 20)):
        (file,) = (folder / "data" / "journal").glob("*.log")
        groups = sound_commit_groups(Disk(), [file])
        (joined,) = [group for _, group in groups if len(list(read_records(group.body))) > 1]
        assert len(list(read_records(joined.body))) == 50


@pytest.mark.parametrize("relaxed", [False, True])
def test_stop_with_entries_of_many_ledgers_makes_no_files_and_leaves_them_in_the_journal(
    folder: Path, monkeypatch: pytest.MonkeyPatch, *, relaxed: bool
) -> None:
    monkeypatch.setattr(checkpointer, "MAX_LEDGERS_WRITTEN_AT_END", 2)
    options = replace(SMALL, cache=1 << 20, journal=1 << 20, relaxed=relaxed)
    disk = MemoryDisk()
    (folder / "data").mkdir()

    async def fill_all(name: str, count: int) -> None:
        async with opened(folder, options, disk) as store:
            topic = await store.create_topic(f"{TOPIC}-{name}", count, Policies(), {})
            for ledger_id in topic.ledger_ids:
                record = await store.create_subscription(ledger_id, "g", -1, {})
                await fill(store, store.ledger(ledger_id), [payload(n) for n in range(3)])
                store.acknowledge(record, Ack(1))

    async def expect(count: int) -> None:
        async with opened(folder, options, disk) as store:
            ids = [number for topic in store.topics() for number in topic.ledger_ids]
            assert len(ids) == count
            for ledger_id in ids:
                found = await read_all(store.ledger(ledger_id))
                assert [entry.payload for entry in found] == [payload(n) for n in range(3)]
                (record,) = store.subscriptions(ledger_id)
                assert list(record.cursor.ranges()) == [(1, 1)]

    def written() -> int:
        return len([path for path in disk.names if path.suffix == ".seg"])

    run(fill_all("few", 2))
    assert written() == 2
    assert not [path for path in disk.names if path.suffix == ".log"]
    run(fill_all("many", 3))
    assert written() == 2
    disk = disk.crash(random.Random(1))
    run(expect(5))
    monkeypatch.setattr(checkpointer, "MAX_LEDGERS_WRITTEN_AT_END", 3)
    run(expect(5))
    assert written() == 5


def test_ledgers_that_wait_for_longest_are_written_until_a_stop_may_write_the_rest(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(checkpointer, "MAX_LEDGERS_WRITTEN_AT_END", 3)
    monkeypatch.setattr(checkpointer, "LEDGERS_RELIEVED", 2)
    monkeypatch.setattr(store_module, "_SPACE_CHECK_SECONDS", 0.0)
    options = replace(SMALL, cache=1 << 20, journal=1 << 20)
    disk = MemoryDisk()
    (folder / "data").mkdir()

    def written() -> tuple[int, ...]:
        folders = {int(path.parent.name) for path in disk.names if path.suffix == ".seg"}
        return tuple(sorted(folders))

    async def relieved(store: Store) -> None:
        await until(lambda: len(store._tails.unflushed) <= 3)

    async def fill_all(count: int) -> list[int]:
        async with killed(folder, options, disk) as store:
            topic = await store.create_topic(TOPIC, count, Policies(), {})
            for ledger_id in topic.ledger_ids:
                await fill(store, store.ledger(ledger_id), [payload(n) for n in range(3)])
            await relieved(store)
            return [*topic.ledger_ids]

    async def expect(ids: list[int]) -> None:
        async with opened(folder, options, disk) as store:
            for ledger_id in ids:
                found = await read_all(store.ledger(ledger_id))
                assert [entry.payload for entry in found] == [payload(n) for n in range(3)]
            await relieved(store)

    ids = asyncio.run(fill_all(8))
    assert written() in {tuple(ids[:5]), tuple(ids[:6])}
    disk = disk.crash(random.Random(1))
    run(expect(ids))
    assert written() == tuple(ids)
    assert not [path for path in disk.names if path.suffix == ".log"]


@pytest.mark.parametrize("ack", [Ack(5, cumulative=True), Ack(5)])
def test_cursor_that_a_start_clips_does_not_acknowledge_what_is_stored_later(
    folder: Path, ack: Ack
) -> None:
    """In relaxed mode the metadata may acknowledge entries that a power cut took."""

    async def begin() -> None:
        async with opened(folder) as store:
            ledger = await one_ledger(store)
            await store.create_subscription(ledger.id, "g", -1, {})
            await fill(store, ledger, [b"kept"] * 5)

    async def go_on() -> None:
        async with killed(folder) as store:
            await fill(store, await one_ledger(store), [b"later"] * 3)

    async def end() -> None:
        async with opened(folder) as store:
            ledger = await one_ledger(store)
            (record,) = store.subscriptions(ledger.id)
            assert ledger.next_entry == 8
            assert not any(record.cursor.is_acked(entry) for entry in (5, 6, 7))

    run(begin())
    ahead = Cursor()
    ahead.apply(ack)
    with closing(sqlite3.connect(folder / "data" / "metadata.db")) as metadata, metadata:
        row_sums.install(metadata)
        metadata.execute("UPDATE subscriptions SET cursor = ?", (ahead.dump(),))
    run(go_on())
    run(end())
