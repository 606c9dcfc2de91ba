"""Owns reading segment files: entries each by its checksum, damage by its exact range, and lookups.

These functions block and are called in threads. They look at no state but what they are given: a
segment as the metadata knew it, whose file only ever grows or goes away.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from router.broker.disk.files import Disk, opened, read_all
from router.broker.storage.faults import DamagedError
from router.broker.storage.offset_index import (
    LATEST,
    IndexRange,
    OffsetIndexCache,
    TimeKey,
)
from router.broker.storage.records import (
    GAP_FORMAT,
    HEAD,
    Entry,
    LatestTime,
    entry_after,
    read_record,
    record_size,
    unknown_time,
)
from router.broker.storage.segments import (
    Damage,
    Segment,
    SegmentEntry,
    SegmentPoint,
    file_of,
    scan,
)

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
    """Entries in order, and where the record after the last one begins.

    No entries: those that were requested are gone, up to the segment's end.
    """

    entries: list[Entry]
    after: SegmentPoint


class SegmentReader:
    """Reads the segments of one folder of ledgers."""

    def __init__(self, disk: Disk, ledgers: Path, latest_time: LatestTime = unknown_time) -> None:
        self.latest = TimeKey(LATEST, latest_time)
        self._disk = disk
        self._ledgers = ledgers
        self._indexes = OffsetIndexCache(disk)

    def path(self, ledger: int, segment: Segment) -> Path:
        """Return the file of a segment."""
        return file_of(self._ledgers, ledger, segment)

    def read(
        self, ledger: int, segment: Segment, request: ReadRequest, hint: SegmentPoint | None = None
    ) -> ReadResult:
        """Return entries of a segment; raise DamagedError if the first one cannot be read.

        `hint`: where an entry at or before the first one requested stands, if that is known. Raises
        OSError if the file cannot be read, FileNotFoundError if it is not there.
        """
        path = self.path(ledger, segment)
        with opened(self._disk, path, os.O_RDONLY) as descriptor:
            if hint is None:
                index = self._indexes.load(path, segment)
                hint = index.at_entry(request.start, segment).start
            answer = self._read_on(descriptor, segment, request, hint)
        if answer is not None:
            return answer
        # Slowly and thoroughly: something was not as it should be.
        return self._read_around(ledger, segment, request)

    def records(self, descriptor: int, segment: Segment) -> Iterator[SegmentEntry]:
        """Yield the entries and gaps of a segment, whose open file this is, up to damage.

        It ends before the segment's end if there is any. Raises OSError.
        """
        start = SegmentPoint(segment.first_entry, 0, segment.first_index)
        yield from map(SegmentEntry._make, self._records(descriptor, segment, start, segment.size))

    def entry_of_number(self, ledger: int, segment: Segment, number: int) -> SegmentPoint:
        """Return where the entry stands that holds the message of a number of the segment.

        If damage hides it, this is the first entry of the damage, and if it was reclaimed the next
        entry, or the segment's end. Raises OSError.
        """
        path = self.path(ledger, segment)
        part = self._indexes.load(path, segment).at_number(number, segment)

        def matches(entry: Entry) -> bool:
            return entry.index >= number and entry.format != GAP_FORMAT

        item, damage, after = self._find(path, segment, part, matches)
        if item is not None and (damage is None or number >= item.point.number):
            return item.point
        return after if damage is None else SegmentPoint(damage.first, damage.start, after.number)

    def number_before(self, ledger: int, segment: Segment, entry: int) -> SegmentPoint:
        """Return where an entry of the segment stands, with the number of its first message.

        If damage hides the number, or the entry was reclaimed, the number is that of the first
        message behind. Raises OSError.
        """
        path = self.path(ledger, segment)
        part = self._indexes.load(path, segment).at_entry(entry, segment)
        item, _damage, after = self._find(path, segment, part, lambda one: entry_after(one) > entry)
        if after.entry == entry:
            return after
        if item is None:
            return SegmentPoint(segment.next_entry, segment.size, segment.next_index)
        return item.after if item.is_gap else item.point

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
        part = index.at_time(timestamp_ms, segment, key)
        if start > part.start.entry:
            part = index.at_entry(start, segment)
        first = max(start, part.start.entry)

        def matches(entry: Entry) -> bool:
            known = entry.entry_id >= first and entry.format != GAP_FORMAT
            return known and key.of_entry(entry) >= timestamp_ms

        item, damage, _after = self._find(path, segment, part, matches)
        if damage is not None and damage.last >= first:
            return max(damage.first, first)
        return segment.next_entry if item is None else item.entry.entry_id

    def _find(
        self, path: Path, segment: Segment, part: IndexRange, matches: Callable[[Entry], bool]
    ) -> tuple[SegmentEntry | None, Damage | None, SegmentPoint]:
        """Return the first entry from where a part begins that matches; see `_first`.

        If damage may hide it all of the segment is read.
        """
        next_entry = part.start.entry
        with opened(self._disk, path, os.O_RDONLY) as descriptor:
            for entry, place in self._records(descriptor, segment, *part):
                if matches(entry):
                    item = SegmentEntry(entry, place)
                    return item, None, item.point
                next_entry = entry_after(entry)
        if next_entry == segment.next_entry:
            return None, None, SegmentPoint(next_entry, segment.size, segment.next_index)
        return _first(self._scan(path, segment), segment, matches)

    def _scan(self, path: Path, segment: Segment) -> Iterator[SegmentEntry | Damage]:
        """Yield all entries of a segment, and the damage between them."""
        index = self._indexes.load(path, segment)
        with opened(self._disk, path, os.O_RDONLY) as descriptor:
            data = read_all(self._disk, descriptor, segment.size, 0)
        return scan(data, segment, index.points())

    def _read_on(
        self, descriptor: int, segment: Segment, request: ReadRequest, hint: SegmentPoint
    ) -> ReadResult | None:
        """Return entries from the hint on, which end before any damage; None: look closer."""
        entries: list[Entry] = []
        left, last = request.max_bytes, None
        for item in self._records(descriptor, segment, hint, hint.place + left, entries):
            entry = item[0]
            if entry.entry_id >= request.start and entry.format != GAP_FORMAT:
                left -= len(entry.payload)
                if left < 0 and entries:
                    break
                entries.append(entry)
            last = item
            if len(entries) >= request.max_entries:
                break
        after = hint if last is None else SegmentEntry(*last).after
        return ReadResult(entries, after) if entries or after.place == segment.size else None

    def _read_around(self, ledger: int, segment: Segment, request: ReadRequest) -> ReadResult:
        """Return entries from the first one requested up to the next damage.

        Raises DamagedError if that stands before any of them.
        """
        path = self.path(ledger, segment)
        entries: list[Entry] = []
        left, after = request.max_bytes, SegmentPoint(segment.first_entry, 0, segment.first_index)
        for item in self._scan(path, segment):
            if isinstance(item, Damage):
                if item.last < request.start:
                    continue
                if entries:
                    break
                raise DamagedError(ledger, path, *item)
            if item.entry.entry_id < request.start or item.is_gap:
                continue
            left -= len(item.entry.payload)
            if entries and (left < 0 or len(entries) >= request.max_entries):
                break
            entries.append(item.entry)
            after = item.after
        return ReadResult(entries, after)

    def _records(
        self,
        descriptor: int,
        segment: Segment,
        start: SegmentPoint,
        end: int,
        found: Sequence[Entry] = (),
    ) -> Iterator[tuple[Entry, int]]:
        """Yield entries and their places from a point on, up to the first that is not as it should.

        Gaps are among them. Each must be sound, and continue the ids and numbers of the one before.
        `end` bounds what is read ahead, and what is read at all once the caller has `found` some.
        """
        expected, at, number = start[:3]
        data, base = b"", at
        while at < segment.size:
            entry = read_record(data, at - base)
            if entry is None:
                need = record_size(data, at - base) or HEAD.size
                if at - base + need <= len(data) or at + need > segment.size:
                    return
                if found and at + need > end:
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
            expected, number = entry_after(entry), entry.index + 1


def _first(
    items: Iterator[SegmentEntry | Damage], segment: Segment, matches: Callable[[Entry], bool]
) -> tuple[SegmentEntry | None, Damage | None, SegmentPoint]:
    """Return the first entry that matches, and the damage right before it, each None if not there.

    The point is the one behind the last sound entry before both.
    """
    damage: Damage | None = None
    after = SegmentPoint(segment.first_entry, 0, segment.first_index)
    for item in items:
        if isinstance(item, Damage):
            damage = item if damage is None else damage._replace(last=item.last, end=item.end)
        elif matches(item.entry):
            return item, damage, after
        elif damage is None or not item.is_gap:
            damage, after = None, item.after
    return None, damage, after
