"""Owns the rows of the metadata: what they are in memory, and each change as a function.

Every function takes a connection inside a transaction; nothing here begins or ends one.
"""

from __future__ import annotations

import dataclasses
import json
import sqlite3
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from operator import attrgetter
from typing import Final

from router.broker.storage.cursors import CommittedPosition, Cursor
from router.broker.storage.deleted_ranges import RangeChange
from router.broker.storage.producer_state import ProducerState
from router.broker.storage.segments import Segment
from router.broker.storage.values import ValueChange, ValueOperation
from router.model.policies import Policies

UNFINISHED: Final = "unfinished://-/-/"
"""What the names of topics begin with that are shown only when all is in them."""
_SIGN = 1 << 63
# `dataclasses.astuple` takes forty times as long, and a checkpoint may store thousands of segments.
_columns = attrgetter(*(column.name for column in dataclasses.fields(Segment)))


@dataclass(frozen=True, slots=True)
class TopicRecord:
    """A topic as stored; its ledgers in the order of its partitions (one if not partitioned)."""

    id: int
    name: str
    partitions: int
    policies: Policies
    properties: Mapping[str, str]
    created_ms: int
    ledger_ids: tuple[int, ...]


@dataclass(eq=False, slots=True)
class SubscriptionRecord:
    """A subscription on one ledger.

    `cursor` is changed through the store only. `last_used_ms` may be set when the
    subscription is used; the store writes it down at its next sweep. A `passive` one holds nothing
    back: retention removes what it has not acknowledged, and its messages are no backlog.
    `commit` is what a client stored with its position last.
    """

    id: int
    ledger_id: int
    name: str
    properties: Mapping[str, str]
    created_ms: int
    last_used_ms: int
    cursor: Cursor
    saved_used_ms: int = 0
    passive: bool = False
    commit: CommittedPosition | None = None

    def state(self) -> tuple[bytes, int, bytes | None, int]:
        """Return what a checkpoint stores of it: cursor, time of use, commit and id."""
        commit = None if self.commit is None else self.commit.dump()
        return self.cursor.dump(), self.last_used_ms, commit, self.id


@dataclass(frozen=True, slots=True)
class Hole:
    """Entries that were damaged and given up, ends included."""

    first: int
    last: int
    reason: str


@dataclass(slots=True)
class LedgerRow:
    """A ledger as the last checkpoint left it."""

    id: int
    topic_id: int
    partition: int
    next_entry: int
    next_index: int
    topic_epoch: int | None = None
    terminated: bool = False
    removed_entry: int = 0
    compacted_number: int = 0
    removed_number: int = 0
    segments: list[Segment] = field(default_factory=list)
    producers: list[tuple[str, ProducerState]] = field(default_factory=list)
    holes: list[Hole] = field(default_factory=list)
    deleted: list[tuple[int, int]] = field(default_factory=list)


@dataclass(slots=True)
class LedgerChange:
    """What a checkpoint stores of one ledger: its segments as far as they are synced."""

    ledger: int
    next_entry: int
    next_index: int
    segments: tuple[Segment, ...]
    producers: dict[str, ProducerState]
    deleted: Sequence[RangeChange] = ()
    removed_entry: int = 0
    removed_number: int = 0


@dataclass(slots=True)
class Checkpoint:
    """What becomes true in one transaction; journal files below `journal` are not needed then.

    `closed`: there is no journal behind it at all.
    """

    journal: int
    closed: bool
    ledgers: list[LedgerChange] = field(default_factory=list)
    cursors: list[tuple[bytes, int, bytes | None, int]] = field(default_factory=list)
    values: Iterable[ValueChange] = ()


def next_boot(connection: sqlite3.Connection) -> int:
    """Count one more start and return its number; from now on there is a journal."""
    connection.execute("UPDATE meta SET value = 0 WHERE key = 'closed'")
    connection.execute("UPDATE meta SET value = value + 1 WHERE key = 'boot'")
    (boot,) = connection.execute("SELECT value FROM meta WHERE key = 'boot'").fetchone()
    return int(boot)


def insert_topic(
    connection: sqlite3.Connection, topic: TopicRecord, first_number: int = 0
) -> TopicRecord:
    """Store a topic with a ledger for each partition; return it with the ids that it got.

    `first_number`: that of the first message of each ledger.
    """
    topic_id = _insert(
        connection,
        "topics",
        name=topic.name,
        partitions=topic.partitions,
        policies=_dump(topic.policies),
        properties=json.dumps(dict(topic.properties)),
        created_ms=topic.created_ms,
    )
    ids = tuple(
        _insert_ledger(connection, topic_id, partition, first_number)
        for partition in range(max(1, topic.partitions))
    )
    return dataclasses.replace(topic, id=topic_id, ledger_ids=ids)


