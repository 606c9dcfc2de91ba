"""Owns the changes of cursors and of values, and deletions of messages.

Each is made at once in memory, and journalled for the next sync; but what a reader must not see
before it is on disk, as a deletion that a client requests, waits for that sync.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from router.broker.storage.catalog import StorageCatalog, skip_holes
from router.broker.storage.commit_groups import (
    pack_ack,
    pack_commit,
    pack_deleted,
    pack_reset,
    pack_value,
)
from router.broker.storage.cursors import Ack, CommittedPosition
from router.broker.storage.journal import Journal
from router.broker.storage.partition import Ledger
from router.broker.storage.rows import SubscriptionRecord
from router.broker.storage.values import ValueChange


class CursorLog:
    """Changes cursors, and deletes messages; after the store failed nothing is journalled."""

    def __init__(self, catalog: StorageCatalog, journal: Journal) -> None:
        self._catalog = catalog
        self._journal = journal

    def acknowledge(
        self, subscription: SubscriptionRecord, ack: Ack, done: Callable[[], object] | None = None
    ) -> None:
        """Acknowledge on the cursor at once, and call `done` when that is on disk.

        An acknowledgement of entries that are not durable yet acknowledges nothing. After the store
        failed it is made in memory alone: what is delivered until the broker ends comes once.
        """
        ledger = self._catalog.find(subscription.ledger_id)
        known = ledger is not None and ack.entry < ledger.durable_entry
        applied = known and subscription.cursor.apply(ack)
        if self._journal.failed.done():
            return
        if applied:
            self._log_cursor(subscription, pack_ack(subscription.id, ack), done)
        elif done is not None:
            self._journal.after_sync(done)

    def reset(
        self,
        subscription: SubscriptionRecord,
        entry: int,
        done: Callable[[], object] | None = None,
    ) -> None:
        """Set the cursor so that exactly `entry` and all before it are acknowledged.

        `done` is called when that is on disk.
        """
        if self._journal.failed.done():
            return
        subscription.cursor.reset(entry)
        if (ledger := self._catalog.find(subscription.ledger_id)) is not None:
            skip_holes(subscription, ledger)
        self._log_cursor(subscription, pack_reset(subscription.id, entry), done)

    def commit(self, subscription: SubscriptionRecord, commit: CommittedPosition) -> None:
        """Store what a client gave with the position that it set just before."""
        if not self._journal.failed.done():
            subscription.commit = commit
            self._log_cursor(subscription, pack_commit(subscription.id, commit), None)

    def delete_messages(
        self,
        ledger: Ledger,
        ranges: Sequence[tuple[int, int]],
        done: Callable[[], object] | None = None,
        removed_entry: int = 0,
    ) -> int:
        """Delete messages: ranges of their numbers, ends included, below `ledger.next_index`.

        Readers leave them out from now on; `done` is called when that is on disk. Returns how many
        messages were not deleted before. What is not stored, or not any more, is ignored.
        `removed_entry`: a limit deletes them, and all before this entry is gone then.
        """
        if self._journal.failed.done():
            return 0
        count = 0 if ledger.discarded else ledger.delete(ranges, removed_entry)
        if count:
            self._log(pack_deleted(ledger.id, ranges, removed_entry), done)
        elif done is not None:
            self._journal.after_sync(done)
        return count

    async def delete_durably(
        self,
        ledger: Ledger,
        ranges: Sequence[tuple[int, int]],
        delete: Callable[[], int] | None = None,
    ) -> int:
        """Delete messages as soon as that is on disk; return how many were not deleted before.

        Readers see them until then: what was seen as gone does not come back after a power cut.
        `delete` deletes them in memory, and returns their number; None: the ledger does. It is
        called in the step that ends the sync, so that a checkpoint which cuts the journal has them.
        Raises StoreError.
        """
        count = 0

        def apply() -> None:
            nonlocal count
            if not ledger.discarded:
                count = ledger.delete(ranges) if delete is None else delete()

        if ranges and not self._journal.failed.done():
            self._log(pack_deleted(ledger.id, ranges), apply)
        await self._journal.synced()
        return count

    def change_value(self, change: ValueChange) -> None:
        """Change a value at once; it is on disk with whatever else this step changes."""
        if not self._journal.failed.done():
            self._catalog.values.apply(change)
            self._log(pack_value(change), None)

    def _log_cursor(
        self,
        subscription: SubscriptionRecord,
        record: bytes,
        done: Callable[[], object] | None,
    ) -> None:
        self._catalog.unsaved[subscription] = None
        self._log(record, done)

    def _log(self, record: bytes, done: Callable[[], object] | None) -> None:
        group = self._journal.pending
        group.parts.append(record)
        group.size += len(record)
        if done is not None:
            group.call(done)
            self._journal.kick()
        elif not group.is_due:
            self._journal.kick_later()
