"""A topic's subscriptions, over all its partitions: made, moved and deleted together."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from typing import Final

from router.broker.consume import Partition, PartitionSubscription, StartPosition
from router.broker.topics.steps import side_by_side, steps_of
from router.broker.topics.topics import Topics
from router.errors import (
    BadRequestError,
    NotAllowedError,
    SubscriptionBusyError,
    SubscriptionNotFoundError,
)
from router.errors.quoting import quoted
from router.model import TopicName

MAX_NAME_CHARACTERS: Final = 1_024


def check_name(subscription: str) -> None:
    """Raise BadRequestError if a subscription may not have this name."""
    if not 1 <= len(subscription) <= MAX_NAME_CHARACTERS:
        raise BadRequestError(f"a subscription's name has 1 to {MAX_NAME_CHARACTERS} characters")


def only_partition(topics: Topics, topic: str) -> Partition:
    """Return a topic's only partition, or the one that is named; raise NotAllowedError."""
    name = topics.parse(topic)
    partitions = topics.pieces(name)
    if len(partitions) != 1:
        raise NotAllowedError(f"{name} has {len(partitions)} partitions: name one")
    return partitions[0]


class TopicSubscriptions:
    """The subscriptions of topics; where a partition is named, on that partition only."""

    def __init__(self, topics: Topics) -> None:
        self._topics = topics

    async def subscribe(self, name: TopicName, subscription: str, whence: StartPosition) -> None:
        """Make a subscription exist on all partitions of a topic; raise TopicNotFoundError.

        One that exists is left as it is.

        Raises DamagedError, OSError as `StartPosition.entry` does.
        """
        partitions = self._topics.pieces(name)
        missing = [p for p in partitions if subscription not in p.subscriptions]
        for partition in missing:
            partition.check_limit()
        known = (p.subscriptions.get(subscription) for p in partitions)
        if any(one is not None and one.passive for one in known):
            # A group with positions on some partitions reads the others from their beginning.
            whence = StartPosition(earliest=True)
        entries = {partition: await whence.entry(partition.ledger) for partition in missing}
        await side_by_side(
            partition.subscribe(subscription, entries.get(partition, 0)) for partition in partitions
        )

    def check_free(self, topic: str, subscription: str) -> None:
        """Raise SubscriptionBusyError if members of another protocol read a subscription."""
        self._topics.live_members.check(topic, subscription)

    def present(self, topic: str, subscription: str) -> Sequence[PartitionSubscription] | None:
        """Return a topic's subscription on each partition, None: `make` has something to do.

        Raises TopicNotFoundError, BadNameError, NotAllowedError.
        """
        pieces = self._topics.pieces(self._topics.parse(topic))
        found = [piece.subscriptions.get(subscription) for piece in pieces]
        present = [one for one in found if one is not None and one.durable and not one.passive]
        return present if len(present) == len(found) else None

    async def make(self, topic: str, subscription: str, start: StartPosition) -> None:
        """Make a subscription exist on all partitions, for consumers; raise as `subscribe` does."""
        check_name(subscription)
        await self.subscribe(self._topics.parse(topic), subscription, start)

    async def reset(
        self, name: TopicName, subscription: str, to: StartPosition | Mapping[int, StartPosition]
    ) -> None:
        """Move a topic's subscription on each partition that has it; its consumers are closed.

        With places by partition, on those alone. Raises TopicNotFoundError,
        SubscriptionNotFoundError, BadRequestError for a partition that has no such subscription,
        and DamagedError, OSError as `StartPosition.entry` does; then nothing was moved.
        """
        found = self.find(name, subscription)
        if isinstance(to, StartPosition):
            places = [await to.place(moving.ledger) for moving in found]
        else:
            found = [moving for moving in found if moving.partition.index in to]
            if len(found) < len(to):
                raise BadRequestError(f"{name} has no subscription on one of these partitions")
            places = [await to[moving.partition.index].place(moving.ledger) for moving in found]
        # All at once, so that no client sees one partition moved and another not; what ended while
        # files were read is left out.
        self.find(name, subscription)
        moved = [
            moving.reset_durably(*place)
            for moving, place in zip(found, places, strict=True)
            if moving.partition.subscriptions.get(subscription) is moving
        ]
        await asyncio.gather(*moved)

    async def unsubscribe(self, name: TopicName, subscription: str, *, force: bool = False) -> None:
        """Delete a topic's subscription that has no consumers; with `force`, any.

        One that is read before it is gone from all partitions stays on the others.

        Raises TopicNotFoundError, SubscriptionNotFoundError, SubscriptionBusyError.
        """
        found = self.find(name, subscription)
        async for step in steps_of(found):
            if not force:
                self.check_free(str(name), subscription)
                if consumers := sum(len(ending.consumers) for ending in found):
                    sentence = f"{subscription} is read by {consumers} consumers"
                    raise SubscriptionBusyError(sentence, retry_after=1)
            await side_by_side(ending.partition.delete(ending) for ending in step)

    def find(self, name: TopicName, subscription: str) -> Sequence[PartitionSubscription]:
        """Return a topic's subscription on each partition that has it.

        Raises TopicNotFoundError, SubscriptionNotFoundError.
        """
        found = [
            partition.subscriptions[subscription]
            for partition in self._topics.pieces(name)
            if subscription in partition.subscriptions
        ]
        if not found:
            raise SubscriptionNotFoundError(f"{name} has no subscription {quoted(subscription)}")
        return found
