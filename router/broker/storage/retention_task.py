"""Owns the sweep: retention, forgotten producers, and writing down what waits for a checkpoint.

Data that only the journal holds cannot go by segments, so a sweep also sees to it that a quiet
node's entries reach their segments while they are young.

Idle ledgers are passed over by a few numbers each: only one of which something may go is looked at,
and only one of which something goes is used.
"""

from __future__ import annotations

import asyncio
import sqlite3
from collections.abc import AsyncIterator, Callable, Iterable, Sequence
from functools import partial
from typing import Final, TypeVar

import structlog

from router.broker.storage import rows
from router.broker.storage.catalog import StorageCatalog, skip_holes
from router.broker.storage.checkpointer import Checkpointer
from router.broker.storage.context import StoreContext
from router.broker.storage.cursor_log import CursorLog
from router.broker.storage.cursors import Ack
from router.broker.storage.partition import Ledger
from router.broker.storage.retention import (
    expired_number,
    removable,
    removed_bounds,
    without_messages,
)
from router.broker.storage.rows import SubscriptionRecord
from router.broker.storage.segments import Segment

_log = structlog.get_logger()
T = TypeVar("T")
_HOUR_MS: Final = 3_600_000
_ITEMS_PER_SLICE: Final = 100
"""Of some 20 µs each: what arrives meanwhile waits for them."""


