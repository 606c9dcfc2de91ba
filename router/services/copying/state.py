"""Owns the file that says what was copied: which batch was read where, and where it is stored.

Theory of operation. One SQLite file (WAL, synchronous=FULL) has one row for each batch. The row is
written *before* the batch is published: from then on its messages, its producer's name and its
sequence are fixed, so that a copier that was killed reads the same messages again and publishes
them under the same sequence, which the target stores once. The receipt completes the row. So each
partition has at most one batch in flight, and it is the last one.

A lock beside the file holds for the process that has it open; the alternative, flock on the file
itself, would interfere with SQLite's own locks.

Calls may be made from many threads; one lock guards the connection. It is held over SQLite's I/O,
which is bounded, and over nothing else.
"""

from __future__ import annotations

import fcntl
import os
import sqlite3
import threading
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final
from uuid import uuid4

from router.backends import Receipt
from router.errors import BackendUnavailableError, BadRequestError
from router.errors.quoting import failure_text
from router.model import Position, TopicName
from router.services.copying.places import (
    EntryRun,
    Key,
    end_key_of,
    key_of,
    read_receipt,
    read_runs,
    write_receipt,
    write_runs,
)

__all__ = ["CopiedBatch", "CopiedTopic", "CopyState"]

FORMAT: Final = 1
ROWS_AT_ONCE: Final = 500
_TABLES: Final = """
CREATE TABLE facts (name TEXT PRIMARY KEY, value TEXT NOT NULL) WITHOUT ROWID;
CREATE TABLE topics (
    id INTEGER PRIMARY KEY, name TEXT NOT NULL UNIQUE, source_partitions INTEGER NOT NULL,
    target_name TEXT NOT NULL, done INTEGER NOT NULL DEFAULT 0
);
CREATE TABLE batches (
    topic INTEGER NOT NULL REFERENCES topics (id), partition INTEGER NOT NULL,
    sequence INTEGER NOT NULL,
    first_ledger INTEGER NOT NULL, first_entry INTEGER NOT NULL, first_index INTEGER NOT NULL,
    last_ledger INTEGER NOT NULL, last_entry INTEGER NOT NULL, last_index INTEGER NOT NULL,
    places TEXT NOT NULL, count INTEGER NOT NULL, size INTEGER NOT NULL, checksum BLOB NOT NULL,
    started_ms INTEGER NOT NULL, receipt TEXT,
    PRIMARY KEY (topic, partition, sequence)
) WITHOUT ROWID;
CREATE INDEX batches_by_place ON batches
    (topic, partition, first_ledger, first_entry, first_index)
"""
_COLUMNS: Final = "partition, sequence, places, count, size, checksum, started_ms, receipt"
_FLAGS: Final = os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_CREAT


