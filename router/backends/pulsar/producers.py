"""The producers of a worker: one for each partition that it publishes to, opened when needed.

Theory of operation. A producer is used by one publish at a time, in turns: its sequence numbers
must reach the broker in order, as a number that comes late looks like one that was stored already.
Whoever publishes keeps the turn until the receipt is there. When the connection goes meanwhile, the
same entry is sent again under the same name and number on the next one, until the deadline; our
broker stores it once. Callers join messages to batches, so that a turn carries many of them.

The number of producers is bounded: those unused for a while are closed, and the least recently
used ones when there are too many. A producer that a caller names (an idempotency key) lives for one
publish only.

Locks: a producer's `turn` is waited for with a deadline and held through the round trip: it is a
claim on the producer, and guards nothing else. `_sweeping` is only ever tried. A producer is taken
out of the table under its turn and marked `gone`; who waited for that turn then takes a new one.
"""

from __future__ import annotations

import time
import uuid
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from itertools import groupby
from operator import itemgetter
from threading import Lock
from typing import Any, Final

from router.backends import Batch, Receipt
from router.backends.pulsar.routes import Routes
from router.clocks.backoff import Backoff
from router.errors import (
    BackendTimeoutError,
    BackendUnavailableError,
    EntryTooLargeError,
    NotServedError,
    OutcomeUnknownError,
    PartialPublishError,
    RouterError,
)
from router.model import Message, Position, TopicName
from router.pulsar_client.connection import PulsarConnection, PulsarConnectionLostError
from router.pulsar_client.refusals import ProducerNameBusyError
from router.wire.pulsar import OURS, encode, is_batch, pack, shared_header
from router.wire.pulsar import pulsar_pb2 as pb

MAX_PRODUCERS: Final = 4096
IDLE_SECONDS: Final = 120.0
MIN_PAUSE_SECONDS: Final = 0.02
MAX_PAUSE_SECONDS: Final = 0.5
Place = tuple[TopicName, int]
"""A topic, and the number of a partition."""
_NONE: Final = 1 << 63
_DELIVER_AT: Final = itemgetter(Message._fields.index("deliver_at"))
_SCHEMA_VERSION: Final = itemgetter(Message._fields.index("schema_version"))
_REPLICATE_TO: Final = itemgetter(Message._fields.index("replicate_to"))
_DEDUP: Final = (pb.KeyValue(key="router-dedup", value="true"),)


@dataclass(eq=False, slots=True)
class NamedProducer:
    """A name under which one partition is published to, on one connection at a time."""

    place: Place
    name: str
    topic: str = field(init=False)
    sequence: int = field(default=0, init=False)
    used: float = field(default=0.0, init=False)
    gone: bool = field(default=False, init=False)
    turn: Lock = field(default_factory=Lock, init=False)
    connection: PulsarConnection | None = field(default=None, init=False)
    number: int = field(default=0, init=False)
    _epoch: int = field(default=0, init=False)

    def __post_init__(self) -> None:
        topic, partition = self.place
        self.topic = str(topic.partition(partition))

    @property
    def live_connection(self) -> PulsarConnection | None:
        """Return the connection on which the broker knows it, None: there is none."""
        connection = self.connection
        if connection is None or connection.error is not None:
            return None
        return connection if self.number in connection.producers else None

    def release(self, now: float) -> None:
        """Let the next publish have its turn."""
        self.used = now
        self.turn.release()

    def open(self, connection: PulsarConnection, deadline: float) -> None:
        """Be known to the broker on this connection; raise what it answers."""
        if self.live_connection is connection:
            return
        request_id, self.number = connection.next_id(), connection.next_id()
        self.connection = connection
        command = pb.CommandProducer(
            topic=self.topic,
            producer_id=self.number,
            request_id=request_id,
            producer_name=self.name,
            user_provided_producer_name=True,
            epoch=self._epoch,
            metadata=_DEDUP if connection.ours else (),
        )
        self._epoch += 1
        connection.producers.add(self.number)
        try:
            success = connection.call(
                request_id, pb.BaseCommand(type=pb.BaseCommand.PRODUCER, producer=command), deadline
            )
        except BaseException:
            # After a timeout the broker may hold the name; closing an unknown one is no harm.
            self.close()
            raise
        self.sequence = max(self.sequence, success.last_sequence_id + 1)

    def send(
        self, sequence: int, messages: int, payload: bytes, deadline: float, source: bytes
    ) -> Any:
        """Send an entry and return its receipt; raise what the broker answers, LostError."""
        connection = self.connection
        if connection is None:
            raise PulsarConnectionLostError
        command = pb.CommandSend(
            producer_id=self.number, sequence_id=sequence, num_messages=messages
        )
        if source and connection.ours:
            command.source = source
        frame = encode(pb.BaseCommand(type=pb.BaseCommand.SEND, send=command), payload)
        key = self.number, sequence
        reply = connection.ask(key, frame)
        return connection.take(key, reply, deadline)

    def close(self) -> None:
        """Tell the broker that the name is free; its answer is of no interest."""
        connection, self.connection = self.connection, None
        if connection is None or connection.error is not None:
            return
        connection.producers.discard(self.number)
        command = pb.CommandCloseProducer(producer_id=self.number, request_id=connection.next_id())
        connection.send(
            encode(pb.BaseCommand(type=pb.BaseCommand.CLOSE_PRODUCER, close_producer=command))
        )


