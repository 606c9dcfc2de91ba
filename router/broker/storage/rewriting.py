"""Owns the writing of a segment without its deleted messages: one new file in the place of some.

Theory of operation. The records of one or more adjacent segments are read in order and written
into a new file: an entry of which nothing is deleted as it is, one of which messages are left in
the form that `KeepMessages` returns, and for those of which nothing is left a gap record. Ids and
numbers stay, so positions, offsets and cursors mean what they did. The times of the segment stay
too: they are upper bounds for lookups, and what retention goes by.

The files that are read are not touched. Work is done in steps of about STEP_MICROSECONDS in a
thread; one step holds what it read ahead, and what it has not written yet, in memory.
"""

from __future__ import annotations

import os
from collections.abc import Generator, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Final

from router.broker.disk.files import Disk, gather, opened, write_all
from router.broker.storage.deleted_ranges import DeletedRanges
from router.broker.storage.faults import DamagedError
from router.broker.storage.offset_index import pack_points
from router.broker.storage.reading import SegmentReader
from router.broker.storage.records import (
    GAP_FORMAT,
    MAX_GAP_MESSAGES,
    Entry,
    KeepMessages,
    entry_after,
    make_gap,
    make_head,
)
from router.broker.storage.segments import Segment, SegmentPoint

STEP_MICROSECONDS: Final = 2_000
"""About what a step takes of a processor, by these costs of what it does:"""
_ENTRY_MICROSECONDS: Final = 4
_MESSAGE_MICROSECONDS: Final = 1
"""Of an entry that is written in another form."""
_BYTES_PER_MICROSECOND: Final = 1 << 9


@dataclass(frozen=True, slots=True)
class RewriteContext:
    """What segments are rewritten with; `index_step`: bytes between two points of the index."""

    disk: Disk
    reader: SegmentReader
    keep_messages: KeepMessages
    index_step: int


