"""Owns a SQLite database of the broker: how it is opened, and the one thread that works on it.

SQLite (WAL, synchronous=FULL) in a thread of its own. Operations are functions of a connection;
those that come while a commit is under way share the next one. The modules that own the tables
define them.
"""

from __future__ import annotations

import asyncio
import errno
import os
import sqlite3
import struct
import sys
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from pathlib import Path
from typing import Any, Final, NamedTuple, TypeVar

from router.broker.disk import row_sums
from router.broker.disk.faults import FormatError, StoreError
from router.broker.disk.files import Disk
from router.errors import RouterError

LOG_SUFFIX: Final = "-wal"
SIDE_FILE_SUFFIXES: Final = (LOG_SUFFIX, "-shm")
_LOG_HEAD: Final = struct.Struct(">8I")
_FRAME_HEAD: Final = struct.Struct(">6I")
_PAGE_BYTES: Final = 4096
"""SQLite's own."""
T = TypeVar("T")
Operation = Callable[[sqlite3.Connection], T]


class DatabaseSchema(NamedTuple):
    """The tables of a database: the number of their format, and the statements that make them."""

    version: int
    statements: str


def connect(path: Path, disk: Disk, schema: DatabaseSchema) -> sqlite3.Connection:
    """Open the database, made if it is not there; what it holds is on disk on return.

    Only this user can read its files. Raises FormatError if it has another format, StoreError if it
    is a symbolic link or its log is damaged, sqlite3.Error if it cannot be read.
    """
    _make_private(path)
    log_path = path.with_name(path.name + LOG_SUFFIX)
    log = log_path.read_bytes() if log_path.exists() else b""
    connection = sqlite3.connect(path, isolation_level=None, check_same_thread=False)
    row_sums.install(connection)
    try:
        connection.execute("PRAGMA journal_mode = WAL")
        connection.execute("PRAGMA synchronous = FULL")
        connection.execute("PRAGMA foreign_keys = ON")
        if is_new(connection):
            _make_tables(connection, disk, schema)
        # The name of the file must outlive a power cut like what is in it, also if the process that
        # made it ended before this.
        disk.sync_folder(path.parent)
        check_version(connection, path, schema)
        # A process that was killed may have left commits that are in the page cache only. What is
        # done by them, such as removing files, must not outlive them.
        _, frames, _ = connection.execute("PRAGMA wal_checkpoint").fetchone()
        damaged = _lost_commits(log, frames)
    except BaseException:
        connection.close()
        raise
    if damaged:
        connection.close()
        # SQLite has removed it: without it the next start would go on without those commits.
        log_path.write_bytes(log)
        raise StoreError(
            f"the log {log_path} is damaged at its frame {frames + 1}, and commits that stand "
            "behind it cannot be read; restore a backup, or move it away to give them up"
        )
    return connection


def _lost_commits(log: bytes, frames: int) -> bool:
    """Return whether commits that were synced stand behind the sound frames of a log of SQLite.

    A commit is written when the one before it is synced: the last one may have been cut short, and
    no other. Its torn frames may look like commits, so one counts only if its checksum goes on from
    the frame before it, or if it alone is damaged, and was no other frame before that. The format
    is described in https://www.sqlite.org/fileformat2.html#walformat.
    """
    if len(log) < _LOG_HEAD.size + _FRAME_HEAD.size:
        return False
    *fields, first_sum, second_sum = _LOG_HEAD.unpack_from(log)
    page_bytes, salts, big_endian = fields[2], tuple(fields[4:6]), bool(fields[0] & 1)
    sums = first_sum, second_sum
    if _log_sums(log[: _LOG_HEAD.size - 8], (0, 0), big_endian=big_endian) != sums:
        # The head is written, and synced, before its frames are: theirs is what it had.
        page_bytes, salts = _PAGE_BYTES, _FRAME_HEAD.unpack_from(log, _LOG_HEAD.size)[2:4]
        big_endian = sys.byteorder == "big"
    frame_bytes, first = _FRAME_HEAD.size + page_bytes, max(frames, 0)
    places = range(_LOG_HEAD.size, len(log) - frame_bytes + 1, frame_bytes)
    heads = [_FRAME_HEAD.unpack_from(log, place) for place in places]

    def goes_on(at: int) -> bool:
        if at >= len(heads):
            return False
        frame = log[places[at] : places[at] + frame_bytes]
        before = heads[at - 1][4:] if at else sums
        data = frame[:8] + frame[_FRAME_HEAD.size :]
        return _log_sums(data, before, big_endian=big_endian) == heads[at][4:]

    def committed(at: int) -> bool:
        page = log[places[at] + _FRAME_HEAD.size : places[at] + frame_bytes]
        before = (heads[at - 1][4:] if at else sums)[1]
        first, second = _sums_before(page, heads[at][4:], big_endian=big_endian)
        # What the second word of the head must have been: the pages of the database, 0: no commit.
        return bool((second - before - first) & 0xFFFFFFFF)

    commits = 0
    for at in range(first, len(heads)):
        _, database_pages, *own_salts, _, _ = heads[at]
        if database_pages and tuple(own_salts) == salts:
            alone = (at == first or goes_on(at - 1)) and goes_on(at + 1)
            commits += goes_on(at) or (alone and committed(at))
    return commits > 1


