"""The backend whose messages live in Apache Kafka: names, groups and claims around its parts."""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from itertools import count
from threading import Condition
from typing import Final

from router.backends import Batch, Mailbox, Node, Receipt, Schemas, Start
from router.backends.kafka.acknowledging import Together, Whole
from router.backends.kafka.address import Access
from router.backends.kafka.admin import Admin
from router.backends.kafka.cluster import Cluster
from router.backends.kafka.consumer import Grant, KafkaConsumer
from router.backends.kafka.names import Names, kafka_partition
from router.backends.kafka.numbered import Numbered
from router.backends.kafka.offsets import (
    EARLIEST,
    LATEST,
    Commit,
    Offsets,
    epoch_of,
    new_epoch,
    note_of,
)
from router.backends.kafka.options import KafkaOptions
from router.backends.kafka.pool import Key, Pool
from router.backends.kafka.producing import Producers, check_fit, receipt
from router.backends.kafka.reader import Reader, Shown
from router.backends.kafka.reading import KafkaReader
from router.backends.kafka.repeats import Repeats
from router.backends.kafka.schemas import KafkaSchemas
from router.backends.kafka.transactions import Transaction
from router.errors import (
    BackendTimeoutError,
    BackendUnavailableError,
    BadRequestError,
    ConsumerClosedError,
    SubscriptionBusyError,
    SubscriptionNotFoundError,
    TopicExistsError,
    TopicNotFoundError,
)
from router.model import (
    CursorState,
    Policies,
    Position,
    Subscription,
    TopicInfo,
    TopicName,
    TopicStats,
)
from router.schemas import Strategy

# Longer than an acknowledgement takes from its look at the group's epoch to its commit.
SETTLE: Final = 0.1
READER: Final = "\0reader-"  # no group that anybody has
_readers = count(1)
_STARTS = {Start.EARLIEST: EARLIEST, Start.LATEST: LATEST}


