"""Owns the metadata database: topics, subscriptions, and how far each ledger is on disk.

Every row that a restart needs is read at once when the store opens: one pass over a few tables is
what makes ten thousand topics open quickly. The alternative, a metadata log of our own, would have
to repeat what SQLite proves.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Final

from router.broker.disk import database, row_sums

SCHEMA: Final = database.DatabaseSchema(
    version=13,
    statements="""
CREATE TABLE meta (
    key TEXT PRIMARY KEY, value INTEGER NOT NULL,
    sum INTEGER AS (row_sum(key, value)) STORED
) WITHOUT ROWID;
CREATE TABLE topics (
    id INTEGER PRIMARY KEY AUTOINCREMENT, name TEXT NOT NULL UNIQUE, partitions INTEGER NOT NULL,
    policies TEXT NOT NULL, properties TEXT NOT NULL, created_ms INTEGER NOT NULL,
    sum INTEGER AS (row_sum(id, name, partitions, policies, properties, created_ms)) STORED
);
CREATE TABLE ledgers (
    id INTEGER PRIMARY KEY AUTOINCREMENT,
    topic_id INTEGER NOT NULL REFERENCES topics (id) ON DELETE CASCADE,
    partition INTEGER NOT NULL, next_entry INTEGER NOT NULL, next_index INTEGER NOT NULL,
    topic_epoch INTEGER, terminated INTEGER NOT NULL DEFAULT 0,
    removed_entry INTEGER NOT NULL DEFAULT 0, compacted_number INTEGER NOT NULL DEFAULT 0,
    removed_number INTEGER NOT NULL DEFAULT 0,
    sum INTEGER AS (row_sum(id, topic_id, partition, next_entry, next_index, topic_epoch,
    terminated, removed_entry, compacted_number, removed_number)) STORED,
    UNIQUE (topic_id, partition)
);
CREATE TABLE segments (
    ledger_id INTEGER NOT NULL REFERENCES ledgers (id) ON DELETE CASCADE,
    first_entry INTEGER NOT NULL, first_index INTEGER NOT NULL, next_entry INTEGER NOT NULL,
    next_index INTEGER NOT NULL, size INTEGER NOT NULL, first_ms INTEGER NOT NULL,
    max_ms INTEGER NOT NULL, latest_ms INTEGER NOT NULL, generation INTEGER NOT NULL,
    reclaimed INTEGER NOT NULL,
    sum INTEGER AS (row_sum(ledger_id, first_entry, first_index, next_entry, next_index, size,
    first_ms, max_ms, latest_ms, generation, reclaimed)) STORED,
    PRIMARY KEY (ledger_id, first_entry)
) WITHOUT ROWID;
CREATE TABLE subscriptions (
    id INTEGER PRIMARY KEY AUTOINCREMENT,
    ledger_id INTEGER NOT NULL REFERENCES ledgers (id) ON DELETE CASCADE,
    name TEXT NOT NULL, properties TEXT NOT NULL, created_ms INTEGER NOT NULL,
    last_used_ms INTEGER NOT NULL, cursor BLOB NOT NULL, passive INTEGER NOT NULL DEFAULT 0,
    committed BLOB,
    sum INTEGER AS (row_sum(id, ledger_id, name, properties, created_ms, last_used_ms, cursor,
    passive, committed)) STORED,
    UNIQUE (ledger_id, name)
);
CREATE TABLE producers (
    ledger_id INTEGER NOT NULL REFERENCES ledgers (id) ON DELETE CASCADE,
    name TEXT NOT NULL, sequence INTEGER NOT NULL, entry INTEGER NOT NULL,
    messages INTEGER NOT NULL, time_ms INTEGER NOT NULL,
    sum INTEGER AS (row_sum(ledger_id, name, sequence, entry, messages, time_ms)) STORED,
    PRIMARY KEY (ledger_id, name)
) WITHOUT ROWID;
CREATE TABLE holes (
    ledger_id INTEGER NOT NULL REFERENCES ledgers (id) ON DELETE CASCADE,
    first_entry INTEGER NOT NULL, last_entry INTEGER NOT NULL, reason TEXT NOT NULL,
    found_ms INTEGER NOT NULL,
    sum INTEGER AS (row_sum(ledger_id, first_entry, last_entry, reason, found_ms)) STORED,
    PRIMARY KEY (ledger_id, first_entry)
) WITHOUT ROWID;
CREATE TABLE deleted (
    ledger_id INTEGER NOT NULL REFERENCES ledgers (id) ON DELETE CASCADE,
    first_number INTEGER NOT NULL, last_number INTEGER NOT NULL,
    sum INTEGER AS (row_sum(ledger_id, first_number, last_number)) STORED,
    PRIMARY KEY (ledger_id, first_number)
) WITHOUT ROWID;
CREATE TABLE kept_values (
    owner TEXT NOT NULL, key TEXT NOT NULL, value BLOB NOT NULL,
    sum INTEGER AS (row_sum(owner, key, value)) STORED, PRIMARY KEY (owner, key)
) WITHOUT ROWID;
CREATE INDEX producers_by_time ON producers (time_ms);
INSERT INTO meta VALUES ('boot', 0), ('journal', 1), ('closed', 1), ('history', random());
""",
)


"""Of the whole folder: whatever changes the bytes of journal or segments has a new version.

`history` names a line of appends: two copies of a folder that have the same one hold the same bytes
up to the end of the shorter of two files of a segment. A repair and a restore begin another one.
"""


@contextmanager
def connect_read_only(path: Path) -> Iterator[sqlite3.Connection | None]:
    """Open the database to read it; None: it has no tables yet, so nothing is stored.

    Raises FormatError if the folder has another format, sqlite3.Error if it cannot be read.
    """
    with closing(sqlite3.connect(f"file:{path}?mode=ro", uri=True)) as found:
        if database.is_new(found):
            yield None
            return
        database.check_version(found, path, SCHEMA)
        row_sums.install(found)
        yield found


def begin_history(connection: sqlite3.Connection) -> None:
    """Note that segments may differ from those that were copied before."""
    connection.execute("UPDATE meta SET value = random() WHERE key = 'history'")


def history_of(connection: sqlite3.Connection) -> int:
    """Return the number of the history of appends that the folder has."""
    query = "SELECT value FROM meta WHERE key = 'history'"
    (value,) = connection.execute(query).fetchone()
    return int(value)
