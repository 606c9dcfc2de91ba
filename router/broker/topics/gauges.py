"""Gauges of the log: backlog of topics and groups, disk, journal, segments, and syncs.

Counting every group of a node with thousands of them takes milliseconds of the event loop, in
slices: so it happens only when metrics are shown, and at most every COLLECT_INTERVAL_SECONDS.
Nothing is read from disk for it: within a segment whose messages are in batches the backlog is an
estimate between the ends of the segment, as in `delivery/backlog.py`. The number of series is
bounded, and the groups that are left out are those with the smallest backlog;
`router_backlog_messages` has all.
"""

from __future__ import annotations

import asyncio
import heapq
import math
from collections import Counter
from collections.abc import Callable
from typing import Final

from router.broker.consume.cursor.backlog import BacklogCounter
from router.broker.consume.visible import Visible
from router.broker.storage import Store, TopicRecord
from router.metrics import Sample

COLLECT_INTERVAL_SECONDS: Final = 5.0
MAX_TOPICS_PER_SLICE: Final = 200

_Group = tuple[str, str]


class LogGauges:
    """Collects the gauges of a store; `clock` is monotonic, in seconds."""

    def __init__(self, store: Store, max_groups: int, clock: Callable[[], float]) -> None:
        self._store = store
        self._max_groups = max_groups
        self._clock = clock
        self._collected_at = -math.inf
        self._samples: list[Sample] = []
        self._collecting = asyncio.Lock()

    async def collect(self) -> list[Sample]:
        """Return the samples, which are COLLECT_INTERVAL_SECONDS old at most."""
        async with self._collecting:
            if self._clock() - self._collected_at >= COLLECT_INTERVAL_SECONDS:
                self._samples = [*await self._disk(), *await self._groups()]
                self._collected_at = self._clock()
        full = ("router_disk_full", (), float(self._store.full))
        return [*self._samples, full, *self._store.sync_samples()]

    async def _disk(self) -> list[Sample]:
        try:
            found = await self._store.disk_usage()
        except OSError:
            return []  # a failed disk is the store's to report
        return [
            ("router_disk_size_bytes", (), float(found.disk)),
            ("router_disk_free_bytes", (), float(found.free)),
            ("router_disk_reserve_bytes", (), float(self._store.reserve)),
            ("router_journal_bytes", (), float(found.journal)),
            ("router_journal_files", (), float(found.journal_files)),
        ]

    async def _groups(self) -> list[Sample]:
        """Return the backlogs, and the size of what all topics hold."""
        counter = BacklogCounter(reads=0)
        backlogs: Counter[_Group] = Counter()
        passive: Counter[_Group] = Counter()
        size = segments = 0
        for number, topic in enumerate(self._store.topics(), 1):
            if number % MAX_TOPICS_PER_SLICE == 0:
                await asyncio.sleep(0)
            for ledger_id in topic.ledger_ids:
                held = await self._ledger(topic, ledger_id, counter, backlogs, passive)
                size, segments = size + held[0], segments + held[1]
        largest = heapq.nlargest(self._max_groups, backlogs.items(), key=lambda item: item[1])
        return [
            ("router_log_bytes", (), float(size)),
            ("router_log_segments", (), float(segments)),
            ("router_broker_subscriptions", (), float(len(backlogs))),
            ("router_backlog_messages", (), float(backlogs.total() - passive.total())),
            *(
                (
                    "router_group_backlog_messages",
                    (("topic", topic), ("group", group)),
                    float(count),
                )
                for (topic, group), count in largest
            ),
        ]

    async def _ledger(
        self,
        topic: TopicRecord,
        ledger_id: int,
        counter: BacklogCounter,
        backlogs: Counter[_Group],
        passive: Counter[_Group],
    ) -> tuple[int, int]:
        """Add the backlogs of a partition; return its bytes and segments."""
        idle = self._store.idle(ledger_id)
        if idle is not None and not idle.lags:
            for name in self._store.group_names(ledger_id):
                backlogs[topic.name, name] += 0
            return idle.size, idle.segments
        try:
            ledger, records = self._store.look(ledger_id)
        except KeyError:
            return 0, 0  # deleted since the look began
        for record in records:
            lag = await counter.backlog(Visible(ledger), record.cursor)
            backlogs[topic.name, record.name] += lag
            if record.passive:
                passive[topic.name, record.name] += lag
        return ledger.size_bytes, len(ledger.segments)
