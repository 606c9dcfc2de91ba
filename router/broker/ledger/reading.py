"""Owns reading entries from segment files: every one by its checksum, damage by its exact range.

These functions block and are called in threads. They look at no state but what they are given: a
segment as the metadata knew it, whose file only ever grows or goes away.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

from router.broker.ledger.disk import Disk, opened, read_all
from router.broker.ledger.faults import DamagedError
from router.broker.ledger.records import HEAD, Entry, read_record, record_size
from router.broker.ledger.segments import (
    Damage,
    Point,
    Segment,
    before,
    file_of,
    read_points,
    scan,
)

_MIN_READ = 64 << 10


@dataclass(frozen=True, slots=True)
class Wanted:
    """What to read: from this entry on, so many entries and bytes; the first in any case."""

    start: int
    max_entries: int
    max_bytes: int


@dataclass(frozen=True, slots=True)
class Answer:
    """Entries in order, and where the record after the last one begins."""

    entries: list[Entry]
    after: Point


class SegmentReader:
    """Reads the segments of one folder of ledgers."""

    def __init__(self, disk: Disk, ledgers: Path) -> None:
        self._disk = disk
        self._ledgers = ledgers

    def path(self, ledger: int, segment: Segment) -> Path:
        """Return the file of a segment."""
        return file_of(self._ledgers, ledger, segment.first_entry)

    def read(
        self, ledger: int, segment: Segment, wanted: Wanted, hint: Point | None = None
    ) -> Answer:
        """Return entries of a segment; raise DamagedError if the first one wanted is not readable.

        `hint`: where an entry at or before the first one wanted stands, if that is known. Raises
        OSError if the file cannot be read, FileNotFoundError if it is not there.
        """
        path = self.path(ledger, segment)
        with opened(self._disk, path, os.O_RDONLY) as descriptor:
            points: list[Point] = []
            if hint is None:
                points = self.points(ledger, segment)
                hint = before(points, wanted.start, segment)
            answer = self._read_on(descriptor, segment, wanted, hint)
            if answer is not None:
                return answer
            # Slowly and thoroughly: something was not as it should be.
            points = points or self.points(ledger, segment)
            data = read_all(self._disk, descriptor, segment.size, 0)
        return _read_around(data, segment, points, wanted, _Place(ledger, path))

    def find_time(self, ledger: int, segment: Segment, timestamp_ms: int) -> int:
        """Return the first entry of a segment stored at or after; its next entry if none was.

        Damage in front of the first one found may hold an earlier one: then it begins there, so
        that whoever reads on is told of it.
        """
        start = Point(segment.first_entry, 0, 0)
        for point in self.points(ledger, segment):
            if point.max_ms < timestamp_ms:
                start = point
        entry = start.entry
        hint: Point | None = start
        damaged: int | None = None
        while entry < segment.next_entry:
            try:
                answer = self.read(ledger, segment, Wanted(entry, 1 << 30, 1 << 20), hint)
            except DamagedError as error:
                damaged = entry if damaged is None else damaged
                entry, hint = error.last + 1, None
                continue
            for found in answer.entries:
                if found.timestamp_ms >= timestamp_ms:
                    return found.entry_id if damaged is None else damaged
                damaged = None
            entry, hint = answer.after.entry, answer.after
        return segment.next_entry if damaged is None else damaged

    def points(self, ledger: int, segment: Segment) -> list[Point]:
        """Return the points of a segment's index; none if it has no index."""
        path = self.path(ledger, segment).with_suffix(".idx")
        try:
            with opened(self._disk, path, os.O_RDONLY) as descriptor:
                data = read_all(self._disk, descriptor, self._disk.size(descriptor), 0)
        except FileNotFoundError:
            return []
        return read_points(data, segment)

    def _read_on(
        self, descriptor: int, segment: Segment, wanted: Wanted, hint: Point
    ) -> Answer | None:
        """Return entries from the hint on, which end before any damage; None: look closer."""
        entries: list[Entry] = []
        left, at, expected = wanted.max_bytes, hint.place, hint.entry
        data, base = b"", at
        while expected < segment.next_entry and len(entries) < wanted.max_entries:
            entry = read_record(data, at - base)
            if entry is None:
                need = record_size(data, at - base) or HEAD.size
                if at - base + need <= len(data) or at + need > segment.size:
                    break
                size = min(segment.size - at, max(need, _MIN_READ, min(left, 4 << 20)))
                data, base = read_all(self._disk, descriptor, size, at), at
                if len(data) < need:
                    break
                continue
            if entry.entry_id != expected:
                break
            if entry.entry_id >= wanted.start:
                left -= len(entry.payload)
                if left < 0 and entries:
                    break
                entries.append(entry)
            at += HEAD.size + len(entry.payload)
            expected += 1
        return Answer(entries, Point(expected, at, 0)) if entries else None


@dataclass(frozen=True, slots=True)
class _Place:
    ledger: int
    path: Path


def _read_around(
    data: bytes, segment: Segment, points: list[Point], wanted: Wanted, place: _Place
) -> Answer:
    """Return entries from the first one wanted up to the next damage."""
    entries: list[Entry] = []
    left, after = wanted.max_bytes, Point(segment.first_entry, 0, 0)
    for found in scan(data, segment, points):
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
        after = Point(entry.entry_id + 1, found.place + HEAD.size + len(entry.payload), 0)
    return Answer(entries, after)
