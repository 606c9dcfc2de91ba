"""Which message of a stream a consumer gets next, and how many are left for it.

Theory of operation. Messages are read ahead in order, and those of other subjects are passed over.
Where few messages match, the index of subjects leads to the next one. What was read ahead may have
been deleted since, which is checked when its turn comes.

Each delivery names how many messages are left. Without a filter it follows from the
sequences; with one it is counted when the consumer is made, and kept up with as messages come and
go. Of those that are counted, the ones that stand behind an open transaction are noted, as readers
do not get them yet.
"""

from __future__ import annotations

import asyncio
from array import array
from bisect import bisect_left, bisect_right
from collections import deque
from collections.abc import Sequence
from itertools import islice
from typing import Final, NamedTuple

from router.broker.nats.consumers.log import ConsumerLog
from router.broker.nats.consumers.state import ConsumerState
from router.broker.nats.streams.log.indexing import Indexer
from router.broker.nats.streams.log.messages import StoredMessage
from router.broker.nats.streams.log.subject_index import SubjectMatcher
from router.broker.nats.streams.stream import Stream
from router.wire.nats.jetstream.config import ConsumerConfig
from router.wire.nats.jetstream.policies import DeliverPolicy
from router.wire.nats.subjects import is_subset

AHEAD_MESSAGES: Final = 256
AHEAD_BYTES: Final = 256 << 10
SPARSE: Final = 64
"""Messages that lie between two of the consumer, where its next one is looked up in the index."""
_MAX_ROUNDS: Final = 10
"""Times that the index is read up to what other dialects publish, before messages are counted."""


class SubjectFilter(SubjectMatcher):
    """The subjects that a consumer gets; no filters: all."""

    max_known = 10_000

    def __init__(self, filters: Sequence[str], stream_subjects: Sequence[str]) -> None:
        covers = bool(stream_subjects) and all(
            any(is_subset(subject, one) for one in filters) for subject in stream_subjects
        )
        super().__init__(() if covers else filters)


