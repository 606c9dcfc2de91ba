"""Publishing: one record batch in flight a partition, stored once however often it is sent.

Theory of operation. Each partition has a producer with a producer id of its own and the number of
the next record; Kafka drops a batch whose numbers it has seen, so that a batch is sent again, the
same bytes, until there is an answer or the deadline. Requests that come meanwhile are joined into
the next batch by the service above, which calls with up to 10,000 messages. A batch is stored whole
or not at all; what is larger than Kafka's usual bound (1 MiB) goes as several, and then a failure
may find some of them stored: `PartialPublishError` counts those.

When the deadline passes while an answer is outstanding, the producer takes a new id for what comes
next, since the number that Kafka expects is unknown; so it does when Kafka forgot the old one. The
alternatives: kafka-python's producer, one sequence for all partitions behind an event loop, costs
51 µs of CPU a message instead of 7; several batches in flight would need the order of failures
kept.

A batch with a name (`Batch.producer`, from an Idempotency-Key) goes as a transaction: see
`stored_once`.
"""

from __future__ import annotations

import time
from collections import OrderedDict
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from operator import itemgetter
from threading import Lock
from typing import Final

from router.backends import Receipt
from router.backends.kafka import apis
from router.backends.kafka.cluster import Cluster
from router.backends.kafka.failures import (
    CodeError,
    KafkaConnectionLostError,
    NoAnswerError,
    check,
    codes,
)
from router.errors import (
    BackendTimeoutError,
    EntryTooLargeError,
    NotSupportedError,
    OutcomeUnknownError,
    PartialPublishError,
    RouterError,
)
from router.model import Message, Position
from router.wire.kafka.record_batches import HEADER_BYTES
from router.wire.kafka.record_messages import weight, write_messages

MAX_BATCH_BYTES: Final = 1024 * 1024
MAX_PUBLISH_BYTES: Final = 5 * 1024 * 1024
MAX_PRODUCERS: Final = 10_000
_DELIVER_AT: Final = itemgetter(Message._fields.index("deliver_at"))
ALL_REPLICAS: Final = -1
PRODUCER_TIMEOUT_MS: Final = 60_000
MAX_SEQUENCE: Final = 2**31 - 1
STORED: Final = codes("NONE DUPLICATE_SEQUENCE_NUMBER")
_TOO_LARGE: Final = codes("MESSAGE_TOO_LARGE RECORD_LIST_TOO_LARGE")
_UNKNOWN: Final = codes("REQUEST_TIMED_OUT NOT_ENOUGH_REPLICAS_AFTER_APPEND")
_FORGOTTEN: Final = codes("OUT_OF_ORDER_SEQUENCE_NUMBER INVALID_PRODUCER_EPOCH UNKNOWN_PRODUCER_ID")

Send = Callable[[Sequence[Message]], int]
Part = tuple[int, int]
"""The offset of the first message that was stored together with others, and how many those are."""


@dataclass(eq=False, slots=True)
class PartitionProducer:
    """One partition's producer; `lock` is held by the call that sends."""

    topic: str
    partition: int
    lock: Lock = field(default_factory=Lock, init=False)
    id_and_epoch: tuple[int, int] | None = field(default=None, init=False)
    next: int = field(default=0, init=False)


class KafkaProducers:
    """The producers of a worker; calls may be made from many threads or greenlets."""

    def __init__(self, cluster: Cluster, wall_ms: Callable[[], int]) -> None:
        self._cluster = cluster
        self._wall_ms = wall_ms
        self._lock = Lock()
        self._producers: OrderedDict[tuple[str, int], PartitionProducer] = OrderedDict()

    def publish(
        self, topic: str, partition: int, messages: Sequence[Message], deadline: float
    ) -> list[Part]:
        """Store messages; return where they are, -1: Kafka did not say it again.

        Raises what `Backend.publish` raises.
        """
        producer = self._producer(topic, partition)
        if not producer.lock.acquire(timeout=max(0.0, deadline - time.monotonic())):
            raise BackendTimeoutError("Earlier publishes took too long.")
        try:
            return in_parts(messages, lambda part: self._send(producer, part, deadline))
        finally:
            producer.lock.release()

    def _producer(self, topic: str, partition: int) -> PartitionProducer:
        key = topic, partition
        with self._lock:
            producer = self._producers.get(key)
            if producer is None:
                if len(self._producers) >= MAX_PRODUCERS:
                    self._producers.popitem(last=False)
                producer = self._producers[key] = PartitionProducer(*key)
            self._producers.move_to_end(key)
            return producer

    def _send(
        self, producer: PartitionProducer, messages: Sequence[Message], deadline: float
    ) -> int:
        attempt = _Attempt(self._cluster, producer, messages, self._wall_ms())
        try:
            return self._cluster.persist(lambda: attempt.send(deadline), deadline)
        except RouterError as error:
            if not attempt.unknown:
                raise
            producer.id_and_epoch = None
            raise OutcomeUnknownError.because(error) from error
        except BaseException:
            producer.id_and_epoch = None  # broken off in the middle of anything
            raise


