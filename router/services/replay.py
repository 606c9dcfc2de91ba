"""Replaying a range of a topic into a topic, batch by batch, so that each message comes once.

Theory of operation. A batch is a range with a fixed end: `next_batch` finds where it ends, and
`copy` stores what is in it under producers that are named by the replay and the range. The same
batch copied again stores nothing again, so that a client that lost the answer asks once more, goes
on after a pause, or lets another node go on. Nothing is kept between batches but what the client
has: the places. Finding the end while storing would not do: what is read until a deadline differs
from one time to the next, and what differs cannot be called stored already.

Keys, headers and event times are kept. Messages with a key go where the key says; those without one
go to the partition of their own partition's number, so that both keep their order. A message's
schema becomes one of the target.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from router.errors import BackendTimeoutError
from router.model import Message, Position, Stored, TopicName, TopicStats
from router.model.publish_source import encode_source
from router.services.message_history import REPLAYED, MessageHistory, ranges_of
from router.services.producing import MessageProducer, Outgoing, Sender
from router.services.read import TopicReader
from router.services.scan import After, MessageFilter, Places, Scan, ScanBounds, StartPosition
from router.services.topic_schemas import TopicSchemas

MAX_BATCH_MESSAGES: Final = 500
MAX_BATCH_BYTES: Final = 4 * 1024 * 1024
PLAN_SECONDS: Final = 2.0
COPY_SECONDS: Final = 20.0


@dataclass(frozen=True, slots=True)
class ReplayRange:
    """Messages of a topic from places up to places."""

    topic: TopicName
    starts: Mapping[int, StartPosition]
    ends: Mapping[int, StartPosition]


class Replayer:
    """Copies batches; calls block, and may be made from many threads or greenlets."""

    def __init__(
        self,
        reading: TopicReader,
        producer: MessageProducer,
        schemas: TopicSchemas,
        history: MessageHistory,
    ) -> None:
        self._reading = reading
        self._producer = producer
        self._schemas = schemas
        self._history = history

    def next_batch(self, whole: ReplayRange, limit: int) -> tuple[Places, bool]:
        """Return where the next batch of a range ends, and whether the range ends there."""
        bounds = ScanBounds(min(limit, MAX_BATCH_MESSAGES), MAX_BATCH_BYTES, PLAN_SECONDS)
        scan = Scan(self._reading, whole.topic, whole.starts, whole.ends, bounds)
        try:
            for _ in scan:
                pass
            return scan.places, scan.whole
        finally:
            scan.close()

    def copy(
        self, batch: ReplayRange, target: TopicName, matches: MessageFilter, name: tuple[str, str]
    ) -> int:
        """Store the messages of a batch that match; return how many these are.

        `name` is a user and the name of the replay. Raises TopicNotFoundError, BackendTimeoutError
        if the batch cannot be read whole in time, and what failed first of what was to be stored.
        """
        partitions = self._producer.partitions(target)
        read = [(stored, matches(stored)) for stored in self._whole(batch)]
        messages = [stored for stored, is_match in read if is_match]
        versions = {
            version: self._version(version, batch.topic, target)
            for version in {stored.message.schema_version for stored in messages}
        }
        outgoing = [
            _outgoing(stored, versions[stored.message.schema_version], partitions)
            for stored in messages
        ]
        if outgoing:
            identity = ("replay", *name, str(batch.topic), str(target), _written(batch))
            source = encode_source("", "", "", f"a replay of {batch.topic.local}")
            for result in self._producer.produce(target, outgoing, Sender(None, identity, source)):
                if result.error is not None:
                    raise result.error
            self._history.record(batch.topic, ranges_of(read), REPLAYED, target, *name)
        return len(outgoing)

    def _whole(self, batch: ReplayRange) -> list[Stored]:
        bounds = ScanBounds(MAX_BATCH_MESSAGES, 16 * MAX_BATCH_BYTES, COPY_SECONDS)
        scan = Scan(self._reading, batch.topic, batch.starts, batch.ends, bounds)
        try:
            found = list(scan)
            if not scan.whole:
                raise BackendTimeoutError(
                    "The batch could not be read whole; none of it is stored."
                )
            return found
        finally:
            scan.close()

    def _version(self, version: bytes, source: TopicName, target: TopicName) -> bytes:
        """Return the version that a schema of the source has in the target."""
        if not version or source == target:
            return version
        schema = self._schemas.find(source, version)
        return b"" if schema is None else self._schemas.put(target, schema)


def entries_left(
    stats: TopicStats, starts: Mapping[int, StartPosition], ends: Mapping[int, StartPosition]
) -> int:
    """Return about how many entries are between places, for progress."""
    left = 0
    for part in stats.partitions:
        if part.partition in starts and part.partition in ends:
            first = _entry(starts[part.partition], part.first_entry)
            left += max(0, _entry(ends[part.partition], first) - first)
    return left


def _entry(place: StartPosition, otherwise: int) -> int:
    if isinstance(place, After):
        return place.position.entry + 1
    return place.entry if isinstance(place, Position) else otherwise


def _outgoing(stored: Stored, version: bytes, partitions: int) -> Outgoing:
    message = stored.message
    copied = Message(
        message.value,
        message.key,
        message.properties,
        message.event_time,
        schema_version=version,
        null=message.null,
    )
    own = max(0, stored.position.partition) % max(1, partitions)
    return Outgoing(copied, own if message.key is None else None, message.key)


def _written(batch: ReplayRange) -> str:
    """Return the places of a batch as a text that is the same whenever they are."""
    return ";".join(
        ",".join((str(p), *_place(batch.starts[p]), *_place(batch.ends[p])))
        for p in sorted(batch.starts)
    )


def _place(place: StartPosition) -> tuple[str, ...]:
    is_after = isinstance(place, After)
    at = place.position if isinstance(place, After) else place
    if isinstance(at, Position):
        return "after" if is_after else "at", str(at.ledger), str(at.entry), str(at.batch_index)
    return (str(at),)
