"""Owns one ledger in memory: appending to a partition, and its way into segments.

Everything here runs on the event loop. An entry passes through four places: pending (appended, its
commit group not begun), in flight (its commit group is being written), unflushed (synced in the
journal, in no segment yet) and a segment. Until it is flushed it stays in the tail, from which it
is read without I/O; afterwards it stays there as long as it fits into the cache. So the tail is
always the newest part of the ledger, without gaps.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final, NamedTuple

from router.broker.disk.faults import StoreError
from router.broker.storage.commit_groups import entry_prefix, pack_producer_state
from router.broker.storage.context import Flushed, StoreContext
from router.broker.storage.deleted_ranges import DeletedRanges
from router.broker.storage.partition_reader import PartitionReader
from router.broker.storage.producer_state import ProducerState, ProducerStates
from router.broker.storage.records import (
    HEAD,
    MAX_FORMAT,
    MAX_MESSAGES,
    MAX_PAYLOAD,
    Entry,
    StoredRecord,
    make_head,
)
from router.broker.storage.rows import LedgerChange, LedgerRow
from router.broker.storage.segments import Segment
from router.errors import TopicTerminatedError
from router.model.publish_source import NO_SOURCE

ENTRY_OVERHEAD_BYTES: Final = 400
"""What an entry in memory takes besides its payload, about."""
_new: Final = tuple.__new__


class Undecided(NamedTuple):
    """The first entry of a ledger that belongs to an open transaction, and its first message."""

    entry: int
    number: int


class Ledger(PartitionReader):
    """One partition: entries with dense ids from 0, appended in order and never changed.

    `next_entry` is the next id to be assigned, `next_index` the next message's number,
    `appended_bytes` the size of what was appended since the start. `listeners`
    are called once for each commit group that made
    entries durable. `producers` remembers what each named producer stored last. Of a ledger that is
    `terminated` no more than is there will ever be; `topic_epoch` is the newest of its exclusive
    producers' epochs, None before the first. Compaction on request took all messages before
    `compacted_number`. These are written down through the store.
    `undecided` is set by what keeps transactions; None: none is open here.
    """

    def __init__(self, row: LedgerRow, producers: ProducerStates, context: StoreContext) -> None:
        """Begin as the last checkpoint left the ledger."""
        super().__init__(row.id, context.reader, context.readers)
        self.topic_id = row.topic_id
        self.producers = producers
        for name, state in row.producers:
            producers.record(name, state)
        self.listeners: dict[Callable[[], None], None] = {}
        self.segments = tuple(row.segments)
        self.next_entry = self.durable_entry = self._tail_start = row.next_entry
        self.flushed_entry = self._recorded_entry = row.next_entry
        self.next_index = self.flushed_index = row.next_index
        self.removed_entry, self.compacted_number = row.removed_entry, row.compacted_number
        self.removed_number = row.removed_number
        self.holes = row.holes
        self.deleted_numbers = DeletedRanges(row.deleted)
        self.appended_bytes = 0
        self.undecided: Undecided | None = None
        self.terminated, self.topic_epoch = row.terminated, row.topic_epoch
        self.unflushed: list[StoredRecord] = []
        self._unflushed_size = self._unflushed_held = self._flushing_size = 0
        self._journal, self._tails = context.journal, context.tails
        self._sources = context.sources
        self._prefix = entry_prefix(row.id)
        self._pending: list[StoredRecord] = []
        self._pending_states: dict[str, ProducerState] = {}
        self._in_flight: list[StoredRecord] = []
        self._pending_size = self._in_flight_size = 0
        self._in_flight_states: dict[str, ProducerState] = {}
        self._durable_states: dict[str, ProducerState] = {}
        self._set_first()

    def replay(self, record: StoredRecord) -> None:
        """Take an entry that recovery found in the journal; its id may not be below the next.

        Raises ValueError if it does not follow what is there.
        """
        entry = record.entry
        follows = entry.index + 1 - entry.messages == self.next_index
        if entry.entry_id > self.next_entry or not follows:
            raise ValueError(
                f"entry {entry.entry_id} of ledger {self.id} follows {self.next_entry - 1}"
            )
        if not self._tail:
            self._tail_start = entry.entry_id
        self._tail[entry.entry_id] = entry
        self._remember([record], len(entry.payload))
        self.next_entry = self.durable_entry = entry.entry_id + 1
        self.next_index = entry.index + 1

    def replay_producer(self, name: str, state: ProducerState) -> None:
        """Take a producer's state that recovery found in the journal."""
        self.producers.record(name, state)
        self._durable_states[name] = state

    def delete(self, ranges: Sequence[tuple[int, int]], removed_entry: int = 0) -> int:
        """Delete messages in memory; return how many there were that were not deleted yet.

        The next checkpoint stores it. Numbers that are not stored, or not any more, are ignored.
        `removed_entry`: a limit deletes them, and all before this entry is gone then.
        """
        lowest, highest, deleted = self.first_number, self.next_index - 1, self.deleted_numbers
        if removed_entry:
            last = max((last for _, last in ranges), default=-1)
            self.note_removed(removed_entry, min(last, highest) + 1)
        count = 0
        for first, last in ranges:
            # `max` and `min` take three times as long.
            count += deleted.add(
                first if first > lowest else lowest, last if last < highest else highest
            )
        if count:
            self._tails.changed[self] = None
        return count

    def note_removed(self, entry: int, number: int) -> None:
        """Raise `removed_entry` and `removed_number`, in memory."""
        self.removed_entry = max(self.removed_entry, entry)
        self.removed_number = max(self.removed_number, number)

    def append(
        self,
        payload: bytes,
        format_tag: int,
        messages: int,
        timestamp_ms: int,
        done: Callable[[int], None],
        producer: tuple[str, int] | None = None,
        source: bytes = NO_SOURCE,
    ) -> int:
        """Append an entry of so many messages, in a format with this number, and return its id.

        `done` is called with the id once the entry is on disk. `producer`, its name and
        sequence id, is remembered with it; `source`, see publish_sources, is kept for a while.
        Raises TopicTerminatedError, StoreError once the disk has failed or the topic is deleted,
        ValueError if an entry cannot have such a format, or so many messages or bytes.
        """
        journal = self._journal
        if journal.failed.done() or self.discarded:
            raise StoreError("the store takes no more entries")
        if self.terminated:
            raise TopicTerminatedError
        size = len(payload)
        if not 0 < messages <= MAX_MESSAGES or size > MAX_PAYLOAD:
            raise ValueError(f"an entry of {messages} messages and {size} bytes")
        if not 0 < format_tag <= MAX_FORMAT:
            raise ValueError(f"an entry of the format {format_tag}")
        payload = bytes(payload)
        entry_id, index = self.next_entry, self.next_index + messages - 1
        # Not by calling the classes, whose own `__new__` is written in Python.
        entry = _new(Entry, (entry_id, index, timestamp_ms, format_tag, messages, payload))
        head = make_head(entry)
        if self._sources.latest.get(self.id, NO_SOURCE) != source:
            self._sources.begin(self.id, entry_id, source)
        self.next_entry = entry_id + 1
        self.next_index = index + 1
        self.appended_bytes += size
        self._tail[entry_id] = entry
        self._pending.append(_new(StoredRecord, (head, entry)))
        self._pending_size += size
        group = journal.pending
        if not group.is_due:
            journal.kick()
        group.parts += (self._prefix, head, payload)
        group.size += size + 64
        group.calls.append((done, entry_id))
        group.ledgers[self] = None
        if producer is not None:
            name, sequence = producer
            state = ProducerState(sequence, entry_id, messages, timestamp_ms)
            self._record_producer(name, state)
        return entry_id

    @property
    def size_bytes(self) -> int:
        """Bytes that the ledger holds."""
        return sum(segment.size for segment in self.segments) + self._unflushed_size

    @property
    def messages(self) -> int:
        """Messages that the ledger holds and that are not deleted."""
        return self.next_index - self.first_number - self.deleted_numbers.count

    def given_up(self, first: int, end: int) -> int:
        """Return how many of the entries from `first` to before `end` a repair gave up.

        Those before the first that is kept do not count.
        """
        first = max(first, self.first_entry)
        spans = ((max(hole.first, first), min(hole.last + 1, end)) for hole in self.holes)
        return sum(max(0, stop - start) for start, stop in spans)

    def begin(self) -> None:
        """Put in flight what was appended since the last call; see Appender."""
        self._in_flight, self._pending = self._pending, []
        self._in_flight_size, self._pending_size = self._pending_size, 0
        self._in_flight_states, self._pending_states = self._pending_states, {}

    def synced(self) -> None:
        """Make readable what was in flight; see Appender."""
        self._durable_states.update(self._in_flight_states)
        self._remember(self._in_flight, self._in_flight_size)
        self.durable_entry = self._in_flight[-1].entry.entry_id + 1
        self._in_flight = []
        self._in_flight_states = {}

    def announce(self) -> None:
        """Call the listeners for new entries."""
        for listener in tuple(self.listeners):
            listener()

    def take_unflushed(self) -> list[StoredRecord]:
        """Return what is to be written to segments now; `flushed` follows, or the store fails."""
        taken, self.unflushed = self.unflushed, []
        self._flushing_size = self._unflushed_size
        return taken

    def flushed(self, records: list[StoredRecord], segments: tuple[Segment, ...]) -> Flushed:
        """Take the segments that hold the records now: those that were taken last."""
        size = self._flushing_size
        self._unflushed_size -= size
        self.segments = segments
        self.flushed_entry = segments[-1].next_entry
        self.flushed_index = segments[-1].next_index
        self._set_first()
        first, last = records[0].entry.entry_id, records[-1].entry.entry_id
        held = size + ENTRY_OVERHEAD_BYTES * len(records)
        self._unflushed_held -= held
        return Flushed(self, first, last + 1, held)

    def discard(self) -> None:
        """Release all memory: the topic was deleted."""
        self.discarded = True
        self._tails.unflushed.pop(self, None)
        self._tails.changed.pop(self, None)
        self._tails.unflushed_size -= self._unflushed_held
        self.unflushed = []
        self._unflushed_size = self._unflushed_held = 0
        self.deleted_numbers = DeletedRanges()
        self._tail.clear()
        self.listeners.clear()

    def evict(self, flushed: Flushed) -> None:
        """Release entries that are in segments."""
        for entry in range(flushed.first, flushed.next):
            self._tail.pop(entry, None)
        self._tail_start = max(self._tail_start, flushed.next)

    def drop(self, segments: tuple[Segment, ...]) -> None:
        """Forget the segments that retention removed: these remain."""
        self.segments = segments
        self._set_first()
        for entry in range(self._tail_start, self.first_entry):
            self._tail.pop(entry, None)
        self._tail_start = max(self._tail_start, self.first_entry)

    def replace_segments(self, old: Sequence[Segment], new: Segment) -> None:
        """Take a segment that holds what is left of some adjacent ones."""
        at = self.segments.index(old[0])
        self.segments = (*self.segments[:at], new, *self.segments[at + len(old) :])

    @property
    def recorded_segments(self) -> tuple[Segment, ...]:
        """The segments that are written no more, as the metadata has them."""
        closed = self.segments[:-1]
        return tuple(s for s in closed if s.next_entry <= self._recorded_entry)

    def change(self) -> LedgerChange:
        """Return what a checkpoint stores of this ledger; its producer states are handed over."""
        known = self.producers.last
        states = {name: state for name, state in self._durable_states.items() if known(name)}
        self._durable_states = {}
        # A segment that has not grown since is on record as it is.
        grown = tuple(s for s in self.segments if s.next_entry > self._recorded_entry)
        self._recorded_entry = self.flushed_entry
        deleted = self.deleted_numbers.take_changes()
        return LedgerChange(
            self.id,
            self.flushed_entry,
            self.flushed_index,
            grown,
            states,
            deleted,
            self.removed_entry,
            self.removed_number,
        )

    def _remember(self, records: list[StoredRecord], size: int) -> None:
        """Keep records, of so many bytes of payload, until they are in segments."""
        if self.discarded:
            return
        held = size + (HEAD.size + ENTRY_OVERHEAD_BYTES) * len(records)
        self.unflushed += records
        self._unflushed_size += size + HEAD.size * len(records)
        self._unflushed_held += held
        self._tails.unflushed[self] = None
        self._tails.unflushed_size += held

    def _record_producer(self, name: str, state: ProducerState) -> None:
        self.producers.record(name, state)
        self._pending_states[name] = state
        self._journal.pending.parts.append(pack_producer_state(self.id, name, state))

    def _set_first(self) -> None:
        first = self.segments[0] if self.segments else None
        self.first_entry = self.flushed_entry if first is None else first.first_entry
        self.first_number = self.flushed_index if first is None else first.first_index
        if self.deleted_numbers:
            self.deleted_numbers.remove_below(self.first_number)
