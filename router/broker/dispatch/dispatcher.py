"""What dispatchers of all kinds have in common: consumers, and a feed that starts at the cursor.

Theory of operation. A dispatcher lives as long as its subscription has consumers. `run` sends what
can be sent now and returns: it is called when entries arrive, permits come, a connection drains, a
read ends. Nothing waits inside, and no task stands behind a consumer.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable
from typing import TYPE_CHECKING

from router.broker.dispatch.consumer import Consumer, Kind
from router.broker.dispatch.feed import Feed

if TYPE_CHECKING:
    from router.broker.dispatch.subscription import Subscription


class Dispatcher(ABC):
    """Decides for one subscription who gets the next entry."""

    kind: Kind

    def __init__(self, subscription: Subscription) -> None:
        self.consumers: list[Consumer] = []
        self.feed = Feed(subscription, self.run)
        self._subscription = subscription
        self.rewind()

    @property
    def delayed(self) -> int:
        """Return how many entries are put aside until their time."""
        return 0

    def add(self, consumer: Consumer) -> None:
        """Take a consumer in; raise SubscriptionBusyError, HashRangeError."""
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

    def swept(self) -> None:  # noqa: B027 - only shared ones care
        """Learn that entries are done with that nobody named: all before one."""

    def rewind(self) -> None:
        """Go back to the first entry that is not acknowledged."""
        self.feed.rewind(self._subscription.cursor.mark_delete + 1)

    def close(self) -> None:
        """Stop for good."""
        self.feed.close()
        # A connection that was waited for calls `run` once more when it is writable again.
        for consumer in self.consumers:
            consumer.permits = 0
