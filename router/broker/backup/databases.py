"""Owns the databases of a backup as they are read: whole, in memory, without a lock on a file.

A folder of backups may lie where files cannot be locked, or must not be written.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path

from router.broker.backup.failures import damaged
from router.broker.storage import metadata
from router.broker.storage.database import check_version
from router.broker.storage.segments import Segment


@contextmanager
def opened_copy(data: bytes, path: Path) -> Iterator[sqlite3.Connection]:
    """Open the bytes of a database; raise BackupError if they are none that is sound."""
    with closing(sqlite3.connect(":memory:")) as connection:
        try:
            connection.deserialize(data)
            problems = [str(row[0]) for row in connection.execute("PRAGMA integrity_check")]
        except sqlite3.Error as error:
            problems = [str(error)]
        if problems != ["ok"]:
            raise damaged(f"the database {path} is damaged: {problems[0]}")
        yield connection


@contextmanager
def opened_metadata(data: bytes, path: Path) -> Iterator[sqlite3.Connection]:
    """Open the bytes of the metadata; raise BackupError, FormatError if it is of another format."""
    with opened_copy(data, path) as connection:
        check_version(connection, path, metadata.SCHEMA)
        yield connection


def history_of(connection: sqlite3.Connection) -> str:
    """Return the name of the line of appends that the metadata is of."""
    query = "SELECT value FROM meta WHERE key = 'history'"
    (value,) = connection.execute(query).fetchone()
    return _name_of(value)


def origin_of(data: bytes, path: Path) -> str:
    """Return what the bytes of a registry call the data folder that it is of."""
    with opened_copy(data, path) as connection:
        found = connection.execute("SELECT value FROM meta WHERE key = 'folder'").fetchone()
    return "" if found is None else _name_of(found[0])


def segments_of(connection: sqlite3.Connection) -> Iterator[tuple[int, Segment]]:
    """Yield all segments, each with its ledger, in order."""
    for ledger, *rest in connection.execute(
        "SELECT ledger_id, first_entry, first_index, next_entry, next_index, size, first_ms,"
        " max_ms, latest_ms FROM segments ORDER BY ledger_id, first_entry"
    ):
        yield ledger, Segment(*rest)


def _name_of(value: int) -> str:
    """Return the name that a random number of a database stands for."""
    return f"{value % (1 << 64):016x}"
