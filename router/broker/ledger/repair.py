"""Owns repair: giving up exactly what cannot be read, so that everything else can be served again.

What is given up is recorded as a hole, in the same transaction that makes the rest valid. Sound
stretches behind damage are copied into new files, which are synced first; so a repair that is cut
short can be begun again. A journal that is damaged before its end is brought into segments as far
as it can be read: rounds that are sound count whole, of the others only entries that are certain.
"""

from __future__ import annotations

import os
import sqlite3
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from router.broker.dedup import Mark
from router.broker.ledger import rows
from router.broker.ledger.database import transact
from router.broker.ledger.disk import Disk, opened, write_all
from router.broker.ledger.inspection import Finding, SegmentView, inspect_segment, view_segment
from router.broker.ledger.options import DAY_MS, StoreOptions
from router.broker.ledger.records import HEAD, Record
from router.broker.ledger.recovery import JournalFile
from router.broker.ledger.rounds import (
    AckRecord,
    BadRound,
    EntryRecord,
    JournalRecord,
    MarkRecord,
    read_records,
    salvage,
    scan_rounds,
)
from router.broker.ledger.rows import Checkpoint, Hole, LedgerChange, LedgerRow, Rows
from router.broker.ledger.rows import SubscriptionRecord as Subscription
from router.broker.ledger.segments import Found, Point, Segment, file_of, pack_point
from router.broker.ledger.writing import Limits, SegmentWriter

_STEP = StoreOptions().index_step


@dataclass(frozen=True, slots=True)
class Bench:
    """What a repair works on: the folder's metadata, its disk, and the time that it is."""

    folder: Path
    disk: Disk
    connection: sqlite3.Connection
    now_ms: int

    @property
    def ledgers(self) -> Path:
        """The folder of the segments."""
        return self.folder / "ledgers"


def repair_ledger(bench: Bench, row: LedgerRow) -> Iterator[Finding]:
    """Repair the segments of a ledger and yield what was found in them."""
    for segment in row.segments:
        view = view_segment(bench.disk, bench.ledgers, row.id, segment)
        findings = list(inspect_segment(view))
        if view.damage:
            _divide(bench, view)
        elif not view.index_sound:
            _write_index(bench.disk, view.path, _points(view.found, 0))
        yield from (replace(finding, repaired=True) for finding in findings)


def _divide(bench: Bench, view: SegmentView) -> None:
    """Put a segment for each sound stretch in the place of one with damage between them."""
    runs = list(_runs(view.found))
    made = [_run_segment(bench, view, run) for run in runs]
    bench.disk.sync_folder(view.path.parent)
    holes = [
        Hole(d.first, d.last, f"bytes {d.start} to {d.end} of {view.path.name}")
        for d in view.damage
        if d.first <= d.last
    ]

    def record(connection: sqlite3.Connection) -> None:
        rows.replace_segment(connection, view.ledger, view.segment, made)
        for hole in holes:
            rows.insert_hole(connection, view.ledger, hole, bench.now_ms)

    transact(bench.connection, bench.disk, record)
    if not any(segment.first_entry == view.segment.first_entry for segment in made):
        bench.disk.unlink(view.path.with_suffix(".idx"))
        bench.disk.unlink(view.path)


def _runs(found: Sequence[Found]) -> Iterator[list[Found]]:
    """Yield the stretches of consecutive entries that stand one behind the other."""
    run: list[Found] = []
    for item in found:
        if run and (
            item.entry.entry_id != run[-1].entry.entry_id + 1 or item.place != _end(run[-1])
        ):
            yield run
            run = []
        run.append(item)
    if run:
        yield run


def _end(item: Found) -> int:
    return item.place + HEAD.size + len(item.entry.payload)


def _run_segment(bench: Bench, view: SegmentView, run: Sequence[Found]) -> Segment:
    """Return the segment of a sound stretch, in the old file if it begins it, else in its own."""
    first, last, start = run[0].entry, run[-1].entry, run[0].place
    path = file_of(bench.ledgers, view.ledger, first.entry_id)
    if path != view.path:
        flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC
        with opened(bench.disk, path, flags) as descriptor:
            write_all(bench.disk, descriptor, [view.data[start : _end(run[-1])]])
            bench.disk.sync_data(descriptor)
    _write_index(bench.disk, path, _points(run, start))
    # How many messages the first entry has is not known behind damage; the count may be short.
    begins = first.entry_id == view.segment.first_entry
    return Segment(
        first.entry_id,
        view.segment.first_index if begins else first.index,
        last.entry_id + 1,
        last.index + 1,
        _end(run[-1]) - start,
        first.timestamp_ms,
        max(item.entry.timestamp_ms for item in run),
    )


