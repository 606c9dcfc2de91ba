"""Owns what a segment is: its bounds, its files, and finding damage in it; pure.

A segment holds entries with consecutive ids and message numbers, record after record. Its bounds
are those of the metadata: bytes of the file after `size` do not count. Where deleted messages were
reclaimed (see reclaim) a gap record stands for the entries of which nothing is left.

Behind a damaged record the next good one must be found without trusting lengths that may be damaged
themselves, nor bytes that may lie inside a payload and look like a record. A record counts as found
only if record after record leads from it exactly to a point of the index or to the segment's end.
Searching for a sound record alone was not taken: a payload can contain one.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from router.broker.storage.records import (
    GAP_FORMAT,
    HEAD,
    SUM,
    UNKNOWN_TIME,
    Entry,
    entry_after,
    read_record,
    record_size,
)


@dataclass(frozen=True, slots=True)
class Segment:
    """A part of a ledger in one file: entries and message indexes from first to before next.

    `generation` counts how often the file was written again without deleted messages; each has its
    own name. `reclaimed` is how many of the segment's messages were deleted then.

    `first_ms` and `max_ms` are times at which entries were stored; `latest_ms` is not before any of
    the times that messages have by their payloads.
    """

    first_entry: int
    first_index: int
    next_entry: int
    next_index: int
    size: int
    first_ms: int
    max_ms: int
    latest_ms: int = UNKNOWN_TIME
    generation: int = 0
    reclaimed: int = 0


class SegmentPoint(NamedTuple):
    """A place in a segment: the record of this entry, whose first message has this number.

    `max_ms` and `latest_ms` are those of the part of the segment before it.
    """

    entry: int
    place: int
    number: int
    max_ms: int = 0
    latest_ms: int = 0


class Damage(NamedTuple):
    """Bytes of a segment that hold no sound records; ends of entries included, of bytes not."""

    first: int
    last: int
    start: int
    end: int


class SegmentEntry(NamedTuple):
    """A sound entry, or gap, and the place of its record."""

    entry: Entry
    place: int

    @property
    def end(self) -> int:
        """The place behind its record."""
        return self.place + HEAD.size + len(self.entry.payload)

    @property
    def point(self) -> SegmentPoint:
        """Where it stands."""
        entry = self.entry
        return SegmentPoint(entry.entry_id, self.place, entry.index + 1 - entry.messages)

    @property
    def after(self) -> SegmentPoint:
        """Where the entry behind it stands."""
        return SegmentPoint(entry_after(self.entry), self.end, self.entry.index + 1)

    @property
    def is_gap(self) -> bool:
        """Whether the record stands for entries of which nothing is left."""
        return self.entry.format == GAP_FORMAT


def folder_of(ledgers: Path, ledger: int) -> Path:
    """Return the folder of a ledger."""
    return ledgers / str(ledger)


def file_of(ledgers: Path, ledger: int, segment: Segment) -> Path:
    """Return the file of a segment; its index has the suffix .idx."""
    return ledgers / str(ledger) / file_name(segment.first_entry, segment.generation)


def file_name(first_entry: int, generation: int) -> str:
    """Return the name of a segment's file."""
    return f"{first_entry:020d}-{generation}.seg" if generation else f"{first_entry:020d}.seg"


def scan(
    data: bytes, segment: Segment, points: Sequence[SegmentPoint]
) -> Iterator[SegmentEntry | Damage]:
    """Yield all entries and gaps of a segment, and the damage between them.

    `data` is the file from its beginning; bytes after the segment's size are not looked at.
    """
    data = data[: segment.size]
    at, expected = 0, segment.first_entry
    while expected < segment.next_entry:
        entry = read_record(data, at)
        if entry is not None and entry.entry_id == expected:
            yield SegmentEntry(entry, at)
            at += HEAD.size + len(entry.payload)
            expected = entry_after(entry)
            continue
        after, resumed = _resume(data, at, expected, segment, points)
        yield Damage(expected, after - 1, at, resumed)
        at, expected = resumed, after
    if at < segment.size:
        yield Damage(segment.next_entry, segment.next_entry - 1, at, segment.size)


def _resume(
    data: bytes, at: int, expected: int, segment: Segment, points: Sequence[SegmentPoint]
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
        entry_id = entry_after(entry)
    return (entry_id, at) == target
