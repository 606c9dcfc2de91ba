"""Delivery to one active consumer: Exclusive and Failover subscriptions.

Theory of operation. With one active consumer order is all there is to keep: what the consumer has
not acknowledged is everything between the cursor and the feed's position, so going back means to
set the position. The alternative, to note what was sent as for shared consumers, is what would make
an exclusive consumer as dear as a shared one.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from functools import lru_cache
from typing import Final

from router.broker.consume.consumer import ClientConsumer, SubscriptionType
from router.broker.consume.dispatch.dispatcher import Dispatcher, EntrySource
from router.broker.consume.membership.hashing import murmur3, murmur3_each
from router.errors import SubscriptionBusyError

FAILOVER_DELAY_SECONDS: Final = 1.0
_POINTS_OF_CONSUMER: Final = 100


class Exclusive(Dispatcher):
    """One consumer, and no other beside it."""

    __slots__ = ("active",)

    kind = SubscriptionType.EXCLUSIVE

    def __init__(self, source: EntrySource) -> None:
        self.active: ClientConsumer | None = None
        super().__init__(source)

    def add(self, consumer: ClientConsumer) -> None:
        """Add the only consumer; raise SubscriptionBusyError if there is one."""
        if self.consumers:
            self.consumers[0].link.probe(soon=consumer.leased)
            raise SubscriptionBusyError("Exclusive consumer is already connected")
        super().add(consumer)
        self.active = consumer

    def remove(self, consumer: ClientConsumer) -> None:
        """Remove the consumer."""
        super().remove(consumer)
        self.active = None

    def run(self) -> None:
        """Send to the active consumer until its permits, its connection's buffer or entries end."""
        consumer, feed = self.active, self.feed
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
            self._deliver(consumer, entry, 0)

    def redeliver(self, consumer: ClientConsumer, entries: Iterable[int]) -> None:
        """Deliver all again, in order: single entries would break it."""
        if consumer is self.active:
            self.rewind()
            self.run()


class Failover(Exclusive):
    """One active consumer; the others wait for it to go.

    It is one of those with the best priority: on a partition the one with the partition's number in
    the order of names, so that the partitions of a topic are spread; of a topic without partitions
    the one whose points lie next behind the topic's on a ring of hashes. So Apache Pulsar has it.
    When a consumer that comes takes over from one that is still there, delivery pauses for
    FAILOVER_DELAY_SECONDS, so that what was sent can be acknowledged.
    """

    kind = SubscriptionType.FAILOVER

    def __init__(self, source: EntrySource) -> None:
        super().__init__(source)
        self._chosen: ClientConsumer | None = None
        self._timer: asyncio.TimerHandle | None = None

    def add(self, consumer: ClientConsumer) -> None:
        """Add a consumer, which may become the active one."""
        Dispatcher.add(self, consumer)
        self._choose()
        if consumer is not self._chosen:
            consumer.link.activity_changed(consumer, active=False)

    def remove(self, consumer: ClientConsumer) -> None:
        """Remove a consumer; if it was the active one, another becomes active at once."""
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
        self._chosen = self._first()
        if self._timer is not None or self._chosen is self.active:
            return
        if self.active is None:
            self._activate()
            return
        self.active.link.activity_changed(self.active, active=False)
        self.active = None
        loop = asyncio.get_running_loop()
        self._timer = loop.call_later(FAILOVER_DELAY_SECONDS, self._activate)

    def _first(self) -> ClientConsumer | None:
        best = min((consumer.priority for consumer in self.consumers), default=0)
        able = [consumer for consumer in self.consumers if consumer.priority == best]
        able.sort(key=lambda consumer: consumer.name)
        if not able:
            return None
        source = self._source
        if source.partition_index >= 0:
            return able[source.partition_index % len(able)]
        # Of several with the same point the last one has it.
        able.reverse()
        return min(able, key=lambda consumer: distance(source.topic_name, consumer.name))

    def _activate(self) -> None:
        self._timer = None
        self.active = self._chosen
        if self.active is not None:
            self.active.link.activity_changed(self.active, active=True)
            self.rewind()
            self.run()


@lru_cache(maxsize=4_096)
def distance(topic: str, consumer: str) -> int:
    """Return how far behind a topic, on the ring of hashes, a consumer's next point lies."""
    start = murmur3(topic.encode())
    points = murmur3_each(consumer.encode(), (str(n).encode() for n in range(_POINTS_OF_CONSUMER)))
    return min((point - start) % (1 << 31) for point in points)
