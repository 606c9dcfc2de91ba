"""Delivery to many consumers alike: an entry to each in turn.

Theory of operation. What is to be delivered again stands in a heap and comes before anything new,
then what was put aside and is due, then new entries. Consumers of the lowest priority number take
turns, entry by entry; the next ones are asked only when none of those can take any.

Chunks of one message are sent to one consumer, which alone can put them together: who was sent the
first one is remembered until the last. Where it can not take its next chunk now, that one waits for
it, and the others go on with what comes behind.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from heapq import heappop, heappush
from itertools import groupby
from typing import TYPE_CHECKING

from router.broker.dispatch.chunks import Chunks
from router.broker.dispatch.consumer import Consumer, Kind
from router.broker.dispatch.individual import REPLAY_AHEAD, Individual
from router.broker.dispatch.peeking import special
from router.wire.pulsar import pulsar_pb2 as pb

if TYPE_CHECKING:
    from router.broker.dispatch.subscription import Subscription
    from router.broker.ledger import Entry


class Shared(Individual):
    """Many consumers, an entry to each in turn; the ones of the lowest priority number first."""

    kind = Kind.SHARED

    def __init__(self, subscription: Subscription) -> None:
        super().__init__(subscription)
        self._again: list[int] = []
        self._listed: set[int] = set()
        # The consumers of each priority; whose turn it is stands first.
        self._turns: list[deque[Consumer]] = []
        self._chunks = Chunks()
        # What there is to know of the entry that `_next_entry` returned last.
        self._special: pb.MessageMetadata | None = None

    def add(self, consumer: Consumer) -> None:
        """Take a consumer in."""
        super().add(consumer)
        self._arrange()

    def remove(self, consumer: Consumer) -> None:
        """Let a consumer go: what it holds goes to the others, as if never delivered."""
        for turn in self._turns:
            if consumer in turn:
                turn.remove(consumer)
        for entry in self._chunks.gone(consumer):
            self._list(entry)
        super().remove(consumer)

    def run(self) -> None:
        """Send as long as there is an entry and a consumer that can take it."""
        self._stuck = False
        if self._send_waiting():
            self._send_in_turn()
        if self._delayed:
            self._delayed.arm()

    def _send_in_turn(self) -> None:
        while (turn := self._next_turn()) is not None:
            entry = self._next_entry()
            if entry is None:
                return
            consumer, metadata = turn[0], self._special
            if metadata is not None:
                consumer = self._chunks.taker(metadata, consumer)
            if consumer is turn[0]:
                turn.rotate(-1)
            elif self._chunks.waits_for(consumer) or not self._able(consumer):
                self._chunks.wait(consumer, entry.entry_id)
                continue
            self._send(consumer, entry)

    def _send_waiting(self) -> bool:
        """Send the chunks that wait for a consumer which can take them; False: not all are read."""
        for consumer, queue in self._chunks.queues():
            while queue and self._able(consumer):
                entry = None
                if not self._subscription.cursor.is_acked(queue[0]):
                    entry = self.feed.look(queue[0], REPLAY_AHEAD)
                    if entry is None:
                        return False
                self._chunks.sent(consumer)
                if entry is not None:
                    self._send(consumer, entry)
        return True

    def _arrange(self) -> None:
        self.consumers.sort(key=lambda c: c.priority)
        self._turns = [deque(same) for _, same in groupby(self.consumers, lambda c: c.priority)]

    def _put_back(self, consumer: Consumer, entries: Iterable[int]) -> None:
        for entry in entries:
            self._let_go(consumer, entry)
            self._list(entry)

    def _list(self, entry: int) -> None:
        if entry not in self._listed:
            self._listed.add(entry)
            heappush(self._again, entry)

    def _next_entry(self) -> Entry | None:
        if self._delayed and (due := self._delayed.due()) is not None:
            self._list(due[0])
        while self._again:
            number = self._again[0]
            gone = self._subscription.cursor.is_acked(number)
            ahead = min(len(self._again), REPLAY_AHEAD)
            entry = None if gone else self.feed.look(number, ahead)
            if entry is None and not gone:
                return None
            self._listed.remove(heappop(self._again))
            if entry is not None:
                self._special = special(entry.payload)
                return entry
        return self._new_entry()

    def _new_entry(self) -> Entry | None:
        """Return the next entry in order whose time has come, putting others aside."""
        delayed = self._delayed
        while not delayed.full and not self._chunks.full:
            entry = self.feed.take()
            if entry is None:
                return None
            self._special = metadata = special(entry.payload)
            when = 0 if metadata is None else metadata.deliver_at_time
            if not when or not delayed.put_aside(entry.entry_id, when):
                return entry
        return None

    def _next_turn(self) -> deque[Consumer] | None:
        """Return the consumers of a priority, the one whose turn it is first and able."""
        for turn in self._turns:
            for passed, consumer in enumerate(turn):
                if self._able(consumer):
                    turn.rotate(-passed)
                    return turn
        return None