class MessageSource:
    """Reads what a consumer gets next; `matches` are its subjects.

    `is_counted`: whether it is known what is left.
    """

    def __init__(
        self, stream: Stream, state: ConsumerState, log: ConsumerLog, filters: Sequence[str]
    ) -> None:
        self.matches = SubjectFilter(filters, stream.config.subjects)
        self._stream = stream
        self._state = state
        self._log = log
        self._ahead: deque[StoredMessage] = deque()
        self._read_to = 0
        self._sparse = False
        self._counted = 0
        self._counting_from = 1
        self._counting = asyncio.Lock()
        self._closed = False
        self.is_counted = not self.matches.filters
        # Sequences of those that are counted and stand behind an open transaction, in order.
        self._withheld = array("Q")

    @property
    def num_left(self) -> int:
        """Return how many messages that may be read were not delivered yet."""
        state = self._state
        if self.matches.filters:
            return len(state.listed) + max(0, self._counted - self._count_withheld())
        first = state.resume + 1 if state.listed else state.next_sequence
        visible = self._stream.visible
        number = max(first - 1, visible.ledger.first_number)
        return len(state.listed) + visible.count(number, visible.end_number)

    async def count(self) -> None:
        """Return when it is counted what is left. Raises OSError: it can be tried again."""
        if self.is_counted:
            return
        async with self._counting:
            if not self.is_counted:
                await self._count()
                self.is_counted = True

    async def _count(self) -> None:
        state, log = self._state, self._stream.log
        for _ in range(_MAX_ROUNDS):
            await log.catch_up()
            if log.indexer is None or log.indexer.advance():
                break
        if self._closed:
            return
        first = state.resume + 1 if state.listed else state.next_sequence
        self._counting_from, self._counted, self._withheld = first, 0, array("Q")
        if (indexer := log.indexer) is None:
            self._counted = await log.count_from(first, self.matches.filters)
            return
        indexer.observers[self] = None
        restarts, on_disk = indexer.restarts, self._add_cached(indexer)
        stored, withheld = await log.count_from(first, self.matches.filters), array("Q")
        async for message in indexer.stored(on_disk):
            if message.sequence >= first and self.matches(message.subject):
                withheld.append(message.sequence)
        if indexer.restarts == restarts:  # otherwise all is added once more
            self._counted += stored + len(withheld)  # what came meanwhile was added
            self._withheld = array("Q", sorted(withheld + self._withheld))

    async def next(self) -> StoredMessage | None:
        """Return the message that is delivered next; None: there is none, or it may not go yet.

        It is the same until it was taken. Raises DamagedError, OSError where it cannot be read.
        """
        state, stream = self._state, self._stream
        while (sequence := state.next_redelivery()) is not None:
            message = await stream.read(sequence)
            if state.next_redelivery() != sequence:
                continue
            if message is not None:
                return message
            self._log.acknowledged(state.settle([sequence]))
        if not state.may_deliver_new:
            return None
        while state.listed:
            sequence = state.listed[0]
            message = await stream.read(sequence)
            if not state.listed or state.listed[0] != sequence:
                continue
            known = message is not None and self._log.is_acknowledged(message)
            if message is not None and not known:
                return message
            state.pass_over(sequence, acknowledged=known)
            if known:
                stream.acknowledged(sequence)
        return await self._next_in_order()

    def next_at_once(self) -> StoredMessage | None:
        """Return what `next` returns if that was read ahead; None: `next` finds out."""
        state = self._state
        if not self._ahead or state.num_queued or state.listed or not state.may_deliver_new:
            return None
        message = self._ahead[0]
        is_new = message.sequence >= state.next_sequence
        if not is_new or not self._stream.contains(message.sequence):
            return None
        return None if self._log.is_acknowledged(message) else message

    def run_at_once(self, limit: int) -> list[StoredMessage]:
        """Return messages that `next` would return one after the other, and were read ahead.

        There are at most so many. Without a filter their sequences have no gaps.
        """
        state, visible = self._state, self._stream.visible
        run: list[StoredMessage] = []
        if state.num_queued or state.listed:
            return run
        if not self._ahead:
            self._read_cached()
            if not self._ahead:
                return run
        following = self._ahead[0].sequence
        if following < state.next_sequence:
            return run
        gapless, restored_to = not self.matches.filters, self._log.restored_to
        for message in islice(self._ahead, min(limit, state.num_deliverable)):
            sequence = message.sequence
            if (gapless and sequence != following) or not visible.contains(sequence - 1):
                break
            if sequence <= restored_to and self._log.is_acknowledged(message):
                break
            run.append(message)
            following = sequence + 1
        return run

    def run_taken(self, run: Sequence[StoredMessage]) -> None:
        """Go on behind what `run_at_once` returned, which is delivered."""
        for message in run:
            self._ahead.popleft()
            self._counted -= message.sequence >= self._counting_from

    def taken(self, message: StoredMessage) -> None:
        """Go on behind a new message that is delivered."""
        if self._ahead and self._ahead[0].sequence == message.sequence:
            self._ahead.popleft()
        if message.sequence >= self._counting_from:
            self._counted -= 1

    def close(self) -> None:
        """Count no more."""
        self._closed = True
        self._ahead.clear()
        self._read_to = 0
        if (indexer := self._stream.log.indexer) is not None:
            indexer.observers.pop(self, None)

    def added(self, sequence: int, subject: str) -> None:
        """Count a message that came into the index."""
        if self._waits(sequence) and self.matches(subject):
            self._counted += 1
            visible = self._stream.visible
            if visible.ledger.undecided is not None and sequence > visible.end_number:
                self._withheld.append(sequence)

    def removed(self, sequence: int, subject: str) -> None:
        """Count a message that left the index."""
        if self._waits(sequence) and self.matches(subject):
            self._counted -= 1
            withheld = self._withheld
            place = bisect_left(withheld, sequence)
            if place < len(withheld) and withheld[place] == sequence:
                del withheld[place]

    def reset(self) -> None:
        """Begin again: all messages are deleted, or are added once more."""
        self._counted, self._withheld = 0, array("Q")

    async def _next_in_order(self) -> StoredMessage | None:
        state, stream = self._state, self._stream
        while True:
            while self._ahead:
                message = self._ahead[0]
                is_passed = message.sequence < state.next_sequence
                if not is_passed and stream.contains(message.sequence):
                    if not self._log.is_acknowledged(message):
                        return message
                    self.taken(message)
                    state.pass_over(message.sequence, acknowledged=True)
                    stream.acknowledged(message.sequence)
                    continue
                self._ahead.popleft()
                state.pass_over(message.sequence)
            if not await self._read_ahead():
                return None

    async def _read_ahead(self) -> bool:
        """Read the next messages; return whether there may be more."""
        state, stream = self._state, self._stream
        last = stream.log.last_sequence
        first = max(state.next_sequence, self._read_to + 1, stream.log.first_sequence)
        if first > last:
            state.pass_over(last)
            return False
        filters = self.matches.filters
        if filters and self._sparse:
            # The index may lack what other dialects published.
            await stream.log.catch_up()
            following = await stream.next_of_subject(first, filters)
            messages = [] if following is None else [following]
            last = last if following is None else following.sequence
            self._sparse = following is None or following.sequence - first >= SPARSE
        else:
            found = await stream.read_from(first, AHEAD_MESSAGES, AHEAD_BYTES)
            if found:
                last = found[-1].sequence
            messages = self._matching(found)
        if self._ahead or first < state.next_sequence:
            return True
        if messages:
            self._ahead.extend(messages)
            self._read_to = last
            return True
        state.pass_over(last)
        self._read_to = last
        return last < stream.log.last_sequence

    def _read_cached(self) -> None:
        """Read the next messages if nothing has to be waited for."""
        if self.matches.filters and self._sparse:
            return
        first = max(self._state.next_sequence, self._read_to + 1)
        found = self._stream.read_now(first, AHEAD_MESSAGES, AHEAD_BYTES)
        if found and (messages := self._matching(found)):
            self._ahead.extend(messages)
            self._read_to = found[-1].sequence

    def _matching(self, found: list[StoredMessage]) -> list[StoredMessage]:
        """Return those of the messages that were read that are the consumer's."""
        if not self.matches.filters:
            return found
        messages = [one for one in found if self.matches(one.subject)]
        self._sparse = len(messages) * SPARSE < len(found)
        return messages

    def _add_cached(self, indexer: Indexer) -> list[int]:
        """Count what cannot be read yet, as it came before; return entries that are on disk alone.

        `StreamLog.count_from` does not count it.
        """
        on_disk = []
        for entry in indexer.ahead():
            if (messages := indexer.cached(entry)) is None:
                on_disk.append(entry)
            for message in messages or ():
                self.added(message.sequence, message.subject)
        return on_disk

    def _count_withheld(self) -> int:
        """Return how many that are counted stand behind an open transaction."""
        if withheld := self._withheld:
            del withheld[: bisect_right(withheld, self._stream.visible.end_number)]
        return len(withheld)

    def _waits(self, sequence: int) -> bool:
        return sequence >= max(self._counting_from, self._state.next_sequence)


class ConsumerStart(NamedTuple):
    """Where a new consumer starts: at a sequence, or with messages that come before `resume`."""

    sequence: int
    listed: Sequence[int] = ()
    resume: int = 0


async def start_of(stream: Stream, config: ConsumerConfig) -> ConsumerStart:
    """Return where a new consumer starts. Raises DamagedError, OSError."""
    first, last = stream.log.first_sequence, stream.log.last_sequence
    policy, start = config.deliver_policy, first
    if policy is DeliverPolicy.LAST_PER_SUBJECT:
        return ConsumerStart(first, await stream.last_of_subjects(config.filters), last)
    if policy is DeliverPolicy.BY_START_SEQUENCE:
        start = config.opt_start_seq
    elif policy is DeliverPolicy.NEW:
        start = last + 1
    elif policy is DeliverPolicy.BY_START_TIME:
        start = min(await stream.find_time(config.opt_start_time or 0), last + 1)
    elif policy is DeliverPolicy.LAST:
        found = await stream.last_of_subjects(config.filters)
        start = found[-1] if found else last + 1
    return ConsumerStart(max(first, start))
