"""What reading a segment asks of the disk."""

from __future__ import annotations

from pathlib import Path

from router.broker.disk.files import Disk
from router.broker.storage import PULSAR_FORMAT, Entry
from router.broker.storage.reading import ReadRequest, SegmentReader
from router.broker.storage.records import make_head
from router.broker.storage.segments import Segment, SegmentPoint, file_of


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
