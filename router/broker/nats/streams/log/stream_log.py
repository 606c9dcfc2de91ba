"""The log of one stream by sequences and subjects: reading, counting, deleting.

Theory of operation. A sequence is a message number plus 1. A stream without an index has one
subject, `own_subject`. With one, a subject's first and last sequence and its count come from the
index; where a deletion left only a bound of them, the log is read from that bound on. All of the
log is read if the index is `overflowed`, because it lacks subjects then.

A message leaves the index in the same step in which the ledger learns that it is deleted, so that
both always agree on what is live. What clients delete, and what no consumer needs any more, is
there until its deletion is on disk. What a limit takes goes at once: what makes it too much, or too
old, is on disk, so that opening the stream deletes it again (`limits.py`).
"""

from __future__ import annotations

import asyncio
from bisect import bisect_left
from collections.abc import AsyncIterator, Callable, Iterable, Sequence
from functools import partial
from typing import Final, NamedTuple

from router.broker.nats.streams.log.indexing import Indexer
from router.broker.nats.streams.log.messages import MessageReader, StoredMessage
from router.broker.nats.streams.log.subject_index import (
    SubjectIndex,
    SubjectMatcher,
    SubjectState,
)
from router.broker.storage import Store
from router.wire.nats.jetstream.errors import ErrorCode, error
from router.wire.nats.subjects import is_literal, matches

SCAN_MESSAGES: Final = 1_000
SCAN_BYTES: Final = 256 << 10
MAX_LOOKUPS: Final = 20
"""Of the last message of a subject that is replaced all the time."""
STORE_SECONDS: Final = 5.0

DeletionObserver = Callable[[Sequence[tuple[int, int]]], None]
"""Called with ranges of sequences, ends included, right after they were deleted."""


class IndexedMessage(NamedTuple):
    """A message that the index counts: its sequence, subject and size there."""

    sequence: int
    subject: str
    size: int


