"""Journal files that are written over, and pages that are let go: less work, the same promises."""

from __future__ import annotations

import math
import os
import random
from pathlib import Path

import pytest

from router.broker.disk.files import Disk
from router.broker.disk.files import opened as opened_file
from router.broker.storage import journal
from router.broker.storage.commit_groups import (
    CommitGroup,
    FileHeader,
    read_file_header,
    scan_commit_groups,
)
from router.broker.storage.journal import MAX_SPARES, JournalFiles
from router.broker.storage.writing import PageCacheAdvisor
from tests.unit.broker.storage.disks import MemoryDisk
from tests.unit.broker.storage.rig import (
    SMALL,
    Work,
    fill,
    killed,
    one_ledger,
    opened,
    payload,
    read_all,
    run,
    until,
)


def headers(disk: MemoryDisk) -> dict[str, FileHeader | None]:
    """Return the headers of the journal files, by name."""
    return {
        path.name: read_file_header(bytes(content.data))
        for path, content in disk.names.items()
        if path.parent.name == "journal" and content is not None
    }


async def test_journal_files_are_written_over_and_all_of_them_go_at_the_end(folder: Path) -> None:
    disk = MemoryDisk()
    (folder / "data").mkdir()
    async with opened(folder, disk=disk) as store:
        ledger = await one_ledger(store)
        for start in range(0, 400, 10):
            await fill(store, ledger, [payload(start + n) for n in range(10)], each=True)
            # A machine that is busy with other work leaves checkpoints behind.
            await until(lambda: store._checkpointer.cut == store._journal.number)
        found = headers(disk)
        newest = max(header.number for header in found.values() if header is not None)
        assert newest > 3 * len(found)
        assert len([name for name in found if name.endswith(".spare")]) <= MAX_SPARES
        assert any(h is not None and h.reused for h in found.values())
    assert headers(disk) == {}
    async with opened(folder, disk=disk) as store:
        entries = await read_all(await one_ledger(store))
        assert [entry.payload for entry in entries] == [payload(n) for n in range(400)]


async def test_no_spares_are_kept_on_a_disk_with_little_room(folder: Path) -> None:
    disk = MemoryDisk()
    disk.space = 2 * MAX_SPARES * SMALL.journal
    (folder / "data").mkdir()
    async with opened(folder, disk=disk) as store:
        ledger = await one_ledger(store)
        await fill(store, ledger, [payload(n) for n in range(100)], each=True)
        assert {name[-4:] for name in headers(disk)} == {".log"}


def looks(disk: MemoryDisk, files: JournalFiles, syncs: int) -> int:
    before = disk.faults.names.count("free")
    for _ in range(syncs):
        files.write([b"body"])
        files.sync()
    return disk.faults.names.count("free") - before