def _insert_ledger(
    connection: sqlite3.Connection, topic_id: int, partition: int, first_number: int = 0
) -> int:
    numbers = {"next_index": first_number, "removed_number": first_number}
    row = {"topic_id": topic_id, "partition": partition, "next_entry": 0}
    return _insert(connection, "ledgers", **row, **numbers)


def _insert(connection: sqlite3.Connection, table: str, **values: object) -> int:
    """Store a row with values of its columns; return its id."""
    columns, marks = ", ".join(values), ", ".join("?" * len(values))
    statement = f"INSERT INTO {table} ({columns}) VALUES ({marks})"  # noqa: S608 - names of our own
    return connection.execute(statement, tuple(values.values())).lastrowid or 0


def update(connection: sqlite3.Connection, table: str, row_id: int, **values: object) -> None:
    """Store values in columns of the row with an id; sqlite3.IntegrityError: they may not be."""
    columns = ", ".join(f"{column} = ?" for column in values)
    statement = f"UPDATE {table} SET {columns} WHERE id = ?"  # noqa: S608 - names of our own
    connection.execute(statement, (*values.values(), row_id))


def delete(connection: sqlite3.Connection, table: str, row_id: int) -> None:
    """Remove the row with an id, and all that belongs to it in other tables."""
    connection.execute(f"DELETE FROM {table} WHERE id = ?", (row_id,))  # noqa: S608 - our own


def delete_unfinished(connection: sqlite3.Connection) -> None:
    """Remove the topics that were being made when the process ended."""
    connection.execute(
        "DELETE FROM topics WHERE substr(name, 1, ?) = ?", (len(UNFINISHED), UNFINISHED)
    )


def insert_subscription(connection: sqlite3.Connection, record: SubscriptionRecord) -> int:
    """Store a subscription and return its id."""
    return _insert(
        connection,
        "subscriptions",
        ledger_id=record.ledger_id,
        name=record.name,
        properties=json.dumps(dict(record.properties)),
        created_ms=record.created_ms,
        last_used_ms=record.last_used_ms,
        cursor=record.cursor.dump(),
        passive=record.passive,
    )


def save_properties(
    connection: sqlite3.Connection, subscription_id: int, properties: Mapping[str, str]
) -> None:
    """Store other properties of a subscription."""
    update(connection, "subscriptions", subscription_id, properties=json.dumps(dict(properties)))


def save_used(connection: sqlite3.Connection, used: Iterable[tuple[int, int]]) -> None:
    """Store when subscriptions were used last: pairs of time and id."""
    connection.executemany("UPDATE subscriptions SET last_used_ms = ? WHERE id = ?", used)


def save_checkpoint(connection: sqlite3.Connection, checkpoint: Checkpoint) -> None:
    """Store how far ledgers, cursors and producers are on disk without the journal."""
    connection.execute("UPDATE meta SET value = ? WHERE key = 'journal'", (checkpoint.journal,))
    connection.execute("UPDATE meta SET value = ? WHERE key = 'closed'", (checkpoint.closed,))
    save_cursors(connection, checkpoint.cursors)
    _save_values(connection, checkpoint.values)
    for change in checkpoint.ledgers:
        row = (change.next_entry, change.next_index, change.removed_entry, change.removed_number)
        updated = connection.execute(
            "UPDATE ledgers SET next_entry = ?, next_index = ?, removed_entry = ?,"
            " removed_number = ? WHERE id = ?",
            (*row, change.ledger),
        )
        # A topic may have been deleted while its last entries were on their way.
        if updated.rowcount:
            _save_segments(connection, change.ledger, change.segments)
            _save_producers(connection, change)
            save_deleted(connection, change.ledger, change.deleted)


def save_cursors(
    connection: sqlite3.Connection, cursors: Iterable[tuple[bytes, int, bytes | None, int]]
) -> None:
    """Store cursors: the states of subscriptions."""
    connection.executemany(
        "UPDATE subscriptions SET cursor = ?, last_used_ms = ?, committed = ? WHERE id = ?", cursors
    )


