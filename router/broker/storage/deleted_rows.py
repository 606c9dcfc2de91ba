"""Owns the rows of deleted messages: a ledger's ranges of message numbers, ends included.

Every function takes a connection inside a transaction, as those of `rows` do.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Iterable

from router.broker.storage.deleted_ranges import RangeChange


def save(connection: sqlite3.Connection, ledger: int, changes: Iterable[RangeChange]) -> None:
    """Store what became of a ledger's ranges, if the ledger is still there."""
    if connection.execute("SELECT 1 FROM ledgers WHERE id = ?", (ledger,)).fetchone() is None:
        return
    changes = tuple(changes)
    connection.executemany(
        "DELETE FROM deleted WHERE ledger_id = ? AND first_number = ?",
        ((ledger, first) for first, last in changes if last is None),
    )
    connection.executemany(
        "INSERT OR REPLACE INTO deleted VALUES (?, ?, ?)",
        ((ledger, first, last) for first, last in changes if last is not None),
    )


def clip(connection: sqlite3.Connection, clipped: Iterable[tuple[int, int]]) -> None:
    """Forget deleted messages that are not stored: pairs of a ledger and its next number."""
    for ledger, number in clipped:
        connection.execute(
            "DELETE FROM deleted WHERE ledger_id = ? AND first_number >= ?", (ledger, number)
        )
        connection.execute(
            "UPDATE deleted SET last_number = ? WHERE ledger_id = ? AND last_number >= ?",
            (number - 1, ledger, number),
        )
