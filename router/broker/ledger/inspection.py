"""Owns looking at stored data without changing it: what is wrong, where exactly, and how bad it is.

Used offline only. Every byte that a reader would ever believe is read: checksums of all entries and
rounds, every point of every index, the bounds that the metadata gives, and that one thing continues
the other.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from router.broker.ledger.disk import Disk, opened, read_all
from router.broker.ledger.faults import DamagedError, JournalDamagedError
from router.broker.ledger.journal import JournalFiles
from router.broker.ledger.recovery import JournalFile, open_journal, read_journal
from router.broker.ledger.rounds import BadRound, EntryRecord, Round, read_records, scan_rounds
from router.broker.ledger.rows import LedgerRow, Rows
from router.broker.ledger.segments import (
    Damage,
    Found,
    Point,
    Segment,
    all_points,
    file_of,
    read_points,
    scan,
)


@dataclass(frozen=True, slots=True)
class Finding:
    """Something that is not as it should be, in a sentence.

    `serious`: stored data is lost or in doubt. Otherwise the next start or a repair sets it right
    and nothing that was acknowledged is concerned. `repaired`: it was dealt with.
    """

    sentence: str
    serious: bool
    file: Path | None = None
    span: tuple[int, int] | None = None
    repaired: bool = False


@dataclass(frozen=True, slots=True)
class SegmentView:
    """A segment with the bytes of its file and what stands in them."""

    ledger: int
    segment: Segment
    path: Path
    data: bytes
    points: list[Point]
    found: list[Found]
    damage: list[Damage]
    index_sound: bool


def view_segment(disk: Disk, ledgers: Path, ledger: int, segment: Segment) -> SegmentView:
    """Read a segment whole."""
    path = file_of(ledgers, ledger, segment.first_entry)
    data = _content(disk, path) or b""
    index = _content(disk, path.with_suffix(".idx"))
    points = read_points(index or b"", segment)
    items = list(scan(data, segment, points))
    found = [item for item in items if isinstance(item, Found)]
    places = {item.entry.entry_id: item.place for item in found}
    right = all(places.get(point.entry, point.place) == point.place for point in points)
    whole = all(point is not None for point in all_points(index or b""))
    return SegmentView(
        ledger,
        segment,
        path,
        data,
        points,
        found,
        [item for item in items if isinstance(item, Damage)],
        whole and right,
    )


def inspect_ledger(disk: Disk, ledgers: Path, row: LedgerRow) -> Iterator[Finding]:
    """Yield what is wrong with the segments of a ledger."""
    expected = row.segments[0].first_entry if row.segments else row.next_entry
    for segment in row.segments:
        if segment.first_entry != expected and not _covered(row, expected, segment.first_entry):
            last = segment.first_entry - 1
            yield Finding(
                f"ledger {row.id}: entries {expected} to {last} are missing", serious=True
            )
        expected = segment.next_entry
        yield from inspect_segment(view_segment(disk, ledgers, row.id, segment))
    if not _covered(row, expected, row.next_entry):
        sentence = (
            f"ledger {row.id}: its segments end before entry {expected}, not {row.next_entry}"
        )
        yield Finding(sentence, serious=True)


def inspect_segment(view: SegmentView) -> Iterator[Finding]:
    """Yield what is wrong with one segment."""
    for damage in view.damage:
        error = DamagedError(view.ledger, damage[:2], view.path, damage[2:])
        yield Finding(str(error), serious=True, file=view.path, span=damage[2:])
    index = view.segment.first_index - 1
    for found in view.found:
        if found.entry.index <= index or found.entry.index >= view.segment.next_index:
            sentence = f"{view.path}: entry {found.entry.entry_id} has index {found.entry.index}"
            yield Finding(sentence, serious=True, file=view.path)
        index = found.entry.index
    if not view.index_sound:
        path = view.path.with_suffix(".idx")
        yield Finding(f"the index {path} is not sound; it is not needed", serious=False, file=path)


def inspect_journal(disk: Disk, files: JournalFiles, rows: Rows) -> Iterator[Finding]:
    """Yield what is wrong with the journal."""
    try:
        numbers = open_journal(disk, files, rows.journal, closed=rows.closed)
    except JournalDamagedError as error:
        yield Finding(str(error), serious=True, file=error.file, span=(error.start, error.end))
        return
    following = {row.id: row.next_entry for row in rows.ledgers.values()}
    expected: int | None = None
    for number in numbers:
        file = read_journal(disk, files.path(number))
        if expected is not None and file.header.first_round != expected:
            yield _damaged(file.path, (0, 0), "rounds before it are missing")
        expected = file.header.first_round
        for item in scan_rounds(file.data, file.header):
            if isinstance(item, BadRound):
                yield _bad_round(file, item, last=number == numbers[-1])
                following.clear()  # that entries are missing behind it goes without saying
                continue
            expected = item.number + 1
            yield from _inspect_round(file, item, following)


def _inspect_round(file: JournalFile, item: Round, following: dict[int, int]) -> Iterator[Finding]:
    try:
        for record in read_records(item.body):
            if isinstance(record, EntryRecord) and record.ledger in following:
                entry, expected = record.entry.entry_id, following[record.ledger]
                if entry > expected:
                    reason = f"ledger {record.ledger} goes from {expected - 1} to {entry}"
                    yield _damaged(file.path, (item.start, item.end), reason)
                following[record.ledger] = max(expected, entry + 1)
    except ValueError as error:
        yield _damaged(file.path, (item.start, item.end), str(error))


def _bad_round(file: JournalFile, bad: BadRound, *, last: bool) -> Finding:
    end = len(file.data) if bad.later is None else bad.later
    if file.header.relaxed or (last and bad.later is None):
        sentence = f"{file.path}: bytes {bad.start} to {end} are a round that was cut short"
        return Finding(sentence, serious=False, file=file.path, span=(bad.start, end))
    return _damaged(file.path, (bad.start, end), "a synced round is not sound")


def _damaged(path: Path, span: tuple[int, int], reason: str) -> Finding:
    return Finding(str(JournalDamagedError(path, span, reason)), serious=True, file=path, span=span)


def _covered(row: LedgerRow, first: int, end: int) -> bool:
    """Return whether recorded holes account for the entries from `first` to before `end`."""
    for hole in row.holes:
        if hole.first <= first <= hole.last:
            first = hole.last + 1
    return first >= end


def _content(disk: Disk, path: Path) -> bytes | None:
    try:
        with opened(disk, path, os.O_RDONLY) as descriptor:
            return read_all(disk, descriptor, disk.size(descriptor), 0)
    except FileNotFoundError:
        return None
