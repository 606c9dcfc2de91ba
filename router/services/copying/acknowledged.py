"""What a group acknowledged at the source, said in places of the target; pure but for the state.

Theory of operation. Messages that do not come from the copy may lie between copied ones at the
target: those that were published there after the switch, while the last ones of the source still
arrived. A cumulative acknowledgement behind them would acknowledge what no subscriber has read. So
an acknowledgement is cumulative only within the *unbroken* beginning of the partition, where every
message is a copied one; behind it the copied messages are acknowledged one by one.

Kafka ends each transaction with a marker that takes an offset. A copied batch is one transaction,
and the next one begins after the marker is written, so a gap of one offset between two batches is
the marker, and a larger gap holds something else. Markers between acknowledged messages are
acknowledged with them: they would be gaps in what the group keeps, and a backlog of its own.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Final

from router.backends import Receipt
from router.model import CursorState, Position, TopicName
from router.services.copying.places import Key, end_key_of, key_of
from router.services.copying.state import CopiedBatch, CopyState

LAST_INDEX: Final = (1 << 31) - 1
"""Behind every message of an entry."""

Span = tuple[Key, Key]
"""Messages of the source from one key to another, ends included."""


def position_at(key: Key, partition: int) -> Position:
    """Return the position that has a key."""
    ledger, entry, index = key
    return Position(ledger, entry, partition, index)


def spans_of(state: CursorState) -> tuple[Span, ...]:
    """Return the ranges that are acknowledged behind the mark, in order."""
    mark = (-1, -1, -1) if state.mark_delete is None else end_key_of(state.mark_delete)
    spans = sorted((key_of(first), end_key_of(last)) for first, last in state.acknowledged)
    return tuple(span for span in spans if span[1] > mark)


@dataclass(slots=True)
class TargetAcknowledgements:
    """What is to be acknowledged on one partition of the target.

    `upto`: this message and all before it; `alone`: these messages only.
    """

    upto: Position | None = None
    alone: list[Position] = field(default_factory=list)

    def __bool__(self) -> bool:
        return self.upto is not None or bool(self.alone)


@dataclass(slots=True)
class Done:
    """What was translated for a group on a partition before.

    All batches up to `sequence` are acknowledged at the target, and so are the `spans`.
    """

    sequence: int = -1
    upto: Position | None = None
    spans: dict[Key, Key] = field(default_factory=dict)


class Translation:
    """Translates where the groups of one topic stand on one of its partitions.

    `unbroken` is the last sequence of the batches that have no other messages before or between
    them at the target, -1: there is none.
    """

    def __init__(self, state: CopyState, topic: TopicName, partition: int, unbroken: int) -> None:
        self._state = state
        self._topic = topic
        self._partition = partition
        self._unbroken = unbroken

    def acks(self, cursor: CursorState, done: Done) -> tuple[TargetAcknowledgements, Done]:
        """Return what is acknowledged at the source and not `done`, and what is done with that."""
        acks, after = TargetAcknowledgements(), replace(done, spans={})
        if cursor.mark_delete is not None:
            after = self._before_mark(end_key_of(cursor.mark_delete), acks, after)
        self._apart(spans_of(cursor), acks, done, after)
        if acks.upto == done.upto:
            acks.upto = None
        return acks, after

    def _before_mark(self, mark: Key, acks: TargetAcknowledgements, done: Done) -> Done:
        batch = self._state.batch_at(self._topic, position_at(mark, self._partition))
        if batch is None or batch.receipt is None:
            return done
        count = batch.upto(position_at(mark, self._partition))
        whole = batch.sequence if count == batch.count else batch.sequence - 1
        if batch.sequence <= self._unbroken:
            acks.upto = batch.receipt.at(count - 1)
        else:
            acks.upto = self._unbroken_end()
            after = max(self._unbroken, done.sequence)
            acks.alone += self._range((), after, batch.sequence, mark)
        return replace(done, sequence=max(done.sequence, whole), upto=acks.upto)

    def _unbroken_end(self) -> Position | None:
        """Return where the last message of the unbroken beginning is."""
        if self._unbroken < 0:
            return None
        after = self._unbroken - 1
        batch = next(self._state.batches(self._topic, self._partition, after), None)
        if batch is None or batch.receipt is None or batch.sequence != self._unbroken:
            return None
        return batch.receipt.at(batch.count - 1)

    def _apart(
        self, spans: Sequence[Span], acks: TargetAcknowledgements, done: Done, after: Done
    ) -> None:
        """Add what is acknowledged behind the mark, and note it."""
        last = self._state.last_copied(self._topic, self._partition)
        if last is None:
            return
        copied = end_key_of(last.last())
        for first, end in spans:
            if first > copied:
                break
            known = done.spans.get(first)
            until = min(end, copied)
            after.spans[first] = until
            if known is None or known < until:
                begin = first if known is None else known
                acks.alone += self._between(begin, until)

    def _between(self, first: Key, end: Key) -> list[Position]:
        """Return where the messages between two places of the source are stored."""
        begin = self._state.batch_at(self._topic, position_at(first, self._partition))
        after = -1 if begin is None else begin.sequence - 1
        final = self._state.batch_at(self._topic, position_at(end, self._partition))
        if final is None:
            return []
        return self._range((first,), after, final.sequence, end)

    def _range(
        self, begin: tuple[Key] | tuple[()], after: int, until: int, end: Key
    ) -> list[Position]:
        """Return where the messages up to a place are stored, of the batches between sequences."""
        found: list[Position] = []
        previous: Receipt | None = None
        for batch in self._state.batches(self._topic, self._partition, after):
            if batch.sequence > until or batch.receipt is None:
                break
            first = messages_before(batch, begin[0]) if begin else 0
            count = batch.upto(position_at(end, self._partition))
            if count <= first:
                continue
            if first == 0 and previous is not None:
                found += marker_between(previous, batch.receipt)
            found += stored_at(batch.receipt, first, count)
            previous = batch.receipt if count == batch.count else None
        return found


def messages_before(batch: CopiedBatch, key: Key) -> int:
    """Return how many messages of a batch lie before a place of the source."""
    ledger, entry, index = key
    # Before the first message of an entry is behind the last one of the entry before.
    before = (ledger, entry, index - 1) if index else (ledger, entry - 1, LAST_INDEX)
    return sum(run.upto(before) for run in batch.runs)


def stored_at(receipt: Receipt, first: int, end: int) -> Iterator[Position]:
    """Yield where messages of a batch are stored, by number; a whole entry as one position."""
    at = 0
    for part in receipt.parts or (receipt,):
        low, high = max(first, at), min(end, at + part.stored)
        if not part.flat and low == at and high == at + part.stored > at + 1:
            yield replace(part.position, batch_index=-1, batch_size=0)
        else:
            yield from (part.at(number - at) for number in range(low, high))
        at += part.stored


def marker_between(before: Receipt, after: Receipt) -> Iterable[Position]:
    """Return the place of the marker between two batches of Kafka, if there is nothing else."""
    last, first = last_of(before), after.at(0)
    if is_kafka(before) and is_kafka(after) and first.entry == last.entry + 2:
        return (replace(last, entry=last.entry + 1),)
    return ()


def last_of(receipt: Receipt) -> Position:
    """Return where the last message of a batch is stored."""
    return receipt.at(sum(part.stored for part in receipt.parts or (receipt,)) - 1)


def is_kafka(receipt: Receipt) -> bool:
    """Return whether a batch is stored in Kafka: other stores count ledgers."""
    return all(part.flat and part.position.ledger == 0 for part in receipt.parts or (receipt,))


def adjoin(before: Position, after: Position) -> bool:
    """Return whether two messages are certainly neighbors; False: what is between is to be read."""
    if before.ledger != after.ledger:
        return False
    if after.entry == before.entry:
        return max(0, after.batch_index) == max(0, before.batch_index) + 1
    gap = after.entry - before.entry
    ends = before.batch_index < 0 or before.batch_index + 1 == before.batch_size
    return ends and after.batch_index <= 0 and gap == 1
