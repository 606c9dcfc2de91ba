"""The topics, messages and cursors of the memory backend.

Theory of operation. One lock guards everything; nothing waits while holding it, and mailboxes are
woken after it is released. A partition is a flat list of messages in which a batch occupies
neighbouring places, so that a cursor is one number: how many messages are acknowledged. Keeping
entries and acknowledgement sets as the broker does would test nothing of the broker and cost the
fake its simplicity.
"""

from __future__ import annotations

import time
from bisect import bisect_right
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from itertools import count
from threading import Lock

from router.backends import Batch, Mailbox, Receipt, Start
from router.errors import (
    BackendUnavailableError,
    ConsumerClosedError,
    FencedError,
    NotAllowedError,
    PublishRefusedError,
    SubscriptionBusyError,
    SubscriptionNotFoundError,
    TopicExistsError,
    TopicNotFoundError,
)
from router.model import (
    NOT_PARTITIONED,
    Message,
    PartitionStats,
    Policies,
    Position,
    Stored,
    Subscription,
    SubscriptionStats,
    TopicInfo,
    TopicName,
    TopicStats,
)

MAX_ENTRY = 5 * 1024 * 1024
Key = tuple[int, int]
_epochs = count(1)


class _Cursor:
    """One subscription's place in one partition: `acked` messages are done with."""

    __slots__ = ("acked", "consumer", "epoch", "generation")

    def __init__(self, acked: int) -> None:
        self.acked = acked
        self.consumer: MemoryConsumer | None = None
        self.generation = 0
        self.epoch = next(_epochs)


class _Log:
    """The messages of one partition, with the subscriptions on it."""

    __slots__ = ("bytes", "cursors", "keys", "ledger", "marks", "messages", "next_entry")

    def __init__(self, ledger: int) -> None:
        self.ledger = ledger
        self.next_entry = 0
        self.bytes = 0
        self.messages: list[Stored] = []
        self.keys: list[Key] = []
        self.cursors: dict[str, _Cursor] = {}
        self.marks: dict[str, tuple[int, Receipt]] = {}

    def append(self, partition: int, messages: Sequence[Message], now_ms: int) -> Position:
        entry, self.next_entry = self.next_entry, self.next_entry + 1
        single = len(messages) == 1
        for index, message in enumerate(messages):
            position = Position(
                self.ledger,
                entry,
                partition,
                -1 if single else index,
                0 if single else len(messages),
            )
            self.messages.append(Stored(message, position, now_ms))
            self.keys.append((entry, position.batch_index))
            self.bytes += message.size()
        return Position(self.ledger, entry, partition)

    def place(self, start: Start | int) -> int:
        """Return how many messages are before a start."""
        if start is Start.EARLIEST:
            return 0
        if start is Start.LATEST:
            return len(self.messages)
        later = (i for i, stored in enumerate(self.messages) if stored.publish_time >= start)
        return next(later, len(self.messages))


@dataclass(slots=True)
class _Topic:
    info: TopicInfo
    logs: dict[int, _Log] = field(default_factory=dict)


class MemoryConsumer:
    """An exclusive reader of one partition of a subscription, open while its claim stands."""

    __slots__ = (
        "_backend",
        "_closed",
        "_cursor",
        "_epoch",
        "_log",
        "_next",
        "generation",
        "mailbox",
        "partition",
    )

    def __init__(
        self, backend: MemoryBackend, log: _Log, cursor: _Cursor, partition: int, generation: int
    ) -> None:
        self.partition = partition
        self.generation = generation
        self.mailbox: Mailbox | None = None
        self._backend = backend
        self._log = log
        self._cursor = cursor
        self._next = cursor.acked
        self._epoch = cursor.epoch
        self._closed = False

    def receive(self, limit: int, max_bytes: int, timeout: float) -> list[Stored]:
        """Return what is stored and was not received yet; see the protocol."""
        del timeout
        with self._backend.lock:
            if self._closed:
                raise ConsumerClosedError("this consumer is closed")
            start = self._next = max(self._next, self._cursor.acked)
            size = 0
            found: list[Stored] = []
            for stored in self._log.messages[start : start + max(1, limit)]:
                size += stored.message.size()
                if found and size > max_bytes:
                    break
                found.append(stored)
            self._next += len(found)
            epoch = self._epoch
            return [replace(s, position=replace(s.position, epoch=epoch)) for s in found]

    def acknowledge(self, upto: Position, timeout: float) -> None:
        """Acknowledge everything up to and including this message; see the protocol."""
        del timeout
        with self._backend.lock:
            stale = upto.epoch and upto.epoch != self._epoch
            if self._closed or stale or self.generation < self._cursor.generation:
                raise FencedError
            key = (upto.entry, upto.batch_index)
            acked = bisect_right(self._log.keys, key) if upto.ledger == self._log.ledger else 0
            self._cursor.acked = max(self._cursor.acked, acked)

    def close(self) -> None:
        """Let go; see the protocol."""
        with self._backend.lock:
            self.end()

    def end(self) -> Mailbox | None:
        """Let go, with the backend's lock held; return the mailbox to be woken, if any."""
        self._closed = True
        if self._cursor.consumer is self:
            self._cursor.consumer = None
        return self.mailbox


