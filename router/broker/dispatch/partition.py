"""One partition at run time: its ledger, its producers, its subscriptions.

The names of producers are unique within it, so that deduplication means something. Making a
subscription waits for the disk; whoever asks for the same one meanwhile waits for the same task,
and what exists is found without waiting. A lock around all of it, the alternative, would let one
new group hold up every consumer that opens.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from itertools import count
from typing import TYPE_CHECKING, Protocol

from router.broker.dispatch.subscription import Subscription
from router.broker.ledger import Ledger, Store, TopicRecord
from router.errors import (
    NotAllowedError,
    SubscriptionLimitError,
    TopicNotFoundError,
)
from router.model import NO_PROPERTIES

if TYPE_CHECKING:
    from router.broker.dispatch.dispatchers import Dispatcher


class NameBusyError(Exception):
    """Another producer of this partition has the name."""


@dataclass(slots=True)
class Tally:
    """What the broker counted since it was asked last."""

    entries: int = 0
    bytes: int = 0
    dispatched: int = 0
    damaged: int = 0

    def clear(self) -> None:
        """Begin again at nothing."""
        self.entries = self.bytes = self.dispatched = self.damaged = 0


@dataclass(frozen=True, slots=True)
class Broker:
    """What all partitions share; `now_ms` counts milliseconds since 1970."""

    store: Store
    tally: Tally
    max_groups: int
    now_ms: Callable[[], int]
    _epochs: Iterator[int] = field(default_factory=lambda: count(1))

    def new_epoch(self) -> int:
        """Return a number that no subscription had as its epoch, over restarts too."""
        return (self.store.boot << 32) + next(self._epochs)


class ProducerLink(Protocol):
    """The connection of a producer. No call waits."""

    def producer_closed(self, producer: Producer) -> None:
        """Tell the client that the broker let go of its producer."""
        ...

    def probe(self) -> None:
        """Find out whether the client is still there, and close the connection if not."""
        ...


@dataclass(slots=True, eq=False)
class Producer:
    """A client's producer; `generated` names are the broker's own choice, and unique."""

    partition: Partition
    link: ProducerLink
    producer_id: int
    name: str
    epoch: int
    generated: bool
    deduplicated: bool


class Partition:
    """A partition in use; loading it reads no entries."""

    def __init__(self, broker: Broker, topic: TopicRecord, index: int) -> None:
        self.store = store = broker.store
        self.broker = broker
        self.topic = topic
        self.index = index
        self.ledger: Ledger = store.ledger(topic.ledger_ids[max(0, index)])
        self.producers: dict[str, Producer] = {}
        self.dispatchers: list[Dispatcher] = []
        self.closed = False
        self._making: dict[str, asyncio.Task[Subscription]] = {}
        self.subscriptions: dict[str, Subscription] = {
            record.name: Subscription(self, record.name, record=record)
            for record in store.subscriptions(self.ledger.id)
        }
        self.ledger.listeners.add(self.arrived)

    def arrived(self) -> None:
        """Send what has become durable to who waits for it."""
        # A consumer that is closed in between changes the list.
        for dispatcher in list(self.dispatchers):
            dispatcher.run()

    def add_producer(self, producer: Producer) -> None:
        """Take a producer in; raise NameBusyError.

        A generated name belongs to one client: when it comes back with a later epoch, it takes over
        from what is left of its old connection.
        """
        present = self.producers.get(producer.name)
        if present is not None:
            if not (producer.generated and producer.epoch > present.epoch):
                if present.link is not producer.link:
                    present.link.probe()
                raise NameBusyError(
                    f"Producer with name '{producer.name}' is already connected to topic"
                )
            present.link.producer_closed(present)
        self.producers[producer.name] = producer

    def remove_producer(self, producer: Producer) -> None:
        """Free a producer's name."""
        if self.producers.get(producer.name) is producer:
            del self.producers[producer.name]

    async def subscribe(
        self, name: str, start: int, properties: Mapping[str, str] = NO_PROPERTIES
    ) -> Subscription:
        """Return the durable subscription, made if it is not there to begin at `start`.

        Raises SubscriptionLimitError, NotAllowedError, TopicNotFoundError.
        """
        present = self.subscriptions.get(name)
        if present is None:
            making = self._making.get(name)
            if making is None:
                self.check_room()
                making = asyncio.get_running_loop().create_task(self._make(name, start, properties))
                self._making[name] = making
                making.add_done_callback(lambda _: self._making.pop(name, None))
            present = await asyncio.shield(making)
        if not present.durable:
            raise NotAllowedError(f"subscription '{name}' exists and is not durable")
        return present

    def read_from(self, name: str, start: int) -> Subscription:
        """Return the subscription that is not durable, made if it is not there to begin at `start`.

        Raises SubscriptionLimitError, NotAllowedError.
        """
        present = self.subscriptions.get(name)
        if present is None:
            self.check_room()
            present = self.subscriptions[name] = Subscription(self, name, start)
        elif present.durable:
            raise NotAllowedError("Durable subscription with the same name already exists.")
        return present

    async def delete(self, subscription: Subscription) -> None:
        """Delete a subscription, whoever consumes from it."""
        if self.subscriptions.get(subscription.name) is subscription:
            del self.subscriptions[subscription.name]
            subscription.close()
            if subscription.record is not None:
                await self.store.delete_subscription(subscription.record.id)

    def left(self, subscription: Subscription) -> None:
        """Drop a subscription that is not durable when its last consumer went."""
        if not subscription.durable:
            self.subscriptions.pop(subscription.name, None)

    def drop_unread(self) -> None:
        """Drop what is not durable and nobody read from since the last call.

        A reader that seeks comes back, so that the first time is too early.
        """
        for subscription in list(self.subscriptions.values()):
            if subscription.durable or subscription.consumers:
                continue
            if subscription.unread:
                del self.subscriptions[subscription.name]
            subscription.unread = True

    def check_room(self) -> None:
        """Raise SubscriptionLimitError when there may be no more subscriptions."""
        limit = self.broker.max_groups
        if len(self.subscriptions) + len(self._making) >= limit:
            raise SubscriptionLimitError(f"the topic has {limit} subscriptions already")

    def close(self) -> None:
        """Let everybody go, telling them so: the topic is deleted."""
        self.closed = True
        self.ledger.listeners.discard(self.arrived)
        for producer in list(self.producers.values()):
            producer.link.producer_closed(producer)
        self.producers.clear()
        for subscription in list(self.subscriptions.values()):
            subscription.close()
        self.subscriptions.clear()

    async def _make(self, name: str, start: int, properties: Mapping[str, str]) -> Subscription:
        record = await self.store.create_subscription(self.ledger.id, name, start - 1, properties)
        if self.closed:
            raise TopicNotFoundError
        made = self.subscriptions[name] = Subscription(self, name, record=record)
        return made
