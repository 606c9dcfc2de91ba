"""Owns the index of one partition's keys: a SQLite file that names the newest message of each.

Theory of operation. Messages are added in the order of the log. Where a key has a message already,
that one's number is noted as superseded, with the number that superseded it, in the transaction
that moves the position forward. So the cleaner learns what may go without reading the log again,
and a cut at any moment leaves an index that is as old as its position, never one that is wrong.

The file is a shortcut that follows from the log. What is damaged in it is an error here, and its
owner builds it again: SQLite finds damaged pages, and each row has a checksum, because a number
that is read wrong would delete another key's message. Writes are not synced one by one
(`synchronous = NORMAL`): a power cut takes the last transactions, each as a whole.

Memory is the page cache, MAX_CACHE_KIB, and one batch of changes. The alternative, a table in
memory as Kafka's, takes several passes over the log for more keys than it holds, and answers no
lookups.

Every method may block on the disk: it is called in a thread. All raise sqlite3.Error, OSError.
"""

from __future__ import annotations

import sqlite3
from array import array
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from heapq import merge
from operator import attrgetter
from pathlib import Path
from struct import Struct, error
from typing import Any, Final, NamedTuple, TypeVar

from router.broker.disk.database import (
    SIDE_FILE_SUFFIXES,
    DatabaseSchema,
    Operation,
    connect,
    transact,
)
from router.broker.disk.faults import FormatError, StoreError
from router.broker.disk.files import Disk, crc32c

MAX_CACHE_KIB: Final = 4096
MAX_KEYS_PER_STATEMENT: Final = 500
_Item = TypeVar("_Item")
_SCHEMA: Final = DatabaseSchema(
    3,
    """
    CREATE TABLE keys (
      key BLOB PRIMARY KEY, number INTEGER NOT NULL, time_ms INTEGER NOT NULL,
      tombstone INTEGER NOT NULL, checksum INTEGER NOT NULL, cleaned_ms INTEGER
    ) WITHOUT ROWID;
    CREATE INDEX tombstones ON keys (cleaned_ms, number) WHERE tombstone;
    CREATE TABLE superseded (
      number INTEGER PRIMARY KEY, successor INTEGER NOT NULL, tombstone INTEGER NOT NULL,
      checksum INTEGER NOT NULL
    );
    CREATE TABLE progress (
      ledger INTEGER NOT NULL, position INTEGER NOT NULL, last_ms INTEGER NOT NULL,
      cleaned INTEGER NOT NULL
    )
    """,
)
_UPSERT: Final = (
    "INSERT INTO keys VALUES (?, ?, ?, ?, ?, NULL) ON CONFLICT (key) DO UPDATE SET number ="
    " excluded.number, time_ms = excluded.time_ms, tombstone = excluded.tombstone, checksum ="
    " excluded.checksum, cleaned_ms = NULL"
)
_ROW: Final = Struct(">QQ?")


class IndexDamagedError(Exception):
    """A row of the index is not as it was written."""


class KeyedMessage(NamedTuple):
    """The message of a key, by its number; a tombstone says that the key is deleted.

    `time_ms` is when it was stored, in ms since 1970.
    """

    key: bytes
    number: int
    time_ms: int
    tombstone: bool


class IndexProgress(NamedTuple):
    """How far an index is: entries before `position` are in it.

    `last_ms` is when the entry before it was stored; 0: it is not known. Messages with numbers
    below `cleaned` were cleaned.
    """

    position: int = 0
    last_ms: int = 0
    cleaned: int = 0