def _save_values(connection: sqlite3.Connection, changes: Iterable[ValueChange]) -> None:
    for operation, owner, key, value in changes:
        if operation is ValueOperation.PUT:
            row = (owner, key, value)
            connection.execute("INSERT OR REPLACE INTO kept_values VALUES (?, ?, ?)", row)
        elif operation is ValueOperation.REMOVE:
            place = (owner, key)
            connection.execute("DELETE FROM kept_values WHERE owner = ? AND key = ?", place)
        else:
            connection.execute("DELETE FROM kept_values WHERE owner = ?", (owner,))


def _save_segments(
    connection: sqlite3.Connection, ledger: int, segments: Iterable[Segment]
) -> None:
    connection.executemany(
        "INSERT OR REPLACE INTO segments VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)",
        ((ledger, *_columns(segment)) for segment in segments),
    )


def _save_producers(connection: sqlite3.Connection, change: LedgerChange) -> None:
    connection.executemany(
        "INSERT OR REPLACE INTO producers VALUES (?, ?, ?, ?, ?, ?)",
        (
            (change.ledger, name, _signed(state.sequence), *state[1:])
            for name, state in change.producers.items()
        ),
    )


def _signed(sequence: int) -> int:
    """Return a sequence id as SQLite stores it, whose numbers have 64 bits and a sign."""
    return (sequence + _SIGN) % (2 * _SIGN) - _SIGN


def sequence_of(stored: int) -> int:
    """Return the sequence id that is stored as a number."""
    return stored % (2 * _SIGN)


def drop_segments(connection: sqlite3.Connection, dropped: Iterable[tuple[int, int]]) -> None:
    """Remove segments: pairs of ledger and first entry."""
    connection.executemany("DELETE FROM segments WHERE ledger_id = ? AND first_entry = ?", dropped)


def save_removed(connection: sqlite3.Connection, removed: Iterable[tuple[int, int, int]]) -> None:
    """Store how far ledgers are removed: entry, number and ledger of each."""
    statement = "UPDATE ledgers SET removed_entry = ?, removed_number = ? WHERE id = ?"
    connection.executemany(statement, removed)


def expire_producers(connection: sqlite3.Connection, until_ms: int) -> None:
    """Forget the producers that stored nothing after a time."""
    connection.execute("DELETE FROM producers WHERE time_ms <= ?", (until_ms,))


def replace_segments(
    connection: sqlite3.Connection, ledger: int, old: Iterable[Segment], new: Iterable[Segment]
) -> None:
    """Put other segments in the place of some."""
    drop_segments(connection, [(ledger, segment.first_entry) for segment in old])
    _save_segments(connection, ledger, new)


def insert_hole(connection: sqlite3.Connection, ledger: int, hole: Hole, found_ms: int) -> None:
    """Record that entries were given up."""
    connection.execute(
        "INSERT OR REPLACE INTO holes VALUES (?, ?, ?, ?, ?)",
        (ledger, hole.first, hole.last, hole.reason, found_ms),
    )


def grow_topic(
    connection: sqlite3.Connection,
    topic: TopicRecord,
    partitions: int,
    subscriptions: Mapping[str, Mapping[str, str]],
    now_ms: int,
) -> tuple[TopicRecord, list[SubscriptionRecord]]:
    """Give a topic more partitions, and each new one these subscriptions at its beginning.

    In one transaction, so that no partition is ever seen without the subscriptions of the others.
    """
    update(connection, "topics", topic.id, partitions=partitions)
    ids = list(topic.ledger_ids)
    made = []
    for partition in range(topic.partitions, partitions):
        ids.append(_insert_ledger(connection, topic.id, partition))
        for name, properties in subscriptions.items():
            record = SubscriptionRecord(
                0, ids[-1], name, dict(properties), now_ms, now_ms, Cursor(), now_ms
            )
            record.id = insert_subscription(connection, record)
            made.append(record)
    return dataclasses.replace(topic, partitions=partitions, ledger_ids=tuple(ids)), made


def save_topic(connection: sqlite3.Connection, topic: TopicRecord) -> None:
    """Store other policies and properties of a topic."""
    properties = json.dumps(dict(topic.properties))
    update(connection, "topics", topic.id, policies=_dump(topic.policies), properties=properties)


def _dump(policies: Policies) -> str:
    """Return policies as JSON, without those that are not set."""
    values = dataclasses.asdict(policies)
    return json.dumps({name: value for name, value in values.items() if value is not None})


def save_deleted(
    connection: sqlite3.Connection, ledger: int, changes: Iterable[RangeChange]
) -> None:
    """Store what became of a ledger's ranges of deleted messages, if it is still there."""
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
