"""Owns reading segment files: entries each by its checksum, damage by its exact range, and lookups.

These functions block and are called in threads. They look at no state but what they are given: a
segment as the metadata knew it, whose file only ever grows or goes away.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from router.broker.disk.files import Disk, opened, read_all
from router.broker.storage.faults import DamagedError
from router.broker.storage.offset_index import (
    LATEST,
    OffsetIndex,
    OffsetIndexCache,
    Stretch,
    TimeKey,
)
from router.broker.storage.records import (
    HEAD,
    Entry,
    LatestTime,
    read_record,
    record_size,
    unknown_time,
)
from router.broker.storage.segments import Damage, Found, Point, Segment, file_of, scan

_MIN_READ_BYTES = 64 << 10
_MAX_READ_BYTES = 4 << 20


@dataclass(frozen=True, slots=True)
class ReadRequest:
    """What to read: from this entry on, so many entries and bytes; the first in any case."""

    start: int
    max_entries: int
    max_bytes: int


@dataclass(frozen=True, slots=True)
class ReadResult:
    """Entries in order, and where the record after the last one begins."""

    entries: list[Entry]
    after: Point


class SegmentReader:
    """Reads the segments of one folder of ledgers."""

    def __init__(self, disk: Disk, ledgers: Path, latest_time: LatestTime = unknown_time) -> None:
        self.latest = TimeKey(LATEST, latest_time)
        self._disk = disk
        self._ledgers = ledgers
        self._indexes = OffsetIndexCache(disk)

    def path(self, ledger: int, segment: Segment) -> Path:
        """Return the file of a segment."""
        return file_of(self._ledgers, ledger, segment.first_entry)

    def read(
        self, ledger: int, segment: Segment, wanted: ReadRequest, hint: Point | None = None
    ) -> ReadResult:
        """Return entries of a segment; raise DamagedError if the first one wanted is not readable.

        `hint`: where an entry at or before the first one wanted stands, if that is known. Raises
        OSError if the file cannot be read, FileNotFoundError if it is not there.
        """
        path = self.path(ledger, segment)
        with opened(self._disk, path, os.O_RDONLY) as descriptor:
            if hint is None:
                index = self._indexes.load(path, segment)
                hint = index.at_entry(wanted.start, segment).start
            answer = self._read_on(descriptor, segment, wanted, hint)
        if answer is not None:
            return answer
        # Slowly and thoroughly: something was not as it should be.
        return _read_around(self._scan(path, segment), segment, wanted, _Place(ledger, path))

    def entry_of_number(self, ledger: int, segment: Segment, number: int) -> Point:
        """Return where the entry stands that holds the message of a number of the segment.

        If damage hides it, this is the first entry of the damage. Raises OSError.
        """
        path = self.path(ledger, segment)
        stretch = self._indexes.load(path, segment).at_number(number, segment)
        found = self._walk(path, segment, stretch, number, by_number=True)
        return found or _scan_for_number(self._scan(path, segment), segment, number)

    def number_before(self, ledger: int, segment: Segment, entry: int) -> Point:
        """Return where an entry of the segment stands, with the number of its first message.

        If damage hides the number, it is that of the first message behind. Raises OSError.
        """
        path = self.path(ledger, segment)
        stretch = self._indexes.load(path, segment).at_entry(entry, segment)
        found = self._walk(path, segment, stretch, entry, by_number=False)
        return found or _scan_for_entry(self._scan(path, segment), segment, entry)

    def find_time(
        self, ledger: int, segment: Segment, start: int, timestamp_ms: int, key: TimeKey
    ) -> int:
        """Return the first entry of a segment, from one on, with a time at or after this one.

        It is the segment's next entry if there is none. Damage in front of the first one found may
        hold an earlier one: then it begins there, so that a reader of the entries meets it. Raises
        OSError.
        """
        path = self.path(ledger, segment)
        index = self._indexes.load(path, segment)
        stretch = index.at_time(timestamp_ms, segment, key)
        if start > stretch.start.entry:
            stretch = index.at_entry(start, segment)
        behind = stretch.start.entry
        with opened(self._disk, path, os.O_RDONLY) as descriptor:
            for entry, _place in self._records(descriptor, segment, *stretch):
                if entry.entry_id >= start and key.of_entry(entry) >= timestamp_ms:
                    return entry.entry_id
                behind = entry.entry_id + 1
        if behind == segment.next_entry:
            return behind
        start = max(start, stretch.start.entry)
        return _scan_for_time(self._scan(path, segment), segment, start, timestamp_ms, key)

    def _scan(self, path: Path, segment: Segment) -> Iterator[Found | Damage]:
        """Yield all entries of a segment, and the damage between them."""
        index: OffsetIndex = self._indexes.load(path, segment)
        with opened(self._disk, path, os.O_RDONLY) as descriptor:
            data = read_all(self._disk, descriptor, segment.size, 0)
        return scan(data, segment, index.points())

    def _walk(
        self, path: Path, segment: Segment, stretch: Stretch, target: int, *, by_number: bool
    ) -> Point | None:
        """Return the entry that is the target, or whose messages have it; None: look closer."""
        with opened(self._disk, path, os.O_RDONLY) as descriptor:
            for entry, place in self._records(descriptor, segment, *stretch):
                if (entry.index if by_number else entry.entry_id) >= target:
                    return Point(entry.entry_id, place, entry.index + 1 - entry.messages)
        return None

    def _read_on(
        self, descriptor: int, segment: Segment, wanted: ReadRequest, hint: Point
    ) -> ReadResult | None:
        """Return entries from the hint on, which end before any damage; None: look closer."""
        entries: list[Entry] = []
        left, end = wanted.max_bytes, hint.place
        for entry, place in self._records(descriptor, segment, hint, hint.place + left):
            if entry.entry_id < wanted.start:
                continue
            left -= len(entry.payload)
            if left < 0 and entries:
                break
            entries.append(entry)
            end = place + HEAD.size + len(entry.payload)
            if len(entries) >= wanted.max_entries:
                break
        return ReadResult(entries, _behind(entries[-1], end)) if entries else None

    def _records(
        self, descriptor: int, segment: Segment, start: Point, end: int
    ) -> Iterator[tuple[Entry, int]]:
        """Yield entries and their places from a point on, up to the first that is not as it should.

        Each must be sound, and continue the ids and numbers of the one before. `end`: how far they
        are wanted, about.
        """
        expected, at, number = start[:3]
        data, base = b"", at
        while at < segment.size:
            entry = read_record(data, at - base)
            if entry is None:
                need = record_size(data, at - base) or HEAD.size
                if at - base + need <= len(data) or at + need > segment.size:
                    return
                size = min(
                    segment.size - at, max(need, _MIN_READ_BYTES, min(end - at, _MAX_READ_BYTES))
                )
                data, base = read_all(self._disk, descriptor, size, at), at
                if len(data) < need:
                    return
                continue
            if entry.entry_id != expected or entry.index + 1 - entry.messages != number:
                return
            yield entry, at
            at += HEAD.size + len(entry.payload)
            expected, number = expected + 1, entry.index + 1


@dataclass(frozen=True, slots=True)
class _Place:
    ledger: int
    path: Path


def _behind(entry: Entry, place: int) -> Point:
    """Return the point behind an entry whose record ends there."""
    return Point(entry.entry_id + 1, place, entry.index + 1)


def _read_around(
    items: Iterator[Found | Damage], segment: Segment, wanted: ReadRequest, place: _Place
) -> ReadResult:
    """Return entries from the first one wanted up to the next damage."""
    entries: list[Entry] = []
    left, after = wanted.max_bytes, Point(segment.first_entry, 0, segment.first_index)
    for found in items:
        if isinstance(found, Damage):
            if found.last < wanted.start:
                continue
            if entries:
                break
            raise DamagedError(place.ledger, found[:2], place.path, found[2:])
        entry = found.entry
        if entry.entry_id < wanted.start:
            continue
        left -= len(entry.payload)
        if entries and (left < 0 or len(entries) >= wanted.max_entries):
            break
        entries.append(entry)
        after = _behind(entry, found.place + HEAD.size + len(entry.payload))
    return ReadResult(entries, after)


def _scan_for_number(items: Iterator[Found | Damage], segment: Segment, number: int) -> Point:
    damaged: Point | None = None
    after = Point(segment.first_entry, 0, segment.first_index)
    for found in items:
        if isinstance(found, Damage):
            damaged = damaged or Point(found.first, found.start, after.number)
            continue
        entry = found.entry
        if entry.index >= number:
            here = Point(entry.entry_id, found.place, entry.index + 1 - entry.messages)
            return damaged if damaged is not None and number < here.number else here
        damaged = None
        after = _behind(entry, found.place + HEAD.size + len(entry.payload))
    return damaged or after


def _scan_for_entry(items: Iterator[Found | Damage], segment: Segment, wanted: int) -> Point:
    after = Point(segment.first_entry, 0, segment.first_index)
    for found in items:
        if after.entry == wanted:
            return after
        if isinstance(found, Damage):
            continue
        entry = found.entry
        if entry.entry_id >= wanted:
            return Point(entry.entry_id, found.place, entry.index + 1 - entry.messages)
        after = _behind(entry, found.place + HEAD.size + len(entry.payload))
    return (
        after
        if after.entry == wanted
        else Point(segment.next_entry, segment.size, segment.next_index)
    )


def _scan_for_time(
    items: Iterator[Found | Damage], segment: Segment, start: int, timestamp_ms: int, key: TimeKey
) -> int:
    """Return the first entry, from one on, with a time or a later one, or damage before it."""
    damaged: int | None = None
    for found in items:
        if isinstance(found, Damage):
            if found.last >= start and damaged is None:
                damaged = max(found.first, start)
        elif found.entry.entry_id >= start:
            if key.of_entry(found.entry) >= timestamp_ms:
                return found.entry.entry_id if damaged is None else damaged
            damaged = None
    return segment.next_entry if damaged is None else damaged
