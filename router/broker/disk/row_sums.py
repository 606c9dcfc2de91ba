"""Owns the checksums of the rows of a database, which SQLite does not have.

Each table ends with a column `sum`, which SQLite computes from all others when it stores a row. A
bit that flips in a row at rest is found by the next start, which reads all rows anyway. What holds
the rows together, and the indexes, is left to SQLite's own check: it finds what does not fit. The
alternative, checksums of pages, is an extension that Python's SQLite does not load.
"""

from __future__ import annotations

import sqlite3
from itertools import groupby
from operator import itemgetter
from typing import Final
from zlib import crc32

import orjson

FUNCTION: Final = "row_sum"


def install(connection: sqlite3.Connection) -> None:
    """Have a connection compute the sums of the rows that it changes or checks."""
    connection.create_function(FUNCTION, -1, row_sum, deterministic=True)


def row_sum(*values: bytes | str | float | None) -> int:
    """Return the checksum of the values of a row."""
    found = 0
    for value in values:
        found = crc32(value if isinstance(value, bytes) else orjson.dumps(value), found)
    return found


def check_rows(connection: sqlite3.Connection, name: str) -> None:
    """Raise ValueError if anything in a database, which has a name, is not as it was written.

    Raises sqlite3.Error if it cannot be read.
    """
    ((problem,), *_) = connection.execute("PRAGMA integrity_check(1)")
    if problem != "ok":
        raise ValueError(f"the {name} is damaged: {problem}")
    columns = connection.execute(
        "SELECT tables.name, columns.name"
        " FROM sqlite_master AS tables, pragma_table_info(tables.name) AS columns"
        " WHERE tables.type = 'table' AND tables.name NOT LIKE 'sqlite_%'"
    ).fetchall()
    for table, group in groupby(columns, itemgetter(0)):
        values = ", ".join(column for _, column in group)
        statement = f"SELECT 1 FROM {table} WHERE sum IS NOT {FUNCTION}({values}) LIMIT 1"  # noqa: S608 - names of our own
        if connection.execute(statement).fetchone():
            raise ValueError(f"the {name} is damaged: a row of {table} is not as it was written")
