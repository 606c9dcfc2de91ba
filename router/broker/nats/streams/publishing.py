"""What NATS clients publish to streams: checked, stored several at once, and acknowledged.

Theory of operation. All that one read of a connection brings for a stream becomes one entry of the
format `nats`, or a few if that is too large: one checksum, one piece of the journal and one
callback for hundreds of messages. Each message is checked against those before it, appended or
not, so a stream's conditions hold in the order of its sequences. The acknowledgement follows the
sync; in the same step, before it leaves, the stream enforces its limits (`Stream._on_stored`), as
for what other dialects append.

A stream that is not open yet, or whose index has to read the log first, holds up the connection:
nothing is read from the client meanwhile, and its order is kept. The same holds while more than
MAX_IN_FLIGHT_BYTES of the client wait for the disk, or the disk does not keep up at all.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Final, NamedTuple

import orjson
import structlog

from router.broker.consume import ConsumerFlow, NameBusyError, Producer, ProducerFencedError
from router.broker.consume.context import Tally
from router.broker.nats.protocol.failures import jetstream_error
from router.broker.nats.protocol.hub import Hub
from router.broker.nats.protocol.pacing import Tasks
from router.broker.nats.streams.log.deadlines import is_marker
from router.broker.nats.streams.log.messages import NS_PER_MS
from router.broker.nats.streams.log.subject_index import stored_size
from router.broker.nats.streams.publish_checks import (
    NO_CONDITIONS,
    ROLLUP_ALL,
    Conditions,
    DuplicateMessage,
    UnresolvedSubject,
    check_message,
)
from router.broker.nats.streams.stream import Stream
from router.broker.storage import NATS_FORMAT, DamagedError, Store, StoreError, TopicRecord
from router.errors import DiskFullError, NotAllowedError, RouterError
from router.model.publish_source import NO_SOURCE
from router.wire.nats.jetstream.errors import ErrorCode, JetStreamError, error
from router.wire.nats.jetstream.policies import Retention
from router.wire.nats.jetstream.replies import PubAck
from router.wire.nats.message import NatsMessage
from router.wire.nats.stored import pack

MAX_ENTRY_MESSAGES: Final = 1_000
MAX_ENTRY_BYTES: Final = 512 << 10
"""Of one entry, unless one message alone is larger."""
MAX_IN_FLIGHT_BYTES: Final = 4 << 20
"""Of one client, appended and not on disk; more are not read."""
MESSAGE_OVERHEAD_BYTES: Final = 256
"""What a message in flight takes in memory besides its bytes, about."""
MAX_TURN_SECONDS: Final = 0.05
"""After which the messages that are left wait for the next turn: checks may take long."""
FAST_BATCH: Final = ".$FI"
"""What the reply subject of a message of a fast batch ends with."""
MAX_PRODUCERS: Final = 10_000
"""Streams that one client is a producer of."""

_REFUSALS: Final = (JetStreamError, RouterError, StoreError, NameBusyError, ProducerFencedError)
_log = structlog.get_logger(__name__)


@dataclass(frozen=True, slots=True)
class PublishContext:
    """What all publishers share; `tally` counts what is stored, `tasks` own what waits.

    `clock` returns the seconds since 1970.
    """

    store: Store
    hub: Hub
    clock: Callable[[], float]
    check_schema: Callable[[TopicRecord], None]
    new_producer_name: Callable[[], str]
    tally: Tally
    tasks: Tasks = field(default_factory=Tasks)


class _Pending(NamedTuple):
    stream: Stream
    message: NatsMessage


class _Rollup(NamedTuple):
    """A message that replaces those before it: all, or those of its subject."""

    sequence: int
    subject: str
    kind: str


@dataclass(slots=True)
class _Entry:
    """Messages that become one entry, and what follows when it is on disk."""

    first: int
    messages: list[NatsMessage] = field(default_factory=list)
    rollups: list[_Rollup] = field(default_factory=list)
    size: int = 0

    @property
    def memory(self) -> int:
        """Return how many bytes the entry takes until it is on disk, about."""
        return self.size + MESSAGE_OVERHEAD_BYTES * len(self.messages)

    @property
    def next_sequence(self) -> int:
        """Return the sequence of the message behind those of the entry."""
        return self.first + len(self.messages)

    def is_full(self, size: int) -> bool:
        """Return whether a message of so many bytes belongs to the next entry."""
        return bool(self.messages) and (
            self.size + size > MAX_ENTRY_BYTES or len(self.messages) >= MAX_ENTRY_MESSAGES
        )


class StreamPublisher:
    """Stores what one client publishes.

    Acknowledgements go to the reply subjects of messages. Entries are kept with `source`. From
    `hold` to `release` the client is not read from, because a stream has to be opened first.
    """

    def __init__(
        self,
        context: PublishContext,
        hold: Callable[[], None],
        release: Callable[[], None],
        source: bytes = NO_SOURCE,
    ) -> None:
        self._context = context
        self._hold = hold
        self._release = release
        self._source = source
        self._pending: list[_Pending] = []
        self._waits = self._full = False
        self._in_flight = 0
        self._closed = False
        self._producers: dict[Stream, Producer] = {}

    def publish(self, stream: Stream, message: NatsMessage) -> None:
        """Take a message for a stream that has its subject; `flush` stores it."""
        if message.reply.endswith(FAST_BATCH):
            self._refuse(stream, message, error(ErrorCode.BATCH_PUBLISH_DISABLED))
            return
        self._pending.append(_Pending(stream, message))

    def flush(self) -> None:
        """Store what was taken; it is acknowledged when it is on disk."""
        if not self._pending or self._waits:
            return
        pending, self._pending = self._pending, []
        batches: dict[Stream, list[NatsMessage]] = {}
        for place, (stream, message) in enumerate(pending):
            batch = batches.get(stream)
            if batch is None:
                if not stream.is_ready() and not stream.closed:
                    self._wait(stream, pending[place:])
                    break
                batch = batches[stream] = []
            batch.append(message)
        until = time.monotonic() + MAX_TURN_SECONDS
        for stream, batch in batches.items():
            try:
                self._prepare(stream)
            except _REFUSALS as failure:
                refusal = _refusal(failure)
                for message in batch:
                    self._refuse(stream, message, refusal)
                continue
            left = self._store(stream, batch, until)
            if left:
                self._wait(stream, [_Pending(stream, message) for message in left])
        if self._is_full():
            self._full = True
            self._context.store.pressure[self._relieve] = None
            self._hold()

    def close(self) -> None:
        """Release the client's places as a producer; what it sent is still stored."""
        self._closed = True
        self.flush()
        self._context.store.pressure.pop(self._relieve, None)
        producers, self._producers = self._producers, {}
        for stream, producer in producers.items():
            stream.partition.producers.remove(producer)

    # What a partition calls on its producers' connection.

    def producer_closed(self, producer: Producer) -> None:
        """Forget a producer: the next publish makes it again, or is refused."""
        for stream, present in list(self._producers.items()):
            if present is producer:
                del self._producers[stream]

    def producer_turn(self, producer: Producer) -> None:
        """Do nothing: no producer of NATS waits for its turn."""

    def producer_failed(self, producer: Producer, failure: Exception) -> None:
        """Do nothing, for the same reason."""

    def probe(self) -> None:
        """Do nothing: the listener pings silent clients."""

    def _is_full(self) -> bool:
        """Return whether too much of the client is not on disk yet."""
        size = self._in_flight
        return size > MAX_IN_FLIGHT_BYTES or (size > 0 and self._context.store.congested)

    def _relieve(self) -> None:
        """Read from the client again, should the disk have caught up."""
        relieved = self._in_flight < MAX_IN_FLIGHT_BYTES // 2
        if self._full and relieved and not self._context.store.congested:
            self._full = False
            self._context.store.pressure.pop(self._relieve, None)
            if not self._waits and not self._closed:
                self._release()

    def _wait(self, stream: Stream, pending: list[_Pending]) -> None:
        """Go on with these messages when their stream is open and its index is current."""
        self._pending = pending + self._pending
        if not self._waits:
            self._waits = True
            self._hold()
            self._context.tasks.start(self._resume(stream))

    async def _resume(self, stream: Stream) -> None:
        try:
            await stream.open()
            await stream.log.catch_up()
            await stream.log.resolve_all()
        except (OSError, DamagedError, *_REFUSALS) as failure:
            _log.warning("nats-stream-not-open", stream=stream.name, reason=str(failure))
            refused = [one for one in self._pending if one.stream is stream]
            self._pending = [one for one in self._pending if one.stream is not stream]
            refusal = error(
                ErrorCode.STREAM_STORE_FAILED, err=f"the stream cannot be read: {failure}"
            )
            for one in refused:
                self._refuse(stream, one.message, refusal)
        finally:
            self._waits = False
            self.flush()
            if not (self._waits or self._full or self._closed):
                self._release()

    def _store(self, stream: Stream, batch: list[NatsMessage], until: float) -> list[NatsMessage]:
        """Append messages to a stream; return those from the first on that has to wait.

        After the time `until` only one is checked.
        """
        now_ms = int(self._context.clock() * 1000)
        entry = _Entry(stream.ledger.next_index + 1)
        checked = stream.restricts or stream.ledger.terminated
        for place, message in enumerate(batch):
            if entry.is_full(len(message.payload) + len(message.headers)):
                self._append(stream, entry, now_ms)
                entry = _Entry(entry.next_sequence)
            if not (checked or message.headers) and _knows(stream, message.subject):
                _add(stream, entry, message, NO_CONDITIONS, now_ms)
                continue
            if place and time.monotonic() > until:
                self._append(stream, entry, now_ms)
                return batch[place:]
            try:
                found = check_message(stream, message, entry.next_sequence)
            except DuplicateMessage as duplicate:
                if duplicate.sequence >= entry.first:
                    # That message is on disk no sooner than this entry.
                    self._append(stream, entry, now_ms)
                    entry = _Entry(entry.next_sequence)
                self._acknowledge_duplicate(stream, message, duplicate.sequence)
            except JetStreamError as refusal:
                # What it is refused for, such as another revision, may not be on disk yet.
                self._append(stream, entry, now_ms)
                entry = _Entry(entry.next_sequence)
                refuse = partial(self._refuse, stream, message, refusal)
                self._context.store.after_sync(refuse)
            except UnresolvedSubject as unresolved:
                stream.log.unresolved[unresolved.subject] = unresolved.state
                self._append(stream, entry, now_ms)
                return batch[place:]
            else:
                _add(stream, entry, message, found, now_ms)
        self._append(stream, entry, now_ms)
        return []

    def _prepare(self, stream: Stream) -> None:
        """Raise what keeps the client from storing anything in the stream now."""
        if self._context.store.full:
            raise DiskFullError
        if stream.closed or stream.ledger.discarded:
            raise error(ErrorCode.STREAM_NOT_FOUND)
        if self._context.store.failed.done():
            raise StoreError("the store takes no more entries")
        if stream not in self._producers:
            self._add_producer(stream)

    def _add_producer(self, stream: Stream) -> None:
        if len(self._producers) >= MAX_PRODUCERS:
            raise NotAllowedError(f"a client publishes to at most {MAX_PRODUCERS} streams")
        self._context.check_schema(stream.topic)
        producer = Producer(
            link=self,
            producer_id=len(self._producers),
            name=self._context.new_producer_name(),
            epoch=0,
            generated=True,
            deduplicated=False,
            since_ms=int(self._context.clock() * 1000),
            flow=ConsumerFlow(time.monotonic()),
        )
        stream.partition.producers.add(producer)
        self._producers[stream] = producer
        if self._closed:
            stream.partition.producers.remove(producer)

    def _append(self, stream: Stream, entry: _Entry, now_ms: int) -> None:
        messages = entry.messages
        if not messages:
            return
        payload = pack(messages)
        entry_id = stream.ledger.append(
            payload,
            NATS_FORMAT,
            len(messages),
            now_ms,
            partial(self._stored, stream, entry),
            source=self._source,
        )
        if stream.log.indexer is not None:
            stream.log.indexer.appended(entry_id)
        if (producer := self._producers.get(stream)) is not None:
            producer.flow.messages += len(messages)
            producer.flow.bytes += len(payload)
        self._in_flight += entry.memory
        self._context.tally.entries += 1
        self._context.tally.messages += len(messages)
        self._context.tally.bytes += len(payload)

    def _stored(self, stream: Stream, entry: _Entry, entry_id: int) -> None:
        """Acknowledge messages that are on disk, behind what their rollups delete.

        The stream enforces its limits within the same step, before anything is sent.
        """
        self._in_flight -= entry.memory
        if self._full:
            self._relieve()
        if entry.rollups:
            self._context.tasks.start(self._roll_up(stream, entry, entry_id))
            return
        self._acknowledge(stream, entry, entry_id)

    def _acknowledge(self, stream: Stream, entry: _Entry, entry_id: int) -> None:
        interest = stream.interest
        if not stream.closed and interest.retention is Retention.INTEREST:
            places = (
                (sequence, message.subject)
                for sequence, message in enumerate(entry.messages, entry.first)
            )
            interest.stored(places, entry_id)
        if stream.config.no_ack:
            return
        publish, head = (
            self._context.hub.publish,
            b'{"stream":%b,"seq":' % orjson.dumps(stream.name),
        )
        sequence = entry.first
        for _, reply, _, _ in entry.messages:
            if reply:
                publish(NatsMessage(reply, payload=b"%b%d}" % (head, sequence)))
            sequence += 1

    async def _roll_up(self, stream: Stream, entry: _Entry, entry_id: int) -> None:
        try:
            for sequence, subject, kind in entry.rollups:
                if kind == ROLLUP_ALL:
                    await stream.log.delete_range(stream.log.first_sequence, sequence - 1)
                else:
                    await stream.log.delete_matching((subject,), sequence, sequence)
        except (OSError, StoreError) as failure:
            _log.error("nats-rollup-failed", stream=stream.name, reason=str(failure))
        # What was deleted does not come back once this is acknowledged.
        self._context.store.after_sync(partial(self._acknowledge, stream, entry, entry_id))

    def _acknowledge_duplicate(self, stream: Stream, message: NatsMessage, sequence: int) -> None:
        """Acknowledge a message that is stored already, when that one is on disk."""
        ack = PubAck(stream.name, sequence, duplicate=True)
        self._context.store.after_sync(partial(self._answer, stream, message, ack))

    def _refuse(self, stream: Stream, message: NatsMessage, refusal: JetStreamError) -> None:
        self._answer(stream, message, PubAck(stream.name, error=refusal))

    def _answer(self, stream: Stream, message: NatsMessage, ack: PubAck) -> None:
        if message.reply and not stream.config.no_ack:
            self._context.hub.publish(NatsMessage(message.reply, payload=ack.to_bytes()))


