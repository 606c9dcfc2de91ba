"""Topics that are not persistent: connected consumers get what is sent, and nothing is stored.

Theory of operation. A topic exists as long as it has a producer or a consumer, a subscription as
long as it has a consumer. An entry goes to one consumer of each subscription, at once; if that one
has no permit, or its connection is not writable, the entry is dropped and counted. So there is no
ledger, no cursor, and no way to go back.

Producers, consumers and their connections are those of stored partitions. Subscriptions are not:
all that a stored one does is about its cursor, and the path of stored entries would have to ask at
each step which kind it serves.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Final

from router.broker.consume.consumer import ClientConsumer, SubscriptionType
from router.broker.consume.entry_info import EntryFormat, UnreadableEntryError
from router.broker.consume.membership.hashing import slot_of_hash
from router.broker.consume.membership.key_slots import Assignment, HashRangeError, Ranges, Ring
from router.broker.consume.producers import Producer, ProducerAccess, ProducerTable
from router.broker.storage import Ack, Entry
from router.errors import NotAllowedError, SubscriptionBusyError, SubscriptionLimitError
from router.model import NOT_PARTITIONED, TopicName

LEDGER_ID: Final = 0
ENTRY_ID: Final = 0
"""All entries have the same position, which means none."""
NOT_STORED: Final = -1
"""The number of an entry that is not stored."""

Stored = Callable[[int], None]
"""Called with the id of an entry that was handed over."""


class NonPersistentPartition:
    """A topic in use; `unused` is called when its last producer or consumer left.

    `messages` and `bytes` count what came in, `dropped` the messages that a subscription, or the
    topic without one, did not deliver.
    """

    id: Final = LEDGER_ID
    index: Final = NOT_PARTITIONED

    def __init__(
        self,
        name: TopicName,
        formats: Mapping[int, EntryFormat],
        max_subscriptions: int,
        unused: Callable[[NonPersistentPartition], None],
    ) -> None:
        self.name = name
        self.topic_name = str(name)
        self.formats = formats
        self.closed = False
        self.producers = _SharedProducers(self.drop_if_unused)
        self.subscriptions: dict[str, NonPersistentSubscription] = {}
        self.messages = self.bytes = self.dropped = 0
        self._max_subscriptions = max_subscriptions
        self._unused = unused

    def append(
        self, payload: bytes, tag: int, messages: int, now_ms: int, done: Stored, *_mark: object
    ) -> int:
        """Hand an entry to every subscription and call `done`; return its id, as all have it.

        It is called as `Ledger.append` is; what a producer stored is not remembered here.
        """
        self.messages += messages
        self.bytes += len(payload)
        if not self.subscriptions:
            self.dropped += messages
        entry = Entry(ENTRY_ID, NOT_STORED, now_ms, tag, messages, payload)
        # A consumer that is closed in between changes the table.
        for subscription in list(self.subscriptions.values()):
            subscription.deliver(entry)
        done(ENTRY_ID)
        return ENTRY_ID

    def subscription(self, name: str, kind: SubscriptionType) -> NonPersistentSubscription:
        """Return a subscription; a missing one is created. Raises SubscriptionLimitError."""
        found = self.subscriptions.get(name)
        if found is None:
            if len(self.subscriptions) >= self._max_subscriptions:
                self.drop_if_unused()
                raise SubscriptionLimitError(
                    f"the topic has {self._max_subscriptions} subscriptions already"
                )
            found = self.subscriptions[name] = NonPersistentSubscription(self, name, kind)
        return found

    def close(self) -> None:
        """Close all producers and consumers, with a notice: the topic is deleted."""
        self.closed = True
        self.producers.close_all(NotAllowedError("the topic was deleted"))
        for subscription in list(self.subscriptions.values()):
            subscription.close()
        self.drop_if_unused()

    def forget(self, subscription: NonPersistentSubscription) -> None:
        """Drop a subscription without consumers."""
        if self.subscriptions.get(subscription.name) is subscription:
            self.dropped += subscription.dropped
            del self.subscriptions[subscription.name]
        self.drop_if_unused()

    def drop_if_unused(self) -> None:
        """Call `unused` if there is neither a producer nor a subscription."""
        if not len(self.producers) and not self.subscriptions:
            self._unused(self)


class NonPersistentSubscription:
    """The consumers that share what is sent."""

    def __init__(
        self, partition: NonPersistentPartition, name: str, kind: SubscriptionType
    ) -> None:
        self.partition = partition
        self.name = name
        self.kind = kind
        self.consumers: list[ClientConsumer] = []
        self.dropped = 0
        self._turn = 0
        self._assignment: Assignment = Ring()

    def attach(self, consumer: ClientConsumer, kind: SubscriptionType) -> None:
        """Add a consumer; raise SubscriptionBusyError, HashRangeError."""
        if kind is not self.kind:
            raise SubscriptionBusyError(
                f"Subscription is of different type. Active subscription type of"
                f" '{self.kind.value}' is different than the connecting consumer's type"
                f" '{kind.value}'."
            )
        if kind is SubscriptionType.EXCLUSIVE and self.consumers:
            self.consumers[0].link.probe()
            raise SubscriptionBusyError("Exclusive consumer is already connected")
        if kind is SubscriptionType.KEY_SHARED:
            self._assign(consumer)
        before = self._active()
        consumer.ledger_id, consumer.partition_index = LEDGER_ID, NOT_PARTITIONED
        self.consumers.append(consumer)
        self.consumers.sort(key=lambda one: (one.priority, one.name))
        if kind is SubscriptionType.FAILOVER:
            self._announce(before, consumer)

    def detach(self, consumer: ClientConsumer) -> None:
        """Remove a consumer; the subscription goes with the last one."""
        if consumer not in self.consumers:
            return
        before = self._active()
        self.consumers.remove(consumer)
        if self.kind is SubscriptionType.KEY_SHARED:
            self._assignment.remove(consumer)
        elif self.kind is SubscriptionType.FAILOVER:
            self._announce(before, None)
        if not self.consumers:
            self.partition.forget(self)

    def flow(self, consumer: ClientConsumer, permits: int) -> None:
        """Give a consumer more permits."""
        consumer.permits += permits

    def acknowledge(
        self, consumer: ClientConsumer, acks: Sequence[Ack], done: Callable[[], None] | None
    ) -> None:
        """Call `done`: there is nothing to acknowledge."""
        del consumer, acks
        if done is not None:
            done()

    def redeliver(self, consumer: ClientConsumer, entries: Sequence[int]) -> None:
        """Deliver nothing again: what was sent is gone."""

    def deliver(self, entry: Entry) -> None:
        """Send an entry to the consumer whose turn it is, or drop it."""
        consumer = self._chosen(entry)
        if consumer is not None and _is_ready(consumer):
            try:
                consumer.deliver(entry, 0, ())
            except UnreadableEntryError:
                consumer.permits += entry.messages
            else:
                return
        self.dropped += entry.messages
        if consumer is not None:
            consumer.dropped += entry.messages

    async def delete(self) -> None:
        """Delete it from its topic; its consumers are closed."""
        self.close()

    def close(self) -> None:
        """Close all consumers, with a notice to their clients."""
        consumers, self.consumers = self.consumers, []
        self.partition.forget(self)
        for consumer in consumers:
            consumer.link.consumer_closed(consumer)

    def _assign(self, consumer: ClientConsumer) -> None:
        if not self.consumers:
            self._assignment = Ranges() if consumer.keys.sticky else Ring()
        try:
            self._assignment.add(consumer)
        except HashRangeError:
            if not self.consumers:
                self.partition.forget(self)
            raise

    def _chosen(self, entry: Entry) -> ClientConsumer | None:
        if self.kind is SubscriptionType.KEY_SHARED:
            info = self.partition.formats[entry.format].describe(entry.payload)
            return self._assignment.owner(slot_of_hash(info.key_hash()))
        if self.kind is not SubscriptionType.SHARED:
            return self._active()
        self._turn += 1
        ready = list(filter(_is_ready, self.consumers))
        first = [one for one in ready if one.priority == ready[0].priority]
        return first[self._turn % len(first)] if first else None

    def _active(self) -> ClientConsumer | None:
        return self.consumers[0] if self.consumers else None

    def _announce(self, before: ClientConsumer | None, added: ClientConsumer | None) -> None:
        active = self._active()
        if active is not before:
            for consumer in (before, active):
                if consumer in self.consumers and consumer is not added:
                    consumer.link.activity_changed(consumer, consumer is active)
        if added is not None:
            added.link.activity_changed(added, added is active)


class _NoEpochs:
    """Stands for the epochs of a partition whose producers never hold it alone."""

    topic_epoch: int | None = None
    terminated = False


async def _save_nothing() -> None:
    """Save nothing: there is no epoch."""


class _SharedProducers(ProducerTable):
    """The producers of a topic that is not persistent: all of them share it."""

    def __init__(self, unused: Callable[[], None]) -> None:
        super().__init__(_NoEpochs(), _save_nothing)
        self._unused = unused

    def add(self, producer: Producer) -> bool:
        """Add a producer; raise NameBusyError, and NotAllowedError unless it is a shared one."""
        try:
            _check_shared(producer)
            return super().add(producer)
        except Exception:
            self._unused()
            raise

    def remove(self, producer: Producer) -> None:
        """Free a producer's name."""
        super().remove(producer)
        self._unused()


def _check_shared(producer: Producer) -> None:
    if producer.access is not ProducerAccess.SHARED:
        raise NotAllowedError("producers of topics that are not persistent are shared")


def _is_ready(consumer: ClientConsumer) -> bool:
    return consumer.permits > 0 and consumer.link.writable
