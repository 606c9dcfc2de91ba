"""What reading a segment asks of the disk, and what it makes of a disk that cannot read."""

from __future__ import annotations

from pathlib import Path

import pytest

from router.broker.disk.files import Disk
from router.broker.storage import PULSAR_FORMAT, DamagedError, Entry, partition_reader
from router.broker.storage.reading import ReadRequest, SegmentReader
from router.broker.storage.records import make_head
from router.broker.storage.segments import Segment, SegmentPoint, file_of
from tests.unit.broker.storage.rig import NOW_MS, FailingDisk, fill, one_ledger, opened, payload

COUNT = 40


def test_an_entry_that_a_read_has_no_bytes_left_for_is_not_read(folder: Path) -> None:
    entries = [Entry(n, n, 0, PULSAR_FORMAT, 1, bytes(100_000)) for n in range(3)]
    data = b"".join(make_head(entry) + entry.payload for entry in entries)
    segment = Segment(0, 0, 3, 3, len(data), 0, 0)
    path = file_of(folder, 7, segment)
    path.parent.mkdir()
    path.write_bytes(data)
    starts: list[int] = []

    class Counting(Disk):
        def pread(self, descriptor: int, size: int, start: int) -> bytes:
            starts.append(start)
            return super().pread(descriptor, size, start)

    reader, hint = SegmentReader(Counting(), folder), SegmentPoint(0, 0, 0)
    for entry in entries:
        found = reader.read(7, segment, ReadRequest(entry.entry_id, 5, 150_000), hint)
        assert found.entries == [entry]
        assert starts == [hint.place]
        starts.clear()
        hint = found.after
    assert (
        reader.read(7, segment, ReadRequest(0, 5, 1), SegmentPoint(0, 0, 0)).entries == entries[:1]
    )


@pytest.fixture
def no_pause(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(partition_reader, "RETRY_SECONDS", (0.0, 0.0))


@pytest.mark.usefixtures("no_pause")
async def test_a_disk_that_cannot_read_for_a_moment_changes_no_answer(folder: Path) -> None:
    async with opened(folder) as store:
        await fill(store, await one_ledger(store), [payload(n) for n in range(COUNT)], each=True)
    disk = FailingDisk()
    async with opened(folder, disk=disk) as store:
        ledger = await one_ledger(store)
        for entry in range(ledger.segments[-1].next_entry):
            disk.failures = 2
            assert await ledger.entry_of_number(entry) == entry
            disk.failures = 2
            assert await ledger.number_before(entry) == entry
            disk.failures = 2
            assert (await ledger.read(entry, 1, 1))[0].payload == payload(entry)
        disk.failures = 2
        assert await ledger.find_time(NOW_MS) == 0


@pytest.mark.usefixtures("no_pause")
async def test_what_a_disk_cannot_read_again_and_again_is_an_error_and_no_damage(
    folder: Path,
) -> None:
    """Readers pass over damage for good, and would take a place that is made up for what they had.

    That of a file which is missing is there.
    """
    async with opened(folder) as store:
        await fill(store, await one_ledger(store), [payload(n) for n in range(COUNT)], each=True)
    disk = FailingDisk()
    async with opened(folder, disk=disk) as store:
        ledger = await one_ledger(store)
        segment = ledger.segments[1]
        disk.failures = 1_000
        for work in (
            ledger.read(segment.first_entry + 1, 1, 1),
            ledger.entry_of_number(segment.first_index + 1),
            ledger.number_before(segment.first_entry + 1),
            ledger.find_time(NOW_MS),
        ):
            with pytest.raises(OSError, match="Input/output error"):
                await work
        disk.failures = 0
        file_of(folder / "data" / "ledgers", ledger.id, segment).unlink()
    async with opened(folder) as store:
        ledger = await one_ledger(store)
        with pytest.raises(DamagedError) as failed:
            await ledger.read(segment.first_entry + 1, 1, 1)
        assert failed.value.first == segment.first_entry + 1
        assert failed.value.last == segment.next_entry - 1
        assert await ledger.entry_of_number(segment.first_index + 1) == segment.first_entry
        assert await ledger.number_before(segment.first_entry + 1) == segment.next_index
