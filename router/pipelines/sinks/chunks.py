"""From staged files to appends: the same ones at every replay, read in bounded memory."""

# Theory of operation. The rows of a batch are numbered over its files in the order of their names.
# They are read window by window; a window's rows are sorted by partition, those of a partition stay
# in order and are cut where an append would have too many rows or bytes. The number of an append's
# first row names it: within a partition these numbers grow, as deduplication wants it.
#
# Everything that decides a cut is in the staged plan or in this file, and this file's part is what
# `staging.FORMAT` numbers: a change here is a new format. Rows without a key take turns by number.

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import repeat
from typing import Any, Final

import pyarrow as pa
import pyarrow.compute as pc

from router.errors import BadRequestError, MessageTooLargeError
from router.model import NO_PROPERTIES, Message, TopicName
from router.pipelines.sinks.parquet import record_batches, values
from router.pipelines.sinks.staging import SinkTopic, Staged, StagingPlan
from router.services.partitioning import partition_of

MAX_TOPICS: Final = 1_000
_READ_ROWS: Final = 2_048
_ROWS_PER_TURN: Final = 500
# What a message costs in an append beside its value; a key that is no UTF-8 travels as base64.
_OVERHEAD_BYTES: Final = 64

_Row = tuple[str, Message]


@dataclass(frozen=True, slots=True)
class AppendChunk:
    """One append; `first` is the number of its first row in the batch."""

    topic: TopicName
    partition: int
    first: int
    messages: Sequence[Message]


def survey(staged: Staged, max_bytes: int) -> set[str]:
    """Return the topics that rows of a batch go to, before any of them is published.

    They are as the rows name them. Raises MessageTooLargeError for a row that no topic takes,
    BadRequestError for a row without a topic and for too many of them.
    """
    topics: set[str] = set()
    for batch in _record_batches(staged):
        if not batch.num_rows:
            continue
        if _at_most(batch) > max_bytes:
            largest = max(message.size() for message in _messages(batch))
            if largest > max_bytes:
                raise _too_large(staged, largest, max_bytes)
        topics.update([staged.plan.topic] if staged.plan.topic else _named(staged, batch))
        if len(topics) > MAX_TOPICS:
            raise BadRequestError(
                f"Batch {staged.batch} has rows for more than {MAX_TOPICS} topics: use fewer."
            )
    return topics


def _at_most(batch: pa.RecordBatch) -> int:
    """Return what no message of a batch is larger than, without making one."""
    properties = batch["properties"]
    shared = sum(_lengths(pc.sum, part) for part in (properties.keys, properties.items))
    return shared + sum(_lengths(pc.max, batch[name]) for name in ("value", "key"))


def _lengths(function: Any, column: pa.Array) -> int:
    return int(function(pc.binary_length(column)).as_py() or 0)


def _named(staged: Staged, batch: pa.RecordBatch) -> list[str]:
    if batch["topic"].null_count:
        raise BadRequestError(f"Batch {staged.batch} has a row whose topic is null.")
    return list(set(values(batch, "topic")))


def chunks(
    staged: Staged, places: Mapping[str, SinkTopic], max_bytes: int
) -> Iterator[AppendChunk]:
    """Yield the appends of a batch in the order of publishing; raise MessageTooLargeError."""
    window = _Window(staged.plan)
    for number, (topic, message) in enumerate(_rows(staged)):
        if message.size() > max_bytes:
            raise _too_large(staged, message.size(), max_bytes)
        place = places[topic]
        window.add(place.topic, _partition(staged.batch, number, message, place), number, message)
        if window.full():
            yield from window.empty()
    yield from window.empty()


def _too_large(staged: Staged, size: int, limit: int) -> MessageTooLargeError:
    return MessageTooLargeError(
        f"Batch {staged.batch} has a message of {size} bytes, and publish.max_message is {limit}."
    )


def _partition(batch: int, number: int, message: Message, place: SinkTopic) -> int:
    """Return the partition of a row, which only its key, or else its number, decides."""
    if message.key is not None or place.partitions <= 1:
        return partition_of(message.key or b"", place.partitions)
    return (batch + number // _ROWS_PER_TURN) % place.partitions


@dataclass(slots=True)
class _Window:
    """Rows that are sorted by topic and partition before they go."""

    plan: StagingPlan
    rows: int = 0
    bytes: int = 0
    found: dict[tuple[str, int], list[tuple[int, Message]]] = field(default_factory=dict)

    def add(self, topic: str, partition: int, number: int, message: Message) -> None:
        self.found.setdefault((topic, partition), []).append((number, message))
        self.rows += 1
        self.bytes += _weight(message)

    def full(self) -> bool:
        return self.rows >= self.plan.window_rows or self.bytes >= self.plan.window_bytes

    def empty(self) -> Iterator[AppendChunk]:
        for (topic, partition), rows in sorted(self.found.items(), key=lambda found: found[0]):
            name = TopicName.parse(topic)
            for first, messages in _cut(self.plan, rows):
                yield AppendChunk(name, partition, first, messages)
        self.found = {}
        self.rows = self.bytes = 0


def _cut(
    plan: StagingPlan, rows: Sequence[tuple[int, Message]]
) -> Iterator[tuple[int, Sequence[Message]]]:
    first, size = rows[0][0], 0
    together: list[Message] = []
    for number, message in rows:
        weight = _weight(message)
        if together and (len(together) >= plan.rows or size + weight > plan.bytes):
            yield first, together
            first, size, together = number, 0, []
        together.append(message)
        size += weight
    yield first, together


def _weight(message: Message) -> int:
    return message.size() + len(message.key or b"") + _OVERHEAD_BYTES


def _rows(staged: Staged) -> Iterator[_Row]:
    """Yield the rows of a batch with the topics that they go to."""
    for batch in _record_batches(staged):
        topics = repeat(staged.plan.topic) if staged.plan.topic else values(batch, "topic")
        yield from zip(topics, _messages(batch), strict=False)


def _messages(batch: pa.RecordBatch) -> Iterator[Message]:
    columns = (values(batch, name) for name in ("value", "key", "properties", "event_time"))
    for value, key, properties, event_time in zip(*columns, strict=True):
        yield Message(
            value if value is not None else b"",
            key,
            _properties(properties) if properties else NO_PROPERTIES,
            event_time,
            null=value is None,
        )


def _properties(pairs: Sequence[tuple[str, str | None]]) -> dict[str, str]:
    """Return the properties of a message; one without a value is none."""
    return {name: value for name, value in pairs if value is not None}


def _record_batches(staged: Staged) -> Iterator[pa.RecordBatch]:
    for path in staged.files:
        yield from record_batches(path, _READ_ROWS)