def _log_sums(data: bytes, before: tuple[int, int], *, big_endian: bool) -> tuple[int, int]:
    """Return the checksums of some bytes, carried on from those of what is before them."""
    first, second = before
    for one, other in struct.iter_unpack(">II" if big_endian else "<II", data):
        first = (first + one + second) & 0xFFFFFFFF
        second = (second + other + first) & 0xFFFFFFFF
    return first, second


def _sums_before(data: bytes, after: tuple[int, int], *, big_endian: bool) -> tuple[int, int]:
    """Return the checksums from which those after some bytes were carried on."""
    first, second = after
    for one, other in reversed(list(struct.iter_unpack(">II" if big_endian else "<II", data))):
        second = (second - other - first) & 0xFFFFFFFF
        first = (first - one - second) & 0xFFFFFFFF
    return first, second


def _make_private(path: Path) -> None:
    """Have the database, made if it is not there, and what lies beside it read by this user only.

    SQLite gives the files that it puts beside it the mode of the database.
    """
    flags = os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW
    for end in ("", *SIDE_FILE_SUFFIXES):
        file = path.with_name(path.name + end)
        try:
            descriptor = os.open(file, flags if end else flags | os.O_CREAT, 0o600)
        except OSError as error:
            if error.errno == errno.ELOOP:
                raise StoreError(f"{file} is a symbolic link") from error
            continue  # it is not there, or SQLite says what is wrong with it
        try:
            os.fchmod(descriptor, 0o600)
        finally:
            os.close(descriptor)


def is_new(connection: sqlite3.Connection) -> bool:
    """Return whether a database has neither tables nor a format: none were made yet."""
    (tables,) = connection.execute("SELECT count(*) FROM sqlite_master").fetchone()
    return not tables and not _version(connection)


def check_version(connection: sqlite3.Connection, path: Path, schema: DatabaseSchema) -> None:
    """Raise FormatError if a database has another format than the schema."""
    found = _version(connection)
    if found != schema.version:
        raise FormatError(
            f"{path} has format {found}, and this release reads and writes format {schema.version} "
            "only: use the release that wrote it, or move the data folder away and begin with an "
            "empty one"
        )


def _version(connection: sqlite3.Connection) -> int:
    (found,) = connection.execute("PRAGMA user_version").fetchone()
    return int(found)


def _make_tables(connection: sqlite3.Connection, disk: Disk, schema: DatabaseSchema) -> None:
    def make(connection: sqlite3.Connection) -> None:
        for statement in schema.statements.split(";"):
            connection.execute(statement)
        connection.execute(f"PRAGMA user_version = {schema.version}")

    transact(connection, disk, make)


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


class DatabaseSnapshot:
    """A database as it was at one moment, for a copy of it; writes go on meanwhile.

    Opened and written in any one thread at a time. Every method raises sqlite3.Error, OSError.
    """

    def __init__(self, path: Path) -> None:
        uri = f"{path.absolute().as_uri()}?mode=ro"
        self._connection = sqlite3.connect(
            uri, uri=True, isolation_level=None, check_same_thread=False
        )
        try:
            # So that `take` has nothing to read.
            self._connection.execute("SELECT count(*) FROM sqlite_master").fetchone()
        except BaseException:
            self._connection.close()
            raise

    def take(self) -> None:
        """Take what is committed now; this does not wait for a disk."""
        self._connection.execute("BEGIN")
        self._connection.execute("SELECT count(*) FROM sqlite_master").fetchone()

    def write(self, target: Path) -> None:
        """Write what was taken to a new file, which one reads without files beside it."""
        os.close(os.open(target, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600))
        with closing(sqlite3.connect(target, isolation_level=None)) as made:
            # What copies the file syncs the copy.
            made.execute("PRAGMA synchronous = OFF")
            self._connection.backup(made)
            made.execute("PRAGMA journal_mode = DELETE")

    def close(self) -> None:
        """Let the moment go."""
        self._connection.close()


class Database:
    """A database, for the event loop, in a thread of its own that this name is given."""

    def __init__(self, connection: sqlite3.Connection, disk: Disk, name: str) -> None:
        self._connection = connection
        self._disk = disk
        self._loop = asyncio.get_running_loop()
        self._thread = ThreadPoolExecutor(1, name)
        self._waiting: list[tuple[Operation[Any], asyncio.Future[Any]]] = []
        self._busy: asyncio.Future[list[Any]] | None = None

    async def run(self, operation: Operation[T]) -> T:
        """Return the operation's result once it is on disk.

        Raises sqlite3.IntegrityError if a constraint forbids it, and the RouterError with which it
        refuses itself: then nothing of it was done. Any other sqlite3.Error, and OSError, is one of
        the disk.
        """
        future: asyncio.Future[T] = self._loop.create_future()
        self._waiting.append((operation, future))
        self._start()
        return await future

    async def read(self, operation: Operation[T]) -> T:
        """Return the result of an operation that changes nothing.

        No write fails with it or makes it fail. Raises sqlite3.Error, OSError.
        """
        return await self._loop.run_in_executor(self._thread, operation, self._connection)

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
        """Run operations in one transaction; one that is forbidden does not stop others."""
        connection = self._connection
        connection.execute("BEGIN IMMEDIATE")
        results = []
        try:
            for operation in operations:
                connection.execute("SAVEPOINT one")
                try:
                    results.append(operation(connection))
                except (sqlite3.IntegrityError, RouterError) as error:
                    connection.execute("ROLLBACK TO one")
                    results.append(error)
                connection.execute("RELEASE one")
            self._disk.commit(connection)
        except BaseException:
            _roll_back(connection)
            raise
        return results