@dataclass(eq=False, slots=True)
class Publishing:
    """One batch on its way: the same name, number and bytes at every attempt."""

    batch: Batch
    producer: NamedProducer
    _wall_ns: Callable[[], int]
    payload: bytes = field(default=b"", init=False)
    sequence: int = field(default=0, init=False)
    sent: bool = field(default=False, init=False)

    def attempt(self, max_message: int, deadline: float) -> Receipt:
        """Send it on the producer's connection; raise what the broker answers, LostError."""
        batch, producer = self.batch, self.producer
        self.pack(max_message)
        self.sent = True
        count = len(batch.messages)
        receipt = producer.send(self.sequence, count, self.payload, deadline, batch.source)
        known = batch.producer is not None and receipt.HasField("stored_messages")
        count = receipt.stored_messages if known else len(batch.messages)
        alone = count == 1 and is_batch(batch.messages[:1], producer.name)
        position = _position(receipt.message_id, batch.partition, alone)
        # Apache Pulsar says of a duplicate neither where it is nor how many messages it has.
        duplicate = known or (batch.producer is not None and position.ledger < 0)
        return Receipt(position, count, duplicate)

    def pack(self, max_message: int) -> None:
        """Give it its number and its bytes, unless it has them; raise PublishRefusedError."""
        if self.payload:
            return
        batch, producer = self.batch, self.producer
        if batch.producer is None:
            self.sequence, producer.sequence = producer.sequence, producer.sequence + 1
        else:
            self.sequence = batch.sequence
        now_ms = self._wall_ns() // 1_000_000
        self.payload = pack(batch.messages, producer.name, self.sequence, now_ms)
        if len(self.payload) > max_message:
            raise EntryTooLargeError(
                f"an entry of {len(self.payload)} bytes exceeds the backend's {max_message}"
            )


