"""One subscription of a partition: its cursor, and the dispatcher while it has consumers.

The cursor says what is done with, the dispatcher what is under way; when the last consumer goes,
the dispatcher goes too, and what was under way is simply not done. So nothing about deliveries is
ever written to disk: the alternative buys exact redelivery counts over restarts at the price of a
write for each delivery.

Acknowledgements of a durable subscription go through the store, which journals them; one that is
not durable keeps its cursor in memory.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Final

import structlog

from router.broker.cursors import Ack, Cursor
from router.broker.dispatch.consumer import Consumer, Kind
from router.broker.dispatch.dispatcher import Dispatcher
from router.broker.dispatch.dispatchers import DISPATCHERS
from router.broker.ledger import SubscriptionRecord
from router.errors import SubscriptionBusyError, SubscriptionNotFoundError
from router.quoting import quoted

if TYPE_CHECKING:
    from router.broker.dispatch.partition import Partition

REPLICATED: Final = "pulsar.replicated.subscription"
"""The property that says of a stored subscription that its state was to be replicated."""

_log = structlog.get_logger(__name__)


class Subscription:
    """A named cursor; without a record it is not durable, and lives while it is read from."""

    def __init__(
        self,
        partition: Partition,
        name: str,
        start: int = 0,
        record: SubscriptionRecord | None = None,
    ) -> None:
        self.partition = partition
        self.name = name
        self.ledger = partition.ledger
        self.record = record
        self.cursor = Cursor(start - 1) if record is None else record.cursor
        self.dispatcher: Dispatcher | None = None
        # A consumer asked for it; there is no other cluster, so that statistics alone say so.
        self.replicated = record is not None and REPLICATED in record.properties
        self.unread = False
        # What was received under another epoch is not acknowledged by our own client any more.
        self.epoch = partition.broker.new_epoch()

    @property
    def durable(self) -> bool:
        """Tell whether it outlives its consumers."""
        return self.record is not None

    @property
    def consumers(self) -> Sequence[Consumer]:
        """Return the consumers attached now."""
        return self.dispatcher.consumers if self.dispatcher else ()

    @property
    def delayed(self) -> int:
        """Return how many entries wait for the time at which they are to be delivered."""
        return self.dispatcher.delayed if self.dispatcher else 0

    @property
    def failure(self) -> Exception | None:
        """Return what made reading fail, once all that comes before it is acknowledged."""
        if self.dispatcher is None or self.dispatcher.feed.failure is None:
            return None
        first = self.cursor.next_unacked(self.cursor.mark_delete + 1)
        return self.dispatcher.feed.failure if first >= self._blocked_at() else None

    @property
    def end(self) -> int:
        """Return the entry that delivery cannot reach now: not durable yet, or not readable."""
        if self.dispatcher is None or self.dispatcher.feed.failure is None:
            return self.ledger.durable_entry
        return self._blocked_at()

    def attach(self, consumer: Consumer, kind: Kind) -> None:
        """Take a consumer in.

        Raises SubscriptionBusyError, HashRangeError, SubscriptionNotFoundError.
        """
        if self.partition.subscriptions.get(self.name) is not self:
            raise SubscriptionNotFoundError(f"{quoted(self.name)} was deleted meanwhile")
        dispatcher = self.dispatcher or DISPATCHERS[kind](self)
        if dispatcher.kind is not kind:
            raise SubscriptionBusyError(
                "Subscription is of different type. Active subscription type of "
                f"'{dispatcher.kind.value}' is different than the connecting consumer's type "
                f"'{kind.value}'."
            )
        dispatcher.add(consumer)
        self.used()
        if self.dispatcher is None:
            self.dispatcher = dispatcher
            self.partition.dispatchers.append(dispatcher)
        if self.ledger.terminated:
            self.look_for_end()

    def detach(self, consumer: Consumer) -> None:
        """Let a consumer go; a consumer that is not attached is none of ours."""
        dispatcher = self.dispatcher
        if dispatcher is None or consumer not in dispatcher.consumers:
            return
        dispatcher.remove(consumer)
        self.used()
        if not dispatcher.consumers:
            self._drop_dispatcher()
            self.partition.left(self)

    def flow(self, consumer: Consumer, permits: int) -> None:
        """Let a consumer have so many messages more."""
        consumer.permits += permits
        if self.dispatcher is not None:
            self.dispatcher.run()

    def acknowledge(
        self, consumer: Consumer, acks: Sequence[Ack], done: Callable[[], None] | None
    ) -> None:
        """Acknowledge; `done` is called once it is durable. Entries not stored yet are ignored."""
        store, record, end = self.partition.store, self.record, self.ledger.durable_entry
        known = [ack for ack in acks if ack.entry < end]
        consumer.flow.acknowledged += len(known)
        for ack in known:
            if record is None:
                self.cursor.apply(ack)
            else:
                store.acknowledge(record, ack)
        if self.dispatcher is not None:
            whole = [ack.entry for ack in known if self.cursor.is_acked(ack.entry)]
            self.dispatcher.acknowledged(consumer, whole)
            if self.ledger.terminated:
                self.look_for_end()
        if done is not None:
            store.after_sync(done)

    def look_for_end(self) -> None:
        """Tell the consumers, each once, that all there will ever be is acknowledged, if it is."""
        ledger = self.ledger
        if ledger.terminated and self.cursor.next_unacked(ledger.first_entry) >= ledger.next_entry:
            for consumer in self.consumers:
                if not consumer.told_end:
                    consumer.told_end = True
                    consumer.link.reached_end(consumer)

    def redeliver(self, consumer: Consumer, entries: Sequence[int]) -> None:
        """Deliver again what the consumer gives back; no entries: all that it has."""
        if self.dispatcher is not None:
            self.dispatcher.redeliver(consumer, entries)

    def reset(self, entry: int, done: Callable[[], None]) -> None:
        """Go on at `entry`, let all consumers go, and call `done` when that is durable."""
        start = min(max(entry, 0), self.ledger.next_entry)
        if self.record is None:
            self.cursor.reset(start - 1)
        else:
            self.partition.store.reset(self.record, start - 1)
        self.epoch = self.partition.broker.new_epoch()
        self.close()
        self.partition.store.after_sync(done)

    async def reset_durably(self, entry: int) -> None:
        """Go on at `entry`, as `reset` does; return when that is durable."""
        durable = asyncio.Event()
        self.reset(entry, durable.set)
        await durable.wait()

    def skip(self, first: int, end: int) -> None:
        """Pass over entries that are no more: retention took them, or they are recorded damage."""
        hole = max(first, self.ledger.first_entry)
        if hole < end:
            self.partition.broker.tally.damaged += end - hole
            _log.error(
                "damaged-entries-skipped",
                ledger=self.ledger.id,
                subscription=self.name,
                first=hole,
                last=end - 1,
            )
        # Everything before retention's bound is gone, also what somebody holds.
        start = self.cursor.mark_delete + 1 if first < self.ledger.first_entry else first
        # Not journaled: after a restart the same gap is found and passed over again.
        self.cursor.skip(start, end - 1)

    def when_settled(self, told: Callable[[], None]) -> None:
        """Call `told` when no read from disk stands between the log and the consumers."""
        if self.dispatcher is None:
            told()
        else:
            self.dispatcher.feed.when_idle(told)

    def close(self) -> None:
        """Let all consumers go, telling them so."""
        if self.dispatcher is None:
            return
        consumers = list(self.dispatcher.consumers)
        self._drop_dispatcher()
        for consumer in consumers:
            consumer.link.consumer_closed(consumer)

    def used(self) -> None:
        """Take note that the subscription is in use: one that is not is forgotten in time."""
        self.unread = False
        if self.record is not None:
            self.record.last_used_ms = self.partition.broker.now_ms()

    def _blocked_at(self) -> int:
        assert self.dispatcher is not None
        return self.cursor.next_unacked(self.dispatcher.feed.position)

    def _drop_dispatcher(self) -> None:
        if self.dispatcher is not None:
            self.partition.dispatchers.remove(self.dispatcher)
            dispatcher, self.dispatcher = self.dispatcher, None
            dispatcher.close()