class CopyState:
    """What one copy has done; see the module. `id` names the copy and its producers."""

    def __init__(self, path: Path, connection: sqlite3.Connection, lock: int) -> None:
        self.path = path
        self._connection = connection
        self._lock = threading.Lock()
        self._held = lock
        self._ids: dict[str, int] = {}
        self.id = self.fact("id") or ""

    @classmethod
    def open(cls, path: Path, source: str, target: str) -> CopyState:
        """Open the state of the copy from `source` to `target`, which is made if it is not there.

        Raises BadRequestError if it is the state of another copy, or another process uses it;
        BackendUnavailableError if the file cannot be used.
        """
        with _faults(path):
            path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            held = _take_lock(path)
        try:
            with _faults(path):
                return cls._opened(path, held, source, target)
        except BaseException:
            os.close(held)
            raise

    @classmethod
    def _opened(cls, path: Path, held: int, source: str, target: str) -> CopyState:
        os.close(os.open(path, _FLAGS, 0o600))
        connection = sqlite3.connect(path, isolation_level=None, check_same_thread=False)
        try:
            connection.execute("PRAGMA journal_mode = WAL")
            connection.execute("PRAGMA synchronous = FULL")
            connection.execute("PRAGMA foreign_keys = ON")
            _make_tables(connection, path, source, target)
            state = cls(path, connection, held)
            state._check("source", source)
            state._check("target", target)
        except BaseException:
            connection.close()
            raise
        return state

    def _check(self, name: str, given: str) -> None:
        if (known := self.fact(name)) != given:
            raise BadRequestError(
                f"{self.path} is the state of another copy, whose {name} is {known}, not {given}."
                " Name another file with --state."
            )

    def close(self) -> None:
        """Close the file and let go of the lock; callable twice."""
        with self._lock:
            if self._held >= 0:
                self._connection.close()
                os.close(self._held)
                self._held = -1

    def fact(self, name: str) -> str | None:
        """Return what is noted under a name, None: nothing is."""
        rows = self._read("SELECT value FROM facts WHERE name = ?", (name,))
        return rows[0][0] if rows else None

    def note(self, name: str, value: str) -> None:
        """Note a value under a name."""
        self._write([("INSERT OR REPLACE INTO facts VALUES (?, ?)", (name, value))])

    def topics(self) -> list[CopiedTopic]:
        """Return the topics of the copy, by name."""
        rows = self._read(
            "SELECT name, target_name, source_partitions, done FROM topics ORDER BY name", ()
        )
        parse = TopicName.parse
        return [CopiedTopic(parse(name), parse(to), n, bool(done)) for name, to, n, done in rows]

    def put_topic(self, topic: CopiedTopic) -> None:
        """Note a topic, or what changed about it."""
        given = (str(topic.source), topic.partitions, str(topic.target), int(topic.done))
        statement = (
            "INSERT INTO topics (name, source_partitions, target_name, done) VALUES (?, ?, ?, ?)"
            " ON CONFLICT (name) DO UPDATE SET source_partitions = excluded.source_partitions,"
            " target_name = excluded.target_name, done = excluded.done"
        )
        self._write([(statement, given)])

    def begin(self, topic: TopicName, batch: CopiedBatch) -> None:
        """Note a batch before it is published."""
        self._write([self._insert(topic, batch)])

    def complete(
        self,
        topic: TopicName,
        batch: CopiedBatch,
        receipt: Receipt,
        following: CopiedBatch | None = None,
    ) -> None:
        """Note where a batch is stored, and with it the next one of its partition."""
        where = (write_receipt(receipt), self._id(topic), batch.partition, batch.sequence)
        statement = (
            "UPDATE batches SET receipt = ? WHERE topic = ? AND partition = ? AND sequence = ?"
        )
        inserted = [] if following is None else [self._insert(topic, following)]
        self._write([(statement, where), *inserted])

    def replace(self, topic: TopicName, batch: CopiedBatch) -> None:
        """Put another batch in the place of one in flight that has its number."""
        self._write([self._delete(topic, batch), self._insert(topic, batch)])

    def forget(self, topic: TopicName, batch: CopiedBatch) -> None:
        """Forget a batch in flight, whose messages are nowhere any more."""
        self._write([self._delete(topic, batch)])

    def _delete(self, topic: TopicName, batch: CopiedBatch) -> tuple[str, tuple[Any, ...]]:
        statement = (
            "DELETE FROM batches"
            " WHERE topic = ? AND partition = ? AND sequence = ? AND receipt IS NULL"
        )
        return statement, (self._id(topic), batch.partition, batch.sequence)

    def newest(self, topic: TopicName, partition: int) -> CopiedBatch | None:
        """Return the last batch of a partition, which may be in flight; None: there is none."""
        return self._one(topic, partition, "", (), "sequence DESC")

    def last_copied(self, topic: TopicName, partition: int) -> CopiedBatch | None:
        """Return the last batch whose place at the target is known, None: there is none."""
        return self._one(topic, partition, "AND receipt IS NOT NULL", (), "sequence DESC")

    def batch_at(self, topic: TopicName, position: Position) -> CopiedBatch | None:
        """Return the last batch, with a receipt, that begins at a source position or before it."""
        begins = "AND receipt IS NOT NULL AND (first_ledger, first_entry, first_index) <= (?, ?, ?)"
        order = "first_ledger DESC, first_entry DESC, first_index DESC"
        return self._one(topic, position.partition, begins, end_key_of(position), order)

    def batches(self, topic: TopicName, partition: int, after: int = -1) -> Iterator[CopiedBatch]:
        """Yield the batches with a receipt, in order, of sequences above `after`."""
        where = "AND receipt IS NOT NULL AND sequence > ?"
        while True:
            rows = self._select(topic, partition, where, (after,), "sequence", ROWS_AT_ONCE)
            yield from rows
            if len(rows) < ROWS_AT_ONCE:
                return
            after = rows[-1].sequence

    def copied(self, topic: TopicName, partition: int) -> tuple[int, int]:
        """Return how many messages and bytes of a partition are copied."""
        ((count, size),) = self._read(
            "SELECT coalesce(sum(count), 0), coalesce(sum(size), 0) FROM batches"
            " WHERE topic = ? AND partition = ? AND receipt IS NOT NULL",
            (self._id(topic), partition),
        )
        return count, size

    def partitions(self, topic: TopicName) -> list[int]:
        """Return the partitions of which something is noted."""
        statement = "SELECT DISTINCT partition FROM batches WHERE topic = ? ORDER BY partition"
        return [partition for (partition,) in self._read(statement, (self._id(topic),))]

    def _one(
        self, topic: TopicName, partition: int, where: str, given: Sequence[Any], order: str
    ) -> CopiedBatch | None:
        return next(iter(self._select(topic, partition, where, given, order, 1)), None)

    def _select(
        self,
        topic: TopicName,
        partition: int,
        where: str,
        given: Sequence[Any],
        order: str,
        limit: int,
    ) -> list[CopiedBatch]:
        statement = (
            f"SELECT {_COLUMNS} FROM batches WHERE topic = ? AND partition = ?"  # noqa: S608 - constants
            f" {where} ORDER BY {order} LIMIT {limit}"
        )
        rows = self._read(statement, (self._id(topic), partition, *given))
        with _faults(self.path):
            return list(map(_batch, rows))

    def _insert(self, topic: TopicName, batch: CopiedBatch) -> tuple[str, tuple[Any, ...]]:
        first, last = batch.first(), batch.last()
        keys: tuple[Key, Key] = key_of(first), key_of(last)
        return (
            "INSERT INTO batches VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, NULL)",
            (
                self._id(topic),
                batch.partition,
                batch.sequence,
                *keys[0],
                *keys[1],
                write_runs(batch.runs),
                batch.count,
                batch.size,
                batch.checksum,
                batch.started_ms,
            ),
        )

    def _id(self, topic: TopicName) -> int:
        name = str(topic)
        if (known := self._ids.get(name)) is None:
            rows = self._read("SELECT id FROM topics WHERE name = ?", (name,))
            if not rows:
                return -1
            known = self._ids[name] = rows[0][0]
        return known

    def _read(self, statement: str, given: Sequence[Any]) -> list[Any]:
        with self._lock, _faults(self.path), closing(self._connection.cursor()) as cursor:
            return cursor.execute(statement, given).fetchall()

    def _write(self, statements: Sequence[tuple[str, Sequence[Any]]]) -> None:
        with self._lock, _faults(self.path):
            self._connection.execute("BEGIN IMMEDIATE")
            try:
                for statement, given in statements:
                    self._connection.execute(statement, given)
                self._connection.execute("COMMIT")
            except BaseException:
                if self._connection.in_transaction:
                    self._connection.execute("ROLLBACK")
                raise


