"""Owns what a segment is: its bounds, its sparse index, and finding damage in it; pure.

A segment holds entries with consecutive ids, record after record. Its bounds are those of the
metadata: bytes of the file after `size` do not count. Every so many bytes a point is written to an
index file beside it: entry id, place, and the latest timestamp before. The index is a shortcut and
never an authority: a point with a bad checksum is ignored, and a record is believed only by its own
checksum and id.

Behind a damaged record the next good one must be found without trusting lengths that may be damaged
themselves, nor bytes that may lie inside a payload and look like a record. A record counts as found
only if record after record leads from it exactly to a point of the index or to the segment's end.
Searching for a sound record alone was not taken: a payload can contain one.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from router.broker.ledger.records import HEAD, SUM, Entry, crc32c, read_record, record_size

_POINT = struct.Struct(">QQQ")
_POINT_SUM = struct.Struct(">I")
POINT_SIZE = _POINT.size + _POINT_SUM.size


@dataclass(frozen=True, slots=True)
class Segment:
    """A stretch of a ledger in one file: entries and message indexes from first to before next."""

    first_entry: int
    first_index: int
    next_entry: int
    next_index: int
    size: int
    first_ms: int
    max_ms: int


class Point(NamedTuple):
    """A place in a segment: the record of this entry; `max_ms` is the latest time before it."""

    entry: int
    place: int
    max_ms: int


class Damage(NamedTuple):
    """Bytes of a segment that hold no sound records; ends of entries included, of bytes not."""

    first: int
    last: int
    start: int
    end: int


class Found(NamedTuple):
    """A sound entry and the place of its record."""

    entry: Entry
    place: int


def folder_of(ledgers: Path, ledger: int) -> Path:
    """Return the folder of a ledger."""
    return ledgers / str(ledger)


def file_of(ledgers: Path, ledger: int, first_entry: int) -> Path:
    """Return the file of a segment; its index has the suffix .idx."""
    return ledgers / str(ledger) / f"{first_entry:020d}.seg"


def pack_point(point: Point) -> bytes:
    """Return a point as bytes of the index file."""
    data = _POINT.pack(*point)
    return data + _POINT_SUM.pack(crc32c(data, 0))


def read_points(data: bytes, segment: Segment) -> list[Point]:
    """Return the sound points of an index that lie inside the segment, in order."""
    return [
        point
        for point in all_points(data)
        if point is not None
        and segment.first_entry <= point.entry < segment.next_entry
        and point.place < segment.size
    ]


def all_points(data: bytes) -> Iterator[Point | None]:
    """Yield the points of an index wherever they lie; None for each that is not sound."""
    for at in range(0, len(data), POINT_SIZE):
        if at + POINT_SIZE > len(data):
            yield None
            continue
        (checksum,) = _POINT_SUM.unpack_from(data, at + _POINT.size)
        sound = checksum == crc32c(data[at : at + _POINT.size], 0)
        yield Point(*_POINT.unpack_from(data, at)) if sound else None


def before(points: Sequence[Point], entry: int, segment: Segment) -> Point:
    """Return the last point at or before the entry; the segment's beginning if there is none."""
    best = Point(segment.first_entry, 0, 0)
    for point in points:
        if best.entry < point.entry <= entry:
            best = point
    return best


def scan(
    data: bytes, segment: Segment, points: Sequence[Point], start: Point | None = None
) -> Iterator[Found | Damage]:
    """Yield all entries of a segment from `start` on, and the damage between them.

    `data` is the file from its beginning; bytes after the segment's size are not looked at.
    """
    data = data[: segment.size]
    at, expected = (0, segment.first_entry) if start is None else (start.place, start.entry)
    while expected < segment.next_entry:
        entry = read_record(data, at)
        if entry is not None and entry.entry_id == expected:
            yield Found(entry, at)
            at += HEAD.size + len(entry.payload)
            expected += 1
            continue
        after, resumed = _resume(data, at, expected, segment, points)
        yield Damage(expected, after - 1, at, resumed)
        at, expected = resumed, after
    if at < segment.size:
        yield Damage(segment.next_entry, segment.next_entry - 1, at, segment.size)


def _resume(
    data: bytes, at: int, expected: int, segment: Segment, points: Sequence[Point]
) -> tuple[int, int]:
    """Return the entry and the place where sound records begin again."""
    end = (segment.next_entry, segment.size)
    targets = [(p.entry, p.place) for p in points if p.place > at and p.entry > expected]
    if len(data) < segment.size:
        targets = [t for t in targets if t[1] < len(data)]
        return _resume_before(data, at, expected, targets) or end
    return _resume_before(data, at, expected, [*targets, end]) or end


def _resume_before(
    data: bytes, at: int, expected: int, targets: Sequence[tuple[int, int]]
) -> tuple[int, int] | None:
    size = record_size(data, at)
    for target in targets:
        if size is not None and _leads(data, at + size, expected + 1, target):
            return expected + 1, at + size
        found = _search(data, at + 1, expected + 1, target)
        if found is not None:
            return found
        if target[1] == len(data):
            return target
        entry = read_record(data, target[1])
        if entry is not None and entry.entry_id == target[0]:
            return target
    return None


def _search(
    data: bytes, start: int, lowest: int, target: tuple[int, int]
) -> tuple[int, int] | None:
    """Return the first record at or after `start` that leads to the target."""
    if lowest >= target[0]:
        return None
    low, high = lowest.to_bytes(8, "big"), (target[0] - 1).to_bytes(8, "big")
    shared = low[: next((i for i in range(8) if low[i] != high[i]), 8)]
    at = data.find(shared, start + SUM.size, target[1])
    while at >= 0:
        place = at - SUM.size
        entry = int.from_bytes(data[at : at + 8], "big")
        if lowest <= entry < target[0] and _leads(data, place, entry, target):
            return entry, place
        at = data.find(shared, at + 1, target[1])
    return None


def _leads(data: bytes, at: int, entry_id: int, target: tuple[int, int]) -> bool:
    """Return whether sound records with consecutive ids stand from `at` to the target exactly."""
    while at < target[1]:
        entry = read_record(data, at)
        if entry is None or entry.entry_id != entry_id:
            return False
        at += HEAD.size + len(entry.payload)
        entry_id += 1
    return (entry_id, at) == target
