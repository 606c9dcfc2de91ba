"""Owns repair: giving up exactly what cannot be read, so that everything else can be served again.

What is given up is recorded as a hole, in the same transaction that makes the rest valid. Sound
parts behind damage are copied into new files, which are synced first; so a repair that is cut
short can be begun again. A journal that is damaged before its end is brought into segments as far
as it can be read: commit groups that are sound count whole, of the others only entries that are
certain. Values of a damaged group are lost, so that a transaction has no part any more in such
entries: they are delivered. One whose decision was lost is aborted when its time is over.
"""

from __future__ import annotations

import os
import sqlite3
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path

from router.broker.disk.database import transact
from router.broker.disk.files import Disk, opened, write_all
from router.broker.storage import rows
from router.broker.storage.commit_groups import (
    BadCommitGroup,
    CommitGroup,
    JournalRecord,
    read_records,
    salvage,
    scan_commit_groups,
)
from router.broker.storage.deleted_ranges import DeletedRanges
from router.broker.storage.inspection import (
    InspectionFinding,
    SegmentView,
    UnreadableError,
    inspect_segment,
    view_segment,
)
from router.broker.storage.loading import Rows
from router.broker.storage.offset_index import pack_points
from router.broker.storage.options import DAY_MS, StoreOptions
from router.broker.storage.producer_state import ProducerState
from router.broker.storage.records import UNKNOWN_TIME, StoredRecord
from router.broker.storage.recovery import JournalFile, JournalReplay
from router.broker.storage.rows import Checkpoint, Hole, LedgerChange, LedgerRow
from router.broker.storage.segments import Segment, SegmentEntry, SegmentPoint, file_of
from router.broker.storage.values import StoredValues
from router.broker.storage.writing import SegmentLimits, SegmentWriter

_STEP = StoreOptions().index_step


@dataclass(frozen=True, slots=True)
class RepairContext:
    """What a repair works on: the folder's metadata, its disk, and the time that it is."""

    folder: Path
    disk: Disk
    connection: sqlite3.Connection
    now_ms: int

    @property
    def ledgers(self) -> Path:
        """The folder of the segments."""
        return self.folder / "ledgers"


def repair_ledger(context: RepairContext, row: LedgerRow) -> Iterator[InspectionFinding]:
    """Repair the segments of a ledger and yield what was found in them.

    What the disk cannot read is left alone: the disk may read it once more, or it can be copied.
    """
    for segment in row.segments:
        try:
            view = view_segment(context.disk, context.ledgers, row.id, segment)
        except UnreadableError as error:
            yield InspectionFinding.from_error(error)
            continue
        findings = list(inspect_segment(view))
        if view.damage:
            _divide(context, view)
        elif not view.index_sound:
            points = _points(view.entries, 0, segment.latest_ms)
            _write_index(context.disk, view.path, points)
        yield from (replace(finding, repaired=True) for finding in findings)


def _divide(context: RepairContext, view: SegmentView) -> None:
    """Put a segment for each sound part in the place of one with damage between them."""
    runs = list(_runs(view.entries))
    made = [_run_segment(context, view, run) for run in runs]
    context.disk.sync_folder(view.path.parent)
    holes = [
        Hole(d.first, d.last, f"bytes {d.start} to {d.end} of {view.path.name}")
        for d in view.damage
        if d.first <= d.last
    ]

    def record(connection: sqlite3.Connection) -> None:
        rows.replace_segments(connection, view.ledger, [view.segment], made)
        for hole in holes:
            rows.insert_hole(connection, view.ledger, hole, context.now_ms)

    transact(context.connection, context.disk, record)
    if not any(segment.first_entry == view.segment.first_entry for segment in made):
        context.disk.unlink(view.path.with_suffix(".idx"))
        context.disk.unlink(view.path)


def _runs(entries: Sequence[SegmentEntry]) -> Iterator[list[SegmentEntry]]:
    """Yield the runs of consecutive entries that stand one behind the other."""
    run: list[SegmentEntry] = []
    for item in entries:
        if run and item.point[:2] != run[-1].after[:2]:
            yield run
            run = []
        run.append(item)
    if run:
        yield run


def _run_segment(context: RepairContext, view: SegmentView, run: Sequence[SegmentEntry]) -> Segment:
    """Return the segment of a run, in the old file if it begins it, else in its own."""
    first, start, after = run[0].entry, run[0].place, run[-1].after
    segment = Segment(
        first.entry_id,
        run[0].point.number,
        after.entry,
        after.number,
        after.place - start,
        first.timestamp_ms,
        max(item.entry.timestamp_ms for item in run),
    )
    if first.entry_id == view.segment.first_entry:
        segment = replace(segment, generation=view.segment.generation)
    path = file_of(context.ledgers, view.ledger, segment)
    if path != view.path:
        flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC
        with opened(context.disk, path, flags) as descriptor:
            write_all(context.disk, descriptor, [view.data[start : after.place]])
            context.disk.sync_data(descriptor)
    _write_index(context.disk, path, _points(run, start, UNKNOWN_TIME))
    return segment


