"""What shared and key-shared delivery have in common: consumers hold single entries.

Theory of operation. A consumer *holds* what it was sent and did not acknowledge yet. What it holds
when it goes, or gives back, is sent before anything new, lowest first, and each time that an entry
is given back is counted, because clients send to a dead letter topic by that count. Acknowledged
entries are skipped when their turn comes, not searched for. Counts are kept in memory alone: a
write for each delivery would be the price of having them exact over restarts.

How much consumers may hold is bounded for each and for all of a subscription together; entries that
are not to be delivered yet are put aside (`delayed`).
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterable
from typing import TYPE_CHECKING, Final

from router.broker.dispatch.consumer import Consumer
from router.broker.dispatch.delayed import Delayed
from router.broker.dispatch.dispatcher import Dispatcher

if TYPE_CHECKING:
    from router.broker.dispatch.subscription import Subscription
    from router.broker.ledger import Entry

MAX_HELD: Final = 50_000
MAX_HELD_BY_ALL: Final = 200_000
REPLAY_AHEAD: Final = 64


class Individual(Dispatcher):
    """Delivers entries one by one to consumers that hold them."""

    def __init__(self, subscription: Subscription) -> None:
        super().__init__(subscription)
        self._redeliveries: dict[int, int] = {}
        # Who holds which entry, for it may be another one that acknowledges it.
        self._holders: dict[int, Consumer] = {}
        self._held = 0
        # Whether there is something to send as soon as something is acknowledged.
        self._stuck = False
        self._delayed = Delayed(subscription.partition.broker.now_ms, self.run)

    @property
    def delayed(self) -> int:
        """Return how many entries are put aside until their time."""
        return len(self._delayed)

    def remove(self, consumer: Consumer) -> None:
        """Let a consumer go: what it holds goes to the others, as if never delivered."""
        super().remove(consumer)
        self._put_back(consumer, list(consumer.held))
        self.run()

    def redeliver(self, consumer: Consumer, entries: Iterable[int]) -> None:
        """Deliver again what the consumer holds of these, counted as redeliveries."""
        asked = dict.fromkeys(entries) or list(consumer.held)
        given_back = [entry for entry in asked if entry in consumer.held]
        for entry in given_back:
            self._redeliveries[entry] = self._redeliveries.get(entry, 0) + 1
            consumer.flow.redelivered += consumer.held[entry]
        self._put_back(consumer, given_back)
        self.run()

    def acknowledged(self, consumer: Consumer, entries: Iterable[int]) -> None:
        """Take the entries from whoever holds them; that may not be who acknowledged."""
        for entry in entries:
            self._redeliveries.pop(entry, None)
            if (holder := self._holders.get(entry)) is not None:
                self._let_go(holder, entry)
        if self._stuck:
            self.run()

    def swept(self) -> None:
        """Let go of all that is acknowledged, whoever has it."""
        acked = self._subscription.cursor.is_acked
        for consumer in self.consumers:
            for entry in [entry for entry in consumer.held if acked(entry)]:
                self._let_go(consumer, entry)
        self._redeliveries = {e: count for e, count in self._redeliveries.items() if not acked(e)}
        self._delayed.drop(acked)
        self.run()

    def close(self) -> None:
        """Stop for good."""
        self._delayed.close()
        super().close()

    @abstractmethod
    def _put_back(self, consumer: Consumer, entries: Iterable[int]) -> None:
        """Take entries from a consumer, to be delivered again."""

    def _able(self, consumer: Consumer) -> bool:
        """Tell whether a consumer can take an entry now; if not, `run` is called when it can."""
        if consumer.permits <= 0:
            return False
        if consumer.held_messages >= MAX_HELD or self._held >= MAX_HELD_BY_ALL:
            self._stuck = True
            return False
        if not consumer.link.writable:
            consumer.link.when_writable(self.run)
            return False
        return True

    def _send(self, consumer: Consumer, entry: Entry) -> None:
        number = entry.entry_id
        messages = self.feed.messages(entry)
        self._held += messages
        self._holders[number] = consumer
        consumer.hold(number, messages)
        left = self._subscription.cursor.ack_set(number) or ()
        consumer.deliver(entry, messages, self._redeliveries.get(number, 0), left)

    def _let_go(self, consumer: Consumer, entry: int) -> bool:
        """Take an entry from a consumer; tell whether it held it."""
        messages = consumer.let_go(entry)
        if not messages:
            return False
        self._held -= messages
        del self._holders[entry]
        return True
