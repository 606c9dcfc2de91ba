"""Owns reading the metadata: what a restart, a check and a repair need to know of it.

All tables are read at once, side by side in the order of ledgers: what belongs to a ledger comes
as SQLite has it, and becomes objects only for those that ask for them. A restart does not: it keeps
ledgers as they come, see idle_ledgers.
"""

from __future__ import annotations

import json
import sqlite3
import struct
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from itertools import groupby
from operator import itemgetter
from typing import Any, Final, NamedTuple

from router.broker.disk import row_sums
from router.broker.storage.cursors import CommittedPosition, Cursor
from router.broker.storage.producer_state import ProducerState
from router.broker.storage.rows import (
    Hole,
    LedgerRow,
    SubscriptionRecord,
    TopicRecord,
    sequence_of,
)
from router.broker.storage.segments import Segment
from router.broker.storage.values import StoredValues
from router.model.policies import Policies

_LEDGERS: Final = (
    "SELECT id, topic_id, partition, next_entry, next_index, topic_epoch, terminated,"
    " removed_entry, compacted_number, removed_number FROM ledgers ORDER BY id"
)
_OF_LEDGERS: Final = (
    "SELECT ledger_id, first_entry, first_index, next_entry, next_index, size, first_ms, max_ms,"
    " latest_ms, generation, reclaimed FROM segments ORDER BY ledger_id, first_entry",
    "SELECT ledger_id, name, sequence, entry, messages, time_ms FROM producers ORDER BY ledger_id",
    "SELECT ledger_id, first_entry, last_entry, reason FROM holes ORDER BY ledger_id, first_entry",
    "SELECT ledger_id, first_number, last_number FROM deleted ORDER BY ledger_id, first_number",
    "SELECT ledger_id, id, name, properties, created_ms, last_used_ms, cursor, passive, committed"
    " FROM subscriptions ORDER BY ledger_id",
)
NO_PROPERTIES: Final = "{}"


class StoredLedger(NamedTuple):
    """A ledger with all that belongs to it, in rows as they are stored, without the ledger's id.

    Producers and subscriptions are in no order.
    """

    id: int
    topic_id: int
    partition: int
    next_entry: int
    next_index: int
    topic_epoch: int | None
    terminated: int
    removed_entry: int
    compacted_number: int
    removed_number: int
    segments: list[tuple[int, int, int, int, int, int, int, int, int, int]]
    producers: list[tuple[str, int, int, int, int]]
    holes: list[tuple[int, int, str]]
    deleted: list[tuple[int, int]]
    subscriptions: list[tuple[int, str, str, int, int, bytes, int, bytes | None]]

    @classmethod
    def new(
        cls, ledger_id: int, topic_id: int, partition: int, first_number: int = 0
    ) -> StoredLedger:
        """Return an empty ledger whose first message will have a number."""
        head = (ledger_id, topic_id, partition, 0, first_number, None, 0, 0, 0, first_number)
        return cls(*head, [], [], [], [], [])

    def row(self) -> LedgerRow:
        """Return the ledger as the last checkpoint left it.

        Raises ValueError if deleted messages overlap.
        """
        check_deleted(self.deleted)
        producers = [
            (name, ProducerState(sequence_of(sequence), *rest))
            for name, sequence, *rest in sorted(self.producers, key=lambda row: row[4])
        ]
        return LedgerRow(
            *self[:6],
            bool(self.terminated),
            self.removed_entry,
            self.compacted_number,
            self.removed_number,
            [Segment(*segment) for segment in self.segments],
            producers,
            [Hole(*hole) for hole in self.holes],
            self.deleted,
        )

    def records(self) -> list[SubscriptionRecord]:
        """Return the subscriptions by id; raise ValueError if they cannot be understood."""
        return [
            SubscriptionRecord(
                number,
                self.id,
                name,
                json.loads(properties),
                created_ms,
                used_ms,
                Cursor.load(cursor),
                used_ms,
                bool(passive),
                None if committed is None else _commit(committed),
            )
            for number, name, properties, created_ms, used_ms, cursor, passive, committed in sorted(
                self.subscriptions
            )
        ]


def check_deleted(ranges: Iterable[tuple[int, int]]) -> None:
    """Raise ValueError if the ranges of deleted messages overlap."""
    end = -1
    for first, last in ranges:
        if not end < first <= last:
            raise ValueError(f"the deleted messages {first} to {last} overlap others")
        end = last


@dataclass(slots=True)
class Rows:
    """All that is stored; `journal`, `closed`: see `load_meta`."""

    journal: int
    closed: bool
    topics: dict[int, TopicRecord]
    ledgers: dict[int, LedgerRow]
    subscriptions: dict[int, SubscriptionRecord]


