"""One JetStream consumer as a pure state machine: what it was delivered, what it acknowledged.

Theory of operation. New messages are delivered in the order of their sequences, so that all below
`next_sequence` are delivered, passed over, or none of this consumer's. What is delivered and not
acknowledged is *pending*; it has a deadline, or waits in the queue for its next delivery. The
order of `pending` is that of the sequences: only new messages are added to it, and another delivery
leaves one where it is. So the ack floor is just before the first one.

The machine reads no message and knows no clock. Times are nanoseconds of one clock that does not
go back; deadlines are part of what is stored, so that this clock must go on over a restart.
"""

from __future__ import annotations

import json
from collections import OrderedDict, deque
from collections.abc import Iterable, Iterator, KeysView, Sequence
from itertools import count
from typing import Final, NamedTuple

from router.broker.consume.cursor.pending import AckScope, DeliveryRules, PendingDeliveries

_VERSION: Final = 1
_FIELDS: Final = 4
"""Numbers that `dump` writes of a pending message."""


class DeliveryPosition(NamedTuple):
    """A place in the deliveries of a consumer, and in its stream; both count from 1."""

    consumer: int
    stream: int


class PendingDelivery(NamedTuple):
    """A pending message: its last delivery, how many there were, and its deadline.

    `deadline_ns` None: it waits for its next delivery.
    """

    sequence: int
    consumer_sequence: int
    attempts: int
    deadline_ns: int | None


