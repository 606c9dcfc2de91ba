"""What is stored of one consumer: its acknowledgements on a cursor, and a note of its state.

Theory of operation. A durable consumer is a passive subscription of the stream's partition. Each
acknowledgement goes to its cursor and is journalled at once, so that what is acknowledged is never
delivered again. What changes with each delivery (consumer sequences, counts, deadlines) is a note
beside the cursor that is written at most every NOTE_SECONDS. After a crash the note may lack the
last deliveries: these messages are delivered again, but for those that the cursor has.

The alternative, a note with each acknowledgement, costs bytes for all pending messages each time.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterable, Iterator
from typing import Any, Final, NamedTuple

from router.broker.consume import Partition
from router.broker.consume.visible import Visible
from router.broker.nats.consumers.state import ConsumerState
from router.broker.nats.streams.log.messages import StoredMessage
from router.broker.storage import (
    Ack,
    CommittedPosition,
    Ledger,
    Store,
    SubscriptionRecord,
    bits,
    words,
)

NOTE_SECONDS: Final = 0.1
NOTE_SHARE: Final = 0.05
"""Of the time that writing notes may take: a state that is large is written less often."""
_new: Final[Any] = tuple.__new__


class EntryPlace(NamedTuple):
    """Where a message is stored: number `index` of the `messages` of an entry."""

    entry: int
    position: int
    messages: int


class ConsumerLog:
    """Stores a consumer with its subscription; `state` is what it writes notes of.

    Nothing is stored without a `record`: the consumer lives in memory. Of the messages up to
    `restored_to` some may have been acknowledged before the last start.
    """

    def __init__(
        self, store: Store, record: SubscriptionRecord | None, state: ConsumerState
    ) -> None:
        self.durable = record is not None
        self.restored_to = 0
        self._store = store
        self._record = record
        self._state = state
        self._places: dict[int, EntryPlace] = {}
        self._left: dict[int, int] = {}
        self._last: EntryPlace | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._pause_seconds = NOTE_SECONDS

    async def restore(self, visible: Visible) -> list[int]:
        """Take over what the cursor has acknowledged since the note was written, and return it.

        Raises OSError, DamagedError where the log cannot be read.
        """
        assert self._record is not None
        state, cursor, ledger = self._state, self._record.cursor, visible.ledger
        self.restored_to = ledger.durable_number
        done = []
        for sequence in list(state.pending()):
            place = await _find(ledger, sequence - 1)
            if place is None or self._has(place):
                done.append(sequence)
            else:
                self._places[sequence] = place
        state.settle(done)
        if cursor.mark_delete >= 0:
            end = await ledger.number_before(min(cursor.mark_delete + 1, ledger.durable_entry))
            done += _visible(visible, state.next_sequence - 1, end)
            state.pass_over(end, acknowledged=True)
        return done

    def delivered(self, messages: Iterable[StoredMessage]) -> None:
        """Take note where messages that are delivered are stored."""
        if not self.durable:
            return
        places, place = self._places, self._last
        for sequence, _, _, _, _, entry, position, count, _ in messages:
            place = places[sequence] = _new(EntryPlace, (entry, position, count))
        self._last = place

    def acknowledged(self, sequences: Iterable[int]) -> None:
        """Journal that messages are acknowledged; those of one turn of the loop go together."""
        places, remaining = self._places, self._left
        waits = bool(remaining)
        for sequence in sequences:
            place = places.pop(sequence, None)
            if place is None:
                continue
            entry, position, count = place
            left = remaining.get(entry)
            if left is None:
                left = (1 << count) - 1
            remaining[entry] = left & ~(1 << position)
        if remaining and not waits:
            asyncio.get_running_loop().call_soon(self._journal)

    def is_acknowledged(self, message: StoredMessage) -> bool:
        """Return whether a message was acknowledged before the last start."""
        if message.sequence > self.restored_to:
            return False
        return self._has(EntryPlace(message.entry, message.index, message.entry_messages))

    def after(self, done: Callable[[], object]) -> None:
        """Call when all acknowledgements so far are durable."""
        if self.durable:
            self._journal()
            self._store.after_sync(done)
        else:
            done()

    def changed(self) -> None:
        """Have the state written down soon."""
        if self.durable and self._timer is None:
            loop = asyncio.get_running_loop()
            self._timer = loop.call_later(self._pause_seconds, self._write)

    def flush(self) -> None:
        """Write the state down now, if it changed."""
        self._journal()
        if self._timer is not None:
            self._timer.cancel()
            self._write()

    def close(self) -> None:
        """Write nothing any more."""
        self._journal()
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _journal(self) -> None:
        """Have the cursor take the acknowledgements that came since the last call.

        Entries that follow upon what is acknowledged, one upon the other, are one acknowledgement.
        """
        record = self._record
        if record is None or not self._left:
            return
        acknowledged, self._left = self._left, {}
        first = following = record.cursor.mark_delete + 1
        while acknowledged.get(following) == 0:
            del acknowledged[following]
            following += 1
        if following > first:
            self._store.acknowledge(record, Ack(following - 1, cumulative=True))
        for entry, left in acknowledged.items():
            ack = Ack(entry, ack_set=tuple(words(left))) if left else Ack(entry)
            self._store.acknowledge(record, ack)

    def _write(self) -> None:
        self._timer = None
        began = time.perf_counter()
        state, record = self._state, self._record
        assert record is not None
        # A first pending message: all before it is acknowledged, or none of this consumer's.
        pending = state.pending()
        first = next(iter(pending), None)
        place = self._last if first is None else self._places.get(first)
        if place is not None and place.entry > record.cursor.mark_delete:
            self._store.acknowledge(record, _ack_all(place, itself=first is None))
        if len(self._places) > 2 * len(pending) + 1_000:
            self._places = {one: at for one, at in self._places.items() if one in pending}
        self._store.commit(record, CommittedPosition(state.floor.stream, metadata=state.dump()))
        self._pause_seconds = max(NOTE_SECONDS, (time.perf_counter() - began) / NOTE_SHARE)

    def _has(self, place: EntryPlace) -> bool:
        assert self._record is not None
        cursor = self._record.cursor
        if cursor.is_acked(place.entry):
            return True
        left = bits(cursor.ack_set(place.entry))
        return bool(left) and not left >> place.position & 1


def _visible(visible: Visible, first: int, end: int) -> Iterator[int]:
    """Yield the sequences of the visible messages from a number to before another."""
    number = max(first, visible.ledger.first_number)
    while (number := visible.first_from(number)) < end:
        number += 1
        yield number


async def start_place(partition: Partition, sequence: int) -> int:
    """Return the entry at which a subscription begins that first reads this message."""
    return await partition.ledger.entry_of_number(sequence - 1)


async def _find(ledger: Ledger, number: int) -> EntryPlace | None:
    """Return where a message stands; None: it is not kept any more."""
    if number < ledger.first_number or number >= ledger.durable_number:
        return None
    entry = await ledger.entry_of_number(number)
    first = await ledger.number_before(entry)
    end = await ledger.number_before(entry + 1)
    if not first <= number < end:
        return None
    return EntryPlace(entry, number - first, end - first)


def _ack_all(place: EntryPlace, *, itself: bool) -> Ack:
    """Return the acknowledgement of all messages before one, and of it too."""
    begin = place.position + itself
    left = (1 << place.messages) - (1 << begin)
    if not left:
        return Ack(place.entry, cumulative=True)
    if not begin:
        return Ack(place.entry - 1, cumulative=True)
    return Ack(place.entry, cumulative=True, ack_set=tuple(words(left)))
