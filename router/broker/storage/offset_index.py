"""Owns the offset index: the points beside a segment that lead to an entry, a number or a time.

Every so many bytes of a segment a point is written to a file beside it: an entry, the place of its
record, the number of its first message, and two times: the latest at which an entry before it was
stored, and the latest of the messages before it. A lookup is then one bisection, and one read of
the bytes up to the next point. A `TimeKey` names the time that a lookup is by.

The index is a shortcut and never an authority. A point with a bad checksum is ignored, and so is
one that does not lie behind the point before it. The entry and number of a point count only if
those of the record at its place are the same.
"""

from __future__ import annotations

import struct
import threading
from array import array
from bisect import bisect_left, bisect_right
from collections import OrderedDict
from collections.abc import Callable, Iterable, Iterator, Sequence
from errno import EIO
from operator import attrgetter
from pathlib import Path
from typing import Final, NamedTuple

from router.broker.disk.files import Disk, crc32c, read_file
from router.broker.storage.records import Entry
from router.broker.storage.segments import Segment, SegmentPoint

_POINT = struct.Struct(">QQQQQ")
_POINT_SUM = struct.Struct(">I")
POINT_SIZE: Final = _POINT.size + _POINT_SUM.size
MAX_CACHED_POINTS: Final = 1 << 18
"""Of all segments together; each point takes 40 bytes."""
NO_POINTS: Final = b"?"
"""An index that is not sound, and has no point."""


class TimeKey(NamedTuple):
    """A time by which the log is searched.

    `name` is the field of points and segments that has the latest one, `of_entry` returns that of
    an entry.
    """

    name: str
    of_entry: Callable[[Entry], int]


STORED: Final = TimeKey("max_ms", attrgetter("timestamp_ms"))
LATEST: Final = "latest_ms"
"""The name of the other key; its `of_entry` is the store's LatestTime."""


def pack_point(entry: int, place: int, number: int, max_ms: int, latest_ms: int) -> bytes:
    """Return a point as bytes of the index file."""
    data = _POINT.pack(entry, place, number, max_ms, latest_ms)
    return data + _POINT_SUM.pack(crc32c(data, 0))


def all_points(data: bytes) -> Iterator[SegmentPoint | None]:
    """Yield the points of an index file wherever they lie; None for each that is not sound."""
    for at in range(0, len(data), POINT_SIZE):
        if at + POINT_SIZE > len(data):
            yield None
            continue
        (checksum,) = _POINT_SUM.unpack_from(data, at + _POINT.size)
        sound = checksum == crc32c(data[at : at + _POINT.size], 0)
        yield SegmentPoint(*_POINT.unpack_from(data, at)) if sound else None


def read_points(data: bytes, segment: Segment) -> list[SegmentPoint]:
    """Return the sound points of an index file that lie inside the segment, in order."""
    found: list[SegmentPoint] = []
    last = _beginning(segment)
    for point in all_points(data):
        if point is None or point.entry >= segment.next_entry or point.place >= segment.size:
            continue
        forward = all(new > old for new, old in zip(point[:3], last[:3], strict=True))
        if forward and point.max_ms >= last.max_ms and point.latest_ms >= last.latest_ms:
            found.append(point)
            last = point
    return found


class IndexRange(NamedTuple):
    """A part of a segment: the point where it begins, and the place where it ends."""

    start: SegmentPoint
    end: int


class OffsetIndex:
    """The points of a segment, its beginning the first of them."""

    __slots__ = ("_entries", "_numbers", "_places", "_times")

    def __init__(self, segment: Segment, points: Sequence[SegmentPoint]) -> None:
        columns = zip(_beginning(segment), *points, strict=True)
        self._entries, self._places, self._numbers, stored, latest = (
            array("Q", column) for column in columns
        )
        self._times = {STORED.name: stored, LATEST: latest}

    def __len__(self) -> int:
        return len(self._entries)

    def points(self) -> list[SegmentPoint]:
        """Return the points without the beginning."""
        return [self._point(at) for at in range(1, len(self))]

    def at_entry(self, entry: int, segment: Segment) -> IndexRange:
        """Return the part that holds an entry of the segment."""
        return self._range(bisect_right(self._entries, entry), segment)

    def at_number(self, number: int, segment: Segment) -> IndexRange:
        """Return the part that holds the message of a number of the segment."""
        return self._range(bisect_right(self._numbers, number), segment)

    def at_time(self, timestamp_ms: int, segment: Segment, key: TimeKey) -> IndexRange:
        """Return the first part that may hold an entry with this time or a later one."""
        return self._range(bisect_left(self._times[key.name], max(0, timestamp_ms)), segment)

    def _range(self, next_point: int, segment: Segment) -> IndexRange:
        next_point = max(1, next_point)
        end = self._places[next_point] if next_point < len(self._places) else segment.size
        return IndexRange(self._point(next_point - 1), end)

    def _point(self, at: int) -> SegmentPoint:
        times = (column[at] for column in self._times.values())
        return SegmentPoint(self._entries[at], self._places[at], self._numbers[at], *times)


class OffsetIndexCache:
    """Reads the indexes of segments; keeps in memory those used last. Threads may share it."""

    def __init__(self, disk: Disk, max_points: int = MAX_CACHED_POINTS) -> None:
        self._disk = disk
        self._max_points = max_points
        self._lock = threading.Lock()
        self._points = 0
        # With the size that the segment had: one that grew since has more points.
        self._cached: OrderedDict[Path, tuple[int, OffsetIndex]] = OrderedDict()

    def load(self, path: Path, segment: Segment) -> OffsetIndex:
        """Return the index of a segment, whose file this is; without points if it has no index."""
        with self._lock:
            size, found = self._cached.get(path, (-1, None))
            if found is not None and size == segment.size:
                self._cached.move_to_end(path)
                return found
        data = read_index(self._disk, path)
        index = OffsetIndex(segment, read_points(data, segment))
        if data == NO_POINTS:
            return index  # the disk may read it the next time
        with self._lock:
            _size, old = self._cached.pop(path, (0, None))
            self._points -= 0 if old is None else len(old)
            self._cached[path] = segment.size, index
            self._points += len(index)
            while self._points > self._max_points and len(self._cached) > 1:
                self._points -= len(self._cached.popitem(last=False)[1][1])
        return index


def read_index(disk: Disk, path: Path) -> bytes:
    """Return the bytes of the index beside a segment, whose file this is.

    None if it has none; NO_POINTS if the disk cannot read it: the segment can be read without it.
    """
    try:
        return read_file(disk, path.with_suffix(".idx"))
    except FileNotFoundError:
        return b""
    except OSError as error:
        if error.errno != EIO:
            raise
        return NO_POINTS


def pack_points(points: Iterable[SegmentPoint]) -> bytes:
    """Return points as bytes of an index file."""
    return b"".join(pack_point(*point) for point in points)


def _beginning(segment: Segment) -> SegmentPoint:
    return SegmentPoint(segment.first_entry, 0, segment.first_index)
