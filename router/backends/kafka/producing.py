"""Publishing: one record batch in flight a partition, stored once however often it is sent.

Theory of operation. A *lane* belongs to a partition and has a producer id of its own and the number
of the next record; Kafka drops a batch whose numbers it has seen, so that a batch is sent again,
the same bytes, until there is an answer or the deadline. Requests that come meanwhile are joined
into the next batch by the service above, which calls with up to 10,000 messages. A batch is stored
whole or not at all; what is larger than Kafka's usual bound (1 MiB) goes as several, and then a
failure may find some of them stored: `PartialPublishError` counts those.

When the deadline passes while an answer is outstanding, the lane takes a new producer id for what
comes next, since nobody knows which number Kafka expects; so it does when Kafka forgot the old one.
The alternatives: kafka-python's producer, one sequence for all partitions behind an event loop,
costs 51 µs of CPU a message instead of 7; several batches in flight would need the order of
failures kept.

A batch with a name (`Batch.producer`, from an Idempotency-Key) goes as a transaction: see
`repeats`.
"""

from __future__ import annotations

import time
from collections import OrderedDict
from collections.abc import Callable, Sequence
from operator import itemgetter
from threading import Lock
from typing import Any, Final

from kafka.protocol.producer import InitProducerIdRequest, ProduceRequest

from router.backends import Receipt
from router.backends.kafka.cluster import Cluster
from router.backends.kafka.failures import (
    DUPLICATE,
    NOT_ENOUGH_REPLICAS_AFTER_APPEND,
    OLD_EPOCH,
    OUT_OF_ORDER,
    TIMED_OUT,
    TOO_LARGE,
    UNKNOWN_PRODUCER,
    CodeError,
    LateError,
    LostError,
    check,
)
from router.backends.kafka.records import HEADER, encode, weight
from router.errors import (
    BackendTimeoutError,
    NotSupportedError,
    OutcomeUnknownError,
    PartialPublishError,
    PublishRefusedError,
    RouterError,
)
from router.model import Message, Position

MAX_BATCH: Final = 1024 * 1024
MAX_ENTRY: Final = 5 * 1024 * 1024
MOST_LANES: Final = 10_000
_DELIVER_AT: Final = itemgetter(Message._fields.index("deliver_at"))
ALL_REPLICAS: Final = -1
LAST_SEQUENCE: Final = 2**31 - 1
_UNKNOWN: Final = frozenset({TIMED_OUT, NOT_ENOUGH_REPLICAS_AFTER_APPEND})
_FORGOTTEN: Final = frozenset({OUT_OF_ORDER, OLD_EPOCH, UNKNOWN_PRODUCER})

Send = Callable[[Sequence[Message]], int]
Part = tuple[int, int]
"""The offset of the first message that was stored together with others, and how many those are."""


class Lane:
    """One partition's producer; `lock` is held by the call that sends."""

    __slots__ = ("lock", "next", "producer")

    def __init__(self) -> None:
        self.lock = Lock()
        self.producer: tuple[int, int] | None = None
        self.next = 0


class Producers:
    """All lanes of a worker; calls may be made from many threads or greenlets."""

    def __init__(self, cluster: Cluster, wall_ms: Callable[[], int]) -> None:
        self._cluster = cluster
        self._wall_ms = wall_ms
        self._lock = Lock()
        self._lanes: OrderedDict[tuple[str, int], Lane] = OrderedDict()

    def publish(
        self, topic: str, partition: int, messages: Sequence[Message], deadline: float
    ) -> list[Part]:
        """Store messages; return where they are, -1: Kafka did not say it again.

        Raises what `Backend.publish` raises.
        """
        lane = self._lane(topic, partition)
        if not lane.lock.acquire(timeout=max(0.0, deadline - time.monotonic())):
            raise BackendTimeoutError("Earlier publishes took too long; none of these was stored.")
        try:
            return in_parts(
                messages, lambda part: self._send(lane, topic, partition, part, deadline)
            )
        finally:
            lane.lock.release()

    def _lane(self, topic: str, partition: int) -> Lane:
        key = topic, partition
        with self._lock:
            lane = self._lanes.get(key)
            if lane is None:
                if len(self._lanes) >= MOST_LANES:
                    self._lanes.popitem(last=False)
                lane = self._lanes[key] = Lane()
            self._lanes.move_to_end(key)
            return lane

    def _send(
        self, lane: Lane, topic: str, partition: int, messages: Sequence[Message], deadline: float
    ) -> int:
        attempt = _Attempt(self._cluster, lane, topic, partition, messages)
        attempt.now_ms = self._wall_ms()
        try:
            return self._cluster.persist(lambda: attempt.send(deadline), deadline)
        except RouterError as error:
            if not attempt.unknown:
                raise
            lane.producer = None
            raise OutcomeUnknownError.because(error) from error
        except BaseException:
            lane.producer = None  # broken off in the middle of anything
            raise