class MemoryBackend:
    """A backend whose messages live in this process."""

    def __init__(
        self,
        *,
        auto_create: bool = True,
        auto_partitions: int = 0,
        wall_ms: Callable[[], int] = lambda: time.time_ns() // 1_000_000,
    ) -> None:
        self.lock = Lock()
        self._auto_create = auto_create
        self._auto_partitions = auto_partitions
        self._wall_ms = wall_ms
        self._topics: dict[TopicName, _Topic] = {}
        self._ledgers = 0
        self._closed = False

    def publish(self, batch: Batch, timeout: float) -> Receipt:
        """Store all or raise; see the protocol."""
        del timeout
        if sum(message.size() for message in batch.messages) > MAX_ENTRY:
            raise PublishRefusedError(f"a batch of more than {MAX_ENTRY} bytes cannot be stored")
        with self.lock:
            self._check_open()
            if batch.topic not in self._topics and self._auto_create:
                self._create(batch.topic, self._auto_partitions, Policies(), {})
            log = self._log(batch.topic, batch.partition)
            if batch.producer is not None:
                sequence, receipt = log.marks.get(batch.producer, (-1, None))
                if receipt is not None and batch.sequence <= sequence:
                    return Receipt(receipt.position, receipt.stored, duplicate=True)
            position = log.append(batch.partition, batch.messages, self._wall_ms())
            receipt = Receipt(position, len(batch.messages))
            if batch.producer is not None:
                log.marks[batch.producer] = batch.sequence, receipt
            waiting = [c.consumer.mailbox for c in log.cursors.values() if c.consumer]
        _wake(waiting)
        return receipt

    def partitions(self, topic: TopicName, timeout: float) -> int:
        """Return the number of partitions; see the protocol."""
        del timeout
        with self.lock:
            self._check_open()
            return self._topic(topic).info.partitions

    def subscribe(self, subscription: Subscription, start: Start | int, timeout: float) -> None:
        """Make the subscription exist on all partitions; see the protocol."""
        del timeout
        with self.lock:
            self._check_open()
            for log in self._topic(subscription.topic).logs.values():
                if subscription.name not in log.cursors:
                    log.cursors[subscription.name] = _Cursor(log.place(start))

    def reset(self, subscription: Subscription, to: Start | int, timeout: float) -> None:
        """Move an existing subscription on all partitions; see the protocol."""
        del timeout
        waiting: list[Mailbox | None] = []
        with self.lock:
            self._check_open()
            for log, cursor in self._cursors(subscription):
                cursor.acked = log.place(to)
                cursor.epoch = next(_epochs)
                if cursor.consumer is not None:
                    waiting.append(cursor.consumer.end())
        _wake(waiting)

    def unsubscribe(self, subscription: Subscription, timeout: float) -> None:
        """Forget the subscription on all partitions; see the protocol."""
        del timeout
        with self.lock:
            self._check_open()
            with suppress(SubscriptionNotFoundError):
                found = self._cursors(subscription)
                if consumers := sum(cursor.consumer is not None for _, cursor in found):
                    raise SubscriptionBusyError(
                        f"{subscription.name} is read by {consumers} consumers", retry_after=1
                    )
                for log, _ in found:
                    del log.cursors[subscription.name]

    def consume(
        self,
        subscription: Subscription,
        partition: int,
        generation: int,
        mailbox: Mailbox,
        timeout: float,
    ) -> MemoryConsumer:
        """Open one partition of an existing subscription exclusively; see the protocol."""
        del timeout
        with self.lock:
            self._check_open()
            log = self._log(subscription.topic, partition)
            cursor = log.cursors.get(subscription.name)
            if cursor is None:
                raise SubscriptionNotFoundError(f"there is no subscription {subscription.name}")
            if cursor.consumer is not None:
                raise SubscriptionBusyError
            consumer = MemoryConsumer(self, log, cursor, partition, generation)
            consumer.mailbox = mailbox
            cursor.consumer = consumer
            cursor.generation = max(cursor.generation, generation)
            return consumer

    def create_topic(
        self,
        topic: TopicName,
        partitions: int,
        policies: Policies,
        properties: dict[str, str],
        timeout: float,
    ) -> None:
        """Create a topic; see the protocol."""
        del timeout
        with self.lock:
            self._check_open()
            if topic in self._topics:
                raise TopicExistsError(f"topic {topic.local} exists already")
            self._create(topic, partitions, policies, properties)

    def delete_topic(self, topic: TopicName, timeout: float) -> None:
        """Delete a topic with its messages and subscriptions; see the protocol."""
        del timeout
        with self.lock:
            self._check_open()
            logs = self._topic(topic).logs.values()
            del self._topics[topic]
            waiting = [c.consumer.end() for g in logs for c in g.cursors.values() if c.consumer]
        _wake(waiting)

    def list_topics(self, timeout: float) -> list[TopicInfo]:
        """Return all topics of all namespaces, by name."""
        del timeout
        with self.lock:
            self._check_open()
            return [self._topics[name].info for name in sorted(self._topics, key=str)]

    def describe_topic(self, topic: TopicName, timeout: float) -> TopicStats:
        """Return what a topic holds; see the protocol."""
        del timeout
        with self.lock:
            self._check_open()
            found = self._topic(topic)
            return TopicStats(
                found.info,
                tuple(
                    PartitionStats(
                        partition, log.ledger, 0, log.next_entry, len(log.messages), log.bytes, 0
                    )
                    for partition, log in found.logs.items()
                ),
                tuple(
                    SubscriptionStats(
                        name, partition, len(log.messages) - c.acked, int(c.consumer is not None)
                    )
                    for partition, log in found.logs.items()
                    for name, c in log.cursors.items()
                ),
            )

    def ready(self, timeout: float) -> None:
        """Return unless closed."""
        del timeout
        with self.lock:
            self._check_open()

    def close(self) -> None:
        """Fail what comes; waiting polls wake and find their consumers closed."""
        with self.lock:
            self._closed = True
            cursors = [
                c
                for t in self._topics.values()
                for g in t.logs.values()
                for c in g.cursors.values()
            ]
            waiting = [c.consumer.end() for c in cursors if c.consumer]
        _wake(waiting)

    def _check_open(self) -> None:
        if self._closed:
            raise BackendUnavailableError("the backend is closed")

    def _topic(self, topic: TopicName) -> _Topic:
        found = self._topics.get(topic)
        if found is None:
            raise TopicNotFoundError(f"there is no topic {topic.local}")
        return found

    def _log(self, topic: TopicName, partition: int) -> _Log:
        found = self._topic(topic)
        if partition == NOT_PARTITIONED and found.info.partitions:
            raise NotAllowedError(f"topic {topic.local} is partitioned: name a partition")
        if partition not in found.logs:
            raise TopicNotFoundError(f"topic {topic.local} has no partition {partition}")
        return found.logs[partition]

    def _cursors(self, subscription: Subscription) -> list[tuple[_Log, _Cursor]]:
        name = subscription.name
        logs = self._topic(subscription.topic).logs.values()
        found = [(log, log.cursors[name]) for log in logs if name in log.cursors]
        if not found:
            raise SubscriptionNotFoundError(f"there is no subscription {name}")
        return found

    def _create(
        self, topic: TopicName, partitions: int, policies: Policies, properties: dict[str, str]
    ) -> None:
        kept = replace(policies, replicas=None)  # there are none
        found = _Topic(TopicInfo(topic, partitions, kept, dict(properties), self._wall_ms()))
        for partition in range(partitions) if partitions else (NOT_PARTITIONED,):
            self._ledgers += 1
            found.logs[partition] = _Log(self._ledgers)
        self._topics[topic] = found


def _wake(mailboxes: Sequence[Mailbox | None]) -> None:
    for mailbox in mailboxes:
        if mailbox is not None:
            mailbox.wake()
