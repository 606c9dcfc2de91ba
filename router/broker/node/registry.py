"""Owns registry.db in the data folder: the registry of a node that has no ZooKeeper to keep it in.

Theory of operation. A table of records, and a counter from which every write takes its version, so
that a version never returns, not even with a record that was deleted and made again. Writes share
commits (disk/database.py), and each is on disk before it is answered. Reads stand in one line
with them, so that a read sees every write that was answered, but fails for no failed write. A
record that was read is kept in memory until it is written: fetches of REST consumers read one each.

The same file counts the starts of a broker that has no log to count them. It is a file of its own
beside the log's metadata.db, which says what the disk holds of messages: whatever happens to the
one is no reason to doubt the other, and a node that changes its backend keeps its keys.
"""

from __future__ import annotations

import asyncio
import os
import sqlite3
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from router.broker.disk.database import Database, DatabaseSchema, Operation, T, connect
from router.broker.disk.faults import StoreError, lacks_space, puts_in_doubt
from router.broker.disk.files import Disk
from router.broker.disk.row_sums import check_rows
from router.errors import BackendUnavailableError, DiskFullError
from router.errors.quoting import failure_text
from router.sharing.registry import (
    GROUP_RECORDS,
    RegistryRecord,
    check_kind,
    check_name,
    check_record,
    check_room,
    check_version,
)

FILE: Final = "registry.db"
MAX_WAITING_CALLS: Final = 1_000
MAX_PAGE_BYTES: Final = 1 << 20
MAX_CACHED_BYTES: Final = 8 << 20
RECORD_OVERHEAD_BYTES: Final = 300
"""What a record in memory takes beside its name and value, about."""

_SCHEMA: Final = DatabaseSchema(
    version=2,
    statements="""
CREATE TABLE meta (
    key TEXT PRIMARY KEY, value INTEGER NOT NULL, sum INTEGER AS (row_sum(key, value)) STORED
) WITHOUT ROWID;
CREATE TABLE records (
    kind TEXT NOT NULL, name TEXT NOT NULL, value BLOB NOT NULL, version INTEGER NOT NULL,
    sum INTEGER AS (row_sum(kind, name, value, version)) STORED, PRIMARY KEY (kind, name)
) WITHOUT ROWID;
INSERT INTO meta VALUES ('boot', 0), ('version', 0);
""",
)


class RegistryDamagedError(StoreError):
    """The file cannot be read: only an operator can help."""


class FileRegistry:
    """The Registry (router.coordination) of one node; open it with `open`.

    Beside what the protocol says, raises DiskFullError, BackendUnavailableError.
    """

    def __init__(self, connection: sqlite3.Connection, disk: Disk) -> None:
        self._database = Database(connection, disk, "registry")
        self._waiting = 0
        self._cache = _Cache()

    @classmethod
    async def open(cls, folder: Path, disk: Disk | None = None) -> FileRegistry:
        """Open the folder's registry, made if it is not there; raise StoreError."""
        disk, file = disk or Disk(), folder / FILE
        try:
            connection = await asyncio.to_thread(_connect, file, disk)
        except (OSError, ValueError, sqlite3.Error) as error:
            sentence = f"cannot open the registry {file}: {error}"
            if isinstance(error, ValueError) or puts_in_doubt(error):
                raise RegistryDamagedError(f"{sentence}; put a backup in its place") from error
            raise StoreError(sentence) from error
        return cls(connection, disk)

    async def next_boot(self) -> int:
        """Count another start of the folder's broker, durably."""
        return await self._write(lambda connection: _next(connection, "boot"))

    async def name_folder(self) -> None:
        """Give the folder a name for its backups, once and for all."""
        await self._write(
            lambda connection: (
                connection.execute(
                    "INSERT OR IGNORE INTO meta VALUES ('folder', random())"
                ).rowcount
            )
        )

    async def note_backup(self, time_ms: int) -> None:
        """Note when the newest backup was taken."""
        await self._write(
            lambda connection: (
                connection.execute(
                    "INSERT OR REPLACE INTO meta VALUES ('backup_ms', ?)", (time_ms,)
                ).rowcount
            )
        )

    async def backup_time_ms(self) -> int | None:
        """Return when the newest backup was taken; None: none was."""
        query = "SELECT value FROM meta WHERE key = 'backup_ms'"
        found = await self._read(lambda connection: connection.execute(query).fetchone())
        return None if found is None else int(found[0])

    async def get(self, kind: str, name: str) -> RegistryRecord | None:
        """Return a record, None: there is none."""
        check_name(kind, name)
        cache = self._cache
        if (found := cache.get(kind, name)) is not None:
            return found
        writes = cache.writes
        found = await self._read(lambda connection: _get(connection, kind, name))
        if found is not None and cache.writes == writes and not cache.writing:
            cache.put(kind, found)
        return found

    def cached_version(self, kind: str, name: str) -> int | None:
        """Return the version of a record in memory; None: it is not there, or is being written."""
        found = self._cache.get(kind, name)
        return None if found is None else found.version

    async def put(self, kind: str, name: str, value: bytes, expected: int | None) -> RegistryRecord:
        """Write a record durably; raise ConflictError unless it has the expected version."""
        check_record(kind, name, value)
        with self._cache.changing(kind, name):
            return await self._write(
                lambda connection: _put(connection, kind, name, value, expected)
            )

    async def delete(self, kind: str, name: str) -> bool:
        """Delete a record; return whether there was one."""
        check_name(kind, name)
        with self._cache.changing(kind, name):
            return await self._write(lambda connection: _delete(connection, kind, name))

    async def list(self, kind: str, after: str = "") -> list[RegistryRecord]:
        """Return the next records of a kind behind a name, by name; none: there are no more."""
        check_kind(kind)
        return await self._read(lambda connection: _page(connection, kind, after))

    async def close(self) -> None:
        """Return when all calls under way have ended and the file is closed."""
        await self._database.close()

    async def _read(self, operation: Operation[T]) -> T:
        return await self._run(self._database.read, operation)

    async def _write(self, operation: Operation[T]) -> T:
        return await self._run(self._database.run, operation)

    async def _run(self, run: Callable[[Operation[T]], Awaitable[T]], operation: Operation[T]) -> T:
        if self._waiting >= MAX_WAITING_CALLS:
            raise BackendUnavailableError("the registry has too much to do", retry_after=1.0)
        self._waiting += 1
        try:
            return await run(operation)
        except (OSError, sqlite3.Error) as error:
            kind = DiskFullError if lacks_space(error) else BackendUnavailableError
            raise kind(f"the registry cannot be used: {failure_text(error)}") from error
        finally:
            self._waiting -= 1


