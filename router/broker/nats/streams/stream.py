"""One stream: a partition of a topic with its configuration, state, limits and message ids.

Theory of operation. The sequence of a message is its number in the partition plus 1. A topic that
no client configured as a stream has one subject, its name, so that nothing has to be known of its
messages: it has no index, and opening it reads nothing. A configured stream has an index of its
subjects (`subject_index.py`), which opening restores from its checkpoint or builds from the log.

What is deleted here is left out by the readers of all dialects.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, Protocol

import structlog

from router.broker.consume import Partition
from router.broker.entries import Transcoder
from router.broker.nats.streams.log.duplicates import MessageIds, restore_ids
from router.broker.nats.streams.log.index_checkpoint import MIN_GROWTH_ENTRIES, IndexFile
from router.broker.nats.streams.log.indexing import Indexer
from router.broker.nats.streams.log.interest import StreamInterest
from router.broker.nats.streams.log.limits import StreamLimits
from router.broker.nats.streams.log.markers import DeleteMarkers
from router.broker.nats.streams.log.messages import (
    NS_PER_MS,
    EntryCache,
    MessageReader,
)
from router.broker.nats.streams.log.stream_log import StreamLog
from router.broker.nats.streams.log.subject_index import SubjectBudget, SubjectIndex
from router.broker.nats.streams.log.withheld import WithheldMessages, read_withheld
from router.broker.storage import DamagedError, Store, StoreError, TopicRecord
from router.broker.topics.cursor_administration import size_from
from router.model import TopicName
from router.wire.nats.jetstream.config import StreamConfig
from router.wire.nats.jetstream.errors import ErrorCode, error
from router.wire.nats.jetstream.policies import Discard, Retention
from router.wire.nats.jetstream.replies import StreamInfo, StreamState
from router.wire.nats.subjects import matches

MAX_DELETED_SHOWN: Final = 100_000
"""Deleted sequences in one reply."""

_log = structlog.get_logger(__name__)


@dataclass(frozen=True, slots=True)
class StreamContext:
    """What all streams of a broker share; `now_ms` counts from 1970."""

    store: Store
    transcoder: Transcoder
    cache: EntryCache
    budget: SubjectBudget
    folder: Path
    now_ms: Callable[[], int]


@dataclass(frozen=True, slots=True)
class StreamRecord:
    """What makes a topic's partition a stream; `configured` by a client, or by the topic alone.

    `default_subject` is that of messages that name none which the stream takes.
    """

    name: str
    config: StreamConfig
    created_ns: int
    configured: bool
    default_subject: str


class Stream:
    """A stream; `open` it before its index and state are used.

    `consumers` are kept by the part that serves them.
    """

    def __init__(self, context: StreamContext, record: StreamRecord, partition: Partition) -> None:
        self.context = context
        self._set_record(record)
        self.partition = partition
        self.topic_name = TopicName.parse(partition.topic.name)
        self.ledger = partition.ledger
        self.visible = partition.visible
        self.consumers: dict[str, Any] = {}
        self.ids = MessageIds()
        self.opened = self.closed = False
        reader = MessageReader(
            partition.visible, context.transcoder, context.cache, self.subject_of_foreign
        )
        self.log = log = StreamLog(context.store, reader, record.default_subject)
        log.on_deleted = self._on_deleted
        self.loader: Callable[[Stream], Awaitable[None]] | None = None
        self._file = IndexFile(context.folder, partition.visible)
        self._opening: asyncio.Task[None] | None = None
        self.interest = StreamInterest(log, partition, self.consumers, record.config.retention)
        self.markers = DeleteMarkers(log, self.ids, context.now_ms, self._on_markers_stored)
        self.limits = StreamLimits(log, record.config, self.markers, context.now_ms)
        self.acknowledged = self.interest.acknowledged
        self.review_interest = self.interest.review
        # What others need often, without a call between.
        self.read = log.read
        self.read_from = log.read_from
        self.read_now = log.read_now
        self.next_of_subject = log.next_of_subject
        self.last_of_subjects = log.last_sequences

    @property
    def topic(self) -> TopicRecord:
        """Return the topic."""
        return self.partition.topic

    @property
    def created_ns(self) -> int:
        """Return when it was made, in nanoseconds since 1970."""
        return self.record.created_ns

    @property
    def messages(self) -> int:
        """Return how many messages may be read; the index has what is not on disk yet, too."""
        visible = self.visible
        return min(self.log.messages, visible.count(visible.first_number, visible.end_number))

    def accepts(self, subject: str) -> bool:
        """Return whether the stream takes a subject."""
        return any(matches(pattern, subject) for pattern in self.record.config.subjects)

    def subject_of_foreign(self, subject: str) -> str:
        """Return the subject of a message of another dialect that names this one, "": none."""
        named = subject and self.accepts(subject)
        return subject if named else self.record.default_subject

    def contains(self, sequence: int) -> bool:
        """Return whether there is a visible message of a sequence."""
        return self.visible.contains(sequence - 1)

    async def open(self) -> None:
        """Return when index and message ids are there. Raises OSError, StoreError."""
        while not self.opened and not self.closed:
            if self._opening is None:
                self._opening = asyncio.get_running_loop().create_task(self._open())
                self._opening.add_done_callback(self._open_ended)
            await asyncio.shield(self._opening)
            await asyncio.sleep(0)  # the callback of a task that has ended is still to run

    def is_ready(self) -> bool:
        """Return whether the next publish can be checked now."""
        indexer = self.log.indexer
        return self.opened and (indexer is None or indexer.advance())

    async def settle(self) -> None:
        """Return when all that was appended is on disk, counted, and within the limits."""
        await self.open()
        if self.ledger.durable_entry < self.ledger.next_entry:
            await self.context.store.synced()
        await self.log.catch_up()
        await self.interest.settle()
        await self.limits.settle()

    async def find_time(self, time_ns: int) -> int:
        """Return the first sequence stored at or after a time; the next one if there is none."""
        time_ms = -(-time_ns // NS_PER_MS)
        try:
            entry = await self.ledger.find_time(max(0, time_ms))
        except DamagedError as damage:
            entry = damage.first
        return await self.ledger.number_before(entry) + 1

    async def state(
        self, *, deleted_details: bool = False, subjects_filter: str = ""
    ) -> StreamState:
        """Return what readers may have of the stream. Raises OSError, JetStreamError.

        Size and subjects of more than is looked at behind open transactions are in it, too:
        see `read_withheld`.
        """
        log, indexer = self.log, self.log.indexer
        last, messages, size = log.last_sequence, self.messages, log.bytes
        first = min(log.first_sequence, last + 1) if last else 0
        num_subjects = self._count_subjects()
        subjects = self._subjects(subjects_filter) if subjects_filter else {}
        if indexer is None:
            size -= size_from(self.ledger, self.visible.end_entry)
        elif indexer.withholds:
            withheld = await read_withheld(indexer)
            size -= withheld.bytes
            num_subjects -= self._count_withheld(withheld, last)
            withheld.subtract_from(subjects)
        oldest = await self._time(first) if messages else None
        return StreamState(
            messages=messages,
            bytes=size,
            first_seq=first,
            first_ts=oldest,
            last_seq=last,
            last_ts=await self._last_time(),
            num_subjects=num_subjects,
            num_deleted=max(0, last + 1 - first - messages) if last else 0,
            consumer_count=len(self.consumers),
            subjects=subjects,
            deleted=self._deleted_sequences(first, last) if deleted_details else (),
        )

    async def info(self, *, deleted_details: bool = False, subjects_filter: str = "") -> StreamInfo:
        """Return configuration and state, everything acknowledged before included."""
        await self.settle()
        state = await self.state(deleted_details=deleted_details, subjects_filter=subjects_filter)
        now_ns = self.context.now_ms() * NS_PER_MS
        return StreamInfo(self.config, self.created_ns, state, now_ns)

    # Changes.

    async def configure(self, record: StreamRecord) -> None:
        """Go on with another configuration, and enforce it. Raises OSError, StoreError."""
        previous = self.record
        self._set_record(record)
        subjects_changed = previous.config.subjects != record.config.subjects
        if subjects_changed:
            self.log.reader.forget()
        self.limits.configure(record.config)
        self.interest.retention = record.config.retention
        if record.configured and self.log.indexer is None:
            self.opened = False
            await self.open()
        elif (indexer := self.log.indexer) is not None:
            if subjects_changed and indexer.foreign:
                indexer.restart()
            indexer.index.configure(record.config.max_msgs_per_subject)
        await self.settle()
        await self.interest.review()

    async def close(self, *, save: bool = True) -> None:
        """End tasks and timers; `save`: write the index down for the next start."""
        self.closed = True
        self.ledger.listeners.pop(self._on_stored, None)
        await self.limits.close()
        await self.interest.close()
        if self._opening is not None:
            self._opening.cancel()
            await asyncio.wait((self._opening,))
        if (indexer := self.log.indexer) is not None:
            await indexer.close()
            if save and self.opened:
                await self._save(indexer)
            indexer.index.clear()

    async def save(self, min_growth_entries: int = MIN_GROWTH_ENTRIES) -> None:
        """Write the index down if it has grown by so many entries: a crash costs less then."""
        indexer = self.log.indexer
        if indexer is None or self.closed or not self.opened:
            return
        if self._file.is_due(indexer, min_growth_entries):
            await self._save(indexer)

    async def erase(self) -> None:
        """Remove what was written: the topic is deleted."""
        await self._file.erase()

    def _set_record(self, record: StreamRecord) -> None:
        config = record.config
        self.record, self.name, self.config = record, record.name, config
        # Whether a message without headers may be refused but for its subject.
        self.restricts = config.sealed or config.max_msg_size >= 0 or config.discard is Discard.NEW

    async def _open(self) -> None:
        if self.record.configured and self.log.indexer is None:
            await self._open_index()
        await self.log.catch_up()
        if self.record.configured:
            window, now_ms = self.config.duplicate_window, self.context.now_ms()
            await restore_ids(self.ids, self.log, window, now_ms)
            await self.log.catch_up()
        await self.limits.recover()
        if self.loader is not None:
            await self.loader(self)
            self.loader = None
        self.opened = True
        self.interest.begin()
        self.ledger.listeners[self._on_stored] = None
        self.limits.enforce()

    async def _open_index(self) -> None:
        index = SubjectIndex(self.context.budget, self.config.max_msgs_per_subject)
        indexer = Indexer(self.log.reader, index)
        await self._file.restore(indexer, self._words())
        self.log.use(indexer)

    async def _save(self, indexer: Indexer) -> None:
        """Write the index down; the deadlines in it are without those of replaced messages."""
        if self.markers.replacing:
            try:
                await self.context.store.synced()
            except StoreError:
                return
            if not indexer.advance():
                return
            self.markers.delete_replaced()
        if not self.markers.replacing:
            await self._file.save(indexer, self._words(), self.context.store)

    def _words(self) -> str:
        """Return what the subjects of messages depend on."""
        return "\n".join((self.record.default_subject, *sorted(self.config.subjects)))

    def _open_ended(self, task: asyncio.Task[None]) -> None:
        self._opening = None
        if not task.cancelled() and (failure := task.exception()) is not None:
            _log.error("nats-stream-not-opened", stream=self.name, reason=str(failure))

    def _on_stored(self) -> None:
        if not self.closed:
            self.limits.enforce()
        for consumer in tuple(self.consumers.values()):
            consumer.stored()

    def _on_markers_stored(self, markers: Iterable[tuple[int, str]], entry: int) -> None:
        if not self.closed and self.interest.retention is Retention.INTEREST:
            self.interest.stored(markers, entry)

    def _on_deleted(self, ranges: Sequence[tuple[int, int]]) -> None:
        for consumer in tuple(self.consumers.values()):
            consumer.deleted(ranges)

    def _count_subjects(self) -> int:
        index = self.log.index
        if index is None:
            return 1 if self.messages else 0
        return len(index.subjects)

    def _count_withheld(self, withheld: WithheldMessages, last: int) -> int:
        """Return how many subjects have no message up to a sequence, but some that is withheld."""
        index = self.log.index
        states = index.subjects if index is not None else {}
        found = ((states[one], count) for one, count in withheld.subjects.items() if one in states)
        return sum(state.first > last or state.count <= count for state, count in found)

    def _subjects(self, pattern: str) -> dict[str, int]:
        index = self.log.index
        if index is None:
            count = self.messages
            own = self.record.default_subject
            return {own: count} if count and matches(pattern, own) else {}
        if index.overflowed:
            raise error(ErrorCode.STREAM_INFO_MAX_SUBJECTS)
        return {subject: state.count for subject, state in index.matching((pattern,))}

    def _deleted_sequences(self, first: int, last: int) -> Sequence[int]:
        found: list[int] = []
        for start, end in self.visible.left_out(max(0, first - 1), max(0, last - 1)):
            found += range(start + 1, min(end + 2, start + 1 + MAX_DELETED_SHOWN - len(found)))
            if len(found) >= MAX_DELETED_SHOWN:
                break
        return tuple(found)

    async def _time(self, sequence: int) -> int | None:
        found = await self.log.read_from(sequence, 1, 1)
        return found[0].time_ns if found else None

    async def _last_time(self) -> int | None:
        ledger = self.ledger
        last = self.visible.end_entry - 1
        if last < ledger.first_entry:
            return None
        entry = ledger.cached(last)
        if entry is None:
            try:
                entries = await ledger.read(last, 1, 1)
            except DamagedError:
                return None
            entry = entries[0] if entries else None
        return None if entry is None else entry.timestamp_ms * NS_PER_MS


class ConsumersPart(Protocol):
    """The part that serves consumers, as streams use it."""

    async def load(self, stream: Stream, /) -> None:
        """Take in the stored consumers of a stream; called once, when it is opened."""
        ...

    async def configured(self, stream: Stream, /) -> None:
        """Go on with another configuration of a stream."""
        ...

    def close(self, stream: Stream, /) -> Awaitable[None] | None:
        """End the consumers of a stream: it is deleted, or the broker ends."""
        ...
