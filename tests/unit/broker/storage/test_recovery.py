"""Journals of several files: which damage ends what, and what a roll makes durable."""

from __future__ import annotations

import errno
import random
import sqlite3
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from router.broker.storage import Store
from router.broker.storage.commit_groups import FILE_SIZE, GROUP_HEADER_SIZE
from router.broker.storage.faults import JournalDamagedError, StoreError
from router.broker.storage.journal import JournalFiles
from router.broker.storage.recovery import open_journal, sound_commit_groups
from router.model import Policies
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
    files = JournalFiles(disk, FOLDER, 1 << 20, relaxed)
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
def test_relaxed_storage_has_everything_on_disk_soon_after_the_last_round(folder: Path) -> None:
    disk = MemoryDisk()
    (folder / "data").mkdir()
    options = replace(SMALL, relaxed=True)

    def is_synced() -> bool:
        files = [c for p, c in disk.names.items() if c and p.suffix == ".log"]
        return all(file.data == file.synced for file in files)

    async def work() -> None:
        async with killed(folder, options, disk) as store:
            await fill(store, await one_ledger(store), [payload(n) for n in range(9)], each=True)
            await until(is_synced)

    run(work())