class KafkaBackend:
    """A store of topics in Apache Kafka; see `Backend`."""

    def __init__(self, access: Access, options: KafkaOptions, node: Node) -> None:
        self._options = options
        self._node = node
        self._names = Names(options.tenant, options.namespace, options.group)
        self._cluster = Cluster(access)
        self._offsets = Offsets(self._cluster)
        self._producers = Producers(self._cluster, wall_ms)
        self._repeats = Repeats(self._cluster, self._offsets, wall_ms)
        self._pool = Pool(self._reader, options.consumers)
        self._together = Together(
            self._offsets,
            node,
            lambda of, deadline: self._outlast(of.group, of.name, (of.number,), deadline),
        )
        strategy = Strategy(options.compatibility)
        self._kept = KafkaSchemas(
            self._cluster, self._offsets, self._producers, self._names, strategy, options.replicas
        )
        self.schemas: Schemas = self._kept
        # Guards the two below, and is never held over I/O.
        self._changed = Condition()
        self._open: dict[Key, KafkaConsumer] = {}
        self._resetting: set[tuple[str, str]] = set()

    def publish(self, batch: Batch, timeout: float) -> Receipt:
        """Store all or raise; see the protocol.

        A batch larger than Kafka's usual bound is stored in several, and PartialPublishError tells
        how many messages are stored when a later one fails.
        """
        check_fit(batch.messages)
        deadline = time.monotonic() + timeout
        try:
            return self._publish(batch, deadline)
        except TopicNotFoundError:
            if not self._options.auto_create or self._exists(batch.topic, deadline):
                raise
        self._create(TopicInfo(batch.topic, self._options.auto_partitions), deadline)
        return self._publish(batch, deadline)

    def _publish(self, batch: Batch, deadline: float) -> Receipt:
        name = self._names.topic(batch.topic)
        if batch.producer is not None:
            return self._repeats.publish(name, batch, deadline)
        partition = kafka_partition(batch.partition)
        parts = self._producers.publish(name, partition, batch.messages, deadline)
        return receipt(batch.partition, parts)

    def numbered(self, name: str) -> Numbered:
        """Return the batches that are stored under a name, each whole and once."""
        return Numbered(self._cluster, self._offsets, self._names.topic, name, wall_ms)

    def _exists(self, topic: TopicName, deadline: float) -> bool:
        try:
            self._count(self._names.topic(topic), deadline)
        except TopicNotFoundError:
            return False
        return True

    def _create(self, info: TopicInfo, deadline: float) -> None:
        try:
            self._admin().create(info, self._options.replicas, deadline)
        except TopicExistsError:
            pass  # another publisher was first

    def partitions(self, topic: TopicName, timeout: float) -> int:
        """Return the number of partitions; see the protocol. One is none."""
        count = self._count(self._names.topic(topic), time.monotonic() + timeout)
        return count if count > 1 else 0

    def _count(self, name: str, deadline: float) -> int:
        return self._cluster.persist(lambda: self._cluster.partitions(name, deadline), deadline)

    def subscribe(self, subscription: Subscription, start: Start | int, timeout: float) -> None:
        """Make the subscription exist on all partitions; see the protocol.

        On partitions that were added since it was made it begins at the first message.
        """
        deadline = time.monotonic() + timeout
        name = self._names.topic(subscription.topic)
        group = self._names.group(subscription.name, name)
        partitions = range(self._count(name, deadline))
        # Where it begins is found out before what there is: should another make it meanwhile, what
        # is published after that lies behind both.
        begin = self._offsets.at(name, partitions, _time(start), deadline)
        have = self._offsets.committed(group, name, partitions, deadline)
        missing = [partition for partition in partitions if partition not in have]
        if have and missing:
            begin = self._offsets.at(name, missing, EARLIEST, deadline)
        note = note_of(new_epoch())
        self._offsets.commit(group, name, {p: begin[p] for p in missing}, note, deadline)

    def reset(self, subscription: Subscription, to: Start | int, timeout: float) -> None:
        """Move an existing subscription on all partitions; see the protocol.

        Its consumers in this worker are closed first, and none opens before it is moved. Those of
        other workers and nodes meet the new epoch when they acknowledge.
        """
        deadline = time.monotonic() + timeout
        name = self._names.topic(subscription.topic)
        group = self._names.group(subscription.name, name)
        partitions = range(self._count(name, deadline))
        before = self._offsets.committed(group, name, partitions, deadline)
        if not before:
            raise SubscriptionNotFoundError(f"there is no subscription {subscription.name}")
        offsets = self._offsets.at(name, partitions, _time(to), deadline)
        with self._closed_to_consumers(group, name, deadline):
            self._move(group, name, before, offsets, deadline)

    @contextmanager
    def _closed_to_consumers(self, group: str, name: str, deadline: float) -> Iterator[None]:
        """Close the consumers of a group here, and let none open meanwhile."""
        with self._changed:
            self._wait_for_resets(group, name, deadline)
            self._resetting.add((group, name))
            opened = [c for k, c in self._open.items() if (k.group, k.topic) == (group, name)]
        try:
            for consumer in opened:
                consumer.end(deadline)
            self._pool.end(name, group, ConsumerClosedError("the subscription was reset"))
            yield
        finally:
            with self._changed:
                self._resetting.discard((group, name))
                self._changed.notify_all()

    def _wait_for_resets(self, group: str, name: str, deadline: float) -> None:
        left = max(0.001, deadline - time.monotonic())
        if not self._changed.wait_for(lambda: (group, name) not in self._resetting, left):
            raise BackendTimeoutError(f"A reset of {group} on {name} takes too long.")

    def _move(
        self,
        group: str,
        name: str,
        before: Mapping[int, Commit],
        offsets: Mapping[int, int],
        deadline: float,
    ) -> None:
        """Commit where a group stands from now on, under a new epoch.

        Kafka cannot refuse the commit of a worker that looked at the epoch just before. So it looks
        again when those are over, or fenced if Kafka does that, and says it once more where one of
        them, under the epoch of before, came after.
        """
        note = note_of(new_epoch())
        self._offsets.commit(group, name, offsets, note, deadline)
        self._outlast(group, name, offsets, deadline)
        after = self._offsets.committed(group, name, offsets, deadline)
        undone = [p for p, c in after.items() if epoch_of(c) == epoch_of(before.get(p))]
        self._offsets.commit(group, name, {p: offsets[p] for p in undone}, note, deadline)

    def _outlast(self, group: str, name: str, partitions: Iterable[int], deadline: float) -> None:
        """Return when commits of those who looked before are over, or fenced."""
        if self._options.fenced_by_kafka:
            for partition in partitions:
                self._transaction(Key(group, name, partition), deadline)
        else:
            time.sleep(max(0.0, min(SETTLE, deadline - time.monotonic())))

    def unsubscribe(self, subscription: Subscription, timeout: float) -> None:
        """Forget the subscription on all partitions; see the protocol."""
        deadline = time.monotonic() + timeout
        name = self._names.topic(subscription.topic)
        group = self._names.group(subscription.name, name)
        partitions = range(self._count(name, deadline))
        if self._pool.in_use(group, name):
            raise SubscriptionBusyError(f"somebody reads {name} as {subscription.name}")
        self._pool.end(name, group, BackendUnavailableError("the subscription is forgotten"))
        self._offsets.delete(group, name, partitions, deadline)

    def consume(
        self,
        subscription: Subscription,
        partition: int,
        generation: int,
        mailbox: Mailbox,
        timeout: float,
    ) -> KafkaConsumer:
        """Open one partition of an existing subscription exclusively; see the protocol."""
        deadline = time.monotonic() + timeout
        name = self._names.topic(subscription.topic)
        group = self._names.group(subscription.name, name)
        key = Key(group, name, partition)
        reader = self._pool.take(key)
        try:
            grant = Grant(subscription, partition, generation, group)
            consumer = KafkaConsumer(
                self._node, self._together, grant, reader, lambda: self._closed(key, reader)
            )
            with self._changed:
                self._wait_for_resets(group, name, deadline)
                self._open[key] = consumer  # a reset from now on ends it
            transaction = self._transaction(key, deadline)
            number = kafka_partition(partition)
            committed = self._offsets.committed(group, name, (number,), deadline).get(number)
            offset = self._added(key, deadline) if committed is None else committed.offset
            consumer.start(mailbox, offset, committed, transaction, deadline)
        except BaseException:
            self._closed(key, reader)
            raise
        return consumer

    def _transaction(self, key: Key, deadline: float) -> Transaction | None:
        """Fence whoever opened this partition before, where Kafka is to do that."""
        if not self._options.fenced_by_kafka:
            return None
        transaction = Transaction(
            self._cluster, f"router-fence-{key.group}-{key.topic}-{kafka_partition(key.partition)}"
        )
        transaction.begin(deadline)
        return transaction

    def _added(self, key: Key, deadline: float) -> int:
        """Return where a group begins on a partition that it knows nothing of.

        Raises SubscriptionNotFoundError unless it knows others, TopicNotFoundError.
        """
        number = kafka_partition(key.partition)
        count = self._count(key.topic, deadline)
        if number >= count:
            raise TopicNotFoundError(f"topic {key.topic} has no partition {number}")
        if not self._offsets.committed(key.group, key.topic, range(count), deadline):
            raise SubscriptionNotFoundError(f"there is no subscription {key.group} on {key.topic}")
        return self._offsets.at(key.topic, (number,), EARLIEST, deadline)[number]

    def _reader(self, key: Key) -> Reader:
        shown = Shown(kafka_partition(key.partition), key.partition)
        idle = self._options.consumer_idle
        return Reader(self._cluster, self._offsets, key.topic, shown, idle)

    def _closed(self, key: Key, reader: Reader) -> None:
        with self._changed:
            self._open.pop(key, None)
        self._pool.give_back(key, reader)

    def read(
        self,
        topic: TopicName,
        partition: int,
        start: Start | int | Position,
        mailbox: Mailbox,
        timeout: float,
    ) -> KafkaReader:
        """Open a reader at a position, an end or a time; see the protocol.

        It counts among the `kafka.consumers` of this worker: SubscriptionBusyError beyond.
        """
        deadline = time.monotonic() + timeout
        if isinstance(start, Position) and (start.ledger or not start.may_be_of(partition)):
            raise BadRequestError(f"{start} is no position of partition {partition} of {topic}")
        name, number = self._names.topic(topic), kafka_partition(partition)
        first = start.entry if isinstance(start, Position) else 0
        where = LATEST if isinstance(start, Position) else _time(start)
        offset = self._offsets.at(name, (number,), where, deadline)[number]
        if isinstance(start, Position):
            offset = min(first, offset)
        key = Key(f"{READER}{next(_readers)}", name, partition)
        reader = self._pool.take(key)
        reader.attach(mailbox, offset, 0)
        return KafkaReader(self._offsets, reader, first, lambda: self._pool.drop(key, reader))

    def acknowledge(
        self,
        subscription: Subscription,
        positions: Sequence[Position],
        cumulative: bool,
        timeout: float,
    ) -> None:
        """Acknowledge these messages alone, or each with all before it; see the protocol."""
        deadline = time.monotonic() + timeout
        whole = self._whole(subscription, deadline)
        self._together.acknowledge(whole, positions, cumulative, deadline)

    def cursors(self, subscription: Subscription, timeout: float) -> list[CursorState]:
        """Return where the subscription stands, by partition; see the protocol."""
        deadline = time.monotonic() + timeout
        return self._together.states(self._whole(subscription, deadline), deadline)

    def _whole(self, subscription: Subscription, deadline: float) -> Whole:
        name = self._names.topic(subscription.topic)
        group = self._names.group(subscription.name, name)
        return Whole(subscription.topic, group, name, self._count(name, deadline))

    def create_topic(
        self,
        topic: TopicName,
        partitions: int,
        policies: Policies,
        properties: dict[str, str],
        timeout: float,
    ) -> None:
        """Create a topic; see the protocol."""
        info = TopicInfo(topic, partitions, policies, properties)
        self._admin().create(info, self._options.replicas, time.monotonic() + timeout)

    def delete_topic(self, topic: TopicName, timeout: float) -> None:
        """Delete a topic with its messages and subscriptions; see the protocol."""
        name, deadline = self._names.topic(topic), time.monotonic() + timeout
        topic_id = self._kept.topic_id(topic, deadline)
        self._admin().delete(name, deadline)
        self._kept.forget(topic_id, deadline)
        self._pool.end(name, None, BackendUnavailableError(f"topic {name} was deleted"))

    def list_topics(self, timeout: float) -> list[TopicInfo]:
        """Return all topics of all namespaces, by name."""
        return self._admin().topics(time.monotonic() + timeout)

    def describe_topic(self, topic: TopicName, timeout: float) -> TopicStats:
        """Return what a topic holds; see the protocol. Consumers are those of this process."""
        return self._admin().describe(topic, self._pool.in_use, time.monotonic() + timeout)

    def ready(self, timeout: float) -> None:
        """Return if a broker answers a question; see the protocol."""
        deadline = time.monotonic() + timeout
        self._cluster.persist(lambda: self._cluster.metadata(None, deadline), deadline)

    def close(self) -> None:
        """Release connections and threads; see the protocol."""
        self._pool.close()
        self._cluster.close()

    def _admin(self) -> Admin:
        return Admin(self._cluster, self._offsets, self._names, self._node.registry, wall_ms)


def _time(start: Start | int) -> int:
    return _STARTS[start] if isinstance(start, Start) else max(0, start)


def wall_ms() -> int:
    """Return the time of day in milliseconds since 1970, as messages carry it."""
    return time.time_ns() // 1_000_000
