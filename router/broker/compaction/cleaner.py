"""Owns the cleaner: deletes messages whose key has a newer one, of the topics that are compacted.

Theory of operation. A message may go if its segment is closed and older than the topic's least lag,
and a message of the same key behind it stands before the end of those segments: what was cleaned
has one message of each key then, and a reader of the rest finds every key. Which numbers those are
the index says. They are deleted as clients delete them, journalled, a portion at a time; the index
forgets a portion when its deletion is on disk. A start after a kill finds the rest in the index, or
finds it again in the log.

A tombstone goes when its time is over since the cleaning that left nothing else of its key. So a
reader that saw an older message of the key meets the tombstone if it gets there within that time.

The store then writes the segments again without what was deleted (see storage/reclaim).

Where a topic is compacted on request, and its policies say that enough was stored since, the
cleaner makes the request (see `Compactor`).

One task cleans one partition after the other, the maintenance wakes it. One that cannot be cleaned,
whatever the reason, is left for the next time. It pauses after each piece
of work, for nine times as long as the piece took while others publish (`CleanerPace`).
"""

from __future__ import annotations

import asyncio
import sqlite3
from collections.abc import Callable, Coroutine, Iterable, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import takewhile
from time import monotonic
from typing import Any, Final, TypeVar

import structlog

from router.broker.compaction.compacted_retention import CompactedRetention
from router.broker.compaction.compactor import Compactor
from router.broker.compaction.indexes import KeyIndexes, PartitionIndex
from router.broker.compaction.key_index import IndexDamagedError, KeyedMessage, KeyIndex
from router.broker.consume import Partition
from router.broker.consume.visible import Visible
from router.broker.disk.faults import StoreError
from router.broker.storage import Ledger, Store, TopicRecord
from router.broker.topics.topics import Topics
from router.errors.quoting import failure_text
from router.metrics import Sample
from router.model.policies import Policies

PORTION: Final = 1_000
"""Messages that are deleted together."""
DEFAULT_DELETE_RETENTION_MS: Final = 86_400_000
DEFAULT_DIRTY_RATIO: Final = 0.5
BUSY_SHARE: Final = 0.1
"""Of the time, that work may take while messages are published."""
MAX_PAUSE_SECONDS: Final = 1.0
TOPICS_PER_YIELD: Final = 200

T = TypeVar("T")
_log = structlog.get_logger(__name__)


class CleanerPace:
    """Pauses between pieces of work, so that publishing goes on."""

    def __init__(self, store: Store, clock: Callable[[], float] = monotonic) -> None:
        self._store = store
        self._clock = clock
        self._resumed_at = clock()
        self._written = store.written

    def seconds(self) -> float:
        """Return how long to pause now: in proportion to the time since the last pause.

        0: nothing was journalled since.
        """
        if self._store.written == self._written:
            return 0.0
        worked = self._clock() - self._resumed_at
        return min(MAX_PAUSE_SECONDS, worked * (1 / BUSY_SHARE - 1))

    def discount(self) -> None:
        """Take what was journalled until now for the cleaner's own."""
        self._written = self._store.written

    async def pause(self) -> None:
        """Sleep for `seconds`."""
        await asyncio.sleep(self.seconds())
        self._resumed_at, self._written = self._clock(), self._store.written


@dataclass(frozen=True, slots=True)
class Dirt:
    """What of a partition may be cleaned: messages before `end`, and how much of that is dirty.

    `ratio` is the part of the bytes before `end` that was stored since the last cleaning;
    `oldest_ms` is when the first of them was stored.
    """

    end: int
    ratio: float
    oldest_ms: int | None

    def is_due(self, policies: Policies, now_ms: int) -> bool:
        """Return whether the topic's policies want it cleaned now."""
        if self.oldest_ms is None:
            return False
        least, longest = policies.min_cleanable_dirty_ratio, policies.max_compaction_lag_ms
        late = longest is not None and self.oldest_ms <= now_ms - longest
        return late or self.ratio > (DEFAULT_DIRTY_RATIO if least is None else least)