def load(connection: sqlite3.Connection) -> Rows:
    """Read all rows; raise ValueError if they cannot be understood."""
    ledgers: dict[int, LedgerRow] = {}
    subscriptions: dict[int, SubscriptionRecord] = {}
    with reading_rows():
        journal, closed = load_meta(connection)
        for stored in stored_ledgers(connection):
            ledgers[stored.id] = stored.row()
            subscriptions |= {record.id: record for record in stored.records()}
        topics = load_topics(connection, ledgers)
    return Rows(journal, closed, topics, ledgers, subscriptions)


@contextmanager
def reading_rows() -> Iterator[None]:
    """Raise ValueError if rows hold what was never written."""
    try:
        yield
    except (TypeError, LookupError, struct.error) as error:
        raise ValueError(f"the metadata is damaged: {error}") from error


def load_meta(connection: sqlite3.Connection) -> tuple[int, bool]:
    """Return the first journal file that is needed, and whether none is.

    Raises ValueError if anything of the metadata is not as it was written.
    """
    row_sums.check_rows(connection, "metadata")
    meta = dict(connection.execute("SELECT key, value FROM meta"))
    boot, journal, closed = (meta.get(key, -1) for key in ("boot", "journal", "closed"))
    if not all(isinstance(value, int) and value >= 0 for value in (boot, journal, closed)):
        raise ValueError("the metadata is damaged: a number of it is not there")
    return journal, bool(closed)


def stored_ledgers(connection: sqlite3.Connection) -> Iterator[StoredLedger]:
    """Yield all ledgers by id; raise ValueError if there are rows of others."""
    tables = [_Table(connection.execute(statement)) for statement in _OF_LEDGERS]
    for row in connection.execute(_LEDGERS):
        ledger = row[0]
        yield StoredLedger(
            *row, *[table.take() if table.ledger == ledger else [] for table in tables]
        )
    for table in tables:
        if table.ledger is not None:
            raise ValueError(f"the metadata is damaged: there is no ledger {table.ledger} of a row")


def check_segments(ledger: StoredLedger) -> None:
    """Raise ValueError if segments overlap, or entries are missing where no messages are.

    Entries would be passed over: SQLite takes any numbers. A check does not call it: it reports
    which bounds do not fit.
    """
    next_entry, next_index = 0, 0
    for first_entry, first_index, end_entry, end_index, *_ in ledger.segments:
        follows = (first_entry == next_entry) == (first_index == next_index)
        if not (next_entry <= first_entry < end_entry and next_index <= first_index <= end_index):
            break
        if next_entry and not follows:
            break
        next_entry, next_index = end_entry, end_index
    else:
        if next_entry <= ledger.next_entry and next_index <= ledger.next_index:
            return
    raise ValueError(f"the metadata is damaged: segments of the ledger {ledger.id} do not fit")


class _Table:
    """The rows of a table by ledger; `ledger` is the one whose rows are next, None: no other."""

    __slots__ = ("_row", "_rows", "ledger")

    def __init__(self, rows: sqlite3.Cursor) -> None:
        self._rows = rows
        self._row: tuple[Any, ...] = ()
        self.ledger: int | None = None
        self._advance()

    def take(self) -> list[Any]:
        """Return the rows of the ledger, without its id."""
        found, ledger = [], self.ledger
        while self.ledger == ledger:
            found.append(self._row[1:])
            self._advance()
        return found

    def _advance(self) -> None:
        self._row = self._rows.fetchone() or (None,)
        self.ledger = self._row[0]


def load_topics(connection: sqlite3.Connection, ledgers: Iterable[int]) -> dict[int, TopicRecord]:
    """Return all topics by id; those with equal policies or properties share them.

    Raises ValueError if one has more or fewer ledgers than partitions.
    """
    # The same numbers, not others like them: each is an object.
    known = {ledger: ledger for ledger in ledgers}
    rows = connection.execute("SELECT topic_id, id FROM ledgers ORDER BY topic_id, partition")
    partitions = {
        topic_id: tuple(known[ledger] for _, ledger in group)
        for topic_id, group in groupby(rows, itemgetter(0))
    }
    policies = cache(lambda text: Policies(**json.loads(text)))
    properties = cache(json.loads)
    topics = {
        topic_id: TopicRecord(
            topic_id,
            name,
            count,
            policies(own),
            properties(given),
            created_ms,
            partitions.get(topic_id, ()),
        )
        for topic_id, name, count, own, given, created_ms in connection.execute(
            "SELECT id, name, partitions, policies, properties, created_ms FROM topics ORDER BY id"
        )
    }
    for topic in topics.values():
        if len(topic.ledger_ids) != max(1, topic.partitions):
            raise ValueError(f"the metadata is damaged: ledgers of {topic.name} are not there")
    return topics


def load_values(connection: sqlite3.Connection, values: StoredValues) -> None:
    """Read the small values of other packages."""
    for owner, key, value in connection.execute("SELECT owner, key, value FROM kept_values"):
        values.load(owner, key, value)


def _commit(data: bytes) -> CommittedPosition:
    try:
        return CommittedPosition.read(data)[0]
    except struct.error as error:
        raise ValueError("a stored commit is cut short") from error
