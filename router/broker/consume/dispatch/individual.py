"""What shared and key-shared delivery have in common: consumers hold single entries.

Theory of operation. A consumer *holds* what it was sent and did not acknowledge yet. What it holds
when it goes, or returns, is sent before anything new, lowest first, and each return of an entry is
counted, because clients send to a dead letter topic by that count. Acknowledged
entries are skipped when their turn comes, not searched for. Counts are kept in memory alone: a
write for each delivery would be the price of having them exact over restarts.

How much consumers may hold is bounded for each and for all of a subscription together.

Entries whose time has not come are put aside in memory, some 50 bytes each, until they are due.
None of it is stored: such an entry is not acknowledged, so that after a restart it is read and put
aside again. When MAX_DELAYED_ENTRIES are put aside, reading stops until one is due. The
alternative, an index on disk of what is delayed, buys more of them at the price of a write for
each.
"""

from __future__ import annotations

import asyncio
from abc import abstractmethod
from collections.abc import Callable, Iterable
from heapq import heapify, heappop, heappush
from typing import Final

from router.broker.consume.consumer import ClientConsumer
from router.broker.consume.cursor.pending import UNLIMITED, DeliveryRules, PendingDeliveries
from router.broker.consume.dispatch.dispatcher import Dispatcher, EntrySource
from router.broker.storage import Entry

MAX_HELD: Final = 50_000
MAX_HELD_BY_ALL: Final = 200_000
REPLAY_AHEAD: Final = 64
MAX_DELAYED_ENTRIES: Final = 50_000
# The clock of days may be set; the timer runs by another one, and looks at it at least so often.
MAX_TIMER_SECONDS: Final = 30.0
RULES: Final = DeliveryRules(ack_wait=UNLIMITED, in_order=True)

_ENTRY: Final = 48
_SLOT: Final = 16


