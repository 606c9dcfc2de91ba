"""Owns compaction on request, as Pulsar has it: how far each partition is compacted, and its views.

Theory of operation. To compact a partition means to note a number: that of the first message that
came after the request, on disk, once the index of keys has all messages before it. The log stays as
it is, for readers that do not ask for a compacted topic (see also `CompactedRetention`). Readers
that ask get a `CompactedView` of the messages before the number, which follows from the index, so
that the index may be lost. The alternative, a second log of the newest messages as Apache Pulsar
writes it, would be cleaned, backed up and checked beside the first; the topics whose cleanup policy
is compaction need none either.

Of what was requested the last result of each partition is remembered until a restart. A partition
is compacted by itself when more bytes were stored since the last time than its topic's policy says.
"""

from __future__ import annotations

import asyncio
import sqlite3
from collections.abc import Collection
from typing import Final, NamedTuple
from weakref import WeakValueDictionary

import structlog

from router.broker.compaction.indexes import KeyIndexes
from router.broker.compaction.key_index import IndexDamagedError
from router.broker.consume import Partition
from router.broker.consume.compacted_view import CompactedView
from router.broker.consume.visible import Visible
from router.broker.disk.faults import StoreError
from router.broker.storage import Ledger
from router.errors import ConflictError, ReadFailedError
from router.errors.quoting import failure_text
from router.model.policies import Policies

NOT_RUN: Final = "NOT_RUN"
RUNNING: Final = "RUNNING"
SUCCESS: Final = "SUCCESS"
ERROR: Final = "ERROR"
LEAST_DONE_FIRST: Final = (RUNNING, ERROR, NOT_RUN, SUCCESS)

_log = structlog.get_logger(__name__)


class CompactionStatus(NamedTuple):
    """How the last compaction of a partition went, and with ERROR why it failed."""

    status: str = NOT_RUN
    last_error: str = ""


def bytes_from(ledger: Ledger, number: int) -> int:
    """Return about how many bytes a ledger has of messages from a number on."""
    held = ledger.next_index - ledger.first_number
    left = min(ledger.next_index - number, held)
    return ledger.size_bytes * left // held if held else 0


class Compactor:
    """Compacts the partitions of the node on request, one after the other."""

    def __init__(self, indexes: KeyIndexes) -> None:
        self._indexes = indexes
        self._lock = asyncio.Lock()
        self._tasks: set[asyncio.Task[None]] = set()
        self._status: dict[int, CompactionStatus] = {}
        self._views: WeakValueDictionary[tuple[int, int], CompactedView] = WeakValueDictionary()

    def begin(self, partition: Partition) -> None:
        """Begin to compact a partition; raise ConflictError if that is under way."""
        if self.status(partition).status == RUNNING:
            raise ConflictError(f"Compaction of {partition.topic_name} is already running")
        self._status[partition.ledger.id] = CompactionStatus(RUNNING)
        work = asyncio.get_running_loop().create_task(self._run(partition))
        self._tasks.add(work)
        work.add_done_callback(self._tasks.discard)

    async def compact(self, partition: Partition) -> None:
        """Compact a partition now, without a result that is remembered.

        Raises OSError, sqlite3.Error, IndexDamagedError, StoreError.
        """
        async with self._lock:
            await self._compact(partition)

    def begin_if_due(self, partition: Partition, policies: Policies) -> None:
        """Begin to compact a partition if its policies say so, and that is not under way."""
        ledger, threshold = partition.ledger, policies.compaction_threshold
        if (
            threshold
            and self.status(partition).status != RUNNING
            and bytes_from(ledger, ledger.compacted_number) > threshold
        ):
            self.begin(partition)

    def status(self, partition: Partition) -> CompactionStatus:
        """Return how the last compaction of a partition since the start went."""
        return self._status.get(partition.ledger.id, CompactionStatus())

    async def view(self, partition: Partition) -> Visible:
        """Return what a reader of a compacted topic gets of a partition now.

        Raises ReadFailedError, StoreError.
        """
        end = min(partition.ledger.compacted_number, partition.visible.end_number)
        if not end:
            return partition.visible
        place = partition.ledger.id, end
        if (view := self._views.get(place)) is None:
            try:
                numbers = await self._indexes.of(partition.visible).kept(end)
            except (OSError, sqlite3.Error, IndexDamagedError) as error:
                raise ReadFailedError(f"the index of keys: {failure_text(error)}") from error
            view = self._views[place] = CompactedView(partition.ledger, numbers, end)
        return view

    def keep(self, ledger_ids: Collection[int]) -> None:
        """Forget the results of all other ledgers: their topics are deleted."""
        for ledger_id in self._status.keys() - set(ledger_ids):
            del self._status[ledger_id]

    async def close(self) -> None:
        """End all work; what was not finished is as if it was never requested."""
        for work in self._tasks:
            work.cancel()
        if self._tasks:
            await asyncio.wait(self._tasks)

    async def _run(self, partition: Partition) -> None:
        """Compact a partition, and note the result."""
        status = CompactionStatus(SUCCESS)
        try:
            async with self._lock:
                number = await self._compact(partition)
        except StoreError as error:
            status = CompactionStatus(ERROR, failure_text(error))
        except Exception as error:  # noqa: BLE001 - the boundary of a task, whose result is shown
            status = CompactionStatus(ERROR, failure_text(error))
            _log.exception("compaction-failed", topic=partition.topic_name, index=partition.index)
        else:
            _log.info(
                "partition-compacted",
                topic=partition.topic_name,
                partition=partition.index,
                until=number,
            )
        self._status[partition.ledger.id] = status

    async def _compact(self, partition: Partition) -> int:
        """Compact a partition; return the number before which it is compacted."""
        store, ledger, number = self._indexes.store, partition.ledger, partition.visible.end_number
        index = self._indexes.of(partition.visible)
        try:
            await index.catch_up()
        except IndexDamagedError:
            await index.catch_up()  # it begins again
        if partition.policies.deletes:
            await index.run(lambda file: file.forget_before(ledger.first_number))
        await store.synced()
        await store.save_compacted(ledger, number)
        return number
