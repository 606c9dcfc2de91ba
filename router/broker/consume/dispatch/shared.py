"""Delivery to many consumers alike: an entry to each in turn.

Theory of operation. What is to be delivered again (`cursor/pending.py`) comes before anything new,
then what was put aside and is due, then new entries. Consumers of the lowest priority number take
turns, entry by entry; the next ones are asked only when none of those can take any.

Chunks of one message are sent to one consumer, because only a consumer that has all of them can put
them together: the one that got the first is remembered until the last. If it cannot take its next
chunk now, the chunk waits for it by number, and the others go on with what comes behind. At most
MAX_TRACKED_MESSAGES are remembered; the next chunk of one that was forgotten goes to the consumer
whose turn it is, which gives up on the message, as on any that is incomplete.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from heapq import heappop, heappush
from itertools import groupby
from typing import Final

from router.broker.consume.consumer import ClientConsumer, SubscriptionType
from router.broker.consume.dispatch.dispatcher import EntrySource
from router.broker.consume.dispatch.individual import REPLAY_AHEAD, Individual
from router.broker.consume.entry_info import EntryInfo
from router.broker.storage import Entry

MAX_TRACKED_MESSAGES: Final = 1_000
MAX_WAITING_CHUNKS: Final = 1_000


class Chunks:
    """The messages in chunks that are under way to the consumers of one subscription."""

    def __init__(self) -> None:
        # By the hash of the message's id.
        self._takers: dict[int, ClientConsumer] = {}
        self._queues: dict[ClientConsumer, list[int]] = {}
        self._waiting = 0

    @property
    def full(self) -> bool:
        """Return whether no more may wait."""
        return self._waiting >= MAX_WAITING_CHUNKS

    def taker(self, special: EntryInfo, consumer: ClientConsumer) -> ClientConsumer:
        """Return the consumer that gets an entry: this one, but for chunks that go to another."""
        chunk = special.chunk
        if chunk is None:
            return consumer
        taker = self._takers.pop(chunk.message, consumer)
        if chunk.number < chunk.total - 1:
            self._takers[chunk.message] = taker
            if len(self._takers) > MAX_TRACKED_MESSAGES:
                del self._takers[next(iter(self._takers))]
        return taker

    def wait(self, consumer: ClientConsumer, entry: int) -> None:
        """Keep a chunk until its consumer can take it."""
        heappush(self._queues.setdefault(consumer, []), entry)
        self._waiting += 1

    def waits_for(self, consumer: ClientConsumer) -> bool:
        """Return whether chunks wait for this consumer."""
        return consumer in self._queues

    def queues(self) -> list[tuple[ClientConsumer, list[int]]]:
        """Return the chunks that wait, the first of a consumer in front; `sent` takes it out."""
        return list(self._queues.items())

    def sent(self, consumer: ClientConsumer) -> None:
        """Forget the first chunk that waits for a consumer."""
        queue = self._queues[consumer]
        heappop(queue)
        self._waiting -= 1
        if not queue:
            del self._queues[consumer]

    def remove(self, consumer: ClientConsumer) -> list[int]:
        """Forget a consumer; return the chunks that waited for it."""
        self._takers = {
            message: taker for message, taker in self._takers.items() if taker is not consumer
        }
        waited = self._queues.pop(consumer, [])
        self._waiting -= len(waited)
        return waited


class Shared(Individual):
    """Many consumers, an entry to each in turn; the ones of the lowest priority number first."""

    kind = SubscriptionType.SHARED

    def __init__(self, source: EntrySource) -> None:
        super().__init__(source)
        # The consumers of each priority; whose turn it is stands first.
        self._turns: list[deque[ClientConsumer]] = []
        self._chunks = Chunks()
        # What there is to know of the entry that `_next_entry` returned last.
        self._special: EntryInfo | None = None
        self._formats = source.context.formats

    def add(self, consumer: ClientConsumer) -> None:
        """Add a consumer."""
        super().add(consumer)
        self._set_turns()

    def remove(self, consumer: ClientConsumer) -> None:
        """Remove a consumer: what it holds goes to the others, as if it was never delivered."""
        for turn in self._turns:
            if consumer in turn:
                turn.remove(consumer)
        for entry in self._chunks.remove(consumer):
            self._pending.make_due(entry)
        super().remove(consumer)

    def run(self) -> None:
        """Send as long as there is an entry and a consumer that can take it."""
        self._blocked = False
        self.delayed.look()
        if self._send_waiting():
            self._send_in_turn()
        if self.delayed:
            self.delayed.arm()

    def _send_in_turn(self) -> None:
        while (turn := self._next_turn()) is not None:
            entry = self._next_entry()
            if entry is None:
                return
            consumer, special = turn[0], self._special
            if special is not None:
                consumer = self._chunks.taker(special, consumer)
            if consumer is turn[0]:
                turn.rotate(-1)
            elif self._chunks.waits_for(consumer) or not self._can_take(consumer):
                self._chunks.wait(consumer, entry.entry_id)
                continue
            self._send(consumer, entry)

    def _send_waiting(self) -> bool:
        """Send the chunks that wait for a consumer which can take them; False: not all are read."""
        for consumer, queue in self._chunks.queues():
            while queue and self._can_take(consumer):
                entry = self._look_up(queue[0], REPLAY_AHEAD)
                if entry is None and not self._source.delivered.is_acked(queue[0]):
                    return False
                self._chunks.sent(consumer)
                if entry is not None:
                    self._send(consumer, entry)
        return True

    def _set_turns(self) -> None:
        self.consumers.sort(key=lambda c: c.priority)
        self._turns = [deque(same) for _, same in groupby(self.consumers, lambda c: c.priority)]

    def _put_back(self, consumer: ClientConsumer, entries: Iterable[int]) -> None:
        for entry in entries:
            self._pending.held.pop(entry)
            self._release(consumer, entry)
            self._pending.make_due(entry)

    def _return(self, entry: int) -> None:
        self._pending.make_due(entry)

    def _next_entry(self) -> Entry | None:
        if self.delayed and (due := self.delayed.due()) is not None:
            self._pending.make_due(due[0])
        waiting = self._pending.due.ranks
        while waiting and (number := self._pending.next_due()) is not None:
            entry = self._look_up(number, min(len(waiting), REPLAY_AHEAD))
            if entry is None and not self._source.delivered.is_acked(number):
                return None
            del waiting[number]
            if entry is not None:
                self._special = self._formats[entry.format].describe_special(entry.payload)
                return entry
        return self._new_entry()

    def _new_entry(self) -> Entry | None:
        """Return the next entry in order whose time has come, putting others aside."""
        delayed = self.delayed
        while not delayed.full and not self._chunks.full:
            entry = self.feed.take()
            if entry is None:
                return None
            special = self._formats[entry.format].describe_special(entry.payload)
            self._special = special
            when = 0 if special is None else special.deliver_at_ms
            if not when or not delayed.put_aside(entry.entry_id, when):
                return entry
        return None

    def _next_turn(self) -> deque[ClientConsumer] | None:
        """Return the consumers of a priority, with one in front that can take an entry."""
        for turn in self._turns:
            for passed, consumer in enumerate(turn):
                if self._can_take(consumer):
                    turn.rotate(-passed)
                    return turn
        return None
