"""The second door of storage: a data folder's files, for what works on them without a `Store`.

`router check` reads all of a folder that no broker serves, and repairs it. A backup copies the
files while a broker holds them for it (see removals), and is read in the same way as a folder.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from router.broker.disk.database import check_version
from router.broker.disk.files import Disk
from router.broker.storage.check import check, repair
from router.broker.storage.commit_groups import FILE_SIZE, pack_file_header, read_file_header
from router.broker.storage.inspection import Finding, inspect_journal, inspect_ledger
from router.broker.storage.journal import JournalFiles
from router.broker.storage.loading import load
from router.broker.storage.metadata import SCHEMA, begin_history
from router.broker.storage.offset_index import pack_point, read_points
from router.broker.storage.segments import Segment, file_of

__all__ = [
    "METADATA_FORMAT",
    "Finding",
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


def check_format(metadata: sqlite3.Connection, path: Path) -> None:
    """Raise FormatError if the metadata has another format than METADATA_FORMAT."""
    check_version(metadata, path, SCHEMA)


def history_of(metadata: sqlite3.Connection) -> int:
    """Return the number of the history of appends that the folder has; see metadata."""
    query = "SELECT value FROM meta WHERE key = 'history'"
    (value,) = metadata.execute(query).fetchone()
    return int(value)


def segments_of(metadata: sqlite3.Connection) -> Iterator[tuple[int, Segment]]:
    """Yield all segments, each with the id of its ledger, in order."""
    for ledger, *rest in metadata.execute(
        "SELECT ledger_id, first_entry, first_index, next_entry, next_index, size, first_ms,"
        " max_ms, latest_ms FROM segments ORDER BY ledger_id, first_entry"
    ):
        yield ledger, Segment(*rest)


def index_of(data: bytes, segment: Segment) -> bytes:
    """Return the sound points of an index file that lie in the segment."""
    return b"".join(pack_point(*point) for point in read_points(data, segment))


def journal_path(folder: Path, number: int) -> Path:
    """Return the file of this number in a folder that has a journal."""
    return _journal(Disk(), folder).path(number)


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
) -> Iterator[Finding]:
    """Yield what is wrong with the segments below `ledgers` and the journal in `folder`.

    Segments are sound without their indexes, so nothing is said of those. Raises OSError, and
    ValueError if the metadata cannot be understood.
    """
    rows = load(metadata)
    for row in rows.ledgers.values():
        yield from (found for found in inspect_ledger(disk, ledgers, row) if found.serious)
    yield from inspect_journal(disk, _journal(disk, folder), rows)


def _journal(disk: Disk, folder: Path) -> JournalFiles:
    return JournalFiles(disk, folder / "journal", 0, relaxed=False)