class StreamLog:
    """The messages of one ledger; see above.

    `indexer` and its `index` are None for a stream of one subject.
    """

    def __init__(self, store: Store, reader: MessageReader, own_subject: str) -> None:
        self.store = store
        self.visible = visible = reader.visible
        self.ledger = visible.ledger
        self.reader = reader
        self.own_subject = own_subject
        self.indexer: Indexer | None = None
        self.index: SubjectIndex | None = None
        self.unresolved: dict[str, SubjectState] = {}
        self.on_deleted: DeletionObserver = lambda _ranges: None
        self.read, self.read_from, self.read_now = reader.read, reader.read_from, reader.read_now

    def use(self, indexer: Indexer) -> None:
        """Have an index of the subjects from now on."""
        self.indexer, self.index = indexer, indexer.index

    @property
    def messages(self) -> int:
        """Return how many live messages there are."""
        index = self.index
        return self.ledger.messages if index is None else index.messages

    @property
    def bytes(self) -> int:
        """Return their bytes; of a stream without an index what the log holds."""
        index = self.index
        return self.ledger.size_bytes if index is None else index.bytes

    @property
    def first_sequence(self) -> int:
        """Return the first live sequence; the next one to come if there is none."""
        return self.visible.first_number + 1

    @property
    def last_sequence(self) -> int:
        """Return the last durable sequence; 0: there was none."""
        return self.visible.end_number

    async def catch_up(self) -> None:
        """Return when the index has all that was on disk at the call. Raises OSError."""
        if self.indexer is not None:
            await self.indexer.catch_up()

    async def scan(self, first: int, last: int) -> AsyncIterator[list[StoredMessage]]:
        """Yield the live messages between two sequences, ends included, in order and chunks."""
        while first <= last:
            found = await self.read_from(first, SCAN_MESSAGES, SCAN_BYTES)
            if not found:
                return
            first = found[-1].sequence + 1
            if first > last + 1:
                found = [message for message in found if message.sequence <= last]
            if found:
                yield found
            await asyncio.sleep(0)  # what is in memory is read without a wait

    async def next_of_subject(self, sequence: int, filters: Sequence[str]) -> StoredMessage | None:
        """Return the first live message from a sequence on that matches a filter; none: all do."""
        bounds = self.bounds(filters)
        if bounds is None or sequence > bounds[1]:
            return None
        matcher = SubjectMatcher(filters)
        async for messages in self.scan(max(sequence, bounds[0]), bounds[1]):
            for message in messages:
                if matcher(message.subject):
                    return message
        return None

    async def last_of_subject(self, filters: Sequence[str]) -> StoredMessage | None:
        """Return the last live message that matches a filter; None: there is none."""
        for _ in range(MAX_LOOKUPS):
            sequences = await self.last_sequences(filters)
            found = await self.read(sequences[-1]) if sequences else None
            if found is not None or not sequences:
                return found
        return None  # each was replaced before it could be read

    async def last_sequences(self, filters: Sequence[str]) -> list[int]:
        """Return the last sequence of each subject that matches a filter, in order.

        Raises JetStreamError for wildcards if the index lacks subjects.
        """
        index = self.index
        if index is None:
            bounds = self.bounds(filters)
            last = self.visible.last_to(self.last_sequence - 1) + 1
            return [] if bounds is None or last < bounds[0] else [last]
        if index.overflowed:
            if not filters or not all(map(is_literal, filters)):
                raise error(ErrorCode.STREAM_INFO_MAX_SUBJECTS)
            seen: dict[str, int] = {}
            async for messages in self.scan(self.first_sequence, self.last_sequence):
                seen |= {one.subject: one.sequence for one in messages if one.subject in filters}
            return sorted(seen.values())
        found = list(index.matching(filters))
        for subject, state in found:
            if not state.last_exact:
                await self.resolve_last(subject, state)
        sequences = sorted(state.last for _, state in found if state.count)
        if sequences:
            # What replaces the last message of a subject may be on its way to the disk.
            await self._stored(sequences[-1])
        if self.ledger.undecided is None:
            return sequences
        # What stands behind an open transaction may not be read yet, and replaces nothing.
        readable = [await self._last_readable(subject, state) for subject, state in found]
        return sorted(filter(None, readable))

    async def _last_readable(self, subject: str, state: SubjectState) -> int:
        """Return the last sequence of a subject that may be read now; 0: there is none."""
        high = end = self.last_sequence
        if state.last <= end:
            return state.last if state.count else 0
        if state.places is not None:
            return max((sequence for sequence, _ in state.places if sequence <= end), default=0)
        while high >= state.first:
            low, last = max(state.first, high - SCAN_MESSAGES + 1), 0
            async for messages in self.scan(low, high):
                last = max([last, *(m.sequence for m in messages if m.subject == subject)])
            if last:
                return last
            high = low - 1
        return 0

    async def _stored(self, sequence: int) -> None:
        """Return when an appended message is on disk, or after STORE_SECONDS."""
        ledger, stored = self.ledger, asyncio.Event()
        if ledger.durable_number >= sequence:
            return
        ledger.listeners[stored.set] = None
        try:
            async with asyncio.timeout(STORE_SECONDS):
                while ledger.durable_number < sequence:
                    stored.clear()
                    await stored.wait()
        except TimeoutError:
            pass
        finally:
            ledger.listeners.pop(stored.set, None)

    async def count_from(self, sequence: int, filters: Sequence[str]) -> int:
        """Return how many live durable messages from a sequence on match a filter; none: all."""
        number = max(sequence - 1, self.ledger.first_number)
        end = self.visible.end_number
        index = self.index
        every = not filters or ">" in filters
        if every or index is None:
            if self.bounds(filters) is None or number >= end:
                return 0
            return self.visible.count(number, end)
        if index.overflowed:
            return await self._count_by_reading(sequence, end, SubjectMatcher(filters))
        count, unsure, last = 0, set(), 0
        for subject, state in index.matching(filters):
            if state.last > end:
                unsure.add(subject)
            elif sequence <= state.first:
                count += state.count
                continue
            elif sequence > state.last:
                continue
            elif state.places is not None:
                count += len(state.places) - bisect_left(state.places, (sequence, 0))
                continue
            unsure.add(subject)
            last = max(last, min(state.last, end))
        if unsure:
            count += await self._count_by_reading(sequence, last, unsure.__contains__)
        return count

    async def _count_by_reading(self, first: int, last: int, counts: Callable[[str], bool]) -> int:
        """Return how many live messages between two sequences have a subject that counts."""
        count = 0
        async for messages in self.scan(first, last):
            count += sum(counts(message.subject) for message in messages)
        return count

    def bounds(self, filters: Sequence[str]) -> tuple[int, int] | None:
        """Return sequences around all messages that match a filter; None: there are none."""
        index = self.index
        if filters and ">" not in filters:
            if index is not None and not index.overflowed:
                return index.bounds(filters)
            if index is None and not any(matches(one, self.own_subject) for one in filters):
                return None
        return self.first_sequence, max(self.ledger.next_index, 1)

    async def resolve_last(self, subject: str, state: SubjectState) -> None:
        """Find the last message of a subject where a deletion left only a bound of it."""
        index = self.index
        while index is not None and not state.last_exact and state.count:
            high = state.last
            low = max(state.first, high - SCAN_MESSAGES + 1)
            last = 0
            async for messages in self.scan(low, high):
                last = max([last, *(m.sequence for m in messages if m.subject == subject)])
            if index.subjects.get(subject) is not state or state.last != high or state.last_exact:
                return
            if last:
                state.last, state.last_exact = last, True
            elif low > state.first:
                state.last = low - 1
            else:
                # None can be read, and looking again would not end.
                state.last, state.last_exact = state.first, True

    async def resolve_all(self) -> None:
        """Find the last messages of the subjects in `unresolved`. Raises OSError."""
        while self.unresolved:
            await self.resolve_last(*self.unresolved.popitem())

    def delete_indexed(self, messages: Sequence[IndexedMessage], *, is_stored: bool = False) -> int:
        """Delete messages that the index counts; return how many. `is_stored`: it is journalled."""
        if self.indexer is not None:
            for sequence, subject, size in messages:
                self.indexer.remove(subject, sequence, size)
        return self._delete(
            ranges_of(sorted(one.sequence for one in messages)), is_stored=is_stored
        )

    def delete_messages(
        self,
        messages: Iterable[StoredMessage],
        removed_entry: int = 0,
        *,
        is_stored: bool = False,
    ) -> int:
        """Delete messages that were just read; return how many were there.

        `removed_entry`: see `Store.delete_messages`; `is_stored`: the deletion is journalled.
        """
        visible, indexer = self.visible, self.indexer
        live = [one for one in messages if not visible.is_left_out(one.sequence - 1)]
        if indexer is not None:
            for one in live:
                if indexer.has(one.entry):
                    indexer.remove(one.subject, one.sequence, one.size)
        ranges = ranges_of([one.sequence for one in live])
        return self._delete(ranges, removed_entry, is_stored=is_stored)

    async def delete_durably(self, messages: Sequence[StoredMessage]) -> int:
        """Delete messages that were just read as soon as that is on disk; return how many.

        Raises StoreError.
        """
        delete = partial(self.delete_messages, messages, is_stored=True)
        return await self._delete_durably([one.sequence for one in messages], delete)

    def delete_oldest(self, messages: Sequence[StoredMessage]) -> None:
        """Delete messages that a limit takes: the oldest there are, which were just read."""
        last = messages[-1]
        whole = last.index + 1 == last.entry_messages
        self.delete_messages(messages, removed_entry=last.entry + 1 if whole else last.entry)

    async def delete_range(self, first: int, last: int) -> int:
        """Delete all live messages between two sequences, ends included; return how many.

        Each is there until its deletion is on disk. Raises OSError, StoreError.
        """
        count = 0
        if self.indexer is None:
            if first > last:
                return 0
            delete = partial(self._delete, [(first, last)], is_stored=True)
            return await self.store.delete_durably(self.ledger, [(first - 1, last - 1)], delete)
        async for messages in self.scan(first, last):
            count += await self.delete_durably(messages)
        return count

    async def delete_all(self) -> int:
        """Delete all messages that were appended; return how many there were.

        They are there until that is on disk. Raises StoreError.
        """
        ledger, first, end = self.ledger, self.ledger.first_number, self.ledger.next_index

        def delete() -> int:
            if ledger.next_index > end:
                return self._delete_uncounted([(first + 1, end)])
            count = self.messages
            if self.indexer is not None:
                self.indexer.forget_all()
            self._delete([(first + 1, end)], is_stored=True)
            return count

        ranges = [(first, end - 1)] if first < end else []
        return await self.store.delete_durably(ledger, ranges, delete)

    async def delete_matching(
        self,
        filters: Sequence[str],
        before: int,
        count: int,
        ends: Callable[[int, int, int], bool] = lambda _first, _end, _found: False,
    ) -> int:
        """Delete the first `count` live messages below a sequence that match; return how many.

        It `ends` where that is so by how many were found from one number to before another. Each is
        there until its deletion is on disk. Raises OSError, StoreError.
        """
        index = self.index
        if index is not None and not index.overflowed:
            states = list(index.matching(filters))
            if all(state.places is not None for _, state in states):
                indexed = sorted(
                    IndexedMessage(sequence, subject, size)
                    for subject, state in states
                    for sequence, size in state.places or ()
                    if sequence < before
                )[:count]
                assert self.indexer is not None
                delete = partial(self._delete_known, indexed, self.indexer.restarts)
                return await self._delete_durably([one.sequence for one in indexed], delete)
        bounds, deleted = self.bounds(filters), 0
        if bounds is None:
            return 0
        matcher, number = SubjectMatcher(filters), max(bounds[0] - 1, self.ledger.first_number)
        async for messages in self.scan(bounds[0], min(bounds[1], before - 1)):
            if ends(number, messages[-1].sequence, len(messages)):
                break
            number = messages[-1].sequence
            found = [message for message in messages if matcher(message.subject)][:count]
            # Those that another call deletes meanwhile count, too: behind them others follow.
            count -= len(found)
            deleted += await self.delete_durably(found)
            if not count:
                break
        return deleted

    def sequence_before_newest(self, keep: int) -> int:
        """Return the sequence from which on `keep` live messages are left."""
        low, end = self.ledger.first_number, self.visible.end_number
        high = end
        while low < high:
            middle = (low + high) // 2
            if self.visible.count(middle, end) > keep:
                low = middle + 1
            else:
                high = middle
        return low + 1

    async def _delete_durably(self, sequences: Sequence[int], delete: Callable[[], int]) -> int:
        """Have ascending sequences deleted by a call as soon as that is on disk."""
        numbers = [(first - 1, last - 1) for first, last in ranges_of(sequences)]
        return await self.store.delete_durably(self.ledger, numbers, delete)

    def _delete_known(self, messages: Sequence[IndexedMessage], restarts: int) -> int:
        """Delete those of the messages that nothing has deleted meanwhile; it is journalled.

        `restarts` are those of the indexer when it counted the messages.
        """
        assert self.indexer is not None
        if self.indexer.restarts != restarts:
            return self._delete_uncounted(ranges_of([one.sequence for one in messages]))
        is_deleted = self.indexer.is_deleted
        left = [one for one in messages if not is_deleted(one.sequence)]
        return self.delete_indexed(left, is_stored=True)

    def _delete_uncounted(self, ranges: Sequence[tuple[int, int]]) -> int:
        """Delete ranges of which it is not known what the index counts; they are journalled.

        The indexer finds out whether it is to be built again.
        """
        count = self.ledger.delete([(first - 1, last - 1) for first, last in ranges])
        self.on_deleted(ranges)
        return count

    def _delete(
        self, ranges: Sequence[tuple[int, int]], removed_entry: int = 0, *, is_stored: bool = False
    ) -> int:
        """Delete ranges of sequences; return how many of them were not deleted before."""
        numbers = [(first - 1, last - 1) for first, last in ranges]
        indexer = self.indexer
        known = indexer is None or indexer.knows_all_gone
        if is_stored:
            count = self.ledger.delete(numbers)
        else:
            count = self.store.delete_messages(self.ledger, numbers, None, removed_entry)
        if indexer is not None and known:
            indexer.note_gone()
        if ranges:
            self.on_deleted(ranges)
        return count


def ranges_of(sequences: Sequence[int]) -> list[tuple[int, int]]:
    """Return ascending sequences as ranges, ends included."""
    ranges: list[tuple[int, int]] = []
    for sequence in sequences:
        if ranges and ranges[-1][1] + 1 == sequence:
            ranges[-1] = ranges[-1][0], sequence
        else:
            ranges.append((sequence, sequence))
    return ranges
