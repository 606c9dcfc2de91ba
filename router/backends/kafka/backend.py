"""The backend whose messages live in Apache Kafka: names, groups and claims around its parts."""

from __future__ import annotations

import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace
from itertools import count
from typing import Final

import structlog

from router.backends import (
    Batch,
    Capabilities,
    Positions,
    ReadStart,
    Receipt,
    ResetTarget,
    Schemas,
    Start,
)
from router.backends.kafka.acknowledging import GroupTopic, SharedCommits
from router.backends.kafka.admin import Admin
from router.backends.kafka.cluster import Cluster, shown_id
from router.backends.kafka.committing import CommitQueue
from router.backends.kafka.consumer import KafkaConsumer, KafkaReader
from router.backends.kafka.groups import KafkaGroups
from router.backends.kafka.known_topics import KnownTopics
from router.backends.kafka.names import Names, kafka_partition
from router.backends.kafka.offsets import EARLIEST, LATEST, Offsets
from router.backends.kafka.options import KafkaConnectionOptions, KafkaOptions
from router.backends.kafka.producing import KafkaProducers, check_fit, receipt
from router.backends.kafka.reader import PartitionNumbers, PrefetchingReader
from router.backends.kafka.reader_pool import ReaderKey, ReaderPool
from router.backends.kafka.schemas import KafkaSchemas
from router.backends.kafka.stored_once import Numbered, Repeats
from router.backends.kafka.transactions import KafkaTransactions
from router.clocks import seconds_left, wall_ms
from router.errors import (
    BackendUnavailableError,
    BadRequestError,
    NotAllowedError,
    SubscriptionNotFoundError,
    TopicExistsError,
    TopicNotFoundError,
)
from router.model import (
    CursorState,
    Grant,
    Position,
    Subscription,
    TopicInfo,
    TopicName,
    TopicStats,
)
from router.node import Mailbox, Node
from router.schemas import Strategy

NO_GROWTH: Final = "Kafka's own tools add partitions: kafka-topics.sh --alter --partitions"
NO_RETENTION: Final = "Kafka's own tools change what a topic keeps: kafka-configs.sh --alter"
READER: Final = "\0reader-"  # no name of a group
_readers = count(1)
_log = structlog.get_logger(__name__)
_STARTS = {Start.EARLIEST: EARLIEST, Start.LATEST: LATEST}