class SegmentRewrite:
    """The new file of some adjacent segments of a ledger, while it is written; calls block.

    `deleted` is not changed meanwhile. `open`, `step` while it returns True, and `finish` may raise
    OSError, `step` also DamagedError; after any of them `close` is called, or `abandon`.
    """

    def __init__(
        self,
        context: RewriteContext,
        ledger: int,
        sources: Sequence[Segment],
        deleted: DeletedRanges,
    ) -> None:
        self._context, self._ledger = context, ledger
        self._sources, self._deleted = sources, deleted
        first, last = sources[0], sources[-1]
        self.segment = Segment(
            first.first_entry,
            first.first_index,
            last.next_entry,
            last.next_index,
            0,
            first.first_ms,
            max(segment.max_ms for segment in sources),
            max(segment.latest_ms for segment in sources),
            first.generation + 1,
            deleted.count_between(first.first_index, last.next_index - 1),
        )
        self._path = context.reader.path(ledger, self.segment)
        self._descriptors: list[int] = []
        self._records = self._read()
        self._gap: Entry | None = None
        self._parts: list[bytes] = []
        self._points: list[SegmentPoint] = []
        self._size = self._written = self._pointed = self._max_ms = self._latest_ms = 0
        self.cost = 0
        """Microseconds that the last step took, about."""

    @property
    def size_bound(self) -> int:
        """The bytes that the new file has at most."""
        return sum(segment.size for segment in self._sources)

    def open(self) -> None:
        """Make the files; nothing else makes a name in the folder later."""
        flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_APPEND
        for path in (self._path, self._path.with_suffix(".idx")):
            self._descriptors.append(self._context.disk.open(path, flags))

    def step(self) -> bool:
        """Write some more; return whether there is more."""
        self.cost = 0
        for entry in self._records:
            self._take(entry)
            if self.cost >= STEP_MICROSECONDS:
                self._flush()
                return True
        self._write_gap()
        self._flush()
        return False

    def finish(self) -> None:
        """Return when all is on disk, names included; `segment` is as the metadata stores it."""
        disk, (file, index) = self._context.disk, self._descriptors
        disk.sync_data(file)
        if self._points:
            write_all(disk, index, [pack_points(self._points)])
            disk.sync_data(index)
        else:
            disk.unlink(self._path.with_suffix(".idx"))
        disk.sync_folder(self._path.parent)
        disk.drop_cached(self._path, 0, self._size)
        self.segment = replace(self.segment, size=self._size)

    def close(self) -> None:
        """Close the files."""
        self._records.close()
        while self._descriptors:
            self._context.disk.close(self._descriptors.pop())

    def abandon(self) -> None:
        """Close the files and remove them; what cannot be removed stays until the next start."""
        self.close()
        for path in (self._path.with_suffix(".idx"), self._path):
            with suppress(OSError):
                self._context.disk.unlink(path)

    def _read(self) -> Generator[Entry]:
        """Yield the records of the sources, and what is missing between two of them as a gap."""
        context, before = self._context, None
        for source in self._sources:
            if before is not None and before.next_entry < source.first_entry:
                first = Entry(
                    before.next_entry, before.next_index, before.max_ms, GAP_FORMAT, 1, b""
                )
                yield make_gap(first, source.first_entry - 1, source.first_index - 1, before.max_ms)
            path = context.reader.path(self._ledger, source)
            end = SegmentPoint(source.first_entry, 0, source.first_index)
            with opened(context.disk, path, os.O_RDONLY) as descriptor:
                for item in context.reader.records(descriptor, source):
                    yield item.entry
                    end = item.after
            if end[:3] != (source.next_entry, source.size, source.next_index):
                raise DamagedError(
                    self._ledger, path, end.entry, source.next_entry - 1, end.place, source.size
                )
            before = source

    def _take(self, entry: Entry) -> None:
        self.cost += _ENTRY_MICROSECONDS + len(entry.payload) // _BYTES_PER_MICROSECOND
        first, last, deleted = entry.index + 1 - entry.messages, entry.index, self._deleted
        if entry.format == GAP_FORMAT:
            self._extend_gap(entry)
        elif not deleted.overlaps(first, last):
            self._write(entry)
        elif deleted.covers(first, last):
            self._extend_gap(entry)
        else:
            self.cost += _MESSAGE_MICROSECONDS * entry.messages
            payload = self._context.keep_messages(entry, deleted.live_between(first, last))
            if payload is not None and len(payload) < len(entry.payload):
                entry = entry._replace(payload=payload)
            self._write(entry)

    def _extend_gap(self, entry: Entry) -> None:
        """Add an entry, or gap, to the gap before it, if there is one."""
        gap = self._gap
        if gap is not None and gap.messages + entry.messages > MAX_GAP_MESSAGES:
            self._write_gap()
            gap = None
        first, time_ms = (entry, 0) if gap is None else (gap, gap.timestamp_ms)
        last_entry, time_ms = entry_after(entry) - 1, max(time_ms, entry.timestamp_ms)
        self._gap = make_gap(first, last_entry, entry.index, time_ms)

    def _write_gap(self) -> None:
        if self._gap is not None:
            self._append(self._gap)
            self._gap = None

    def _write(self, entry: Entry) -> None:
        self._write_gap()
        if self._size - self._pointed >= self._context.index_step:
            number = entry.index + 1 - entry.messages
            times = self._max_ms, self._latest_ms
            self._points.append(SegmentPoint(entry.entry_id, self._size, number, *times))
            self._pointed = self._size
        self._append(entry)
        self._max_ms = max(self._max_ms, entry.timestamp_ms)
        self._latest_ms = max(self._latest_ms, self._context.reader.latest.of_entry(entry))

    def _append(self, entry: Entry) -> None:
        head = make_head(entry)
        self._parts += (head, entry.payload)
        self._size += len(head) + len(entry.payload)

    def _flush(self) -> None:
        if self._parts:
            disk, descriptor = self._context.disk, self._descriptors[0]
            write_all(disk, descriptor, gather(self._parts))
            disk.begin_write_back(descriptor, self._written, self._size - self._written)
            self._parts, self._written = [], self._size
