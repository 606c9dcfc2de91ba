"""The periodic task of the log: retention, times to live, and subscriptions that are not used."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from time import monotonic
from typing import Final

import structlog

from router.broker.consume import Partition
from router.broker.consume.membership.live_members import OWNER
from router.broker.disk.faults import StoreError
from router.broker.storage import DamagedError, SubscriptionRecord, TopicRecord
from router.broker.topics.cursor_administration import acknowledge_before
from router.broker.topics.topics import Topics
from router.model import NOT_PARTITIONED

MAINTENANCE_INTERVAL_SECONDS: Final = 60.0
TOPICS_PER_YIELD: Final = 200

_log = structlog.get_logger(__name__)


class Maintenance:
    """Maintains all topics of the node; `clean` has compacted topics cleaned soon."""

    def __init__(self, topics: Topics, clean: Callable[[], object] = lambda: None) -> None:
        self._topics = topics
        self._clean = clean

    async def maintain(self) -> None:
        """Apply retention and times to live, and delete subscriptions that were long not used."""
        topics = self._topics
        now = topics.now_ms()
        await topics.store.retain(now)
        self._clean()
        for partition in topics.loaded():
            _drop_unused_readers(partition)
            partition.measure(monotonic())
        for count, record in enumerate(topics.records()):
            for index, ledger_id in enumerate(record.ledger_ids):
                if topics.policies(record).ttl_seconds:
                    await self._expire_messages(record, index, ledger_id, now)
                if self._is_settled(record, ledger_id, now):
                    continue
                for known in list(topics.store.subscriptions(ledger_id)):
                    await self._expire_if_unused(record, index, known, now)
            if count % TOPICS_PER_YIELD == 0:
                await asyncio.sleep(0)

    def _is_settled(self, record: TopicRecord, ledger_id: int, now_ms: int) -> bool:
        """Return whether an idle ledger has no subscription that is read or was unused for long."""
        topics = self._topics
        if (idle := topics.store.idle(ledger_id)) is None:
            return False
        kept_ms = min(topics.options.offsets_ms, topics.options.groups_ms)
        return idle.used_ms > now_ms - kept_ms and not topics.live_members.groups(record.name)

    async def run(self, every: float = MAINTENANCE_INTERVAL_SECONDS) -> None:
        """Maintain periodically until cancelled or the store ends; log failures and try again."""
        while True:
            await asyncio.sleep(every)
            try:
                await self.maintain()
            except StoreError:
                return  # it failed, which is reported elsewhere, or a stop has closed it
            except Exception:  # noqa: BLE001 - the boundary of a task: retention must go on
                _log.exception("tending-failed")

    async def _expire_messages(
        self, record: TopicRecord, place: int, ledger_id: int, now_ms: int
    ) -> None:
        """Acknowledge what is older than the topic's time to live.

        Subscriptions of other protocols decide themselves what they have read.
        """
        topics = self._topics
        if (idle := topics.store.idle(ledger_id)) is not None and not idle.lags:
            return
        found = topics.find(record.name)
        if found is None or found.id != record.id:
            return  # it was deleted meanwhile
        partition = topics.partitions(record)[place]
        before = now_ms - (topics.policies(record).ttl_seconds or 0) * 1000
        try:
            end = await partition.ledger.find_time(before)
        except (DamagedError, OSError) as error:
            _log.error("time-to-live-unknown", topic=record.name, reason=str(error))
            return
        for subscription in list(partition.subscriptions.values()):
            known = subscription.record
            foreign = known is None or known.passive or OWNER in known.properties
            if not foreign and not topics.live_members.of(record.name, subscription.name):
                acknowledge_before(topics.store, subscription, end)

    async def _expire_if_unused(
        self, record: TopicRecord, place: int, known: SubscriptionRecord, now_ms: int
    ) -> None:
        topics = self._topics
        index = place if record.partitions else NOT_PARTITIONED
        partition = topics.loaded_partition(record, index)
        subscription = partition.subscriptions.get(known.name) if partition else None
        options = topics.options
        kept_ms = options.offsets_ms if known.passive else options.groups_ms
        read = subscription is not None and bool(subscription.consumers)
        owned = OWNER in known.properties
        if read or owned or topics.live_members.of(record.name, known.name):
            known.last_used_ms = now_ms
        elif known.last_used_ms <= now_ms - kept_ms:
            _log.info("group-expired", topic=record.name, partition=index, group=known.name)
            if partition is not None and subscription is not None:
                await partition.delete(subscription)
            else:
                await topics.store.delete_subscription(known)


def _drop_unused_readers(partition: Partition) -> None:
    """Drop each subscription that is not durable and was not read from since the last call.

    A reader that seeks comes back, so that the first call is too early.
    """
    for subscription in list(partition.subscriptions.values()):
        if subscription.durable or subscription.consumers:
            continue
        if subscription.idle:
            del partition.subscriptions[subscription.name]
        subscription.idle = True