class Delayed:
    """The entries of one subscription whose time has not come; `wake` is called when one's has.

    What is due is judged by one reading of the clock, `look`, from taking out to arming: with two
    readings an entry whose time comes between them is neither taken out nor waited for.
    """

    def __init__(self, now_ms: Callable[[], int], wake: Callable[[], None]) -> None:
        self._now_ms = now_ms
        self._wake = wake
        # A time, a slot and an entry in one number: half the bytes of a tuple.
        self._waiting: list[int] = []
        self._timer: asyncio.TimerHandle | None = None
        self._looked_ms = 0

    def __len__(self) -> int:
        return len(self._waiting)

    @property
    def full(self) -> bool:
        """Return whether no more may be put aside."""
        return len(self._waiting) >= MAX_DELAYED_ENTRIES

    @property
    def entries(self) -> set[int]:
        """Return which entries are put aside."""
        return {kept & (1 << _ENTRY) - 1 for kept in self._waiting}

    def put_aside(self, entry: int, when_ms: int, slot: int = 0) -> bool:
        """Keep an entry, and the slot of its key, until its time; False: it has come already."""
        if when_ms <= self._now_ms():
            return False
        heappush(self._waiting, (when_ms << _SLOT | slot) << _ENTRY | entry)
        return True

    def look(self) -> None:
        """Read the clock: `due` and `arm` go by it until the next look."""
        self._looked_ms = self._now_ms()

    def due(self) -> tuple[int, int] | None:
        """Take out an entry, and its slot, whose time has come: the one whose time came first."""
        if not self._waiting or self._next_ms() > self._looked_ms:
            return None
        found = heappop(self._waiting)
        return found & (1 << _ENTRY) - 1, found >> _ENTRY & (1 << _SLOT) - 1

    def arm(self) -> None:
        """See to it that `wake` is called when the next one is due; not if it was at the look."""
        self.disarm()
        if self._waiting and self._next_ms() > self._looked_ms:
            left = max(0, self._next_ms() - self._now_ms())
            loop = asyncio.get_running_loop()
            self._timer = loop.call_later(min(left / 1000, MAX_TIMER_SECONDS), self._wake)

    def drop(self, done: Callable[[int], bool]) -> None:
        """Forget the entries that are done with."""
        self._waiting = [kept for kept in self._waiting if not done(kept & (1 << _ENTRY) - 1)]
        heapify(self._waiting)

    def close(self) -> None:
        """Forget everything, and do not call `wake` any more."""
        self._waiting.clear()
        self.disarm()

    def disarm(self) -> None:
        """Do not call `wake` until it is armed again."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _next_ms(self) -> int:
        return self._waiting[0] >> _SLOT + _ENTRY


class Individual(Dispatcher):
    """Delivers entries one by one to consumers that hold them."""

    def __init__(self, source: EntrySource) -> None:
        super().__init__(source)
        # With the consumer that holds an entry: another one may acknowledge it.
        self._pending: PendingDeliveries[ClientConsumer] = PendingDeliveries(RULES, {})
        self._held = 0
        # Whether there is something to send as soon as something is acknowledged.
        self._blocked = False
        self.delayed = Delayed(source.context.now_ms, self.run)

    def remove(self, consumer: ClientConsumer) -> None:
        """Remove a consumer: what it holds goes to the others, as if it was never delivered."""
        super().remove(consumer)
        self._put_back(consumer, list(consumer.held))
        self.run()

    def redeliver(self, consumer: ClientConsumer, entries: Iterable[int]) -> None:
        """Deliver again those of the entries that the consumer holds, counted as redeliveries."""
        returned = dict.fromkeys(entries) or list(consumer.held)
        given_back = [entry for entry in returned if entry in consumer.held]
        for entry in given_back:
            self._pending.count(entry)
            consumer.flow.redelivered += consumer.held[entry]
        self._put_back(consumer, given_back)
        self.run()

    def acknowledged(self, entries: Iterable[int]) -> None:
        """Release the entries; the consumer that holds one may be another that acknowledged it."""
        settle = self._pending.settle
        for entry in entries:
            if (holder := settle(entry)) is not None:
                self._release(holder, entry)
        if self._blocked:
            self.run()

    def hold_out(self, entries: Iterable[int]) -> None:
        """Release the entries; how often they came is not forgotten, as they may come again."""
        entries, counts = list(entries), self._pending.redelivered
        kept = {entry: counts[entry] for entry in entries if entry in counts}
        self.acknowledged(entries)
        counts.update(kept)

    def restore(self, entries: Iterable[int]) -> None:
        """Deliver the entries again, counted as redeliveries.

        One that is new, or put aside, comes anyway, and one that is acknowledged for good, or by
        another transaction too, does not come.
        """
        aside = self.delayed.entries
        for entry in entries:
            if entry in aside or self._source.delivered.is_acked(entry):
                continue
            holder = self._pending.held.get(entry)
            if holder is not None or entry < self.feed.position:
                self._pending.count(entry)
            if holder is not None:
                self._put_back(holder, [entry])
            elif entry < self.feed.position:
                self._return(entry)
        self.run()

    def release_acknowledged(self) -> None:
        """Release all entries that are acknowledged."""
        acked, pending = self._source.cursor.is_acked, self._pending
        self.delayed.drop(acked)
        self.acknowledged([e for e in {*pending.held, *pending.redelivered} if acked(e)])
        self.run()

    def close(self) -> None:
        """Stop for good."""
        self.delayed.close()
        super().close()

    @abstractmethod
    def _put_back(self, consumer: ClientConsumer, entries: Iterable[int]) -> None:
        """Take entries from a consumer, to be delivered again."""

    @abstractmethod
    def _return(self, entry: int) -> None:
        """Have an entry that no consumer holds be delivered again."""

    def _look_up(self, number: int, ahead: int) -> Entry | None:
        """Return an entry; None: it is acknowledged, or has to be read first."""
        if self._source.delivered.is_acked(number):
            return None
        return self.feed.get(number, ahead)

    def _can_take(self, consumer: ClientConsumer) -> bool:
        """Return whether a consumer can take an entry now; if not, `run` is called when it can."""
        if consumer.permits <= 0:
            return False
        if consumer.held_messages >= MAX_HELD or self._held >= MAX_HELD_BY_ALL:
            self._blocked = True
            return False
        if not consumer.link.writable:
            consumer.link.when_writable(self.run)
            return False
        return True

    def _send(self, consumer: ClientConsumer, entry: Entry) -> None:
        number = entry.entry_id
        messages = entry.messages
        self._held += messages
        self._pending.held[number] = consumer
        consumer.hold(number, messages)
        self._deliver(consumer, entry, self._pending.redelivered.get(number, 0))

    def _release(self, consumer: ClientConsumer, entry: int) -> bool:
        """Take an entry from a consumer; return whether it held it."""
        messages = consumer.release(entry)
        self._held -= messages
        return messages > 0