class _Cache:
    """Records that were read and not written since, at most MAX_CACHED_BYTES of them.

    `writes` counts those that began, `writing` are under way: what was read beside one is not kept.
    """

    def __init__(self) -> None:
        self.writes = self.writing = 0
        self._records: OrderedDict[tuple[str, str], RegistryRecord] = OrderedDict()
        self._size = 0

    def get(self, kind: str, name: str) -> RegistryRecord | None:
        """Return a record, None: it is not here."""
        found = self._records.get((kind, name))
        if found is not None:
            self._records.move_to_end((kind, name))
        return found

    def put(self, kind: str, record: RegistryRecord) -> None:
        """Keep a record; drop those that were not read for the longest time."""
        self._drop(kind, record.name)
        self._records[kind, record.name] = record
        self._size += _size(record)
        while self._size > MAX_CACHED_BYTES:
            _, oldest = self._records.popitem(last=False)
            self._size -= _size(oldest)

    @contextmanager
    def changing(self, kind: str, name: str) -> Iterator[None]:
        """Write a record: what is known of it is dropped."""
        self._drop(kind, name)
        self.writes += 1
        self.writing += 1
        try:
            yield
        finally:
            self.writing -= 1

    def _drop(self, kind: str, name: str) -> None:
        if (dropped := self._records.pop((kind, name), None)) is not None:
            self._size -= _size(dropped)


def _size(record: RegistryRecord) -> int:
    return len(record.value) + len(record.name) + RECORD_OVERHEAD_BYTES


def _connect(file: Path, disk: Disk) -> sqlite3.Connection:
    # Made here, for SQLite would let others read it: there are secrets in it.
    disk.close(disk.open(file, os.O_RDWR | os.O_CREAT))
    connection = connect(file, disk, _SCHEMA)
    try:
        check_rows(connection, "registry")
    except BaseException:
        connection.close()
        raise
    return connection


def _next(connection: sqlite3.Connection, counter: str) -> int:
    raised = "UPDATE meta SET value = value + 1 WHERE key = ? RETURNING value"
    ((value,),) = connection.execute(raised, (counter,)).fetchall()
    return int(value)


def _get(connection: sqlite3.Connection, kind: str, name: str) -> RegistryRecord | None:
    found = connection.execute(
        "SELECT name, value, version FROM records WHERE kind = ? AND name = ?", (kind, name)
    ).fetchone()
    return None if found is None else RegistryRecord(*found)


def _put(
    connection: sqlite3.Connection, kind: str, name: str, value: bytes, expected: int | None
) -> RegistryRecord:
    found = _get(connection, kind, name)
    check_version(kind, name, expected, 0 if found is None else found.version)
    # Counting takes a look at each record; groups are bounded by their coordinator.
    if found is None and kind != GROUP_RECORDS:
        count = "SELECT count(*) FROM records WHERE kind = ?"
        check_room(kind, connection.execute(count, (kind,)).fetchone()[0])
    record = RegistryRecord(name, value, _next(connection, "version"))
    connection.execute(
        "INSERT OR REPLACE INTO records VALUES (?, ?, ?, ?)",
        (kind, name, record.value, record.version),
    )
    return record


def _delete(connection: sqlite3.Connection, kind: str, name: str) -> bool:
    gone = connection.execute("DELETE FROM records WHERE kind = ? AND name = ?", (kind, name))
    return gone.rowcount == 1


def _page(connection: sqlite3.Connection, kind: str, after: str) -> list[RegistryRecord]:
    records: list[RegistryRecord] = []
    size = 0
    for row in connection.execute(
        "SELECT name, value, version FROM records WHERE kind = ? AND name > ? ORDER BY name",
        (kind, after),
    ):
        record = RegistryRecord(*row)
        size += len(record.name.encode()) + len(record.value)
        if records and size > MAX_PAGE_BYTES:
            break
        records.append(record)
    return records