@contextmanager
def _faults(path: Path) -> Iterator[None]:
    """Raise BackendUnavailableError, which names the file, for what reading and writing it raise.

    SQLite does not check the values that it returns.
    """
    try:
        yield
    except (OSError, sqlite3.Error) as error:
        raise BackendUnavailableError(f"{path} cannot be used: {failure_text(error)}") from error
    except (LookupError, TypeError, ValueError) as error:
        raise BackendUnavailableError(f"{path} is damaged") from error


def _batch(row: Sequence[Any]) -> CopiedBatch:
    partition, sequence, places, count, size, checksum, started_ms, receipt = row
    where = None if receipt is None else read_receipt(receipt, partition)
    return CopiedBatch(
        partition, sequence, read_runs(places), count, size, checksum, started_ms, where
    )


def _take_lock(path: Path) -> int:
    """Return the descriptor that holds the lock; raise BadRequestError, OSError."""
    held = os.open(path.with_name(path.name + ".lock"), _FLAGS, 0o600)
    try:
        fcntl.flock(held, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError as error:
        os.close(held)
        raise BadRequestError(
            f"another process copies with {path}: wait for it, or stop it"
        ) from error
    return held


def _make_tables(connection: sqlite3.Connection, path: Path, source: str, target: str) -> None:
    (version,) = connection.execute("PRAGMA user_version").fetchone()
    if version == FORMAT:
        return
    (tables,) = connection.execute("SELECT count(*) FROM sqlite_master").fetchone()
    if version or tables:
        raise BadRequestError(
            f"{path} is no state of this release: it has format {version}, not {FORMAT}."
            " Name another file with --state."
        )
    connection.execute("BEGIN IMMEDIATE")
    for statement in _TABLES.split(";"):
        connection.execute(statement)
    facts = (("id", uuid4().hex), ("source", source), ("target", target))
    connection.executemany("INSERT INTO facts VALUES (?, ?)", facts)
    connection.execute(f"PRAGMA user_version = {FORMAT}")
    connection.execute("COMMIT")


@dataclass(frozen=True, slots=True)
class CopiedTopic:
    """A topic of the copy; `partitions` are those of the source, 0: not partitioned.

    `done`: the target's topic was made or accepted, so that messages may be copied.
    """

    source: TopicName
    target: TopicName
    partitions: int
    done: bool = False


@dataclass(frozen=True, slots=True)
class CopiedBatch:
    """A batch: where its messages were read (`runs`), how many they are and their checksum.

    `size` is the bytes of its messages; `receipt` is where the target stores them, None: it is in
    flight, and the target may have it or not.
    """

    partition: int
    sequence: int
    runs: tuple[EntryRun, ...]
    count: int
    size: int
    checksum: bytes
    started_ms: int
    receipt: Receipt | None = None

    def sources(self) -> Iterator[Position]:
        """Yield where its messages were read, in order."""
        for run in self.runs:
            yield from run.positions(self.partition)

    def first(self) -> Position:
        """Return where its first message was read."""
        return next(self.runs[0].positions(self.partition))

    def last(self) -> Position:
        """Return where its last message was read."""
        ledger, entry, entries, begin, messages, size = self.runs[-1]
        index = begin + messages - 1 if begin >= 0 else -1
        return Position(ledger, entry + entries - 1, self.partition, index, size)

    def upto(self, position: Position) -> int:
        """Return how many of its messages lie at a source position or before it.

        A position without an index in its batch is the whole batch.
        """
        key = end_key_of(position)
        return sum(run.upto(key) for run in self.runs)

    def targets(self) -> Iterator[Position]:
        """Yield where its messages are stored, in the order of `sources`; none while in flight."""
        if self.receipt is not None:
            yield from map(self.receipt.at, range(self.count))
