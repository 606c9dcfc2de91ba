"""What check and repair do with a file that has a sector which the disk can never read."""

from __future__ import annotations

import errno
import os
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from router.broker.disk.files import Disk
from router.broker.folder import MARK
from router.broker.storage import PULSAR_FORMAT, StoreOptions
from router.broker.storage.files import check, repair
from router.cli import main
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
    synced,
)

COUNT = 40


@pytest.fixture
def bad_sectors(monkeypatch: pytest.MonkeyPatch) -> dict[Path, int]:
    """Return files, each with the first of 512 bytes that cannot be read."""
    bad: dict[Path, int] = {}

    def pread(_disk: Disk, descriptor: int, size: int, start: int) -> bytes:
        place = bad.get(Path(f"/proc/self/fd/{descriptor}").readlink())
        if place is not None and start < place + 512 and place < start + size:
            raise OSError(errno.EIO, os.strerror(errno.EIO))
        return os.pread(descriptor, size, start)

    monkeypatch.setattr(Disk, "pread", pread)
    return bad


def router_check(folder: Path, *arguments: str) -> Result:
    command = ["check", "--data", str(folder), "--changed", *arguments]
    return CliRunner().invoke(main, command, env={"ROUTER_CONFIG": "", "ROUTER_SERVER_PORT": "0"})


async def segments_of(folder: Path) -> list[Path]:
    async with opened(folder, SMALL) as store:
        await fill(store, await one_ledger(store), [payload(n) for n in range(COUNT)], each=True)
    return sorted((folder / "data" / "ledgers").rglob("*.seg"))


def break_entry(segment: Path) -> None:
    data = bytearray(segment.read_bytes())
    data[-1] ^= 1
    segment.write_bytes(data)


async def test_check_names_an_unreadable_segment_and_goes_on(
    folder: Path, bad_sectors: dict[Path, int]
) -> None:
    first, *_, last = await segments_of(folder)
    break_entry(last)
    bad_sectors[first] = 100
    found = check(folder / "data")
    assert [finding.file for finding in found if finding.serious] == [first, last]
    unreadable = found[0]
    assert unreadable.sentence == f"{first} cannot be read at byte 0: Input/output error"
    assert unreadable.span == (0, 4096)


async def test_repair_leaves_an_unreadable_segment_alone_until_it_can_be_read(
    folder: Path, bad_sectors: dict[Path, int]
) -> None:
    first, *_, last = await segments_of(folder)
    before = first.read_bytes()
    break_entry(last)
    (folder / "data" / MARK).write_text("the disk failed")
    bad_sectors[first] = 0
    found = {finding.file: finding.repaired for finding in repair(folder / "data", clock)}
    assert found == {folder / "data" / MARK: False, first: False, last: True}
    assert first.read_bytes() == before
    assert (folder / "data" / MARK).exists()
    bad_sectors.clear()
    assert [finding.repaired for finding in repair(folder / "data", clock)] == [True]
    assert check(folder / "data") == []
    async with opened(folder, SMALL) as store:
        assert len(await read_all(await one_ledger(store))) == COUNT - 1


async def test_an_index_that_cannot_be_read_is_not_needed_and_written_again(
    folder: Path, bad_sectors: dict[Path, int]
) -> None:
    async with opened(folder, StoreOptions(reserve=0)) as store:
        await fill(store, await one_ledger(store), [bytes(1000) for _ in range(400)])
    (index,) = (folder / "data" / "ledgers").rglob("*.idx")
    before = index.read_bytes()
    bad_sectors[index] = 0
    async with opened(folder) as store:
        ledger = await one_ledger(store)
        assert (await ledger.read(399, 1, 1))[0].entry_id == 399
        assert await ledger.entry_of_number(399) == 399
    (finding,) = check(folder / "data")
    assert (finding.file, finding.serious) == (index, False)
    assert [finding.repaired for finding in repair(folder / "data", clock)] == [True]
    assert index.read_bytes() == before


@pytest.mark.parametrize("place", [0, 5_000])
async def test_an_unreadable_journal_is_left_alone_and_segments_are_looked_at(
    folder: Path, bad_sectors: dict[Path, int], place: int
) -> None:
    *_, last = await segments_of(folder)
    break_entry(last)
    async with killed(folder, SMALL) as store:
        (await one_ledger(store)).append(bytes(9_000), PULSAR_FORMAT, 1, NOW_MS, ignore)
        await synced(store)
    (journal,) = (folder / "data" / "journal").glob("*.log")
    before = journal.read_bytes()
    bad_sectors[journal] = place
    serious = [finding for finding in check(folder / "data") if finding.serious]
    assert [finding.file for finding in serious] == [journal, last]
    assert serious[0].span is not None
    assert serious[0].span[0] == place // 4096 * 4096
    found = {finding.file: finding.repaired for finding in repair(folder / "data", clock)}
    assert found == {journal: False, last: True}
    assert journal.read_bytes() == before
    bad_sectors.clear()
    repair(folder / "data", clock)
    async with opened(folder, SMALL) as store:
        assert len(await read_all(await one_ledger(store))) == COUNT


@pytest.mark.parametrize("arguments", [(), ("--repair",)])
async def test_the_command_says_what_to_do_about_an_unreadable_file(
    folder: Path, bad_sectors: dict[Path, int], arguments: tuple[str, ...]
) -> None:
    first, *_ = await segments_of(folder)
    bad_sectors[first] = 0
    result = router_check(folder / "data", *arguments)
    assert result.exit_code == os.EX_DATAERR
    assert f"{first} cannot be read at byte 0: Input/output error\n" in result.output
    assert "first copy that file elsewhere with zeros" in result.output


async def test_the_command_ends_with_a_sentence_if_files_may_not_be_opened(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    await segments_of(folder)

    def refuse(_disk: Disk, path: Path, flags: int) -> int:
        raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), str(path))

    monkeypatch.setattr(Disk, "open", refuse)
    result = router_check(folder / "data")
    assert result.exit_code == os.EX_DATAERR
    assert "Permission denied" in result.output