@dataclass(eq=False, slots=True)
class _Attempt:
    """One batch on its way; `unknown`: it was sent, and Kafka may have stored it."""

    _cluster: Cluster
    _producer: PartitionProducer
    _messages: Sequence[Message]
    _now_ms: int
    unknown: bool = field(default=False, init=False)
    _batch: bytearray | None = field(default=None, init=False)

    def send(self, deadline: float) -> int:
        """Send the batch once; return its first offset."""
        producer, count = self._producer, len(self._messages)
        if producer.id_and_epoch is None or producer.next + count > MAX_SEQUENCE:
            producer.id_and_epoch, producer.next = new_producer(self._cluster, deadline), 0
            self._batch = None
        if self._batch is None:
            self._batch = write_messages(
                self._messages, self._now_ms, producer.id_and_epoch, producer.next
            )
        try:
            code, offset = produce(
                self._cluster, producer.topic, producer.partition, self._batch, None, deadline
            )
        except NoAnswerError as error:
            self.unknown |= error.sent
            raise
        if code in _FORGOTTEN:
            producer.id_and_epoch = None
            # Sent once only, it is certainly not stored: it goes again under a new id.
            raise (
                KafkaConnectionLostError("Kafka forgot the producer")
                if not self.unknown
                else CodeError(code, f"topic {producer.topic}")
            )
        if code not in STORED:
            self.unknown |= code in _UNKNOWN
            self._cluster.check(producer.topic, code, f"topic {producer.topic}", deadline)
        producer.next += count
        return offset


def new_producer(cluster: Cluster, deadline: float) -> tuple[int, int]:
    """Return a new producer id and its epoch; raise CodeError, LostError, LateError."""
    request = apis.INIT_PRODUCER_ID(
        transactional_id=None, transaction_timeout_ms=PRODUCER_TIMEOUT_MS
    )
    answer = cluster.ask(request, deadline)
    check(answer.error_code, "producer id")
    return answer.producer_id, answer.producer_epoch


def produce(
    cluster: Cluster,
    topic: str,
    partition: int,
    batch: bytearray,
    transaction: str | None,
    deadline: float,
) -> tuple[int, int]:
    """Send a batch to the leader, to be stored by all replicas; return code and first offset."""
    data = {"index": partition, "records": batch}
    request = apis.PRODUCE(
        transactional_id=transaction,
        acks=ALL_REPLICAS,
        timeout_ms=max(1, int((deadline - time.monotonic()) * 1000)),
        topic_data=[{"name": topic, "partition_data": [data]}],
    )
    answer = cluster.ask_leader(topic, partition, request, deadline)
    (stored,) = answer.responses[0].partition_responses
    return stored.error_code, stored.base_offset


def check_fit(messages: Sequence[Message]) -> None:
    """Refuse what Kafka cannot store or delay; raise EntryTooLargeError, NotSupportedError."""
    if list(map(_DELIVER_AT, messages)).count(None) != len(messages):
        raise NotSupportedError("Kafka delivers messages at once: none has a time of delivery.")
    if sum(message.size() for message in messages) > MAX_PUBLISH_BYTES:
        raise EntryTooLargeError(f"a batch of more than {MAX_PUBLISH_BYTES} bytes cannot be stored")


def in_parts(messages: Sequence[Message], send: Send) -> list[Part]:
    """Send messages in batches of Kafka's usual size; return where each batch is.

    A batch that a topic with a smaller bound refuses goes in halves. Raises PartialPublishError
    once something is stored.
    """
    waiting = list(reversed(_parts(messages)))
    stored: list[Part] = []
    while waiting:
        part = waiting.pop()
        try:
            offset = send(part)
        except RouterError as error:
            if _too_large(error) and len(part) > 1:
                half = len(part) // 2
                waiting += [part[half:], part[:half]]
                continue
            if stored:
                count = sum(messages for _, messages in stored)
                raise PartialPublishError(str(error), stored=count) from error
            raise
        stored.append((offset, len(part)))
    return stored


def receipt(partition: int, parts: Sequence[Part]) -> Receipt:
    """Return the receipt of what was stored in parts of a partition, as the router numbers it."""
    return Receipt.joined(
        [Receipt(Position(0, offset, partition), count, flat=True) for offset, count in parts]
    )


def _too_large(error: RouterError) -> bool:
    cause = error.__cause__
    return isinstance(cause, CodeError) and cause.code in _TOO_LARGE


def _parts(messages: Sequence[Message]) -> list[Sequence[Message]]:
    max_bytes = MAX_BATCH_BYTES - HEADER_BYTES
    weights = [weight(message) for message in messages]
    if sum(weights) <= max_bytes:
        return [messages]
    parts: list[Sequence[Message]] = []
    begin = total = 0
    for at, size in enumerate(weights):
        if at > begin and total + size > max_bytes:
            parts.append(messages[begin:at])
            begin, total = at, 0
        total += size
    parts.append(messages[begin:])
    return parts
