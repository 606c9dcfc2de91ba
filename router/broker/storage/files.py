"""The second door of storage: a data folder's files, for what works on them without a `Store`.

`router check` reads all of a folder that no broker serves, and repairs it. A backup copies the
files while a broker holds them for it (see removals), and is read in the same way as a folder.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Final

from router.broker.disk.database import check_version, connect, transact
from router.broker.disk.faults import StoreError
from router.broker.disk.files import Disk, read_file
from router.broker.folder import MARK, hold_unserved, read_mark
from router.broker.storage.commit_groups import (
    FILE_SIZE,
    guess_file_header,
    pack_file_header,
    read_file_header,
)
from router.broker.storage.faults import JournalDamagedError
from router.broker.storage.inspection import InspectionFinding, inspect_journal, inspect_ledger
from router.broker.storage.journal import JournalFiles
from router.broker.storage.loading import Rows, load
from router.broker.storage.metadata import SCHEMA, begin_history, connect_read_only, history_of
from router.broker.storage.offset_index import pack_points, read_index, read_points
from router.broker.storage.options import Clock
from router.broker.storage.recovery import JournalFile, open_journal, read_journal
from router.broker.storage.repair import JournalRepair, RepairContext, repair_ledger
from router.broker.storage.segments import Segment, file_of

__all__ = [
    "METADATA_FORMAT",
    "InspectionFinding",
    "Segment",
    "begin_history",
    "check",
    "check_format",
    "file_of",
    "history_of",
    "index_of",
    "inspect_copy",
    "journal_of",
    "journal_path",
    "repair",
    "segments_of",
]

METADATA_FORMAT: Final = SCHEMA.version
"""The number of the format that this release reads and writes."""


def check(folder: Path) -> list[InspectionFinding]:
    """Read everything that is stored and return what is wrong, changing nothing.

    Raises StoreError if a broker holds the folder, if the metadata cannot be read at all, or if
    files may not be opened. A folder without data is in order.
    """
    path = folder / "metadata.db"
    if not path.exists():
        return list(_marked(folder))
    try:
        with hold_unserved(folder), connect_read_only(path) as found:
            rest = () if found is None else _inspect(folder, _load(found, path))
            return [*_marked(folder), *rest]
    except sqlite3.DatabaseError as error:
        raise StoreError(f"the metadata {path} is damaged; restore a backup: {error}") from error
    except OSError as error:
        raise StoreError(f"{folder} cannot be read: {error}") from error


def repair(folder: Path, clock: Clock, disk: Disk | None = None) -> list[InspectionFinding]:
    """Give up what is damaged and make everything else servable; return what was found.

    Files that the disk cannot read are left alone, and then the folder stays marked READ-ONLY if it
    is. Raises StoreError if a broker holds the folder, if the metadata cannot be read (then only a
    backup helps), or if the disk fails; a repair that was cut short can be begun again.
    """
    disk = disk or Disk()
    if not (folder / "metadata.db").exists():
        findings = []
    else:
        with hold_unserved(folder):
            findings = _repair(folder, disk, int(clock() * 1000))
    done = all(finding.repairable for finding in findings)
    marked = [replace(finding, repaired=done) for finding in _marked(folder)]
    if done:
        disk.unlink(folder / MARK)
    return [*marked, *findings]


def _repair(folder: Path, disk: Disk, now_ms: int) -> list[InspectionFinding]:
    path = folder / "metadata.db"
    try:
        with closing(connect(path, disk, SCHEMA)) as connection:
            found = _load(connection, path)
            context = RepairContext(folder, disk, connection, now_ms)
            findings = _repair_journal(context, found)
            for row in load(connection).ledgers.values():
                findings += repair_ledger(context, row)
            if findings or read_mark(folder) is not None:
                transact(connection, disk, begin_history)
            disk.sync_folder(folder)
    except sqlite3.DatabaseError as error:
        raise StoreError(f"the metadata {path} cannot be used: {error}") from error
    except OSError as error:
        raise StoreError(f"the repair of {folder} was cut short: {error}") from error
    return findings


def _repair_journal(context: RepairContext, found: Rows) -> list[InspectionFinding]:
    files = JournalFiles(context.disk, context.folder / "journal")
    findings = list(inspect_journal(context.disk, files, found))
    serious = [finding for finding in findings if finding.serious]
    if not (serious and all(finding.repairable for finding in serious)):
        # Recovery deals with a commit group that was cut short by itself.
        return findings
    try:
        numbers = open_journal(context.disk, files, found.journal, closed=found.closed)
    except JournalDamagedError:
        numbers = [number for number in files.numbers() if number >= found.journal]
    work = JournalRepair(context, found)
    for number in numbers:
        work.take(_read_anyway(context.disk, files.path(number)))
    after = max([found.journal, *numbers]) + 1
    work.finish(after)
    files.remove(after)
    return [replace(finding, repaired=True) for finding in findings]


def _read_anyway(disk: Disk, path: Path) -> JournalFile:
    """Return a journal file even if its header is damaged: its commit groups repeat what counts."""
    try:
        return read_journal(disk, path)
    except JournalDamagedError:
        data = read_file(disk, path)
        return JournalFile(path, guess_file_header(data, int(path.stem)), data)


def _inspect(folder: Path, found: Rows) -> Iterator[InspectionFinding]:
    disk = Disk()
    yield from inspect_journal(disk, JournalFiles(disk, folder / "journal"), found)
    for row in found.ledgers.values():
        yield from inspect_ledger(disk, folder / "ledgers", row)


def _load(connection: sqlite3.Connection, path: Path) -> Rows:
    try:
        return load(connection)
    except (sqlite3.Error, ValueError, KeyError) as error:
        raise StoreError(f"the metadata {path} is damaged; restore a backup: {error}") from error


def _marked(folder: Path) -> Iterator[InspectionFinding]:
    if (reason := read_mark(folder)) is not None:
        sentence = f"the folder is marked READ-ONLY: {reason}"
        yield InspectionFinding(sentence, serious=True, file=folder / MARK)


def check_format(metadata: sqlite3.Connection, path: Path) -> None:
    """Raise FormatError if the metadata has another format than METADATA_FORMAT."""
    check_version(metadata, path, SCHEMA)


def segments_of(metadata: sqlite3.Connection) -> Iterator[tuple[int, Segment]]:
    """Yield all segments, each with the id of its ledger, in order."""
    for ledger, *rest in metadata.execute(
        "SELECT ledger_id, first_entry, first_index, next_entry, next_index, size, first_ms,"
        " max_ms, latest_ms, generation, reclaimed FROM segments ORDER BY ledger_id, first_entry"
    ):
        yield ledger, Segment(*rest)


def index_of(disk: Disk, path: Path, segment: Segment) -> bytes:
    """Return the sound points of the index of a segment, whose file this is, that lie in it."""
    return pack_points(read_points(read_index(disk, path), segment))


def journal_path(folder: Path, number: int) -> Path:
    """Return the file of this number in a folder that has a journal."""
    return JournalFiles(Disk(), folder / "journal").path(number)


def journal_of(data: bytes, *, cut: bool) -> bytes | None:
    """Return the bytes of a journal file as those of a copy; None if they are damaged.

    `cut`: the file goes on behind these bytes. In a file that was written over an older one that
    is where its end is marked, so the copy's header says that it was not.
    """
    header = read_file_header(data)
    if header is not None and cut:
        data = pack_file_header(header._replace(reused=False)) + data[FILE_SIZE:]
    return None if header is None else data


def inspect_copy(
    disk: Disk, folder: Path, ledgers: Path, metadata: sqlite3.Connection
) -> Iterator[InspectionFinding]:
    """Yield what is wrong with the segments below `ledgers` and the journal in `folder`.

    Segments are sound without their indexes, so those are not reported. Raises OSError, and
    ValueError if the metadata cannot be understood.
    """
    rows = load(metadata)
    for row in rows.ledgers.values():
        yield from (found for found in inspect_ledger(disk, ledgers, row) if found.serious)
    yield from inspect_journal(disk, JournalFiles(disk, folder / "journal"), rows)
