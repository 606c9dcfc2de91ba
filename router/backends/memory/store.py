"""The backend whose topics, messages and cursors live in this process.

One lock guards everything; nothing waits while holding it, and mailboxes are woken after it is
released. Messages with a time of delivery are kept with it and handed over at once, as exclusive
consumers of the broker get them: there are no shared ones here.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from dataclasses import replace
from threading import Lock

from router.backends import Batch, Capabilities, Mailbox, Receipt, ResetTarget, Schemas, Start
from router.backends.memory.log import Cursor, Log, Topic, wake
from router.backends.memory.reading import MemoryConsumer, MemoryReader
from router.backends.memory.schemas import MemorySchemas
from router.errors import (
    BackendUnavailableError,
    BadRequestError,
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
    CursorState,
    PartitionStats,
    Policies,
    Position,
    Subscription,
    SubscriptionStats,
    TopicInfo,
    TopicName,
    TopicStats,
)
from router.schemas import Strategy

MAX_ENTRY = 5 * 1024 * 1024


class MemoryBackend:
    """A backend whose messages live in this process."""

    def __init__(
        self,
        *,
        auto_create: bool = True,
        auto_partitions: int = 0,
        compatibility: Strategy = Strategy.BACKWARD,
        wall_ms: Callable[[], int] = lambda: time.time_ns() // 1_000_000,
    ) -> None:
        self.lock = Lock()
        self.schemas: Schemas = MemorySchemas(self, compatibility)
        self._auto_create = auto_create
        self._auto_partitions = auto_partitions
        self._wall_ms = wall_ms
        self._topics: dict[TopicName, Topic] = {}
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
            position = log.append(batch.messages, self._wall_ms())
            receipt = Receipt(position, len(batch.messages))
            if batch.producer is not None:
                log.marks[batch.producer] = batch.sequence, receipt
            waiting = [c.consumer.mailbox for c in log.cursors.values() if c.consumer]
            waiting += [reader.mailbox for reader in log.readers]
        wake(waiting)
        return receipt

    def partitions(self, topic: TopicName, timeout: float) -> int:
        """Return the number of partitions; see the protocol."""
        del timeout
        with self.lock:
            self._check_open()
            return self.topic(topic).info.partitions

    def subscribe(self, subscription: Subscription, start: Start | int, timeout: float) -> None:
        """Make the subscription exist on all partitions; see the protocol."""
        del timeout
        with self.lock:
            self._check_open()
            for log in self.topic(subscription.topic).logs.values():
                if subscription.name not in log.cursors:
                    log.cursors[subscription.name] = Cursor(log.place(start))

    def reset(self, subscription: Subscription, to: ResetTarget, timeout: float) -> None:
        """Move an existing subscription; see the protocol."""
        del timeout
        waiting: list[Mailbox | None] = []
        with self.lock:
            self._check_open()
            found = self._cursors(subscription)
            for cursor, place in _places(found, to):
                cursor.reset(place)
                if cursor.consumer is not None:
                    waiting.append(cursor.consumer.end())
        wake(waiting)

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
            consumer = MemoryConsumer(self, log, cursor, generation, mailbox)
            cursor.consumer = consumer
            cursor.generation = max(cursor.generation, generation)
            return consumer

    def read(
        self,
        topic: TopicName,
        partition: int,
        start: Start | int | Position,
        mailbox: Mailbox,
        timeout: float,
    ) -> MemoryReader:
        """Open a reader at a position, an end or a time; see the protocol."""
        del timeout
        first = start if isinstance(start, Position) else None
        if first is not None and not first.may_be_of(partition):
            raise BadRequestError(f"{first} is no position of partition {partition}")
        with self.lock:
            log = self._log(topic, partition)
            place = 0 if isinstance(start, Position) else log.place(start)
            reader = MemoryReader(self, log, place, first, mailbox)
            log.readers.add(reader)
            return reader

    def acknowledge(
        self,
        subscription: Subscription,
        positions: Sequence[Position],
        cumulative: bool,
        timeout: float,
    ) -> None:
        """Acknowledge these messages alone, or each with all before it; see the protocol."""
        del timeout
        with self.lock:
            of = {log.ledger: (log, cursor) for log, cursor in self._cursors(subscription)}
            known = [
                (position, *of[position.ledger]) for position in positions if position.ledger in of
            ]
            if any(position.epoch not in {0, cursor.epoch} for position, _, cursor in known):
                raise FencedError("the subscription was reset since")
            for position, log, cursor in known:
                first, end = log.span(position)
                if first < end:
                    cursor.acknowledge(0 if cumulative else first, end)

    def cursors(self, subscription: Subscription, timeout: float) -> list[CursorState]:
        """Return where the subscription stands, by partition; see the protocol."""
        del timeout
        with self.lock:
            return [log.state(cursor) for log, cursor in self._cursors(subscription)]

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

    def create_on_demand(self, topic: TopicName, partitions: int, timeout: float) -> bool:
        """Create a topic that a client uses; see the protocol."""
        self.create_topic(topic, partitions, Policies(), {}, timeout)
        return True

    def delete_topic(self, topic: TopicName, timeout: float) -> None:
        """Delete a topic with its messages and subscriptions; see the protocol."""
        del timeout
        with self.lock:
            self._check_open()
            logs = self.topic(topic).logs.values()
            del self._topics[topic]
            waiting = _ended(logs)
        wake(waiting)

    def capabilities(self, timeout: float) -> Capabilities:
        """Return that nothing is missing."""
        del timeout
        return Capabilities()

    def grow_topic(self, topic: TopicName, partitions: int, timeout: float) -> None:
        """Give a partitioned topic more partitions; see the protocol."""
        del timeout
        with self.lock:
            found = self.topic(topic)
            has = found.info.partitions
            if not has or partitions < has:
                raise NotAllowedError(f"topic {topic.local} cannot have {partitions} partitions")
            for partition in range(has, partitions):
                self._ledgers += 1
                found.logs[partition] = log = Log(self._ledgers, partition)
                log.cursors = {name: Cursor(0) for name in found.logs[0].cursors}
            found.info = replace(found.info, partitions=partitions)

    def set_retention(
        self, topic: TopicName, ms: int | None, max_bytes: int | None, timeout: float
    ) -> None:
        """Change what a topic says that it keeps; here it keeps everything."""
        del timeout
        with self.lock:
            found = self.topic(topic)
            policies = replace(found.info.policies, retention_ms=ms, retention_bytes=max_bytes)
            found.info = replace(found.info, policies=policies)

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
            found = self.topic(topic)
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
                        name, partition, log.state(c).backlog, int(c.consumer is not None)
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
            waiting = _ended(log for topic in self._topics.values() for log in topic.logs.values())
        wake(waiting)

    def _check_open(self) -> None:
        if self._closed:
            raise BackendUnavailableError("the backend is closed")

    def topic(self, topic: TopicName) -> Topic:
        """Return a topic, with the lock held; raise TopicNotFoundError."""
        self._check_open()
        found = self._topics.get(topic)
        if found is None:
            raise TopicNotFoundError(f"there is no topic {topic.local}")
        return found

    def _log(self, topic: TopicName, partition: int) -> Log:
        found = self.topic(topic)
        if partition == NOT_PARTITIONED and found.info.partitions:
            raise NotAllowedError(f"topic {topic.local} is partitioned: name a partition")
        if partition not in found.logs:
            raise TopicNotFoundError(f"topic {topic.local} has no partition {partition}")
        return found.logs[partition]

    def _cursors(self, subscription: Subscription) -> list[tuple[Log, Cursor]]:
        name = subscription.name
        logs = self.topic(subscription.topic).logs.values()
        found = [(log, log.cursors[name]) for log in logs if name in log.cursors]
        if not found:
            raise SubscriptionNotFoundError(f"there is no subscription {name}")
        return found

    def _create(
        self, topic: TopicName, partitions: int, policies: Policies, properties: dict[str, str]
    ) -> None:
        kept = replace(policies, replicas=None)  # there are none
        found = Topic(TopicInfo(topic, partitions, kept, dict(properties), self._wall_ms()))
        for partition in range(partitions) if partitions else (NOT_PARTITIONED,):
            self._ledgers += 1
            found.logs[partition] = Log(self._ledgers, partition)
        self._topics[topic] = found


def _places(found: Sequence[tuple[Log, Cursor]], to: ResetTarget) -> list[tuple[Cursor, int]]:
    """Return what is moved, and how many messages are before the new place."""
    if not isinstance(to, tuple):
        return [(cursor, log.place(to)) for log, cursor in found]
    of = {log.partition: (log, cursor) for log, cursor in found}
    if not of.keys() >= {position.partition for position in to}:
        raise BadRequestError("there is no subscription on one of these partitions")
    moved = [(*of[position.partition], replace(position, batch_index=-1)) for position in to]
    return [(cursor, log.behind(position)) for log, cursor, position in moved]


def _ended(logs: Iterable[Log]) -> list[Mailbox]:
    """Let all consumers and readers go; return the mailboxes to be woken."""
    waiting: list[Mailbox] = []
    for log in logs:
        waiting += [c.consumer.end() for c in log.cursors.values() if c.consumer]
        waiting += [reader.end() for reader in list(log.readers)]
    return waiting
