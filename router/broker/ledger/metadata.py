"""Owns the metadata database: topics, subscriptions, and how far each ledger is on disk.

SQLite (WAL, synchronous=FULL) in a thread of its own. Operations are functions of a connection;
those that come while a commit is under way share the next one. Every row that a restart needs is
read at once when the store opens: one pass over a few tables is what makes ten thousand topics
open quickly. The alternative, a metadata log of our own, would have to repeat what SQLite proves.
"""

from __future__ import annotations

import asyncio
import sqlite3
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, Final, TypeVar

from router.broker.ledger.disk import Disk
from router.broker.ledger.faults import StoreError

VERSION: Final = 1
T = TypeVar("T")
Operation = Callable[[sqlite3.Connection], T]

_SCHEMA: Final = """
CREATE TABLE meta (key TEXT PRIMARY KEY, value INTEGER NOT NULL) WITHOUT ROWID;
CREATE TABLE topics (
    id INTEGER PRIMARY KEY AUTOINCREMENT, name TEXT NOT NULL UNIQUE, partitions INTEGER NOT NULL,
    policies TEXT NOT NULL, properties TEXT NOT NULL, created_ms INTEGER NOT NULL
);
CREATE TABLE ledgers (
    id INTEGER PRIMARY KEY AUTOINCREMENT,
    topic_id INTEGER NOT NULL REFERENCES topics (id) ON DELETE CASCADE,
    partition INTEGER NOT NULL, next_entry INTEGER NOT NULL, next_index INTEGER NOT NULL,
    UNIQUE (topic_id, partition)
);
CREATE TABLE segments (
    ledger_id INTEGER NOT NULL REFERENCES ledgers (id) ON DELETE CASCADE,
    first_entry INTEGER NOT NULL, first_index INTEGER NOT NULL, next_entry INTEGER NOT NULL,
    next_index INTEGER NOT NULL, size INTEGER NOT NULL, first_ms INTEGER NOT NULL,
    max_ms INTEGER NOT NULL, PRIMARY KEY (ledger_id, first_entry)
) WITHOUT ROWID;
CREATE TABLE subscriptions (
    id INTEGER PRIMARY KEY AUTOINCREMENT,
    ledger_id INTEGER NOT NULL REFERENCES ledgers (id) ON DELETE CASCADE,
    name TEXT NOT NULL, properties TEXT NOT NULL, created_ms INTEGER NOT NULL,
    last_used_ms INTEGER NOT NULL, cursor BLOB NOT NULL, UNIQUE (ledger_id, name)
);
CREATE TABLE producers (
    ledger_id INTEGER NOT NULL REFERENCES ledgers (id) ON DELETE CASCADE,
    name TEXT NOT NULL, sequence INTEGER NOT NULL, entry INTEGER NOT NULL,
    messages INTEGER NOT NULL, time_ms INTEGER NOT NULL, PRIMARY KEY (ledger_id, name)
) WITHOUT ROWID;
CREATE TABLE holes (
    ledger_id INTEGER NOT NULL REFERENCES ledgers (id) ON DELETE CASCADE,
    first_entry INTEGER NOT NULL, last_entry INTEGER NOT NULL, reason TEXT NOT NULL,
    found_ms INTEGER NOT NULL, PRIMARY KEY (ledger_id, first_entry)
) WITHOUT ROWID;
CREATE INDEX producers_by_time ON producers (time_ms);
INSERT INTO meta VALUES ('boot', 0), ('journal', 1), ('closed', 1);
"""


def connect(path: Path, disk: Disk) -> sqlite3.Connection:
    """Open the database, made if it is not there.

    Raises StoreError if another release wrote it, sqlite3.Error if it cannot be read.
    """
    connection = sqlite3.connect(path, isolation_level=None, check_same_thread=False)
    try:
        connection.execute("PRAGMA journal_mode = WAL")
        connection.execute("PRAGMA synchronous = FULL")
        connection.execute("PRAGMA foreign_keys = ON")
        (version,) = connection.execute("PRAGMA user_version").fetchone()
        if version == 0:
            _create(connection, disk)
            # The name of the new file must outlive a power cut like what is in it.
            disk.sync_folder(path.parent)
            version = VERSION
    except BaseException:
        connection.close()
        raise
    if version != VERSION:
        connection.close()
        raise StoreError(f"{path} was written by another release (form {version})")
    return connection


def _create(connection: sqlite3.Connection, disk: Disk) -> None:
    connection.execute("BEGIN IMMEDIATE")
    for statement in _SCHEMA.split(";"):
        connection.execute(statement)
    connection.execute(f"PRAGMA user_version = {VERSION}")
    disk.commit(connection)


def transact(connection: sqlite3.Connection, disk: Disk, operation: Operation[T]) -> T:
    """Run one operation in a transaction of its own."""
    connection.execute("BEGIN IMMEDIATE")
    try:
        result = operation(connection)
        disk.commit(connection)
    except BaseException:
        _roll_back(connection)
        raise
    return result


def _roll_back(connection: sqlite3.Connection) -> None:
    if connection.in_transaction:
        connection.execute("ROLLBACK")


class Metadata:
    """The database, for the event loop."""

    def __init__(self, connection: sqlite3.Connection, disk: Disk) -> None:
        self._connection = connection
        self._disk = disk
        self._loop = asyncio.get_running_loop()
        self._thread = ThreadPoolExecutor(1, "metadata")
        self._waiting: list[tuple[Operation[Any], asyncio.Future[Any]]] = []
        self._busy: asyncio.Future[list[Any]] | None = None

    async def run(self, operation: Operation[T]) -> T:
        """Return the operation's result once it is on disk.

        Raises sqlite3.IntegrityError if a constraint forbids it, then nothing of it was done; any
        other sqlite3.Error, and OSError, is one of the disk.
        """
        future: asyncio.Future[T] = self._loop.create_future()
        self._waiting.append((operation, future))
        self._start()
        return await future

    async def close(self) -> None:
        """Return when all operations have ended and the database is closed."""
        while self._busy is not None:
            await asyncio.wait([self._busy])
        await self._loop.run_in_executor(self._thread, self._connection.close)
        self._thread.shutdown()

    def _start(self) -> None:
        if self._busy is None and self._waiting:
            batch, self._waiting = self._waiting, []
            futures = [future for _operation, future in batch]
            self._busy = self._loop.run_in_executor(
                self._thread, self._run_all, [operation for operation, _future in batch]
            )
            self._busy.add_done_callback(lambda done: self._ended(done, futures))

    def _ended(self, done: asyncio.Future[Any], futures: Iterable[asyncio.Future[Any]]) -> None:
        self._busy = None
        error = done.exception()
        results = [error for _future in futures] if error else done.result()
        for future, result in zip(futures, results, strict=True):
            if future.done():
                continue
            if isinstance(result, BaseException):
                future.set_exception(result)
            else:
                future.set_result(result)
        self._start()

    def _run_all(self, operations: Iterable[Operation[Any]]) -> list[Any]:
        """Run operations in one transaction; one that a constraint forbids does not stop others."""
        connection = self._connection
        connection.execute("BEGIN IMMEDIATE")
        results = []
        try:
            for operation in operations:
                connection.execute("SAVEPOINT one")
                try:
                    results.append(operation(connection))
                except sqlite3.IntegrityError as error:
                    connection.execute("ROLLBACK TO one")
                    results.append(error)
                connection.execute("RELEASE one")
            self._disk.commit(connection)
        except BaseException:
            _roll_back(connection)
            raise
        return results