class KafkaBackend:
    """A store of topics in Apache Kafka; see `Backend`."""

    def __init__(self, access: KafkaConnectionOptions, options: KafkaOptions, node: Node) -> None:
        self._options = options
        self._node = node
        self._names = Names(options.tenant, options.namespace, options.group)
        self._cluster = Cluster(access)
        self._offsets = Offsets(self._cluster)
        self._producers = KafkaProducers(self._cluster, wall_ms)
        self._repeats = Repeats(self._cluster, self._offsets, wall_ms)
        self._pool = ReaderPool(self._reader, options.consumers)
        self._known = KnownTopics(node.registry, self._names, wall_ms)
        self._fenced = options.fenced_by_kafka
        fence = self._transaction if self._fenced else None
        self._groups = KafkaGroups(self._offsets, self._known, self._pool, fence)
        self._together = SharedCommits(
            self._offsets,
            node,
            lambda of, deadline: self._groups.outlast(of.group, of.name, (of.number,), deadline),
        )
        strategy = Strategy(options.compatibility)
        self._commits = CommitQueue(node, self._offsets)
        self._kept = KafkaSchemas(
            self._cluster, self._offsets, self._producers, self._names, strategy, options.replicas
        )
        self.schemas: Schemas = self._kept

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
        with suppress(TopicExistsError):  # another publisher was first
            self.create_on_demand(
                batch.topic, self._options.auto_partitions, seconds_left(deadline)
            )
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

    def partitions(self, topic: TopicName, timeout: float) -> int:
        """Return the number of partitions; see the protocol. One is none."""
        count = self._count(self._names.topic(topic), time.monotonic() + timeout)
        return count if count > 1 else 0

    def _count(self, name: str, deadline: float) -> int:
        cluster = self._cluster
        count = cluster.persist(lambda: cluster.partitions(name, deadline), deadline)
        if (topic_id := cluster.topic_id(name)) is not None:
            self._known.saw(name, topic_id, count, deadline)
        return count

    def subscribe(self, subscription: Subscription, start: Start | int, timeout: float) -> None:
        """Make the subscription exist on all partitions; see the protocol.

        On partitions that were added since it was made it begins at the first message.
        """
        deadline = time.monotonic() + timeout
        whole = self._whole(subscription, deadline)
        topic_id = self._cluster.topic_id(whole.name)
        self._groups.subscribe(whole, topic_id, _time(start), deadline)

    def reset(self, subscription: Subscription, to: ResetTarget, timeout: float) -> None:
        """Move an existing subscription; see the protocol."""
        deadline = time.monotonic() + timeout
        self._node.recall(subscription.topic, subscription.name, timeout)
        whole = self._whole(subscription, deadline)
        self._groups.reset(whole, to if isinstance(to, tuple) else _time(to), deadline)

    def unsubscribe(self, subscription: Subscription, timeout: float) -> None:
        """Forget the subscription on all partitions; see the protocol."""
        deadline = time.monotonic() + timeout
        self._node.recall(subscription.topic, subscription.name, timeout)
        whole = self._whole(subscription, deadline)
        topic_id = self._cluster.topic_id(whole.name)
        self._groups.unsubscribe(whole, subscription.name, topic_id, deadline)

    def consume(self, grant: Grant, mailbox: Mailbox, timeout: float) -> KafkaConsumer:
        """Open one partition of an existing subscription exclusively; see the protocol."""
        deadline = time.monotonic() + timeout
        name = self._names.topic(grant.subscription.topic)
        group = self._names.group(grant.subscription.name, name)
        key = ReaderKey(group, name, grant.partition)
        if not self._known.is_noted(name, self._cluster.topic_id(name), group):
            self._whole(grant.subscription, deadline)
        reader = self._pool.take(key)
        try:
            consumer = KafkaConsumer(
                self._node,
                self._together,
                self._commits,
                grant,
                group,
                reader,
                lambda: self._closed(key, reader),
            )
            self._groups.opened(key, consumer, deadline)
            transaction = self._transaction(key, deadline) if self._fenced else None
            number = kafka_partition(grant.partition)
            committed = self._offsets.settled(group, name, (number,), deadline).get(number)
            offset = self._added(key, deadline) if committed is None else committed.offset
            consumer.start(mailbox, offset, committed, transaction, deadline)
        except BaseException:
            self._closed(key, reader)
            raise
        return consumer

    def _transaction(self, key: ReaderKey, deadline: float) -> KafkaTransactions:
        """Have Kafka refuse the commits of consumers that opened this partition before."""
        transaction = KafkaTransactions(
            self._cluster, f"router-fence-{key.group}-{key.topic}-{kafka_partition(key.partition)}"
        )
        transaction.begin(deadline)
        return transaction

    def _added(self, key: ReaderKey, deadline: float) -> int:
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

    def _reader(self, key: ReaderKey) -> PrefetchingReader:
        numbers, options = (
            PartitionNumbers(kafka_partition(key.partition), key.partition),
            self._options,
        )
        idle, limit = options.consumer_idle, options.max_inflated
        return PrefetchingReader(self._cluster, self._offsets, key.topic, numbers, idle, limit)

    def _closed(self, key: ReaderKey, reader: PrefetchingReader) -> None:
        self._groups.closed(key)
        self._pool.give_back(key, reader)

    def read(
        self, topic: TopicName, partition: int, start: ReadStart, mailbox: Mailbox, timeout: float
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
        key = ReaderKey(f"{READER}{next(_readers)}", name, partition)
        reader = self._pool.take(key)
        reader.attach(mailbox, offset, 0)
        return KafkaReader(self._offsets, reader, first, lambda: self._pool.drop(key, reader))

    def acknowledge(
        self, subscription: Subscription, positions: Positions, cumulative: bool, timeout: float
    ) -> None:
        """Acknowledge these messages alone, or each with all before it; see the protocol."""
        deadline = time.monotonic() + timeout
        whole = self._whole(subscription, deadline)
        self._together.acknowledge(whole, positions, cumulative, deadline)

    def cursors(self, subscription: Subscription, timeout: float) -> list[CursorState]:
        """Return where the subscription stands, by partition; see the protocol."""
        deadline = time.monotonic() + timeout
        return self._together.states(self._whole(subscription, deadline), deadline)

    def _whole(self, subscription: Subscription, deadline: float) -> GroupTopic:
        name = self._names.topic(subscription.topic)
        group = self._names.group(subscription.name, name)
        whole = GroupTopic(subscription.topic, group, name, self._count(name, deadline))
        self._groups.resume(whole, self._cluster.topic_id(name), deadline)
        return whole

    def create_topic(self, info: TopicInfo, timeout: float) -> None:
        """Create a topic; see the protocol."""
        self._admin().create(info, self._options.replicas, time.monotonic() + timeout)

    def create_on_demand(self, topic: TopicName, partitions: int, timeout: float) -> bool:
        """Create a topic that a client uses, as it was if it is known; see the protocol."""
        name, deadline = self._names.topic(topic), time.monotonic() + timeout
        former = self._known.former(name, deadline)
        info = TopicInfo(topic, partitions) if former is None else replace(former, topic=topic)
        self._admin().create(info, self._options.replicas, deadline)
        if former is not None:
            _log.warning(
                "topic-deleted-in-kafka",
                topic=name,
                partitions=info.partitions,
                effect="it is created again as it was, and groups begin at its first message",
            )
        return former is None

    def delete_topic(self, topic: TopicName, timeout: float) -> None:
        """Delete a topic with its messages and subscriptions; see the protocol."""
        name, deadline = self._names.topic(topic), time.monotonic() + timeout
        topic_id = self._kept.topic_id(topic, deadline)
        self._node.recall(topic, None, timeout)
        self._admin().delete(name, deadline)
        self._kept.forget(topic_id, deadline)
        self._pool.end(name, None, BackendUnavailableError(f"topic {name} was deleted"))

    def capabilities(self, timeout: float) -> Capabilities:
        """Return what is left to Kafka's own tools; see the protocol."""
        del timeout
        return Capabilities(retention=NO_RETENTION, grow=NO_GROWTH)

    def grow_topic(self, topic: TopicName, partitions: int, timeout: float) -> None:
        """Raise NotAllowedError."""
        raise NotAllowedError(NO_GROWTH)

    def set_retention(
        self, topic: TopicName, ms: int | None, max_bytes: int | None, timeout: float
    ) -> None:
        """Raise NotAllowedError."""
        raise NotAllowedError(NO_RETENTION)

    def list_topics(self, timeout: float, *, internal: bool = False) -> list[TopicInfo]:
        """Return all topics of all namespaces, by name; see the protocol."""
        return self._admin().topics(time.monotonic() + timeout, internal=internal)

    def identities(self, topics: Sequence[TopicName], timeout: float) -> dict[TopicName, str]:
        """Return Kafka's ids of the topics that are there: one that is made again has another."""
        names = {self._names.topic(topic): topic for topic in topics}
        deadline = time.monotonic() + timeout
        answer = self._cluster.persist(
            lambda: self._cluster.metadata(list(names), deadline), deadline
        )
        return {
            names[topic.name]: shown_id(topic)
            for topic in answer.topics
            if not topic.error_code and any(topic.topic_id)
        }

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
        return Admin(self._cluster, self._offsets, self._names, self._node.registry, self._known)


def _time(start: Start | int) -> int:
    return _STARTS[start] if isinstance(start, Start) else max(0, start)
