"""Owns the retention of partitions that are compacted on request: the newest of each key stays.

Theory of operation. Retention removes whole segments by age and size; of a partition that was
compacted once the compacted topic would lose the keys that rarely change, and Apache Pulsar keeps
them. So of such a partition the messages that retention would remove are deleted one by one, as the
cleaner deletes, but for the newest of each key. What is newer than the last compaction is compacted
first: what stays of a key must be its newest message.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from itertools import islice
from typing import Final

import structlog

from router.broker.compaction.compactor import Compactor
from router.broker.compaction.indexes import KeyIndexes
from router.broker.compaction.key_index import KeyIndex
from router.broker.consume import Partition

PORTION_RANGES: Final = 1_000
"""Ranges of messages that are deleted together."""

_log = structlog.get_logger(__name__)


class CompactedRetention:
    """Applies retention; `deleted` is called when deletions of its own are on disk."""

    def __init__(
        self, indexes: KeyIndexes, compactor: Compactor, deleted: Callable[[], object]
    ) -> None:
        self._indexes = indexes
        self._store = indexes.store
        self._compactor = compactor
        self._deleted = deleted
        self._applied: dict[int, tuple[int, int]] = {}

    async def apply(self, partition: Partition, now_ms: int) -> int:
        """Delete what retention allows of a partition, if it is compacted on request.

        Returns how many messages that were. Raises ReadFailedError, OSError, sqlite3.Error,
        IndexDamagedError, StoreError.
        """
        ledger = partition.ledger
        expired = self._store.expired_number(ledger, now_ms) if ledger.compacted_number else 0
        if expired > ledger.compacted_number:
            await self._compactor.compact(partition)
        end = min(expired, ledger.compacted_number)
        applied = end, ledger.compacted_number
        if not end or self._applied.get(ledger.id) == applied:
            return 0
        view = await self._compactor.view(partition)
        spans = iter(view.left_out(ledger.first_number, end - 1))
        count = 0
        while portion := list(islice(spans, PORTION_RANGES)):
            count += await self._store.delete_durably(ledger, portion)
            self._deleted()
            await self._indexes.pause()
        await self._indexes.of(partition.visible).run(partial(_forget_expired, end))
        self._applied[ledger.id] = applied
        if count:
            place = {"topic": partition.topic_name, "partition": partition.index}
            _log.info("compacted-retention", **place, messages=count, until=end)
            await self._store.reclaim(ledger)
        return count


def _forget_expired(end: int, file: KeyIndex) -> None:
    file.forget_expired(end)