class KeyIndex:
    """The open file of one partition; `progress` is what was committed last."""

    def __init__(self, path: Path, ledger_id: int, disk: Disk) -> None:
        """Open the file; one that is missing, damaged or another partition's is begun again."""
        self._path = path
        self._ledger_id = ledger_id
        self._disk = disk
        try:
            self._open()
        except (sqlite3.DatabaseError, StoreError):
            # A power cut takes commits that were not synced, in any order: a log without some of
            # them is what `connect` refuses.
            self.clear()

    def _open(self) -> None:
        self._path.parent.mkdir(mode=0o700, exist_ok=True)
        self._connection = connect(self._path, self._disk, _SCHEMA)
        try:
            self._connection.execute("PRAGMA synchronous = NORMAL")
            self._connection.execute(f"PRAGMA cache_size = -{MAX_CACHE_KIB}")
            row = self._connection.execute("SELECT * FROM progress").fetchone()
            if row is None:
                row = self._ledger_id, *IndexProgress()
                transact(
                    self._connection,
                    self._disk,
                    lambda c: c.execute("INSERT INTO progress VALUES (?, ?, ?, ?)", row),
                )
        except BaseException:
            self._connection.close()
            raise
        if row[0] != self._ledger_id:
            self._connection.close()
            raise FormatError(f"{self._path} is the index of another partition")
        self.progress = IndexProgress(*row[1:])

    def clear(self) -> None:
        """Begin again with an empty index."""
        with suppress(AttributeError, sqlite3.Error):
            self._connection.close()
        remove(self._path)
        self._open()

    def close(self) -> None:
        """Close the file."""
        self._connection.close()

    def add(self, messages: Sequence[KeyedMessage], position: int, last_ms: int) -> None:
        """Take the messages of the entries before `position`, in the order of the log.

        Raises IndexDamagedError.
        """
        newest = {row.key: row for row in self._rows({m.key for m in messages})}
        superseded: list[tuple[int, int, bool, int]] = []
        latest: dict[bytes, KeyedMessage] = {}
        for message in messages:
            previous = newest.get(message.key)
            if previous is not None:
                row = previous.number, message.number, previous.tombstone
                superseded.append((*row, crc32c(_ROW.pack(*row), 0)))
            newest[message.key] = latest[message.key] = message
        rows = [
            (*latest[key], _checksum(latest[key]))
            for key in sorted(latest)  # the order of the pages that hold them
        ]
        progress = self.progress._replace(position=position, last_ms=last_ms)

        def write(connection: sqlite3.Connection) -> None:
            connection.executemany(_UPSERT, rows)
            connection.executemany(
                "INSERT OR REPLACE INTO superseded VALUES (?, ?, ?, ?)", superseded
            )
            _save(connection, progress)

        self._change(write, progress)

    def find(self, key: bytes) -> KeyedMessage | None:
        """Return the newest message of a key; None: it has none. Raises IndexDamagedError."""
        return next(iter(self._rows([key])), None)

    def page(self, after: bytes | None, limit: int) -> list[KeyedMessage]:
        """Return the newest messages of the keys behind one, in their order; None: the first.

        Tombstones are among them. Raises IndexDamagedError.
        """
        where = "" if after is None else "WHERE key > ?"
        found = self._connection.execute(
            f"SELECT key, number, time_ms, tombstone, checksum FROM keys {where}"  # noqa: S608
            " ORDER BY key LIMIT ?",
            (limit,) if after is None else (after, limit),
        )
        return [_checked(row) for row in found]

    def superseded(self, after: int, end: int, limit: int) -> list[int]:
        """Return numbers behind `after` that were superseded by a message before `end`, in order.

        They have lower numbers than the messages that superseded them. Raises IndexDamagedError.
        """
        found = self._connection.execute(
            "SELECT * FROM superseded WHERE number > ? AND number < ? AND successor < ?"
            " ORDER BY number LIMIT ?",
            (after, end, end, limit),
        )
        return [_checked_superseded(row)[0] for row in found]

    def kept(self, end: int) -> array[int]:
        """Return the numbers of the newest messages that keys have before a number, in order.

        Tombstones are not among them. It takes microseconds for each key. Raises IndexDamagedError.
        """
        newest = self._connection.execute(
            "SELECT key, number, time_ms, tombstone, checksum FROM keys"
            " WHERE number < ? ORDER BY number",
            (end,),
        )
        superseded_later = self._connection.execute(
            "SELECT * FROM superseded WHERE number < ? AND successor >= ? ORDER BY number",
            (end, end),
        )
        found = merge(
            ((one.number, one.tombstone) for one in map(_checked, newest)),
            map(_checked_superseded, superseded_later),
        )
        return array("Q", (number for number, tombstone in found if not tombstone))

    def forget_superseded(self, numbers: Iterable[int]) -> None:
        """Forget superseded numbers: they are deleted."""
        rows = [(number,) for number in numbers]
        self._change(
            lambda c: c.executemany("DELETE FROM superseded WHERE number = ?", rows), self.progress
        )

    def mark_cleaned(self, end: int, now_ms: int) -> None:
        """Note that all that was superseded by messages before `end` is deleted."""
        progress = self.progress._replace(cleaned=end)

        def write(connection: sqlite3.Connection) -> None:
            connection.execute(
                "UPDATE keys SET cleaned_ms = ?"
                " WHERE tombstone AND number < ? AND cleaned_ms IS NULL",
                (now_ms, end),
            )
            _save(connection, progress)

        self._change(write, progress)

    def due_tombstones(self, cleaned_before_ms: int, limit: int) -> list[KeyedMessage]:
        """Return tombstones whose key has had no other message since a time, by number.

        See `mark_cleaned`. Raises IndexDamagedError.
        """
        found = self._connection.execute(
            "SELECT key, number, time_ms, tombstone, checksum FROM keys"
            " WHERE tombstone AND cleaned_ms <= ? ORDER BY cleaned_ms, number LIMIT ?",
            (cleaned_before_ms, limit),
        )
        return sorted((_checked(row) for row in found), key=attrgetter("number"))

    def forget_before(self, number: int) -> None:
        """Forget keys whose newest message has a lower number: retention removed it."""

        def write(connection: sqlite3.Connection) -> None:
            connection.execute("DELETE FROM keys WHERE number < ?", (number,))
            connection.execute("DELETE FROM superseded WHERE number < ?", (number,))

        self._change(write, self.progress)

    def forget_expired(self, number: int) -> None:
        """Forget what was superseded, and tombstones, with lower numbers: they are deleted."""

        def write(connection: sqlite3.Connection) -> None:
            connection.execute("DELETE FROM superseded WHERE number < ?", (number,))
            connection.execute("DELETE FROM keys WHERE tombstone AND number < ?", (number,))

        self._change(write, self.progress)

    def forget(self, messages: Iterable[KeyedMessage]) -> None:
        """Forget keys whose newest message is one of these: they are deleted."""
        rows = [(message.key, message.number) for message in messages]
        self._change(
            lambda c: c.executemany("DELETE FROM keys WHERE key = ? AND number = ?", rows),
            self.progress,
        )

    def _rows(self, keys: Iterable[bytes]) -> Iterator[KeyedMessage]:
        for chunk in _chunks(sorted(keys)):
            marks = ", ".join("?" * len(chunk))
            statement = (
                "SELECT key, number, time_ms, tombstone, checksum FROM keys"  # noqa: S608
                f" WHERE key IN ({marks})"
            )
            for row in self._connection.execute(statement, chunk):
                yield _checked(row)

    def _change(self, write: Operation[Any], progress: IndexProgress) -> None:
        transact(self._connection, self._disk, write)
        self.progress = progress