def _knows(stream: Stream, subject: str) -> bool:
    """Return whether a subject needs no entry in the index."""
    index = stream.log.index
    return index is None or subject in index.subjects


def _add(
    stream: Stream, entry: _Entry, message: NatsMessage, found: Conditions, now_ms: int
) -> None:
    """Add a message to the entry to be, and to what is known of its stream."""
    if found.headers:
        message = message._replace(headers=found.headers)
    subject, _, block, payload = message
    sequence, indexer, ids = entry.next_sequence, stream.log.indexer, stream.ids
    entry.messages.append(message)
    entry.size += len(payload) + len(block)
    if indexer is not None:
        indexer.add(subject, sequence, stored_size(subject, block, payload))
    ids.last = found.message_id
    if found is not NO_CONDITIONS:
        if found.message_id:
            since_ms = now_ms - stream.config.duplicate_window // NS_PER_MS
            ids.add(found.message_id, sequence, now_ms, since_ms)
        if found.rollup:
            entry.rollups.append(_Rollup(sequence, subject, found.rollup))
        if found.ttl_seconds and indexer is not None:
            place = sequence, subject, stored_size(subject, block, payload)
            marks = is_marker(block)
            indexer.deadlines.add(now_ms, found.ttl_seconds, place, is_marker=marks)


def _refusal(failure: Any) -> JetStreamError:
    if isinstance(failure, JetStreamError):
        return failure
    if isinstance(failure, RouterError) and not isinstance(failure, DiskFullError):
        return jetstream_error(failure)
    return error(ErrorCode.STREAM_STORE_FAILED, err=str(failure) or "the disk is full")