class _Attempt:
    """One batch on its way; `unknown`: it was sent, and Kafka may have stored it."""

    def __init__(
        self, cluster: Cluster, lane: Lane, topic: str, partition: int, messages: Sequence[Message]
    ) -> None:
        self.unknown = False
        self.now_ms = 0
        self._cluster = cluster
        self._lane = lane
        self._topic = topic
        self._partition = partition
        self._messages = messages
        self._batch: bytearray | None = None

    def send(self, deadline: float) -> int:
        """Send the batch once; return its first offset."""
        lane, count = self._lane, len(self._messages)
        if lane.producer is None or lane.next + count > LAST_SEQUENCE:
            lane.producer, lane.next = new_producer(self._cluster, deadline), 0
            self._batch = None
        if self._batch is None:
            self._batch = encode(self._messages, self.now_ms, lane.producer, lane.next)
        try:
            code, offset = produce(
                self._cluster, self._topic, self._partition, self._batch, None, deadline
            )
        except (LostError, LateError) as error:
            self.unknown |= error.sent
            raise
        if code in _FORGOTTEN:
            lane.producer = None
            # Sent once only, it is certainly not stored: it goes again under a new id.
            raise (
                LostError("Kafka forgot the producer")
                if not self.unknown
                else CodeError(code, f"topic {self._topic}")
            )
        if code not in {0, DUPLICATE}:
            self.unknown |= code in _UNKNOWN
            self._cluster.check(self._topic, code, f"topic {self._topic}", deadline)
        lane.next += count
        return offset


def new_producer(cluster: Cluster, deadline: float) -> tuple[int, int]:
    """Return a new producer id and its epoch; raise CodeError, LostError, LateError."""
    answer = cluster.ask(
        InitProducerIdRequest(
            transactional_id=None,
            transaction_timeout_ms=60_000,
            producer_id=-1,
            producer_epoch=-1,
            max_version=4,
        ),
        deadline,
    )
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
    of: Any = ProduceRequest.TopicProduceData
    data = of.PartitionProduceData(index=partition, records=batch)
    request = ProduceRequest(
        transactional_id=transaction,
        acks=ALL_REPLICAS,
        timeout_ms=max(1, int((deadline - time.monotonic()) * 1000)),
        topic_data=[of(name=topic, partition_data=[data])],
        max_version=9,
    )
    answer = cluster.ask_leader(topic, partition, request, deadline)
    (stored,) = answer.responses[0].partition_responses
    return stored.error_code, stored.base_offset


def check_fit(messages: Sequence[Message]) -> None:
    """Refuse what Kafka cannot store or delay; raise PublishRefusedError, NotSupportedError."""
    if list(map(_DELIVER_AT, messages)).count(None) != len(messages):
        raise NotSupportedError("Kafka delivers messages at once: none has a time of delivery.")
    if sum(message.size() for message in messages) > MAX_ENTRY:
        raise PublishRefusedError(f"a batch of more than {MAX_ENTRY} bytes cannot be stored")


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
    return isinstance(cause, CodeError) and cause.code in TOO_LARGE


def _parts(messages: Sequence[Message]) -> list[Sequence[Message]]:
    room = MAX_BATCH - HEADER.size
    weights = [weight(message) for message in messages]
    if sum(weights) <= room:
        return [messages]
    parts: list[Sequence[Message]] = []
    begin = total = 0
    for at, size in enumerate(weights):
        if at > begin and total + size > room:
            parts.append(messages[begin:at])
            begin, total = at, 0
        total += size
    parts.append(messages[begin:])
    return parts