def remove(path: Path) -> None:
    """Remove the file of an index, if there is one. Raises OSError."""
    for end in ("", *SIDE_FILE_SUFFIXES):
        path.with_name(path.name + end).unlink(missing_ok=True)


def _save(connection: sqlite3.Connection, progress: IndexProgress) -> None:
    connection.execute("UPDATE progress SET position = ?, last_ms = ?, cleaned = ?", progress)


def _chunks(items: Sequence[_Item]) -> Iterator[Sequence[_Item]]:
    for at in range(0, len(items), MAX_KEYS_PER_STATEMENT):
        yield items[at : at + MAX_KEYS_PER_STATEMENT]


def _checksum(message: KeyedMessage) -> int:
    key, number, time_ms, tombstone = message
    return crc32c(_ROW.pack(number, time_ms, tombstone) + key, 0)


def _checked(row: tuple[bytes, int, int, int, int]) -> KeyedMessage:
    """Return what a row says; raise IndexDamagedError if it is not as it was written."""
    key, number, time_ms, tombstone, checksum = row
    message = KeyedMessage(key, number, time_ms, bool(tombstone))
    try:
        sound = _checksum(message) == checksum
    except (TypeError, error):
        sound = False  # the types of a damaged row are others
    if not sound:
        raise IndexDamagedError(f"the row of message {number} is damaged")
    return message


def _checked_superseded(row: tuple[int, int, int, int]) -> tuple[int, bool]:
    """Return number and tombstone; raise IndexDamagedError if a row is not as it was written."""
    number, successor, tombstone, checksum = row
    try:
        sound = crc32c(_ROW.pack(number, successor, tombstone), 0) == checksum
    except (TypeError, error):
        sound = False  # as above
    if not sound:
        raise IndexDamagedError(f"the row of the superseded message {number} is damaged")
    return number, bool(tombstone)
