"""Owns the inspection of stored data: what is wrong, in which bytes, and how bad it is.

Used offline only. Every byte that a reader would ever believe is read: checksums of all entries and
commit groups, every point of every index, the bounds that the metadata gives, and that one thing
continues the other.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass
from errno import EIO
from pathlib import Path
from typing import Final

from router.broker.disk.files import Disk, opened, read_all, read_file
from router.broker.storage.commit_groups import (
    BadCommitGroup,
    CommitGroup,
    EntryRecord,
    read_records,
    scan_commit_groups,
)
from router.broker.storage.deleted_ranges import DeletedRanges
from router.broker.storage.faults import DamagedError, JournalDamagedError
from router.broker.storage.journal import JournalFiles
from router.broker.storage.loading import Rows
from router.broker.storage.offset_index import all_points, read_index, read_points
from router.broker.storage.recovery import JournalFile, damage_of, journal_file, open_journal
from router.broker.storage.rows import LedgerRow
from router.broker.storage.segments import (
    Damage,
    Segment,
    SegmentEntry,
    file_of,
    scan,
)

SECTOR_BYTES: Final = 4096
"""Of a disk: what it cannot read is found by reading so many bytes at a time."""


@dataclass(frozen=True, slots=True)
class InspectionFinding:
    """Something that is not as it should be, in a sentence.

    `serious`: stored data is lost or in doubt. Otherwise the next start or a repair sets it right
    and nothing that was acknowledged is concerned. `repairable`: a repair deals with it, as it does
    with all but what the disk cannot read. `repaired`: it was dealt with.
    """

    sentence: str
    serious: bool
    file: Path | None = None
    span: tuple[int, int] | None = None
    repairable: bool = True
    repaired: bool = False

    @classmethod
    def from_error(
        cls, error: DamagedError | JournalDamagedError | UnreadableError
    ) -> InspectionFinding:
        """Return the finding of an error that has a range of bytes."""
        repairable, span = not isinstance(error, UnreadableError), (error.start, error.end)
        return cls(str(error), True, error.file, span, repairable)


class UnreadableError(Exception):
    """The disk cannot read a file's bytes from `start` to `end`, nor maybe others behind them."""

    def __init__(self, file: Path, start: int, reason: str | None) -> None:
        self.file, self.start, self.end = file, start, start + SECTOR_BYTES
        super().__init__(f"{file} cannot be read at byte {start}: {reason}")


def read_whole(disk: Disk, path: Path) -> bytes:
    """Return all bytes of a file; raise UnreadableError with the first that cannot be read.

    Raises other OSErrors, as if it is missing.
    """
    try:
        return read_file(disk, path)
    except OSError as error:
        if error.errno != EIO:
            raise
    parts = []
    with opened(disk, path, os.O_RDONLY) as descriptor:
        for start in range(0, disk.size(descriptor), SECTOR_BYTES):
            try:
                parts.append(read_all(disk, descriptor, SECTOR_BYTES, start))
            except OSError as error:
                raise UnreadableError(path, start, error.strerror) from error
    return b"".join(parts)


@dataclass(frozen=True, slots=True)
class SegmentView:
    """A segment with the bytes of its file and what stands in them."""

    ledger: int
    segment: Segment
    path: Path
    data: bytes
    entries: list[SegmentEntry]
    damage: list[Damage]
    index_sound: bool


def view_segment(disk: Disk, ledgers: Path, ledger: int, segment: Segment) -> SegmentView:
    """Read a segment whole. Raises UnreadableError."""
    path = file_of(ledgers, ledger, segment)
    try:
        data = read_whole(disk, path)
    except FileNotFoundError:
        data = b""
    index = read_index(disk, path)
    items = list(scan(data, segment, read_points(index, segment)))
    entries = [item for item in items if isinstance(item, SegmentEntry)]
    damage = [item for item in items if isinstance(item, Damage)]
    points = {item.entry.entry_id: item.point[:3] for item in entries}
    index_sound = all(
        point is not None and points.get(point.entry, point[:3]) == point[:3]
        for point in all_points(index)
    )
    return SegmentView(ledger, segment, path, data, entries, damage, index_sound)


def inspect_ledger(disk: Disk, ledgers: Path, row: LedgerRow) -> Iterator[InspectionFinding]:
    """Yield what is wrong with the segments of a ledger."""
    expected = row.segments[0].first_entry if row.segments else row.next_entry
    deleted = DeletedRanges(row.deleted)
    number = row.segments[0].first_index if row.segments else row.next_index
    for segment in row.segments:
        if (
            segment.first_entry != expected
            and not _covered(row, expected, segment.first_entry)
            and not deleted.covers(number, segment.first_index - 1)
        ):
            last = segment.first_entry - 1
            yield InspectionFinding(
                f"ledger {row.id}: entries {expected} to {last} are missing", serious=True
            )
        expected, number = segment.next_entry, segment.next_index
        try:
            view = view_segment(disk, ledgers, row.id, segment)
        except UnreadableError as error:
            yield InspectionFinding.from_error(error)
            continue
        yield from inspect_segment(view)
        yield from _inspect_gaps(view, deleted)
    if not _covered(row, expected, row.next_entry):
        sentence = (
            f"ledger {row.id}: its segments end before entry {expected}, not {row.next_entry}"
        )
        yield InspectionFinding(sentence, serious=True)