class ConsumerState:
    """What a consumer was delivered and acknowledged.

    `configure` replaces the rules. `delivered` is the number of the last
    delivery and the sequence that all before `next_sequence` end with.
    """

    def __init__(self, rules: DeliveryRules, start: int) -> None:
        self.next_sequence = max(1, start)
        self.floor = DeliveryPosition(0, self.next_sequence - 1)
        self.listed: deque[int] = deque()
        self.resume = 0
        self.exhausted: set[int] = set()
        self._deliveries = 0
        self.rules = rules
        # A plain dictionary takes ever longer to find its first key while the first ones go.
        self._pending: PendingDeliveries[int] = PendingDeliveries(rules, OrderedDict())

    def configure(self, rules: DeliveryRules) -> None:
        """Acknowledge messages and deliver them again by other rules."""
        self.rules = self._pending.rules = rules

    @property
    def delivered(self) -> DeliveryPosition:
        """Return the last delivery, and the last sequence that needs no reading any more."""
        return DeliveryPosition(self._deliveries, self.next_sequence - 1)

    @property
    def num_pending_acks(self) -> int:
        """Return how many messages are delivered and not acknowledged."""
        return len(self._pending.held)

    @property
    def num_redelivered(self) -> int:
        """Return how many of the pending messages were delivered more than once."""
        return len(self._pending.redelivered)

    @property
    def num_queued(self) -> int:
        """Return how many messages wait for another delivery."""
        return len(self._pending.due.ranks)

    @property
    def may_deliver_new(self) -> bool:
        """Return whether the limit of pending messages lets a new message go out."""
        return len(self._pending.held) < self.rules.max_pending

    @property
    def num_deliverable(self) -> int:
        """Return how many new messages the limit of pending ones lets go out."""
        if self.rules.acks is AckScope.NONE:
            return self.rules.max_pending
        return max(0, self.rules.max_pending - len(self._pending.held))

    def attempts(self, sequence: int) -> int:
        """Return how often a message was delivered; 0: it is not pending."""
        pending = self._pending
        return pending.redelivered.get(sequence, 0) + 1 if sequence in pending.held else 0

    def pending(self) -> KeysView[int]:
        """Return the sequences of the pending messages in their order."""
        return self._pending.held.keys()

    def needs(self, sequence: int) -> bool:
        """Return whether a message of this consumer's subjects still waits for it.

        True for what is not delivered yet, is pending, or reached its last delivery without an
        acknowledgement.
        """
        if sequence >= self.next_sequence:
            return not self.listed or sequence > self.resume or sequence in self.listed
        return sequence in self._pending.held or sequence in self.exhausted

    def begin_with(self, listed: Sequence[int], resume: int) -> None:
        """Deliver these sequences first, and then everything behind `resume`."""
        self.resume = resume
        self.listed = deque(one for one in listed if one >= self.next_sequence)
        if not self.listed:
            self.next_sequence = max(self.next_sequence, resume + 1)

    def next_redelivery(self) -> int | None:
        """Return the message that is delivered next because it was delivered before."""
        return self._pending.next_due()

    def deliver(self, sequence: int, now_ns: int) -> None:
        """Take note that a message goes out now: a pending one, or a new one.

        Raises ValueError if it is neither.
        """
        is_pending = sequence in self._pending.held
        if sequence < self.next_sequence and not is_pending:
            raise ValueError(f"message {sequence} was delivered before and is not pending")
        self._deliveries += 1
        if is_pending:
            self._pending.deliver_again(sequence, now_ns)
            return
        self.pass_over(sequence)
        if self.rules.acks is AckScope.NONE:
            self.floor = DeliveryPosition(self._deliveries, sequence)
        else:
            self._pending.deliver((sequence,), (self._deliveries,), now_ns)

    def deliver_new(self, sequences: Sequence[int], now_ns: int) -> int:
        """Take note that new messages go out, in order; return the number of the first delivery.

        As `deliver` of each; none is listed. Raises ValueError if one of them is not new.
        """
        if self.listed or sequences[0] < self.next_sequence:
            raise ValueError(f"message {sequences[0]} is not the next in order")
        first = self._deliveries + 1
        self._deliveries += len(sequences)
        self.next_sequence = sequences[-1] + 1
        if self.rules.acks is AckScope.NONE:
            self.floor = DeliveryPosition(self._deliveries, sequences[-1])
        else:
            self._pending.deliver(sequences, count(first), now_ns)
        return first

    def pass_over(self, sequence: int, *, acknowledged: bool = False) -> None:
        """Go on behind a message: it is not there any more, or none of this consumer's.

        `acknowledged`: it was delivered and acknowledged before the state was stored.
        """
        if sequence < self.next_sequence:
            return
        self.next_sequence = sequence + 1
        while self.listed and self.listed[0] <= sequence:
            self.listed.popleft()
            if not self.listed:
                self.next_sequence = max(self.next_sequence, self.resume + 1)
        if acknowledged and not self._pending.held:
            self.floor = DeliveryPosition(self._deliveries, sequence)

    def acknowledge(self, sequence: int, consumer_sequence: int) -> list[int]:
        """Take an acknowledgement, or the end of a message's deliveries, which is the same.

        Returns the sequences that it acknowledged. Repeated ones, and those of messages that were
        not delivered, acknowledge nothing.
        """
        acks = self.rules.acks
        if sequence >= self.next_sequence or acks is AckScope.NONE:
            return []
        if acks is AckScope.EXPLICIT:
            return self.acknowledge_each((sequence,))
        if sequence <= self.floor.stream or consumer_sequence <= self.floor.consumer:
            return []
        done = []
        for one in self._pending.held:
            if one > sequence:
                break
            done.append(one)
        for one in done:
            self._pending.settle(one)
        late = [one for one in self.exhausted if one <= sequence]
        self.exhausted.difference_update(late)
        self.floor = DeliveryPosition(min(consumer_sequence, self._deliveries), sequence)
        return sorted(done + late)

    def acknowledge_each(self, sequences: Sequence[int]) -> list[int]:
        """Take acknowledgements of one message each; return the sequences that they acknowledged.

        Each message is acknowledged by itself.
        """
        done = self._settle(sequences)
        if self.exhausted and (late := self.exhausted.intersection(sequences)):
            self.exhausted -= late
            done += late
        return done

    def refuse(self, sequence: int, now_ns: int, delay_ns: int | None = None) -> bool:
        """Deliver a pending message again, after a delay; return False if it is not pending."""
        pending = self._pending
        if sequence not in pending.held:
            return False
        if delay_ns is not None:
            pending.postpone(sequence, now_ns + max(0, delay_ns))
        elif sequence not in pending.due.ranks:
            self._expire(sequence)
        return True

    def extend(self, sequence: int, now_ns: int) -> bool:
        """Give a pending message its time again; return False if it is not pending."""
        pending = self._pending
        if sequence in pending.deadlines.ranks:
            pending.postpone(sequence, now_ns + self.rules.wait(self.attempts(sequence)))
        return sequence in pending.held

    def tick(self, now_ns: int) -> list[int]:
        """Queue what was not acknowledged in time; return what was delivered for the last time."""
        return [one for one in self._pending.deadlines.take(now_ns) if self._expire(one)]

    def next_deadline(self) -> int | None:
        """Return when `tick` has something to do."""
        first = self._pending.deadlines.first()
        return None if first is None else first[0]

    def settle(self, sequences: Iterable[int]) -> list[int]:
        """Wait for these messages no more, and return those that were pending.

        The stream has them no more, or they are known to be acknowledged.
        """
        sequences = tuple(sequences)
        self.exhausted.difference_update(sequences)
        return self._settle(sequences)

    def settle_range(self, first: int, last: int) -> list[int]:
        """Wait no more for the messages between two sequences, ends included; see `settle`."""
        held = self._pending.held
        if not held and not self.exhausted:
            return []
        if last - first < len(held) + len(self.exhausted):
            return self.settle(range(first, last + 1))
        known = (*held, *self.exhausted)
        return self.settle([one for one in known if first <= one <= last])

    def trim(self, first: int) -> list[int]:
        """Forget all messages below the stream's first; return those that were pending."""
        below = []
        for sequence in self._pending.held:
            if sequence >= first:
                break
            below.append(sequence)
        self.settle(below)
        self.exhausted = {one for one in self.exhausted if one >= first}
        if self.next_sequence < first:
            self.pass_over(first - 1)
        if not self._pending.held and self.floor.stream < first - 1:
            self.floor = DeliveryPosition(self._deliveries, first - 1)
        return below

    def dump(self) -> str:
        """Return the state as text that `load` understands."""
        rows: list[int] = []
        for one in self.deliveries():
            rows += (*one[:3], one.deadline_ns or 0)
        head = (_VERSION, self._deliveries, self.next_sequence, *self.floor, self.resume)
        return json.dumps((head, rows, sorted(self.exhausted)), separators=(",", ":"))

    def deliveries(self) -> Iterator[PendingDelivery]:
        """Yield the pending messages in their order."""
        deadlines = self._pending.deadlines.ranks
        for sequence, number in self._pending.held.items():
            attempts = self.attempts(sequence)
            yield PendingDelivery(sequence, number, attempts, deadlines.get(sequence))

    @classmethod
    def standing_at(
        cls,
        rules: DeliveryRules,
        delivered: DeliveryPosition,
        floor: DeliveryPosition,
        pending: Iterable[PendingDelivery],
    ) -> ConsumerState:
        """Return the state of a consumer that another server knew; `pending` are in order."""
        state = cls(rules, delivered.stream + 1)
        state.floor, state._deliveries = floor, delivered.consumer
        for one in pending:
            state._add(one)
        return state

    @classmethod
    def load(cls, rules: DeliveryRules, text: str) -> ConsumerState:
        """Return the state that was dumped; raise ValueError if this is not its text.

        The list of `begin_with` is not stored: it follows from `resume` and the stream.
        """
        try:
            head, rows, exhausted = json.loads(text)
            version, deliveries, following, floor_consumer, floor_stream, resume = head
            state = cls(rules, following)
            state.floor = DeliveryPosition(int(floor_consumer), int(floor_stream))
            state.resume, state._deliveries = int(resume), int(deliveries)
            state.exhausted = {int(one) for one in exhausted}
            for at in range(0, len(rows), _FIELDS):
                state._add(PendingDelivery(*rows[at : at + _FIELDS]))
        except (TypeError, ValueError) as error:
            raise ValueError("a stored consumer cannot be read") from error
        if version != _VERSION:
            raise ValueError("a stored consumer has an unknown form")
        return state

    def _add(self, one: PendingDelivery) -> None:
        self._pending.held[one.sequence] = one.consumer_sequence
        if one.attempts > 1:
            self._pending.redelivered[one.sequence] = one.attempts - 1
        self._pending.postpone(one.sequence, one.deadline_ns or 0)

    def _expire(self, sequence: int) -> bool:
        """Queue a message for another delivery; return whether it has none left."""
        if self.rules.is_last(self.attempts(sequence)):
            if self.rules.keeps_exhausted:
                self.exhausted.add(sequence)
            self._settle((sequence,))
            return True
        self._pending.make_due(sequence)
        return False

    def _settle(self, sequences: Iterable[int]) -> list[int]:
        """Take messages out of the pending ones, and move the floor; return those that were there.

        As the server does: the floor moves only when the message right behind it goes.
        """
        held, settle, done = self._pending.held, self._pending.settle, []
        consumer, stream = self.floor
        for sequence in sequences:
            number = settle(sequence)
            if number is None:
                continue
            done.append(sequence)
            if not held:
                consumer, stream = self._deliveries, self.next_sequence - 1
            elif number == consumer + 1:
                first = next(iter(held))
                consumer = max(held[first] - 1, consumer)
                stream = first - 1
        if done:
            self.floor = DeliveryPosition(consumer, stream)
        return done
