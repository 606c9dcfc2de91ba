"""What the log needs from time to time: retention, and groups forgotten that nobody uses."""

from __future__ import annotations

import asyncio
from typing import Final

import structlog

from router.broker.ledger import SubscriptionRecord, TopicRecord
from router.broker.topics import Topics
from router.model import NOT_PARTITIONED

TEND_EVERY: Final = 60.0
TEND_AT_ONCE: Final = 200

_log = structlog.get_logger(__name__)


class Tending:
    """Tends all topics of the node."""

    def __init__(self, topics: Topics) -> None:
        self._topics = topics

    async def tend(self) -> None:
        """Apply retention, and forget the groups that nobody used for long."""
        topics = self._topics
        now = topics.now_ms()
        await topics.store.retain(now)
        for partition in topics.loaded():
            partition.drop_unread()
        for count, record in enumerate(topics.records()):
            for index, ledger_id in enumerate(record.ledger_ids):
                for known in list(topics.store.subscriptions(ledger_id)):
                    await self._look_at_group(record, index, known, now)
            if count % TEND_AT_ONCE == 0:
                await asyncio.sleep(0)

    async def tend_for_ever(self, every: float = TEND_EVERY) -> None:
        """Tend again and again until cancelled; a failure is logged and tried again."""
        while True:
            await asyncio.sleep(every)
            try:
                await self.tend()
            except Exception:  # noqa: BLE001 - the rim of a task: retention must go on
                _log.exception("tending-failed")

    async def _look_at_group(
        self, record: TopicRecord, place: int, known: SubscriptionRecord, now_ms: int
    ) -> None:
        topics = self._topics
        index = place if record.partitions else NOT_PARTITIONED
        partition = topics.loaded_partition(record, index)
        subscription = partition.subscriptions.get(known.name) if partition else None
        if subscription is not None and subscription.consumers:
            known.last_used_ms = now_ms
        elif known.last_used_ms <= now_ms - topics.options.groups_ms:
            _log.info("group-expired", topic=record.name, partition=index, group=known.name)
            if partition is not None and subscription is not None:
                await partition.delete(subscription)
            else:
                await topics.store.delete_subscription(known.id)