def measure(visible: Visible, cleaned: int, min_lag_ms: int, now_ms: int) -> Dirt:
    """Return what may be cleaned of a partition whose messages before `cleaned` are clean.

    A segment with messages that may not be delivered yet is not cleaned: the index has none.
    """
    max_ms, readable = now_ms - min_lag_ms, visible.end_number
    closed = list(
        takewhile(
            lambda segment: segment.max_ms <= max_ms and segment.next_index <= readable,
            visible.ledger.segments[:-1],
        )
    )
    end = closed[-1].next_index if closed else 0
    dirty = [segment for segment in closed if segment.next_index > cleaned]
    total = sum(segment.size for segment in closed)
    ratio = sum(segment.size for segment in dirty) / total if total else 0.0
    return Dirt(end, ratio, dirty[0].first_ms if dirty else None)


class Cleaner:
    """Cleans all compacted topics of the node, one partition at a time.

    `deleted` is called when deletions of its own are on disk.
    """

    def __init__(
        self,
        topics: Topics,
        indexes: KeyIndexes,
        compactor: Compactor,
        deleted: Callable[[], object] = lambda: None,
    ) -> None:
        self._deleted = deleted
        self._topics = topics
        self._store = topics.store
        self._indexes = indexes
        self._compactor = compactor
        self._retention = CompactedRetention(indexes, compactor, deleted)
        self._wake = asyncio.Event()
        self._messages = self._tombstones = self._bytes = self._failures = 0
        self._ended_ms = 0
        self._dirtiest = 0.0

    def wake(self) -> None:
        """Have `run` look at all topics soon."""
        self._wake.set()

    async def run(self) -> None:
        """Clean what is due whenever woken, until cancelled or the store ends."""
        while True:
            await self._wake.wait()
            self._wake.clear()
            try:
                await self.clean_all()
            except StoreError:
                return  # it failed, which is reported elsewhere, or a stop has closed it
            except Exception:  # noqa: BLE001 - the boundary of a task: cleaning must go on
                _log.exception("cleaning-failed")

    async def clean_all(self) -> None:
        """Clean each partition that is due; remove the indexes of deleted topics.

        Raises StoreError.
        """
        topics = self._topics
        records = list(topics.records())
        ledger_ids = {one for record in records for one in record.ledger_ids}
        # Before anything is waited for: topics may be made, and be compacted, meanwhile.
        self._compactor.keep(ledger_ids)
        await self._indexes.keep(ledger_ids)
        dirtiest = 0.0
        for count, record in enumerate(records, 1):
            if count % TOPICS_PER_YIELD == 0:
                await asyncio.sleep(0)
            policies = topics.policies(record)
            if policies.compacts:
                for partition in self._with_segments(record):
                    dirtiest = max(dirtiest, await self._clean(partition, policies))
            for partition in self._compacted_on_request(record):
                work = self._retention.apply(partition, topics.now_ms())
                self._messages += await self._guarded(partition, work) or 0
            if policies.compaction_threshold:
                self._compact_if_due(record, policies)
        self._dirtiest = dirtiest
        self._ended_ms = topics.now_ms()

    async def collect(self) -> list[Sample]:
        """Return the metrics."""
        return [
            ("router_compaction_cleaned_messages_total", (), float(self._messages)),
            ("router_compaction_cleaned_tombstones_total", (), float(self._tombstones)),
            ("router_compaction_reclaimed_bytes_total", (), float(self._bytes)),
            ("router_compaction_failures_total", (), float(self._failures)),
            ("router_compaction_last_run_time_seconds", (), self._ended_ms / 1000),
            ("router_compaction_max_dirty_ratio", (), self._dirtiest),
        ]

    def _with_segments(self, record: TopicRecord) -> Iterable[Partition]:
        """Yield the partitions of a topic that have a closed segment; others stay idle."""
        for place, ledger_id in enumerate(record.ledger_ids):
            idle = self._store.idle(ledger_id)
            if idle is None or idle.segments > 1:
                if not self._is_unchanged(record):
                    return
                yield self._topics.partitions(record)[place]

    def _compacted_on_request(self, record: TopicRecord) -> Iterable[Partition]:
        """Yield the partitions of a topic that were compacted on request."""
        for place, ledger_id in enumerate(record.ledger_ids):
            idle = self._store.idle(ledger_id)
            try:
                found = idle.compacted if idle else self._store.ledger(ledger_id).compacted_number
            except KeyError:  # the topic was deleted meanwhile
                return
            if found:
                yield self._topics.partitions(record)[place]

    def _compact_if_due(self, record: TopicRecord, policies: Policies) -> None:
        """Request that the partitions be compacted of which enough was stored since."""
        for place, ledger_id in enumerate(record.ledger_ids):
            idle = self._store.idle(ledger_id)
            if idle is None or idle.size > (policies.compaction_threshold or 0):
                if not self._is_unchanged(record):
                    return
                self._compactor.begin_if_due(self._topics.partitions(record)[place], policies)

    def _is_unchanged(self, record: TopicRecord) -> bool:
        """Return False for a topic that was deleted, made again or given other policies since."""
        found = self._topics.find(record.name)
        return found is not None and (found.id, found.policies) == (record.id, record.policies)

    async def _clean(self, partition: Partition, policies: Policies) -> float:
        """Clean a partition if it is due; return its dirty ratio before. Raises StoreError."""
        return await self._guarded(partition, self.clean(partition, policies)) or 0.0

    async def _guarded(self, partition: Partition, work: Coroutine[Any, Any, T]) -> T | None:
        """Return what work on a partition returns; None: it failed. Raises StoreError."""
        try:
            return await work
        except StoreError:
            raise
        except Exception as error:  # noqa: BLE001 - others are cleaned, whatever is wrong with one
            self._failures += 1
            _log.warning(
                "partition-not-cleaned",
                topic=partition.topic_name,
                partition=partition.index,
                reason=failure_text(error),
                exc_info=not isinstance(error, (OSError, sqlite3.Error, IndexDamagedError)),
            )
            return None

    async def clean(self, partition: Partition, policies: Policies) -> float:
        """Clean a partition if it is due, and delete its due tombstones; return its dirty ratio.

        Raises OSError, sqlite3.Error, IndexDamagedError, StoreError.
        """
        index, ledger = self._indexes.of(partition.visible), partition.ledger
        now_ms = self._topics.now_ms()
        cleaned = (await index.run(lambda file: file.progress)).cleaned
        dirt = measure(partition.visible, cleaned, policies.min_compaction_lag_ms or 0, now_ms)
        messages = 0
        if dirt.is_due(policies, now_ms):
            await index.catch_up()
            messages = await self._delete_superseded(index, dirt.end)
            await index.run(lambda file: file.mark_cleaned(dirt.end, now_ms))
            if policies.deletes:
                await index.run(lambda file: file.forget_before(ledger.first_number))
        tombstones = await self._delete_tombstones(index, policies, now_ms)
        if messages or tombstones:
            self._messages += messages
            self._tombstones += tombstones
            self._bytes += (reclaimed := await self._store.reclaim(ledger))
            _log.info(
                "partition-cleaned",
                topic=partition.topic_name,
                partition=partition.index,
                messages=messages,
                tombstones=tombstones,
                reclaimed=reclaimed,
                until=dirt.end,
            )
        return dirt.ratio

    async def _delete_superseded(self, index: PartitionIndex, end: int) -> int:
        """Delete what was superseded before a number; return how many messages that were."""
        after, count = -1, 0
        while True:
            found = await index.run(partial(_superseded, after, end))
            if not found:
                return count
            count += await self._delete(index.visible.ledger, found)
            await index.run(partial(_forget_superseded, found))
            after = found[-1]
            await self._indexes.pause()

    async def _delete_tombstones(
        self, index: PartitionIndex, policies: Policies, now_ms: int
    ) -> int:
        keep = policies.delete_retention_ms
        before = now_ms - (DEFAULT_DELETE_RETENTION_MS if keep is None else keep)
        count = 0
        while True:
            found = await index.run(lambda file: file.due_tombstones(before, PORTION))
            if not found:
                return count
            count += await self._delete(index.visible.ledger, [one.number for one in found])
            await index.run(partial(_forget, found))
            await self._indexes.pause()

    async def _delete(self, ledger: Ledger, numbers: Sequence[int]) -> int:
        """Delete messages, on disk on return; return how many there were."""
        count = await self._store.delete_durably(ledger, list(ranges(numbers)))
        self._deleted()
        return count


def _superseded(after: int, end: int, file: KeyIndex) -> list[int]:
    return file.superseded(after, end, PORTION)


def _forget_superseded(numbers: Sequence[int], file: KeyIndex) -> None:
    file.forget_superseded(numbers)


def _forget(messages: Sequence[KeyedMessage], file: KeyIndex) -> None:
    file.forget(messages)


def ranges(numbers: Iterable[int]) -> Iterable[tuple[int, int]]:
    """Yield ascending numbers as ranges, ends included."""
    first = last = -1
    for number in numbers:
        if number != last + 1 or first < 0:
            if first >= 0:
                yield first, last
            first = number
        last = number
    if first >= 0:
        yield first, last
