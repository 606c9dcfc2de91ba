"""What one fetch of a REST consumer may take of a partition: what is not in flight."""

from __future__ import annotations

from router.broker.consume import PartitionSubscription
from router.broker.consume.cursor.backlog import BacklogCounter
from router.broker.consume.cursor.in_flight import (
    InFlight,
    InFlightRange,
    InFlightTerms,
    MessagePlace,
    runs,
)
from router.broker.storage import Entry
from router.errors import TooManyRequestsError
from router.model import Position


class PartitionFetch:
    """One fetch over a partition; what it takes is in flight once it is delivered."""

    def __init__(
        self, subscription: PartitionSubscription, consumer: str, terms: InFlightTerms
    ) -> None:
        in_flight = subscription.in_flight
        if in_flight is None:
            in_flight = subscription.in_flight = InFlight()
        self._in_flight: InFlight = in_flight
        self._subscription = subscription
        self._consumer = consumer
        self._terms = terms
        self._now_ms = 0
        self._taken: list[tuple[MessagePlace, MessagePlace, int]] = []
        self._is_counted = False

    def begin(self) -> int:
        """Begin to go over the partition, once more after each wait; return the first entry."""
        subscription = self._subscription
        first = subscription.cursor.mark_delete + 1
        self._in_flight.begin(subscription.epoch, first)
        # The same for all of one answer: what is taken together is due together.
        self._now_ms = subscription.context.now_ms()
        self._taken.clear()
        return self.next(first)

    def next(self, entry: int) -> int:
        """Return the first entry at or after one of which something may be taken."""
        cursor, in_flight = self._subscription.cursor, self._in_flight
        while True:
            unacked = cursor.next_unacked(entry)
            entry = in_flight.next(unacked, self._terms, self._now_ms)
            if entry == unacked:
                return entry

    @property
    def has_taken(self) -> bool:
        """Return whether something is taken."""
        return bool(self._taken)

    @property
    def is_full(self) -> bool:
        """Return whether nothing new may be taken, because too much is not acknowledged."""
        return self._in_flight.unacknowledged > self._terms.max_unacknowledged

    def is_new(self, entry: int) -> bool:
        """Return whether nothing of an entry was given yet."""
        end = self._in_flight.end
        return (entry, 0) >= end

    @property
    def needs_count(self) -> bool:
        """Return whether messages may have been acknowledged that were counted as in flight."""
        return self.is_full and not self._is_counted

    async def count(self) -> None:
        """Count what is not acknowledged of what was given."""
        subscription, (end, index) = self._subscription, self._in_flight.end
        cursor = subscription.cursor
        given = (1 << index) - 1
        if left := cursor.remaining(end):
            given &= left
        elif cursor.is_acked(end):
            given = 0
        counted = await BacklogCounter().backlog(subscription.visible, cursor, end)
        self._in_flight.unacknowledged = counted + given.bit_count()
        self._is_counted = True

    def too_many(self) -> TooManyRequestsError:
        """Return the refusal of a fetch that may take nothing new."""
        return TooManyRequestsError(
            f"{self._in_flight.unacknowledged} messages of partition"
            f" {max(self._subscription.partition_index, 0)} wait to be acknowledged"
            " (pip64.max_unacknowledged).",
            retry_after=1,
        )

    def left(self, stored: Entry, left: int) -> int:
        """Return which of the messages of an entry that are left may be taken, as bits."""
        number, messages = stored.entry_id, stored.messages
        context, in_flight = self._subscription.context, self._in_flight
        special = context.formats[stored.format].describe_special(stored.payload)
        if special is not None and special.deliver_at_ms > self._now_ms:
            in_flight.delay(number, messages, special.deliver_at_ms)
            return 0
        left &= ~in_flight.held(number, messages, self._terms, self._now_ms)
        if self.is_full and in_flight.end[0] == number:
            left &= (1 << in_flight.end[1]) - 1
        return left

    def took(self, stored: Entry, left: int, count: int) -> None:
        """Note that the first messages of those left of an entry are taken."""
        for first, end in runs(left, count):
            self._taken.append(((stored.entry_id, first), _end(stored, end), end - first))

    def deliver(self, upto: Position) -> None:
        """Have what was taken be in flight, up to a message."""
        end = (upto.entry + 1, 0)
        if 0 <= upto.batch_index < upto.batch_size - 1:
            end = (upto.entry, upto.batch_index + 1)
        terms, now_ms = self._terms, self._now_ms
        due = terms.due(now_ms)
        for first, last, messages in self._taken:
            if first < end:
                span = InFlightRange(first, min(last, end), due, self._consumer, now_ms)
                self._in_flight.give(messages, span)
        self._taken.clear()

    def seconds_until_due(self) -> float | None:
        """Return after how many seconds to go over the partition again; None: there is no time.

        At once if something has become due since it was gone over.
        """
        due = self._in_flight.next_due(self._terms, self._now_ms)
        return None if due is None else (due - self._subscription.context.now_ms()) / 1000


def _end(stored: Entry, index: int) -> MessagePlace:
    """Return the place before the message of an index."""
    return (stored.entry_id + 1, 0) if index >= stored.messages else (stored.entry_id, index)
