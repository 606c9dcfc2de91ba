"""Owns the databases of a backup as they are read: whole, in memory, without a lock on a file.

A folder of backups may lie where files cannot be locked, or must not be written.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path

from router.broker.backup.failures import damaged
from router.broker.disk import row_sums
from router.broker.storage import files


@contextmanager
def opened_copy(data: bytes, path: Path) -> Iterator[sqlite3.Connection]:
    """Open the bytes of a database; raise BackupError if they are none that is sound."""
    with closing(sqlite3.connect(":memory:")) as connection:
        try:
            connection.deserialize(data)
            row_sums.install(connection)
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
        files.check_format(connection, path)
        yield connection


def history_of(connection: sqlite3.Connection) -> str:
    """Return the name of the line of appends that the metadata is of."""
    return _name_of(files.history_of(connection))


def origin_of(data: bytes, path: Path) -> str:
    """Return what the bytes of a registry call the data folder that it is of."""
    with opened_copy(data, path) as connection:
        found = connection.execute("SELECT value FROM meta WHERE key = 'folder'").fetchone()
    return "" if found is None else _name_of(found[0])


def _name_of(value: int) -> str:
    """Return the name that a random number of a database stands for."""
    return f"{value % (1 << 64):016x}"
