"""One partition at run time: its ledger, its producers, its subscriptions.

Making a subscription waits for the disk; whoever asks for the same one meanwhile waits for the same
task, and what exists is found without waiting. A lock around all of it, the alternative, would let
one new group hold up every consumer that opens.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from itertools import count
from operator import attrgetter
from typing import TYPE_CHECKING

from router.broker.dispatch.producers import ProducerTable
from router.broker.dispatch.subscription import Subscription
from router.broker.ledger import Ledger, Store, TopicRecord
from router.errors import (
    NotAllowedError,
    SubscriptionLimitError,
    TopicNotFoundError,
    TopicTerminatedError,
)
from router.model import NO_PROPERTIES, Policies, Position

if TYPE_CHECKING:
    from router.broker.dispatch.dispatcher import Dispatcher


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
    # What holds for a topic, its own policies or inherited ones.
    policies: Callable[[TopicRecord], Policies] = attrgetter("policies")
    _epochs: Iterator[int] = field(default_factory=lambda: count(1))

    def new_epoch(self) -> int:
        """Return a number that no subscription had as its epoch, over restarts too."""
        return (self.store.boot << 32) + next(self._epochs)


class Partition:
    """A partition in use; loading it reads no entries."""

    def __init__(self, broker: Broker, topic: TopicRecord, index: int) -> None:
        self.store = store = broker.store
        self.broker = broker
        self.topic = topic
        self.index = index
        self.ledger: Ledger = store.ledger(topic.ledger_ids[max(0, index)])
        self.producers = ProducerTable(store, self.ledger)
        self.dispatchers: list[Dispatcher] = []
        self.closed = False
        self._making: dict[str, asyncio.Task[Subscription]] = {}
        self.subscriptions: dict[str, Subscription] = {
            record.name: Subscription(self, record.name, record=record)
            for record in store.subscriptions(self.ledger.id)
        }
        self.ledger.listeners.add(self.arrived)

    @property
    def policies(self) -> Policies:
        """Return what holds for its topic."""
        return self.broker.policies(self.topic)

    def arrived(self) -> None:
        """Send what has become durable to who waits for it."""
        # A consumer that is closed in between changes the list.
        for dispatcher in list(self.dispatchers):
            dispatcher.run()

    async def terminate(self) -> Position:
        """Take no more entries, for good; return the last one, entry -1 if there is none.

        Producers are let go. When this returns all that was taken is on disk, and consumers that
        have received it are told. Raises StoreError.
        """
        await self.store.terminate(self.ledger)
        self.producers.let_go(TopicTerminatedError())
        last = self.ledger.next_entry - 1
        stored = asyncio.Event()
        self.store.after_sync(stored.set)
        await stored.wait()
        self.on_terminated()
        return Position(self.ledger.id, last, self.index)

    def on_terminated(self) -> None:
        """Let consumers learn that nothing will come after what is there."""
        self.arrived()
        for subscription in list(self.subscriptions.values()):
            subscription.look_for_end()

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

        Raises SubscriptionLimitError, NotAllowedError, TopicNotFoundError.
        """
        if self.closed:
            raise TopicNotFoundError
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
        self.producers.let_go(TopicNotFoundError())
        for subscription in list(self.subscriptions.values()):
            subscription.close()
        self.subscriptions.clear()

    async def _make(self, name: str, start: int, properties: Mapping[str, str]) -> Subscription:
        record = await self.store.create_subscription(self.ledger.id, name, start - 1, properties)
        if self.closed:
            raise TopicNotFoundError
        made = self.subscriptions[name] = Subscription(self, name, record=record)
        return made
