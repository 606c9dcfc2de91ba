"""Who gets the next entry: the active consumer, or the shared ones in turn.

Theory of operation. A dispatcher lives as long as its subscription has consumers. `run` sends what
can be sent now and returns: it is called when entries arrive, permits come, a connection drains, a
read ends. Nothing waits inside, and no task stands behind a consumer.

With one active consumer (Exclusive, Failover) order is all there is to keep: what the consumer has
not acknowledged is everything between the cursor and the feed's position, so going back means to
set the position. Shared consumers *hold* entries; what a consumer holds when it goes, or gives
back, is put into `_again` and is sent before anything new, lowest first. Acknowledged entries are
skipped when their turn comes, not searched for. The alternative, one queue of pending entries for
both, is what makes an exclusive consumer as dear as a shared one.
"""

from __future__ import annotations

import asyncio
from abc import ABC, abstractmethod
from collections.abc import Iterable
from heapq import heappop, heappush
from typing import TYPE_CHECKING, Final

from router.broker.dispatch.consumer import Consumer, Kind
from router.broker.dispatch.feed import Feed
from router.errors import SubscriptionBusyError

if TYPE_CHECKING:
    from router.broker.dispatch.subscription import Subscription
    from router.broker.ledger import Entry

MAX_HELD: Final = 50_000
FAILOVER_DELAY: Final = 1.0
REPLAY_AHEAD: Final = 64


class Dispatcher(ABC):
    """What all kinds have in common: consumers, and a feed that starts at the cursor."""

    kind: Kind

    def __init__(self, subscription: Subscription) -> None:
        self.consumers: list[Consumer] = []
        self.feed = Feed(subscription, self.run)
        self._subscription = subscription
        self.rewind()

    def add(self, consumer: Consumer) -> None:
        """Take a consumer in; raise SubscriptionBusyError."""
        self.consumers.append(consumer)

    def remove(self, consumer: Consumer) -> None:
        """Let a consumer go; what it did not acknowledge will be delivered again."""
        self.consumers.remove(consumer)

    @abstractmethod
    def run(self) -> None:
        """Send what can be sent now."""

    @abstractmethod
    def redeliver(self, consumer: Consumer, entries: Iterable[int]) -> None:
        """Deliver again what the consumer gives back; no entries: all that it has."""

    def acknowledged(self, consumer: Consumer, entries: Iterable[int]) -> None:  # noqa: B027 - only shared ones care
        """Learn that these entries are done with."""

    def rewind(self) -> None:
        """Go back to the first entry that is not acknowledged."""
        self.feed.rewind(self._subscription.cursor.mark_delete + 1)

    def close(self) -> None:
        """Stop for good."""
        self.feed.close()


class Exclusive(Dispatcher):
    """One consumer, and no other beside it."""

    kind = Kind.EXCLUSIVE
    active: Consumer | None = None

    def add(self, consumer: Consumer) -> None:
        """Take the only consumer in; raise SubscriptionBusyError if there is one that lives."""
        if self.consumers:
            self.consumers[0].link.probe()
            raise SubscriptionBusyError("Exclusive consumer is already connected")
        super().add(consumer)
        self.active = consumer

    def remove(self, consumer: Consumer) -> None:
        """Let the consumer go."""
        super().remove(consumer)
        self.active = None

    def run(self) -> None:
        """Send to the active consumer until permits, room or entries end."""
        consumer, feed, cursor = self.active, self.feed, self._subscription.cursor
        if consumer is None:
            return
        link = consumer.link
        while consumer.permits > 0:
            if not link.writable:
                link.when_writable(self.run)
                return
            entry = feed.take()
            if entry is None:
                return
            left = cursor.ack_set(entry.entry_id) or ()
            consumer.deliver(entry, feed.messages(entry), 0, left)

    def redeliver(self, consumer: Consumer, entries: Iterable[int]) -> None:
        """Deliver all again, in order: single entries would break it."""
        if consumer is self.active:
            self.rewind()
            self.run()


