"""One partition at run time: its ledger, its producers, its subscriptions and their consumers.

Theory of operation. The cursor of a subscription says what is acknowledged, its dispatcher what is
in flight and goes with the last consumer. So no delivery is written to disk: the alternative buys
exact redelivery counts over restarts at the price of a write for each delivery. Acknowledgements of
a durable subscription are journalled; one that is not durable keeps its cursor in memory.

To create a subscription waits for the disk; requests for the same one wait for the same task. The
alternative, a lock around all of it, would let a new group hold up every consumer that opens.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from time import monotonic
from typing import Final

import structlog

from router.broker.consume.consumer import ClientConsumer, ConsumerFlow, Rates, SubscriptionType
from router.broker.consume.context import DeliveryContext
from router.broker.consume.cursor.in_flight import InFlight
from router.broker.consume.cursor.pending_acks import PendingAcks
from router.broker.consume.dispatch.dispatcher import Dispatcher
from router.broker.consume.dispatch.exclusive import Exclusive, Failover
from router.broker.consume.dispatch.key_shared import KeyShared
from router.broker.consume.dispatch.shared import Shared
from router.broker.consume.producers import ProducerTable
from router.broker.consume.visible import Visible, VisibleUncommitted
from router.broker.storage import Ack, Cursor, Ledger, SubscriptionRecord, TopicRecord
from router.errors import (
    NotAllowedError,
    SubscriptionBusyError,
    SubscriptionLimitError,
    SubscriptionNotFoundError,
    TopicNotFoundError,
    TopicTerminatedError,
)
from router.errors.quoting import quoted
from router.model import NO_PROPERTIES, Position
from router.model.policies import Policies

REPLICATED: Final = "pulsar.replicated.subscription"
"""The property that says of a stored subscription that its state was to be replicated."""

_DISPATCHERS: Final[dict[SubscriptionType, type[Dispatcher]]] = {
    dispatcher.kind: dispatcher for dispatcher in (Exclusive, Failover, KeyShared, Shared)
}

_log = structlog.get_logger(__name__)


class Partition:
    """A partition in use; loading it reads no entries."""

    def __init__(self, context: DeliveryContext, topic: TopicRecord, index: int) -> None:
        self.context = context
        self.store = store = context.store
        self.topic = topic
        self.index = index
        self.ledger: Ledger = store.ledger(topic.ledger_ids[max(0, index)])
        self.visible = Visible(self.ledger)
        self.uncommitted = VisibleUncommitted(self.ledger)
        self.producers = ProducerTable(self.ledger, partial(store.save_epoch, self.ledger))
        self.dispatchers: list[Dispatcher] = []
        self.closed = False
        self._arrivals = ConsumerFlow(monotonic())
        self._loaded_at = self.ledger.next_index, self.ledger.appended_bytes
        self._making: dict[str, asyncio.Task[PartitionSubscription]] = {}
        self.subscriptions: dict[str, PartitionSubscription] = {
            record.name: PartitionSubscription(self, record.name, record=record)
            for record in store.subscriptions(self.ledger.id)
        }

    @property
    def topic_name(self) -> str:
        """Return the name of its topic."""
        return self.topic.name

    @property
    def policies(self) -> Policies:
        """Return what holds for its topic."""
        return self.context.policies(self.topic)

    def arrival_rates(self, now: float) -> Rates:
        """Return what was stored in a second, by any protocol; see `ConsumerFlow.rates`."""
        index, size = self._loaded_at
        self._arrivals.messages = self.ledger.next_index - index
        self._arrivals.bytes = self.ledger.appended_bytes - size
        return self._arrivals.rates(now)

    def measure(self, now: float) -> None:
        """Begin another window of all rates; called about once a minute."""
        self.arrival_rates(now)
        for producer in self.producers:
            producer.flow.rates(now)
        for subscription in self.subscriptions.values():
            for consumer in subscription.consumers:
                consumer.flow.rates(now)

    def deliver_arrivals(self) -> None:
        """Deliver what has become durable."""
        # A consumer that is closed in between changes the list.
        for dispatcher in list(self.dispatchers):
            dispatcher.run()

    async def terminate(self) -> Position:
        """Accept no more entries, for good; return the last one, entry -1 if there is none.

        Producers are closed. When this returns all that was accepted is on disk, and consumers that
        acknowledged it have their notice. Raises StoreError.
        """
        await self.store.terminate(self.ledger)
        self.producers.close_all(TopicTerminatedError())
        last = self.ledger.next_entry - 1
        await self.store.synced()
        self.on_terminated()
        return Position(self.ledger.id, last, self.index)

    def on_terminated(self) -> None:
        """Deliver what is left, and notify the consumers that are at the end."""
        self.deliver_arrivals()
        for subscription in list(self.subscriptions.values()):
            subscription.notify_end()

    async def subscribe(
        self,
        name: str,
        start: int,
        properties: Mapping[str, str] = NO_PROPERTIES,
        *,
        passive: bool = False,
    ) -> PartitionSubscription:
        """Return the durable subscription; a missing one is created, to begin at `start`.

        A passive one becomes active unless `passive`. Raises SubscriptionLimitError,
        NotAllowedError, TopicNotFoundError.
        """
        present = self.subscriptions.get(name)
        while present is None or (present.passive and not passive):
            if (making := self._making.get(name)) is None:
                if present is None:
                    self.check_limit()
                work = self._make(name, start, properties, passive=passive)
                making = self._making[name] = asyncio.get_running_loop().create_task(work)
                making.add_done_callback(lambda _: self._making.pop(name, None))
            present = await asyncio.shield(making)
            await asyncio.sleep(0)  # the callback of a task that has ended is still to run
        if not present.durable:
            raise NotAllowedError(f"subscription '{name}' exists and is not durable")
        return present

    def read_from(self, name: str, start: int) -> PartitionSubscription:
        """Return the subscription that is not durable; a missing one begins at `start`.

        Raises SubscriptionLimitError, NotAllowedError, TopicNotFoundError.
        """
        if self.closed:
            raise TopicNotFoundError
        present = self.subscriptions.get(name)
        if present is None:
            self.check_limit()
            present = self.subscriptions[name] = PartitionSubscription(self, name, start)
        elif present.durable:
            raise NotAllowedError("Durable subscription with the same name already exists.")
        return present

    async def delete(self, subscription: PartitionSubscription) -> None:
        """Delete a subscription; its consumers are closed once that is on disk."""
        if self.subscriptions.get(subscription.name) is not subscription:
            return
        if subscription.record is not None:
            await self.store.delete_subscription(subscription.record)
        if self.subscriptions.get(subscription.name) is subscription:
            del self.subscriptions[subscription.name]
            subscription.close()

    def check_limit(self) -> None:
        """Raise SubscriptionLimitError when there may be no more subscriptions."""
        limit = self.context.max_groups
        if len(self.subscriptions) + len(self._making) >= limit:
            raise SubscriptionLimitError(f"the topic has {limit} subscriptions already")

    def close(self) -> None:
        """Close all producers and consumers, with a notice: the topic is deleted."""
        self.closed = True
        self.producers.close_all(TopicNotFoundError())
        for subscription in list(self.subscriptions.values()):
            subscription.close()
        self.subscriptions.clear()

    async def _make(
        self, name: str, start: int, properties: Mapping[str, str], *, passive: bool
    ) -> PartitionSubscription:
        present = self.subscriptions.get(name)
        known = None if present is None else present.record
        if not passive:
            self.context.live_members.check_free(self.topic_name, known.properties if known else {})
        if present is not None and known is not None:
            await self.store.activate_subscription(known)
            return present
        record = await self.store.create_subscription(
            self.ledger.id, name, start - 1, properties, passive=passive
        )
        if self.closed:
            raise TopicNotFoundError
        made = self.subscriptions[name] = PartitionSubscription(self, name, record=record)
        return made


class PartitionSubscription:
    """A named cursor; without a record it is not durable, and lives while it is read from."""

    def __init__(
        self,
        partition: Partition,
        name: str,
        start: int = 0,
        record: SubscriptionRecord | None = None,
    ) -> None:
        self.partition = partition
        self.context = partition.context
        self.topic_name = partition.topic.name
        self.partition_index = partition.index
        self.name = name
        self.ledger = partition.ledger
        self.visible = partition.visible
        self.record = record
        self.cursor = Cursor(start - 1) if record is None else record.cursor
        # What delivery goes by: it has what open transactions acknowledge, too.
        self.delivered: Cursor | PendingAcks = self.cursor
        self.dispatcher: Dispatcher | None = None
        # A consumer asked for it; there is no other cluster, so only statistics show it.
        self.replicated = record is not None and REPLICATED in record.properties
        self.in_flight: InFlight | None = None
        self.idle = False
        self.sent_messages = self.sent_bytes = 0  # to consumers that left
        # What was received under another epoch is not acknowledged by our own client any more.
        self.epoch = partition.context.new_epoch()

    @property
    def durable(self) -> bool:
        """Return whether it outlives its consumers."""
        return self.record is not None

    @property
    def passive(self) -> bool:
        """Return whether it holds nothing back: no consumer ever asked for it."""
        return self.record is not None and self.record.passive

    @property
    def kind(self) -> SubscriptionType | None:
        """Return how its consumers share it, None: there is no consumer."""
        return self.dispatcher.kind if self.dispatcher else None

    @property
    def consumers(self) -> Sequence[ClientConsumer]:
        """Return the consumers attached now."""
        return self.dispatcher.consumers if self.dispatcher else ()

    @property
    def failure(self) -> Exception | None:
        """Return what made reading fail, once all that comes before it is acknowledged."""
        if self.dispatcher is None or self.dispatcher.feed.failure is None:
            return None
        first = self.cursor.next_unacked(self.cursor.mark_delete + 1)
        return self.dispatcher.feed.failure if first >= self.end else None

    @property
    def end(self) -> int:
        """Return the entry that delivery cannot reach now: not visible yet, or not readable."""
        dispatcher = self.dispatcher
        if dispatcher is None or dispatcher.feed.failure is None:
            return self.visible.end_entry
        return self.cursor.next_unacked(dispatcher.feed.position)

    def attach(
        self, consumer: ClientConsumer, kind: SubscriptionType, dispatcher: Dispatcher | None = None
    ) -> None:
        """Add a consumer, of which the first makes the dispatcher, or brings one of its kind.

        What is visible to the first is visible to all. Raises SubscriptionBusyError,
        HashRangeError, SubscriptionNotFoundError.
        """
        if self.partition.subscriptions.get(self.name) is not self:
            raise SubscriptionNotFoundError(f"{quoted(self.name)} was deleted meanwhile")
        if self.durable:
            self.context.live_members.check(self.topic_name, self.name)
        if not consumer.leased:
            self._check_limits()
        if self.dispatcher is None:
            self.visible = consumer.visible or self.partition.visible
        dispatcher = self.dispatcher or dispatcher or _DISPATCHERS[kind](self)
        if dispatcher.kind is not kind:
            raise SubscriptionBusyError(
                "Subscription is of different type. Active subscription type of "
                f"'{dispatcher.kind.value}' is different than the connecting consumer's type "
                f"'{kind.value}'."
            )
        consumer.ledger_id, consumer.partition_index = self.ledger.id, self.partition_index
        dispatcher.add(consumer)
        self.touch()
        if self.dispatcher is None:
            self.dispatcher = dispatcher
            self.partition.dispatchers.append(dispatcher)
            self.ledger.listeners[dispatcher.run] = None
        self.notify_end()

    def _check_limits(self) -> None:
        """Raise SubscriptionBusyError if the topic's policies allow no more consumers."""
        limits = self.partition.policies
        if limits.max_consumers:
            attached = sum(len(one.consumers) for one in self.partition.subscriptions.values())
            if attached >= limits.max_consumers:
                raise SubscriptionBusyError("Topic reached max consumers limit")
        limit = limits.max_consumers_per_subscription
        if limit and len(self.consumers) >= limit:
            raise SubscriptionBusyError("Subscription reached max consumers limit")

    def detach(self, consumer: ClientConsumer) -> None:
        """Remove a consumer; one that is not attached is ignored."""
        dispatcher = self.dispatcher
        if dispatcher is None or consumer not in dispatcher.consumers:
            return
        dispatcher.remove(consumer)
        self._count(consumer)
        self.touch()
        if not dispatcher.consumers:
            self._drop_dispatcher()
            if not self.durable:
                self.partition.subscriptions.pop(self.name, None)

    def flow(self, consumer: ClientConsumer, permits: int) -> None:
        """Give a consumer more permits."""
        consumer.permits += permits
        if self.dispatcher is not None:
            self.dispatcher.run()

    def acknowledge(
        self, consumer: ClientConsumer, acks: Sequence[Ack], done: Callable[[], None] | None
    ) -> None:
        """Acknowledge; `done` is called once it is durable. Entries not stored yet are ignored."""
        store, record, end = self.context.store, self.record, self.ledger.durable_entry
        known = [ack for ack in acks if ack.entry < end]
        consumer.flow.acknowledged += len(known)
        for ack in known:
            if record is None:
                self.cursor.apply(ack)
            else:
                store.acknowledge(record, ack)
        if self.dispatcher is not None:
            whole = [ack.entry for ack in known if self.cursor.is_acked(ack.entry)]
            self.dispatcher.acknowledged(whole)
            self.notify_end()
        if done is not None:
            store.after_sync(done)

    def notify_end(self) -> None:
        """Notify each consumer, once, if a terminated topic is acknowledged to its end."""
        ledger = self.ledger
        if ledger.terminated and self.cursor.next_unacked(ledger.first_entry) >= ledger.next_entry:
            for consumer in self.consumers:
                if not consumer.end_sent:
                    consumer.end_sent = True
                    consumer.link.reached_end(consumer)

    def redeliver(self, consumer: ClientConsumer, entries: Sequence[int]) -> None:
        """Deliver again what the consumer returns; no entries: all that it has."""
        if self.dispatcher is not None:
            self.dispatcher.redeliver(consumer, entries)

    def reset(self, entry: int, left: tuple[int, ...], done: Callable[[], None]) -> None:
        """Go on at `entry`, close all consumers, and call `done` when that is durable.

        `left` is the `ack_set` of the entry, empty: all of its messages are left.
        """
        start = min(max(entry, 0), self.ledger.next_entry)
        part = Ack(start, ack_set=left) if left and start < self.ledger.durable_entry else None
        if self.record is None:
            self.cursor.reset(start - 1)
            if part is not None:
                self.cursor.apply(part)
        else:
            self.context.store.reset(self.record, start - 1)
            if part is not None:
                self.context.store.acknowledge(self.record, part)
        self.epoch = self.context.new_epoch()
        self.close()
        self.context.store.after_sync(done)

    async def reset_durably(self, entry: int, left: tuple[int, ...] = ()) -> None:
        """Go on at `entry`, as `reset` does; return when that is durable."""
        durable = asyncio.Event()
        self.reset(entry, left, durable.set)
        await durable.wait()

    def skip(self, first: int, end: int) -> None:
        """Pass over entries that are gone: by retention, with all before them, or as damage."""
        if damaged := self.ledger.given_up(first, end):
            self.context.tally.damaged += damaged
            place = {"ledger": self.ledger.id, "first": first, "last": end - 1}
            _log.error("damaged-entries-skipped", **place, subscription=self.name)
        start = self.cursor.mark_delete + 1 if first < self.ledger.first_entry else first
        self.cursor.skip(start, end - 1)

    def pass_over(self, first: int, end: int) -> None:
        """Pass over entries of which nothing is visible; a restart finds such gaps again."""
        self.cursor.skip(first, end - 1)
        self.notify_end()

    def when_settled(self, callback: Callable[[], None]) -> None:
        """Call back when all that can be delivered is: no read from disk is under way."""
        if self.dispatcher is None:
            callback()
        else:
            self.dispatcher.when_settled(callback)

    async def delete(self) -> None:
        """Delete it from its partition; its consumers are closed."""
        await self.partition.delete(self)

    def close(self) -> None:
        """Close all consumers, with a notice to their clients."""
        if self.dispatcher is None:
            return
        consumers = list(self.dispatcher.consumers)
        self._drop_dispatcher()
        for consumer in consumers:
            self._count(consumer)
            consumer.link.consumer_closed(consumer)

    def _count(self, consumer: ClientConsumer) -> None:
        self.sent_messages += consumer.flow.messages
        self.sent_bytes += consumer.flow.bytes

    def touch(self) -> None:
        """Note that the subscription is in use: one that is not used is deleted after a time."""
        self.idle = False
        if self.record is not None:
            self.record.last_used_ms = self.context.now_ms()

    def _drop_dispatcher(self) -> None:
        if self.dispatcher is not None:
            self.partition.dispatchers.remove(self.dispatcher)
            self.ledger.listeners.pop(self.dispatcher.run, None)
            dispatcher, self.dispatcher = self.dispatcher, None
            dispatcher.close()
            self.visible = self.partition.visible