def test_free_space_is_looked_at_with_each_sync_when_there_is_little_and_seldom_else(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    disk = MemoryDisk()
    disk.make_folder(folder)
    files = JournalFiles(disk, folder, 1 << 20, relaxed=False)
    disk.space = journal.PLENTY_OF_SPACE_BYTES
    files.start(1, 0)
    assert files.free == journal.PLENTY_OF_SPACE_BYTES
    monkeypatch.setattr(journal, "SPACE_CHECK_SECONDS", math.inf)
    assert looks(disk, files, 5) == 0
    monkeypatch.setattr(journal, "SPACE_CHECK_SECONDS", 0.0)
    disk.space = journal.PLENTY_OF_SPACE_BYTES - 1
    assert looks(disk, files, 1) == 1
    monkeypatch.setattr(journal, "SPACE_CHECK_SECONDS", math.inf)
    disk.space = 5
    assert looks(disk, files, 3) == 3
    assert files.free == 5


def test_what_the_crash_tests_work_on_is_written_over_too(folder: Path) -> None:
    disk = MemoryDisk()
    (folder / "data").mkdir()
    seen: list[FileHeader | None] = []

    async def work() -> None:
        async with killed(folder, disk=disk) as store:
            await Work().run(store)
            seen.extend(headers(disk).values())

    run(work())
    assert any(header is not None and header.reused for header in seen)


async def test_a_folder_whose_journal_was_never_written_over_opens(folder: Path) -> None:
    """Nothing stands behind its last round."""
    async with killed(folder, SMALL) as store:
        await fill(store, await one_ledger(store), [payload(n) for n in range(3)], each=True)
    (file,) = (folder / "data" / "journal").iterdir()
    data = file.read_bytes()
    header = read_file_header(data)
    assert header is not None
    assert not header.reused
    async with opened(folder, SMALL) as store:
        entries = await read_all(await one_ledger(store))
        assert [entry.payload for entry in entries] == [payload(n) for n in range(3)]


async def test_spares_that_a_killed_process_left_are_removed(folder: Path) -> None:
    async with killed(folder) as store:
        ledger = await one_ledger(store)
        await fill(store, ledger, [payload(n) for n in range(200)], each=True)
    left = {path.suffix for path in (folder / "data" / "journal").iterdir()}
    assert ".spare" in left
    async with killed(folder) as store:
        (file,) = (folder / "data" / "journal").iterdir()
        assert file.suffix == ".log"
        assert len(await read_all(await one_ledger(store))) == 200


def test_a_file_written_over_a_longer_one_holds_its_own_rounds_only(folder: Path) -> None:
    disk = Disk()
    files = JournalFiles(disk, folder, 1, relaxed=False)
    files.start(1, 1)
    files.write([b"long" * 500])
    files.sync()
    files.start(2, 0)
    files.release(2)
    files.start(3, 0)
    files.write([b"short", b"er"])
    files.sync()
    data = files.path(3).read_bytes()
    header = read_file_header(data)
    files.close()
    assert header is not None
    assert header.reused
    assert len(data) > 2000
    rounds = list(scan_commit_groups(data, header))
    assert [(type(item), item.number) for item in rounds] == [(CommitGroup, 2)]
    assert sorted(path.name for path in folder.iterdir()) == ["0000000002.log", "0000000003.log"]


def test_pages_go_once_they_are_on_disk_and_the_oldest_first() -> None:
    class Asked(Disk):
        def __init__(self) -> None:
            self.asked: list[tuple[str, int, int]] = []

        def drop_cached(self, path: Path, start: int, size: int) -> None:
            self.asked.append((path.name, start, size))

    disk = Asked()
    behind = PageCacheAdvisor(disk, kept=100, least=10)
    for place in range(0, 180, 30):
        behind.wrote(Path("a"), place, 30)
        behind.wrote(Path("small"), place, 9)
    assert disk.asked == []
    behind.synced()
    assert disk.asked == [("a", 0, 30), ("a", 30, 30), ("a", 60, 30)]
    behind.wrote(Path("b"), 0, 50)
    assert len(disk.asked) == 3
    behind.synced()
    assert disk.asked[3:] == [("a", 90, 30), ("a", 120, 30)]


async def test_segments_are_on_their_way_to_the_disk_before_a_checkpoint_syncs_them(
    folder: Path,
) -> None:
    """What is left of them to a sync goes before the syncs of the journal, all at once."""

    class Begun(Disk):
        written = synced = 0

        def begin_write_back(self, descriptor: int, start: int, size: int) -> None:
            assert not self.synced
            assert self.size(descriptor) == start + size
            assert size < 3 << 20, "too much at once"
            self.written += size
            super().begin_write_back(descriptor, start, size)

        def sync_all(self, descriptor: int) -> None:
            self.synced += 1
            super().sync_all(descriptor)

    disk = Begun()
    async with opened(folder, disk=disk) as store:
        await fill(store, await one_ledger(store), [b"x" * (1 << 20)] * 8)
    assert disk.written >= 8 << 20
    assert disk.synced


def test_what_the_system_forgot_is_read_from_disk(folder: Path) -> None:
    disk, data = Disk(), random.Random(1).randbytes(1 << 20)
    with opened_file(disk, folder / "file", os.O_RDWR | os.O_CREAT) as descriptor:
        disk.write(descriptor, [data])
        disk.sync_data(descriptor)
        disk.drop_cached(folder / "file", 0, len(data))
        assert disk.pread(descriptor, len(data), 0) == data
    disk.drop_cached(folder / "gone", 0, 1)