class NamedProducers:
    """The producers of one backend."""

    def __init__(
        self,
        routes: Routes,
        wall_ns: Callable[[], int],
        *,
        limit: int = MAX_PRODUCERS,
        idle: float = IDLE_SECONDS,
    ) -> None:
        self._routes = routes
        self._wall_ns = wall_ns
        self._limit = limit
        self._idle = idle
        self._name = f"{OURS}{uuid.uuid4().hex}"
        self._table: dict[Place, NamedProducer] = {}
        self._sweeping = Lock()
        self._sweep_at = 0.0

    def publish(self, batch: Batch, timeout: float) -> Receipt:
        """Store a batch; see `Backend.publish`.

        What cannot be one entry is stored as several, and PartialPublishError tells how many
        messages are stored when a later one fails.
        """
        deadline = time.monotonic() + timeout
        if alike(batch.messages):
            return self._publish(batch, deadline)
        stored: list[Receipt] = []
        for part in _parts(batch):
            try:
                stored.append(self._publish(part, deadline))
            except RouterError as error:
                if not stored:
                    raise
                count = sum(receipt.stored for receipt in stored)
                raise PartialPublishError(str(error), stored=count) from error
        return Receipt.joined(stored)

    def _publish(self, batch: Batch, deadline: float) -> Receipt:
        place = batch.topic, batch.partition
        if batch.producer is not None:
            producer = NamedProducer(place, batch.producer)
            try:
                return self.deliver(Publishing(batch, producer, self._wall_ns), deadline)
            finally:
                producer.close()
        producer = self._take_turn(place, deadline)
        try:
            return self.deliver(Publishing(batch, producer, self._wall_ns), deadline)
        finally:
            producer.release(time.monotonic())

    def ready(self, place: Place) -> NamedProducer | None:
        """Return the producer of a partition if our own broker knows it, without waiting."""
        producer = self._table.get(place)
        if producer is None:
            return None
        connection = producer.live_connection
        return producer if connection is not None and connection.ours else None

    def begin(self, batch: Batch, now: float) -> Publishing | None:
        """Return a batch that has the turn of its partition's producer, None: it has to wait."""
        if now >= self._sweep_at:
            self._sweep(now)
        producer = self.ready((batch.topic, batch.partition))
        if producer is None or not producer.turn.acquire(blocking=False):
            return None
        if producer.gone:
            producer.turn.release()
            return None
        return Publishing(batch, producer, self._wall_ns)

    def close(self) -> None:
        """Free the names; publishes under way go on until the connection is closed."""
        for producer in list(self._table.values()):
            producer.close()

    def size(self) -> int:
        """Return how many producers are kept."""
        return len(self._table)

    def deliver(self, publishing: Publishing, deadline: float) -> Receipt:
        """Send a batch until there is an answer; the caller holds the producer's turn."""
        pauses: Backoff | None = None
        producer = publishing.producer
        connection = producer.live_connection
        while True:
            try:
                if connection is None:
                    connection = self._routes.connection(producer.topic, deadline)
                    producer.open(connection, deadline)
                return publishing.attempt(connection.max_message, deadline)
            except NotServedError as error:
                if publishing.sent:
                    raise OutcomeUnknownError.because(error) from error
                raise
            except BackendTimeoutError as error:
                if publishing.sent:
                    raise OutcomeUnknownError.because(error) from error
                raise BackendUnavailableError(
                    "the backend did not take the messages in time; none is stored"
                ) from error
            except (BackendUnavailableError, ProducerNameBusyError) as error:
                left = deadline - time.monotonic()
                if left <= 0 and publishing.sent:
                    raise OutcomeUnknownError.because(error) from error
                if left <= 0:
                    raise
                connection = None
                self._routes.forget(producer.topic)
                # A broker in trouble, or with too much to do, gets time.
                pauses = pauses or Backoff(MIN_PAUSE_SECONDS, MAX_PAUSE_SECONDS)
                time.sleep(min(pauses.next(), left))

    def _take_turn(self, place: Place, deadline: float) -> NamedProducer:
        """Return the producer of a partition, whose turn the caller then holds."""
        now = time.monotonic()
        if now >= self._sweep_at:
            self._sweep(now)
        while True:
            producer = self._table.get(place) or self._add(place, now)
            if not producer.turn.acquire(timeout=max(0.0, deadline - now)):
                raise BackendTimeoutError("Earlier publishes took too long.")
            if not producer.gone:
                return producer
            producer.turn.release()

    def _add(self, place: Place, now: float) -> NamedProducer:
        producer = NamedProducer(place, self._name)
        producer.used = now
        producer = self._table.setdefault(place, producer)
        if len(self._table) > self._limit:
            self._sweep(now)
        return producer

    def _sweep(self, now: float) -> None:
        """Close the producers that are unused for long, and the longest unused of too many."""
        if not self._sweeping.acquire(blocking=False):
            return
        try:
            self._sweep_at = now + self._idle / 4
            oldest = sorted(self._table.values(), key=lambda producer: producer.used)
            # Some more than must go, so that not every publish to a new topic has to sweep.
            surplus = len(oldest) - self._limit + self._limit // 16
            surplus = surplus if len(oldest) > self._limit else 0
            for rank, producer in enumerate(oldest):
                if rank >= surplus and producer.used >= now - self._idle:
                    return
                self._retire(producer)
        finally:
            self._sweeping.release()

    def _retire(self, producer: NamedProducer) -> None:
        if producer.turn.acquire(blocking=False):
            producer.gone = True
            del self._table[producer.place]
            producer.close()
            producer.turn.release()


def alike(messages: Sequence[Message]) -> bool:
    """Return whether messages can share an entry; in little time, as it is asked of all."""
    count, first = len(messages), messages[0]
    return count == 1 or (
        list(map(_DELIVER_AT, messages)).count(first.deliver_at) == count
        and list(map(_SCHEMA_VERSION, messages)).count(first.schema_version) == count
        and list(map(_REPLICATE_TO, messages)).count(first.replicate_to) == count
    )


def _parts(batch: Batch) -> list[Batch]:
    """Return what of a batch shares an entry each, in order; a name goes on with numbers."""
    groups = [list(group) for _, group in groupby(batch.messages, shared_header)]
    name = batch.producer
    return [
        replace(batch, messages=group, producer=f"{name}/{number}" if name and number else name)
        for number, group in enumerate(groups)
    ]


def _position(where: pb.MessageIdData, partition: int, alone: bool) -> Position:
    """Return the place of a receipt; an old duplicate's is not known, and none on the wire.

    `alone`: it is a batch of one message.
    """
    if where.ledgerId >= _NONE:
        return Position(-1, -1, partition)
    if alone:
        return Position(where.ledgerId, where.entryId, partition, 0, 1)
    return Position(where.ledgerId, where.entryId, partition)