def _points(run: Sequence[Found], start: int) -> list[Point]:
    points: list[Point] = []
    pointed, max_ms = start, 0
    for item in run:
        if item.place - pointed >= _STEP:
            points.append(Point(item.entry.entry_id, item.place - start, max_ms))
            pointed = item.place
        max_ms = max(max_ms, item.entry.timestamp_ms)
    return points


def _write_index(disk: Disk, path: Path, points: Sequence[Point]) -> None:
    """Write an index anew; half of one is no danger, a wrong one is never believed."""
    index = path.with_suffix(".idx")
    if not points:
        disk.unlink(index)
        return
    with opened(disk, index, os.O_WRONLY | os.O_CREAT | os.O_TRUNC) as descriptor:
        write_all(disk, descriptor, [b"".join(pack_point(point) for point in points)])
        disk.sync_data(descriptor)


@dataclass(slots=True)
class _Ledger:
    """A ledger while its part of a damaged journal is brought into segments."""

    row: LedgerRow
    segments: tuple[Segment, ...]
    next_entry: int
    next_index: int
    records: list[Record] = field(default_factory=list)
    marks: dict[str, Mark] = field(default_factory=dict)
    holes: list[Hole] = field(default_factory=list)


class JournalRepair:
    """Brings what a damaged journal still says into segments and metadata, and removes it."""

    def __init__(self, bench: Bench, found: Rows) -> None:
        self._bench = bench
        self._ledgers = {
            row.id: _Ledger(row, tuple(row.segments), row.next_entry, row.next_index)
            for row in found.ledgers.values()
        }
        self._subscriptions = found.subscriptions
        self._cursors: dict[Subscription, None] = {}
        options = StoreOptions()
        limits = Limits(options.segment, options.index_step, options.open_files)
        self._writer = SegmentWriter(bench.disk, bench.ledgers, limits)

    def take(self, file: JournalFile) -> None:
        """Take everything certain from a journal file."""
        for item in scan_rounds(file.data, file.header):
            if isinstance(item, BadRound):
                end = len(file.data) if item.later is None else item.later
                self._take_all(salvage(file.data, item.start, end))
                continue
            try:
                self._take_all(list(read_records(item.body)))
            except ValueError:
                self._take_all(salvage(file.data, item.start, item.end))
        self._flush()

    def finish(self, journal: int) -> None:
        """Make it last; journal files below this number are not needed then."""
        self._writer.sync()
        self._writer.close()
        checkpoint = Checkpoint(journal, closed=True)
        for state in self._ledgers.values():
            grown = tuple(s for s in state.segments if s.next_entry > state.row.next_entry)
            checkpoint.ledgers.append(
                LedgerChange(state.row.id, state.next_entry, state.next_index, grown, state.marks)
            )
        for record in self._cursors:
            checkpoint.cursors.append((record.cursor.dump(), record.last_used_ms, record.id))

        def store(connection: sqlite3.Connection) -> None:
            rows.save_checkpoint(connection, checkpoint)
            for state in self._ledgers.values():
                for hole in state.holes:
                    rows.insert_hole(connection, state.row.id, hole, self._bench.now_ms)

        transact(self._bench.connection, self._bench.disk, store)

    def _take_all(self, records: Sequence[JournalRecord]) -> None:
        for record in records:
            if isinstance(record, EntryRecord):
                self._take_entry(record)
            elif isinstance(record, MarkRecord):
                if (state := self._ledgers.get(record.ledger)) is not None:
                    state.marks[record.name] = record.mark
            elif (subscription := self._subscriptions.get(record.subscription)) is not None:
                if isinstance(record, AckRecord):
                    subscription.cursor.apply(record.ack)
                else:
                    subscription.cursor.reset(record.mark_delete)
                self._cursors[subscription] = None

    def _take_entry(self, record: EntryRecord) -> None:
        state, entry = self._ledgers.get(record.ledger), record.entry
        if state is None or entry.entry_id < state.next_entry:
            return
        messages = max(1, entry.index + 1 - state.next_index)
        if entry.entry_id > state.next_entry:
            last = entry.entry_id - 1
            state.holes.append(Hole(state.next_entry, last, "they stood in a damaged journal"))
            messages = 1  # how many of those the index counts are its own is not known
        state.records.append(Record(record.head, entry, messages))
        state.next_entry, state.next_index = entry.entry_id + 1, entry.index + 1

    def _flush(self) -> None:
        for state in self._ledgers.values():
            if state.records:
                state.segments = self._writer.append(
                    state.row.id, state.segments, state.records, DAY_MS
                )
                state.records = []