def _points(run: Sequence[SegmentEntry], start: int, latest_ms: int) -> list[SegmentPoint]:
    """Return the points of a run; none of its messages has a time behind `latest_ms`."""
    points: list[SegmentPoint] = []
    pointed, max_ms = start, 0
    for item in run:
        entry = item.entry
        if item.place - pointed >= _STEP:
            place, number = item.place - start, item.point.number
            points.append(SegmentPoint(entry.entry_id, place, number, max_ms, latest_ms))
            pointed = item.place
        max_ms = max(max_ms, entry.timestamp_ms)
    return points


def _write_index(disk: Disk, path: Path, points: Sequence[SegmentPoint]) -> None:
    """Write an index again; half of one is no danger, a wrong one is never believed."""
    index = path.with_suffix(".idx")
    if not points:
        disk.unlink(index)
        return
    with opened(disk, index, os.O_WRONLY | os.O_CREAT | os.O_TRUNC) as descriptor:
        write_all(disk, descriptor, [pack_points(points)])
        disk.sync_data(descriptor)


@dataclass(slots=True)
class _Ledger:
    """A ledger while its part of a damaged journal is brought into segments."""

    row: LedgerRow
    segments: tuple[Segment, ...]
    next_entry: int
    next_index: int
    records: list[StoredRecord] = field(default_factory=list)
    producers: dict[str, ProducerState] = field(default_factory=dict)
    holes: list[Hole] = field(default_factory=list)
    deleted: DeletedRanges = field(default_factory=DeletedRanges)

    def replay(self, record: StoredRecord) -> None:
        """Take an entry; those that are missing before it are a hole."""
        entry = record.entry
        if entry.entry_id > self.next_entry:
            last = entry.entry_id - 1
            self.holes.append(Hole(self.next_entry, last, "they stood in a damaged journal"))
        self.records.append(record)
        self.next_entry, self.next_index = entry.entry_id + 1, entry.index + 1

    def replay_producer(self, name: str, state: ProducerState) -> None:
        """Take what a producer stored last."""
        self.producers[name] = state

    def delete(self, ranges: Sequence[tuple[int, int]], removed_entry: int) -> None:
        """Take ranges of messages that were deleted."""
        self.row.removed_entry = max(self.row.removed_entry, removed_entry)
        for first, last in ranges:
            end = min(last, self.next_index - 1)
            self.deleted.add(first, end)
            if removed_entry:
                self.row.removed_number = max(self.row.removed_number, end + 1)


class JournalRepair:
    """Brings what can be read of a damaged journal into segments and metadata."""

    def __init__(self, context: RepairContext, found: Rows) -> None:
        self._context = context
        self._ledgers = {
            row.id: _Ledger(
                row,
                tuple(row.segments),
                row.next_entry,
                row.next_index,
                deleted=DeletedRanges(row.deleted),
            )
            for row in found.ledgers.values()
        }
        self._values = StoredValues()
        self._replay = JournalReplay(self._ledgers.get, found.subscriptions.get, self._values)
        options = StoreOptions()
        limits = SegmentLimits(options.segment, options.index_step, options.open_files)
        self._writer = SegmentWriter(context.disk, context.ledgers, limits)

    def take(self, file: JournalFile) -> None:
        """Take everything certain from a journal file."""
        for item in scan_commit_groups(file.data, file.header):
            for record in _certain_records(file, item):
                self._replay.apply(record)
        self._flush()

    def finish(self, journal: int) -> None:
        """Make it last; journal files below this number are not needed then."""
        self._writer.sync()
        self._writer.close()
        checkpoint = Checkpoint(journal, closed=True, values=self._values.take_changes())
        for state in self._ledgers.values():
            grown = tuple(s for s in state.segments if s.next_entry > state.row.next_entry)
            checkpoint.ledgers.append(
                LedgerChange(
                    state.row.id,
                    state.next_entry,
                    state.next_index,
                    grown,
                    state.producers,
                    state.deleted.take_changes(),
                    state.row.removed_entry,
                    state.row.removed_number,
                )
            )
        for record in self._replay.cursors:
            checkpoint.cursors.append(record.state())

        def store(connection: sqlite3.Connection) -> None:
            rows.save_checkpoint(connection, checkpoint)
            for state in self._ledgers.values():
                for hole in state.holes:
                    rows.insert_hole(connection, state.row.id, hole, self._context.now_ms)

        transact(self._context.connection, self._context.disk, store)

    def _flush(self) -> None:
        for state in self._ledgers.values():
            if state.records:
                state.segments = self._writer.append(
                    state.row.id, state.segments, state.records, DAY_MS
                )
                state.records = []


def _certain_records(
    file: JournalFile, item: CommitGroup | BadCommitGroup
) -> Sequence[JournalRecord]:
    """Return all records of a sound commit group, and of another the entries that are certain."""
    if isinstance(item, CommitGroup):
        with suppress(ValueError):
            return list(read_records(item.body))
    return salvage(file.data, item.start, item.end)