class Failover(Exclusive):
    """One active consumer; the others wait for it to go.

    By priority and name: the first one, or on a partition the one with the partition's number, so
    that the partitions of a topic are spread. When a consumer that comes takes over from one that
    is still there, delivery pauses for FAILOVER_DELAY, so that what was sent can be acknowledged.
    """

    kind = Kind.FAILOVER

    def __init__(self, subscription: Subscription) -> None:
        super().__init__(subscription)
        self._chosen: Consumer | None = None
        self._timer: asyncio.TimerHandle | None = None

    def add(self, consumer: Consumer) -> None:
        """Take a consumer in, which may become the active one."""
        Dispatcher.add(self, consumer)
        self._choose()
        if consumer is not self._chosen:
            consumer.link.activity_changed(consumer, active=False)

    def remove(self, consumer: Consumer) -> None:
        """Let a consumer go; another one becomes active at once if it was the active one."""
        Dispatcher.remove(self, consumer)
        if self.active is consumer:
            self.active = None
        self._choose()

    def close(self) -> None:
        """Stop for good."""
        if self._timer is not None:
            self._timer.cancel()
        super().close()

    def _choose(self) -> None:
        order = sorted(self.consumers, key=lambda c: (c.priority, c.name))
        turn = max(0, self._subscription.partition.index)
        self._chosen = order[turn % len(order)] if order else None
        if self._timer is not None or self._chosen is self.active:
            return
        if self.active is None:
            self._activate()
            return
        self.active.link.activity_changed(self.active, active=False)
        self.active = None
        loop = asyncio.get_running_loop()
        self._timer = loop.call_later(FAILOVER_DELAY, self._activate)

    def _activate(self) -> None:
        self._timer = None
        self.active = self._chosen
        if self.active is not None:
            self.active.link.activity_changed(self.active, active=True)
            self.rewind()
            self.run()


class Shared(Dispatcher):
    """Many consumers, an entry to each in turn; the ones of the lowest priority number first."""

    kind = Kind.SHARED

    def __init__(self, subscription: Subscription) -> None:
        super().__init__(subscription)
        self._again: list[int] = []
        self._listed: set[int] = set()
        self._redeliveries: dict[int, int] = {}
        self._turn = 0

    def add(self, consumer: Consumer) -> None:
        """Take a consumer in."""
        super().add(consumer)
        self.consumers.sort(key=lambda c: c.priority)

    def remove(self, consumer: Consumer) -> None:
        """Let a consumer go: what it holds goes to the others, as if never delivered."""
        super().remove(consumer)
        self._put_back(consumer, list(consumer.held))
        self.run()

    def run(self) -> None:
        """Send as long as there is an entry and a consumer that can take it."""
        cursor, feed = self._subscription.cursor, self.feed
        while (consumer := self._next_consumer()) is not None:
            entry = self._next_entry()
            if entry is None:
                return
            number = entry.entry_id
            messages = feed.messages(entry)
            consumer.hold(number, messages)
            self._turn += 1
            left = cursor.ack_set(number) or ()
            consumer.deliver(entry, messages, self._redeliveries.get(number, 0), left)

    def redeliver(self, consumer: Consumer, entries: Iterable[int]) -> None:
        """Deliver again what the consumer holds of these, counted as redeliveries."""
        given_back = [e for e in (entries or list(consumer.held)) if e in consumer.held]
        for entry in given_back:
            self._redeliveries[entry] = self._redeliveries.get(entry, 0) + 1
        self._put_back(consumer, given_back)
        self.run()

    def acknowledged(self, consumer: Consumer, entries: Iterable[int]) -> None:
        """Take the entries from whoever holds them; that may not be who acknowledged."""
        full = consumer.held_messages >= MAX_HELD
        for entry in entries:
            self._redeliveries.pop(entry, None)
            if not consumer.let_go(entry):
                any(other.let_go(entry) for other in self.consumers)
        if full:
            self.run()

    def _put_back(self, consumer: Consumer, entries: Iterable[int]) -> None:
        for entry in entries:
            consumer.let_go(entry)
            if entry not in self._listed:
                self._listed.add(entry)
                heappush(self._again, entry)

    def _next_entry(self) -> Entry | None:
        while self._again:
            number = self._again[0]
            gone = self._subscription.cursor.is_acked(number)
            ahead = min(len(self._again), REPLAY_AHEAD)
            entry = None if gone else self.feed.look(number, ahead)
            if entry is None and not gone:
                return None
            self._listed.remove(heappop(self._again))
            if entry is not None:
                return entry
        return self.feed.take()

    def _next_consumer(self) -> Consumer | None:
        ready: list[Consumer] = []
        for consumer in self.consumers:
            if ready and consumer.priority > ready[0].priority:
                break
            if consumer.permits > 0 and consumer.held_messages < MAX_HELD:
                if consumer.link.writable:
                    ready.append(consumer)
                else:
                    consumer.link.when_writable(self.run)
        return ready[self._turn % len(ready)] if ready else None


DISPATCHERS: Final[dict[Kind, type[Dispatcher]]] = {
    dispatcher.kind: dispatcher for dispatcher in (Exclusive, Failover, Shared)
}
