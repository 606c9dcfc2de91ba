"""Reading what waits in a dead-letter topic: behind a group's position, and not acknowledged."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Final

from router.backends import Backend, Reader, Start
from router.model import CursorState, Position, Stored, TopicName
from router.services.consume import PollMailbox
from router.services.dead_letters.dead_letter import Marks

TAKE_MESSAGES: Final = 200
TAKE_BYTES: Final = 4 * 1024 * 1024
SKIP_ENTRIES: Final = 400
"""Acknowledged entries that are read over; more of them are jumped over by another reader."""
MAX_READ: Final = 5_000
"""Messages that one scan reads, those that are done with included."""
_LAST: Final = 2**31

_Key = tuple[int, int, int]


class Acknowledged:
    """What a group is done with on one partition."""

    def __init__(self, state: CursorState | None) -> None:
        mark = state.mark_delete if state is not None else None
        self.upto: _Key = (-1, -1, -1) if mark is None else _end(mark)
        ranges = sorted(state.acknowledged) if state is not None else []
        self._firsts = [_begin(first) for first, _ in ranges]
        self._lasts = [last for _, last in ranges]

    def upto_range(self, position: Position) -> Position | None:
        """Return the last message of the acknowledged range that a message is in, if it is."""
        key = _begin(position)
        at = bisect_right(self._firsts, key) - 1
        if at >= 0 and key <= _end(self._lasts[at]):
            return self._lasts[at]
        return position if key <= self.upto else None


class DeadLetterScan:
    """Reads the partitions of a topic one after the other; the caller closes it.

    `marks` is the last message of each partition that was passed over or handed to `had`.
    `exhausted`: as many messages were read as one scan may read.
    """

    def __init__(
        self, backend: Backend, topic: TopicName, states: Mapping[int, CursorState], timeout: float
    ) -> None:
        self.marks: dict[int, Position] = {}
        self.exhausted = False
        self._backend = backend
        self._topic = topic
        self._states = states
        self._timeout = timeout
        self._mailbox = PollMailbox()
        self._reader: Reader | None = None
        self._left = MAX_READ

    def pending(
        self, partitions: Iterable[int], after: Marks, before_ms: int | None
    ) -> Iterator[Stored]:
        """Give the messages that wait behind positions, none that was published after a time."""
        for partition in partitions:
            mark = after.get(max(0, partition))
            if mark is not None:
                self.marks[max(0, partition)] = mark
            yield from self._of_partition(partition, mark, before_ms)

    def had(self, stored: Stored) -> None:
        """Record that a message was handled."""
        self.marks[max(0, stored.position.partition)] = stored.position

    def one(self, position: Position) -> Stored | None:
        """Return the message at a position, if it is there and waits."""
        if self._acknowledged(position.partition).upto_range(position) is not None:
            return None
        entry = Position(position.ledger, position.entry, position.partition)
        self._open(position.partition, entry)
        place = _begin(position)
        while some := self._receive():
            for stored in some:
                if _begin(stored.position) >= place:
                    return stored if _begin(stored.position) == place else None
        return None

    def close(self) -> None:
        """Close the reader; callable twice."""
        reader, self._reader = self._reader, None
        if reader is not None:
            reader.close()

    def _of_partition(
        self, partition: int, after: Position | None, before_ms: int | None
    ) -> Iterator[Stored]:
        done = self._acknowledged(partition)
        self._open(partition, _start(partition, self._states.get(partition), after))
        while not self.exhausted and (some := self._receive()):
            for stored in some:
                if before_ms is not None and stored.publish_time > before_ms:
                    return
                if after is not None and _begin(stored.position) <= _begin(after):
                    continue
                last = done.upto_range(stored.position)
                if last is None:
                    yield stored
                    continue
                self.had(stored)
                if last.entry - stored.position.entry > SKIP_ENTRIES:
                    self._open(partition, Position(last.ledger, last.entry, partition))
                    break

    def _acknowledged(self, partition: int) -> Acknowledged:
        return Acknowledged(self._states.get(partition))

    def _open(self, partition: int, start: Start | Position) -> None:
        self.close()
        self._reader = self._backend.read(
            self._topic, partition, start, self._mailbox, self._timeout
        )

    def _receive(self) -> Sequence[Stored]:
        assert self._reader is not None
        found = self._reader.receive(TAKE_MESSAGES, TAKE_BYTES, self._timeout)
        self._left -= len(found)
        self.exhausted = self._left <= 0
        return found


def _start(partition: int, state: CursorState | None, after: Position | None) -> Start | Position:
    places = [after, state.mark_delete if state is not None else None]
    known = [place for place in places if place is not None]
    if not known:
        return Start.EARLIEST
    last = max(known, key=lambda place: (place.ledger, place.entry))
    return Position(last.ledger, last.entry, partition)


def _begin(position: Position) -> _Key:
    return position.ledger, position.entry, max(0, position.batch_index)


def _end(position: Position) -> _Key:
    index = position.batch_index if position.batch_index >= 0 else _LAST
    return position.ledger, position.entry, index