def inspect_segment(view: SegmentView) -> Iterator[InspectionFinding]:
    """Yield what is wrong with one segment."""
    for damage in view.damage:
        yield InspectionFinding.from_error(DamagedError(view.ledger, view.path, *damage))
    entry_id, number = view.segment.first_entry, view.segment.first_index
    for item in view.entries:
        entry, first = item.entry, item.point.number
        # What damage took in front of an entry had numbers, too.
        follows = first == number if entry.entry_id == entry_id else first > number
        if not follows or entry.index >= view.segment.next_index:
            sentence = (
                f"{view.path}: entry {entry.entry_id} holds messages {first} to {entry.index}, "
                f"which do not follow {number - 1}"
            )
            yield InspectionFinding(sentence, serious=True, file=view.path)
        entry_id, number = item.after.entry, item.after.number
    if not view.index_sound:
        path = view.path.with_suffix(".idx")
        yield InspectionFinding(
            f"the index {path} is not sound; it is not needed", serious=False, file=path
        )


def _inspect_gaps(view: SegmentView, deleted: DeletedRanges) -> Iterator[InspectionFinding]:
    """Yield the gaps of a segment that stand for messages which are not deleted."""
    for item in view.entries:
        if item.is_gap and not deleted.covers(item.point.number, item.entry.index):
            sentence = (
                f"{view.path}: entries {item.entry.entry_id} to {item.after.entry - 1} are gone, "
                "and their messages are not deleted"
            )
            yield InspectionFinding(sentence, serious=True, file=view.path)


def inspect_journal(disk: Disk, files: JournalFiles, rows: Rows) -> Iterator[InspectionFinding]:
    """Yield what is wrong with the journal."""
    try:
        numbers = open_journal(disk, files, rows.journal, closed=rows.closed)
    except JournalDamagedError as error:
        yield InspectionFinding.from_error(error)
        return
    except OSError:
        unreadable = list(_unreadable(disk, files))
        if not unreadable:
            raise
        yield from unreadable
        return
    following = {row.id: row.next_entry for row in rows.ledgers.values()}
    expected: int | None = None
    for number in numbers:
        path = files.path(number)
        try:
            file = journal_file(path, read_whole(disk, path))
        except UnreadableError as error:
            yield InspectionFinding.from_error(error)
            expected = None
            following.clear()
            continue
        if expected is not None and file.header.first_group != expected:
            reason = "commit groups before it are missing"
            yield InspectionFinding.from_error(JournalDamagedError(file.path, 0, 0, reason))
        expected = file.header.first_group
        for item in scan_commit_groups(file.data, file.header):
            if isinstance(item, BadCommitGroup):
                yield _bad_group(file, item, last=number == numbers[-1])
                following.clear()  # that entries are missing behind it goes without saying
                continue
            expected = item.number + 1
            yield from _inspect_group(file, item, following)


def _unreadable(disk: Disk, files: JournalFiles) -> Iterator[InspectionFinding]:
    """Yield the journal files that the disk cannot read."""
    for number in files.numbers():
        try:
            read_whole(disk, files.path(number))
        except UnreadableError as error:
            yield InspectionFinding.from_error(error)


def _inspect_group(
    file: JournalFile, item: CommitGroup, following: dict[int, int]
) -> Iterator[InspectionFinding]:
    try:
        for record in read_records(item.body):
            if isinstance(record, EntryRecord) and record.ledger in following:
                entry, expected = record.entry.entry_id, following[record.ledger]
                if entry > expected:
                    reason = f"ledger {record.ledger} goes from {expected - 1} to {entry}"
                    error = JournalDamagedError(file.path, item.start, item.end, reason)
                    yield InspectionFinding.from_error(error)
                following[record.ledger] = max(expected, entry + 1)
    except ValueError as reason:
        error = JournalDamagedError(file.path, item.start, item.end, str(reason))
        yield InspectionFinding.from_error(error)


def _bad_group(file: JournalFile, bad: BadCommitGroup, *, last: bool) -> InspectionFinding:
    if (error := damage_of(file, bad, last=last)) is not None:
        return InspectionFinding.from_error(error)
    sentence = f"{file.path}: bytes {bad.start} to {bad.end} are a commit group that was cut short"
    return InspectionFinding(sentence, serious=False, file=file.path, span=(bad.start, bad.end))


def _covered(row: LedgerRow, first: int, end: int) -> bool:
    """Return whether recorded holes account for the entries from `first` to before `end`."""
    for hole in row.holes:
        if hole.first <= first <= hole.last:
            first = hole.last + 1
    return first >= end