class RetentionTask:
    """Removes what may go, about once a minute."""

    def __init__(
        self,
        catalog: StorageCatalog,
        checkpointer: Checkpointer,
        context: StoreContext,
        cursors: CursorLog,
    ) -> None:
        self._catalog = catalog
        self._checkpointer = checkpointer
        self._context = context
        self._window_ms = context.options.dedup_window_ms
        self._acknowledge = cursors.acknowledge
        self._delete_durably = cursors.delete_durably
        self._checkpointed_ms: int | None = None

    async def run(self, now_ms: int) -> None:
        """Apply retention once, and store when subscriptions were used; raise StoreError.

        To be called about once a minute.
        """
        if self._checkpointed_ms is None:
            self._checkpointed_ms = now_ms
        if now_ms - self._checkpointed_ms >= await self._checkpoint_age():
            await self._checkpoint(now_ms)
        await self._note(now_ms)
        await self._use_due(now_ms)
        used = _in_slices(list(self._catalog.used()))
        due = [ledger async for ledger in used if self._removable(ledger, now_ms)]
        if due:
            # What goes must be known to the metadata as far as it reaches.
            await self._checkpoint(now_ms)
            await self._drop(due, partial(self._removable, now_ms=now_ms), "retention")

    async def _checkpoint(self, now_ms: int) -> None:
        self._checkpointed_ms = now_ms
        await self._checkpointer.checkpoint()

    async def _note(self, now_ms: int) -> None:
        """Write down when subscriptions were used, and forget the producers that are due."""
        used = [r for r in self._catalog.used_subscriptions() if r.last_used_ms != r.saved_used_ms]
        values = [(record.last_used_ms, record.id) for record in used]
        for record in used:
            record.saved_used_ms = record.last_used_ms
        self._catalog.expire_producers(now_ms)
        async with self._checkpointer.alone():
            await self._checkpointer.metadata.run(lambda c: rows.save_used(c, values))
            until_ms = now_ms - self._window_ms
            await self._checkpointer.metadata.run(lambda c: rows.expire_producers(c, until_ms))

    def expired_number(self, ledger: Ledger, now_ms: int) -> int:
        """Return the number before which retention allows the messages of a ledger to go.

        Of a ledger that is compacted on request nothing goes by itself: the caller deletes what
        no reader needs any more.
        """
        keep = self._catalog.retention_limits(ledger.topic_id)
        acked = _acked(self._catalog.subscriptions(ledger.id))
        return expired_number(ledger.segments, keep, acked, now_ms, ledger.deleted_numbers)

    async def delete_before(self, ledger: Ledger, number: int, now_ms: int) -> None:
        """Delete the messages of a ledger with lower numbers; remove segments without others.

        Whether they are acknowledged does not count. Readers see them until that is on disk. Raises
        StoreError if the disk fails.
        """
        if ledger.first_number < number:
            await self._delete_durably(ledger, ((ledger.first_number, number - 1),))
        ledger.note_removed(0, number)
        await self._checkpoint(now_ms)
        await self.drop_deleted(ledger)

    async def drop_deleted(self, ledger: Ledger) -> int:
        """Remove the segments of a ledger whose messages are all deleted; return their bytes.

        A checkpoint comes before. Raises StoreError if the disk fails.
        """

        def choose(one: Ledger) -> Sequence[Segment]:
            return () if one.discarded else without_messages(one.segments, one.deleted_numbers)

        return await self._drop([ledger], choose, "delete-records")

    async def _drop(
        self, ledgers: Iterable[Ledger], choose: Callable[[Ledger], Sequence[Segment]], event: str
    ) -> int:
        """Remove of each of these ledgers the segments that are chosen; return their bytes."""
        dropped: dict[Ledger, Sequence[Segment]] = {}
        async with self._checkpointer.alone():
            for ledger in ledgers:
                if found := choose(ledger):
                    dropped[ledger] = found
            gone = [(ledger.id, s.first_entry) for ledger, ss in dropped.items() for s in ss]
            # Messages may have been deleted since the checkpoint: that is stored with the removal.
            deleted = [(ledger.id, ledger.deleted_numbers.take_changes()) for ledger in dropped]

            removed = {ledger: _removed(ledger, segments) for ledger, segments in dropped.items()}

            def drop(connection: sqlite3.Connection) -> None:
                rows.drop_segments(connection, gone)
                rows.save_removed(
                    connection, ((*bounds, ledger.id) for ledger, bounds in removed.items())
                )
                for ledger_id, changes in deleted:
                    rows.save_deleted(connection, ledger_id, changes)

            await self._checkpointer.metadata.run(drop)
            for ledger, segments in dropped.items():
                # Not before: a first entry that readers have seen must not go back.
                ledger.note_removed(*removed[ledger])
                firsts = {segment.first_entry for segment in segments}
                ledger.drop(tuple(s for s in ledger.segments if s.first_entry not in firsts))
                remove = partial(self._context.writer.remove, ledger.id, segments)
                await self._checkpointer.in_thread(remove)
        total = 0
        for ledger, segments in dropped.items():
            size = sum(segment.size for segment in segments)
            total += size
            _log.info(event, ledger=ledger.id, segments=len(segments), bytes=size)
            for record in self._catalog.subscriptions(ledger.id):
                self._acknowledge(record, Ack(ledger.first_entry - 1, cumulative=True))
                # Not journalled: a start finds the same gaps.
                if skip_holes(record, ledger):
                    self._checkpointer.cursors[record] = None
        return total

    async def _use_due(self, now_ms: int) -> None:
        """Use the idle ledgers of which something may go."""
        async for ledger_id in _in_slices(self._catalog.idle()):
            if self._may_be_due(ledger_id, now_ms):
                ledger, records = self._catalog.look(ledger_id)
                if self._chosen(ledger, records, now_ms):
                    self._catalog.ledger(ledger_id)

    def _may_be_due(self, ledger_id: int, now_ms: int) -> bool:
        """Return whether something of an idle ledger may go, as far as is known without a look."""
        found = self._catalog.summary(ledger_id)
        if found is None or not found.segments:
            return False
        keep = self._catalog.retention_limits(found.topic_id)
        old = 0 <= keep.retention_ms <= now_ms - found.oldest_ms
        large = 0 <= keep.retention_bytes < found.size
        return found.deletes or ((old or large) and not found.compacted)

    def _removable(self, ledger: Ledger, now_ms: int) -> Sequence[Segment]:
        return self._chosen(ledger, self._catalog.subscriptions(ledger.id), now_ms)

    def _chosen(
        self, ledger: Ledger, subscriptions: Iterable[SubscriptionRecord], now_ms: int
    ) -> Sequence[Segment]:
        if not ledger.segments or ledger.discarded:
            return ()
        if ledger.compacted_number:  # of these messages are deleted one by one: `expired_number`
            return without_messages(ledger.segments, ledger.deleted_numbers)
        keep, acked = self._catalog.retention_limits(ledger.topic_id), _acked(subscriptions)
        return removable(ledger.segments, keep, acked, now_ms, ledger.deleted_numbers)

    async def _checkpoint_age(self) -> int:
        """Return how long the entries that only the journal has may be there, in milliseconds."""
        tails = self._context.tails
        waiting = _in_slices([*tails.unflushed, *tails.changed])
        ages = {self._catalog.roll_ms(ledger) async for ledger in waiting}
        return min([_HOUR_MS, *(age // 2 for age in ages)])


def _removed(ledger: Ledger, segments: Sequence[Segment]) -> tuple[int, int]:
    """Return `removed_entry` and `removed_number` of a ledger without these segments."""
    entry, number = removed_bounds(segments, ledger.deleted_numbers)
    return max(ledger.removed_entry, entry), max(ledger.removed_number, number)


def _acked(subscriptions: Iterable[SubscriptionRecord]) -> int | None:
    """Return the entry up to which all subscriptions acknowledged; None: there is none."""
    active = (record.cursor.mark_delete for record in subscriptions if not record.passive)
    return min(active, default=None)


async def _in_slices(items: Iterable[T]) -> AsyncIterator[T]:
    """Yield the items, and let the event loop do other work now and then."""
    for count, item in enumerate(items, 1):
        yield item
        if count % _ITEMS_PER_SLICE == 0:
            await asyncio.sleep(0)
