"""The backend whose topics, messages and cursors live in this process.

One lock guards everything; nothing waits while holding it, and mailboxes are woken after it is
released. Messages with a time of delivery are kept with it and handed over at once, as exclusive
consumers of the broker get them: there are no shared ones here.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field, replace
from threading import Lock

from router.backends import (
    Batch,
    Capabilities,
    Positions,
    ReadStart,
    Receipt,
    ResetTarget,
    Schemas,
    Start,
    check_positions,
)
from router.backends.memory.log import MemoryConsumer, MemoryCursor, MemoryLog, MemoryReader
from router.clocks import wall_ms
from router.errors import (
    BackendUnavailableError,
    BadRequestError,
    EntryTooLargeError,
    FencedError,
    NotAllowedError,
    SchemaNotFoundError,
    SubscriptionBusyError,
    SubscriptionNotFoundError,
    TopicExistsError,
    TopicNotFoundError,
)
from router.model import (
    NOT_PARTITIONED,
    CursorState,
    Grant,
    Position,
    Schema,
    Subscription,
    TopicInfo,
    TopicName,
    TopicStats,
)
from router.node import Mailbox
from router.schemas import Strategy, place

MAX_ENTRY_BYTES = 5 * 1024 * 1024


@dataclass(slots=True)
class MemoryTopic:
    """A topic with its partitions and schemas."""

    info: TopicInfo
    logs: dict[int, MemoryLog] = field(default_factory=dict)
    schemas: list[Schema] = field(default_factory=list)


class MemoryBackend:
    """A backend whose messages live in this process."""

    def __init__(
        self,
        *,
        auto_create: bool = True,
        auto_partitions: int = 0,
        compatibility: Strategy = Strategy.BACKWARD,
        wall_ms: Callable[[], int] = wall_ms,
    ) -> None:
        self.lock = Lock()
        self.schemas: Schemas = MemorySchemas(self, compatibility)
        self._auto_create = auto_create
        self._auto_partitions = auto_partitions
        self._wall_ms = wall_ms
        self._topics: dict[TopicName, MemoryTopic] = {}
        self._ledgers = 0
        self._closed = False

    def publish(self, batch: Batch, timeout: float) -> Receipt:
        """Store all or raise; see the protocol."""
        if sum(message.size() for message in batch.messages) > MAX_ENTRY_BYTES:
            raise EntryTooLargeError(
                f"a batch of more than {MAX_ENTRY_BYTES} bytes cannot be stored"
            )
        with self.lock:
            self._check_open()
            if batch.topic not in self._topics and self._auto_create:
                self._create(TopicInfo(batch.topic, self._auto_partitions))
            log = self._log(batch.topic, batch.partition)
            receipt = log.append(batch, self._wall_ms())
            waiting = [reader.mailbox for reader in log.readers]
        _wake(waiting)
        return receipt

    def partitions(self, topic: TopicName, timeout: float) -> int:
        """Return the number of partitions; see the protocol."""
        with self.lock:
            return self.topic(topic).info.partitions

    def subscribe(self, subscription: Subscription, start: Start | int, timeout: float) -> None:
        """Make the subscription exist on all partitions; see the protocol."""
        with self.lock:
            for log in self.topic(subscription.topic).logs.values():
                if subscription.name not in log.cursors:
                    log.cursors[subscription.name] = MemoryCursor(log.before(start))

    def reset(self, subscription: Subscription, to: ResetTarget, timeout: float) -> None:
        """Move an existing subscription; see the protocol."""
        with self.lock:
            found = {log.partition: (log, cursor) for log, cursor in self._cursors(subscription)}
            starts = _starts(to, found.keys())
            for partition, start in starts.items():
                log, cursor = found[partition]
                cursor.reset(log.before(start))
            consumers = [found[partition][1].consumer for partition in starts]
            waiting = [consumer.end() for consumer in consumers if consumer is not None]
        _wake(waiting)

    def unsubscribe(self, subscription: Subscription, timeout: float) -> None:
        """Forget the subscription on all partitions; see the protocol."""
        with self.lock, suppress(SubscriptionNotFoundError):
            found = self._cursors(subscription)
            if consumers := sum(cursor.consumer is not None for _, cursor in found):
                raise SubscriptionBusyError(
                    f"{subscription.name} is read by {consumers} consumers", retry_after=1
                )
            for log, _ in found:
                del log.cursors[subscription.name]

    def consume(self, grant: Grant, mailbox: Mailbox, timeout: float) -> MemoryConsumer:
        """Open one partition of an existing subscription exclusively; see the protocol."""
        with self.lock:
            log, name = (
                self._log(grant.subscription.topic, grant.partition),
                grant.subscription.name,
            )
            cursor = log.cursors.get(name)
            if cursor is None:
                raise SubscriptionNotFoundError(f"there is no subscription {name}")
            if cursor.consumer is not None:
                raise SubscriptionBusyError
            return MemoryConsumer(log, cursor, grant.generation, mailbox)

    def read(
        self, topic: TopicName, partition: int, start: ReadStart, mailbox: Mailbox, timeout: float
    ) -> MemoryReader:
        """Open a reader at a position, an end or a time; see the protocol."""
        if isinstance(start, Position) and not start.may_be_of(partition):
            raise BadRequestError(f"{start} is no position of partition {partition}")
        with self.lock:
            log = self._log(topic, partition)
            first = start if isinstance(start, Position) else Start.EARLIEST
            return MemoryReader(log, MemoryCursor(log.before(start)), mailbox, first)

    def acknowledge(
        self, subscription: Subscription, positions: Positions, cumulative: bool, timeout: float
    ) -> None:
        """Acknowledge these messages alone, or each with all before it; see the protocol."""
        with self.lock:
            of = {log.ledger: (log, cursor) for log, cursor in self._cursors(subscription)}
            ends = {log.ledger: len(log.entries) for log, _ in of.values()}
            check_positions(positions, ends, subscription.topic)
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
        with self.lock:
            return [log.state(cursor) for log, cursor in self._cursors(subscription)]

    def create_topic(self, info: TopicInfo, timeout: float) -> None:
        """Create a topic; see the protocol."""
        with self.lock:
            self._check_open()
            if info.topic in self._topics:
                raise TopicExistsError(f"topic {info.topic.local} exists already")
            self._create(info)

    def create_on_demand(self, topic: TopicName, partitions: int, timeout: float) -> bool:
        """Create a topic that a client uses; see the protocol."""
        self.create_topic(TopicInfo(topic, partitions), timeout)
        return True

    def delete_topic(self, topic: TopicName, timeout: float) -> None:
        """Delete a topic with its messages and subscriptions; see the protocol."""
        with self.lock:
            logs = self.topic(topic).logs.values()
            del self._topics[topic]
            waiting = _ended(logs)
        _wake(waiting)

    def capabilities(self, timeout: float) -> Capabilities:
        """Return that nothing is missing."""
        return Capabilities()

    def grow_topic(self, topic: TopicName, partitions: int, timeout: float) -> None:
        """Give a partitioned topic more partitions; see the protocol."""
        with self.lock:
            found = self.topic(topic)
            has = found.info.partitions
            if not has or partitions < has:
                raise NotAllowedError(f"topic {topic.local} cannot have {partitions} partitions")
            for partition in range(has, partitions):
                log = self._add_log(found, partition)
                log.cursors = {name: MemoryCursor(0) for name in found.logs[0].cursors}
            found.info = replace(found.info, partitions=partitions)

    def set_retention(
        self, topic: TopicName, ms: int | None, max_bytes: int | None, timeout: float
    ) -> None:
        """Change what a topic says that it keeps; here it keeps everything."""
        with self.lock:
            found = self.topic(topic)
            policies = replace(found.info.policies, retention_ms=ms, retention_bytes=max_bytes)
            found.info = replace(found.info, policies=policies)

    def list_topics(self, timeout: float, *, internal: bool = False) -> list[TopicInfo]:
        """Return all topics of all namespaces, by name; see the protocol."""
        with self.lock:
            self._check_open()
            found = (self._topics[name].info for name in sorted(self._topics, key=str))
            return [info for info in found if internal or not info.internal]

    def describe_topic(self, topic: TopicName, timeout: float) -> TopicStats:
        """Return what a topic holds; see the protocol."""
        with self.lock:
            found = self.topic(topic)
            logs = found.logs.values()
            subscriptions = (one for log in logs for one in log.subscriptions())
            return TopicStats(found.info, tuple(log.stats() for log in logs), tuple(subscriptions))

    def ready(self, timeout: float) -> None:
        """Return unless closed."""
        with self.lock:
            self._check_open()

    def close(self) -> None:
        """Fail what comes; waiting polls wake and find their consumers closed."""
        with self.lock:
            self._closed = True
            waiting = _ended(log for topic in self._topics.values() for log in topic.logs.values())
        _wake(waiting)

    def _check_open(self) -> None:
        if self._closed:
            raise BackendUnavailableError("the backend is closed")

    def topic(self, topic: TopicName) -> MemoryTopic:
        """Return a topic, with the lock held; raise TopicNotFoundError."""
        self._check_open()
        found = self._topics.get(topic)
        if found is None:
            raise TopicNotFoundError(f"there is no topic {topic.local}")
        return found

    def _log(self, topic: TopicName, partition: int) -> MemoryLog:
        found = self.topic(topic)
        if partition == NOT_PARTITIONED and found.info.partitions:
            raise NotAllowedError(f"topic {topic.local} is partitioned: name a partition")
        if partition not in found.logs:
            raise TopicNotFoundError(f"topic {topic.local} has no partition {partition}")
        return found.logs[partition]

    def _cursors(self, subscription: Subscription) -> list[tuple[MemoryLog, MemoryCursor]]:
        name = subscription.name
        logs = self.topic(subscription.topic).logs.values()
        found = [(log, log.cursors[name]) for log in logs if name in log.cursors]
        if not found:
            raise SubscriptionNotFoundError(f"there is no subscription {name}")
        return found

    def _create(self, info: TopicInfo) -> None:
        kept = replace(info.policies, replicas=None)  # there are none
        found = MemoryTopic(replace(info, policies=kept, created_ms=self._wall_ms()))
        for partition in range(info.partitions) if info.partitions else (NOT_PARTITIONED,):
            self._add_log(found, partition)
        self._topics[info.topic] = found

    def _add_log(self, topic: MemoryTopic, partition: int) -> MemoryLog:
        self._ledgers += 1
        topic.logs[partition] = log = MemoryLog(self._ledgers, partition, self.lock)
        return log


class MemorySchemas:
    """The schemas of topics; see `Schemas`."""

    def __init__(self, backend: MemoryBackend, strategy: Strategy) -> None:
        self._backend = backend
        self._strategy = strategy

    def get(self, topic: TopicName, version: bytes | None, timeout: float) -> Schema:
        """Return a version, None: the newest one; see the protocol."""
        with self._backend.lock:
            schemas = self._backend.topic(topic).schemas
            found = [schema for schema in schemas if version in {None, schema.version}]
        if not found:
            raise SchemaNotFoundError(f"topic {topic.local} has no such schema")
        return found[-1]

    def put(self, topic: TopicName, schema: Schema, timeout: float) -> bytes:
        """Return the version of an equal schema, or of this one; see the protocol."""
        with self._backend.lock:
            schemas = self._backend.topic(topic).schemas
            at = place(schemas, schema, self._strategy)
            if at == len(schemas):
                schemas.append(replace(schema, version=at.to_bytes(8)))
            return schemas[at].version


def _starts(to: ResetTarget, partitions: Collection[int]) -> Mapping[int, ReadStart]:
    """Return where a subscription goes on, by partition."""
    if not isinstance(to, tuple):
        return dict.fromkeys(partitions, to)
    starts = {position.partition: replace(position, batch_index=-1) for position in to}
    if not starts.keys() <= set(partitions):
        raise BadRequestError("there is no subscription on one of these partitions")
    return starts


def _ended(logs: Iterable[MemoryLog]) -> list[Mailbox]:
    """Let all consumers and readers go; return the mailboxes to be woken."""
    return [reader.end() for log in logs for reader in list(log.readers)]


def _wake(mailboxes: Iterable[Mailbox]) -> None:
    """Wake waiting polls; the backend's lock must not be held."""
    for mailbox in mailboxes:
        mailbox.wake()
