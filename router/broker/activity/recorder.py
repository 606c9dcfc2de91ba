"""Records what the broker does, every 10 seconds; with many topics some of it every minute."""

from __future__ import annotations

import asyncio
import heapq
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

import structlog

from router.broker.activity.history import ActivitySample, History, MinuteFile
from router.broker.nats.server import NatsServer
from router.broker.node.counters import NodeCounters
from router.broker.storage import DamagedError
from router.broker.topics.cursor_administration import earliest_ms
from router.broker.topics.topics import Topics
from router.metrics import Sample

FILE: Final = "activity.ring"
INTERVAL_SECONDS: Final = 10.0
TICKS_PER_MINUTE: Final = 6
FEW_TOPICS: Final = 1_000
"""Counting the lag of all their groups takes a few milliseconds."""
MAX_RANKED: Final = 10
"""Topics and groups that are named."""
MAX_AGED: Final = 5
"""Groups whose oldest message is looked for."""
MAX_AGED_PARTITIONS: Final = 16
"""Of one topic."""
QUANTILE: Final = 0.99

_log = structlog.get_logger(__name__)


class Recorder:
    """Samples the broker until `stop`; `connected` counts the clients of each protocol."""

    def __init__(
        self,
        topics: Topics,
        nats: NatsServer | None,
        counters: NodeCounters,
        connected: Callable[[], Mapping[str, int]],
    ) -> None:
        self._topics, self._nats, self._counters = topics, nats, counters
        self.connected = connected
        self.history = History(())
        self.samples: Sequence[Sample] = ()
        self.groups: list[dict[str, Any]] = []
        self.topics: list[dict[str, Any]] = []
        self._file: MinuteFile | None = None
        self._task: asyncio.Task[None] | None = None
        self._ticks = 0
        self._at: float | None = None
        self._totals: Mapping[str, float] = {}
        self._syncs: Mapping[str, float] = {}
        self._stored: dict[str, int] = {}

    async def start(self, folder: Path) -> None:
        """Sample from now on; what was recorded in the folder comes before."""
        self._file = MinuteFile(folder / FILE)
        try:
            minutes = await asyncio.to_thread(self._file.read, float(self._topics.now_ms()))
        except OSError as error:
            _log.warning("activity-not-read", reason=str(error))
            minutes = []
        self.history = History(minutes)
        self._task = asyncio.create_task(self._run())

    def stop(self) -> None:
        """Sample no more."""
        if self._task is not None:
            self._task.cancel()

    async def _run(self) -> None:
        loop = asyncio.get_running_loop()
        while True:
            try:
                ended = await self.sample(loop.time())
                if ended is not None and self._file is not None:
                    await asyncio.to_thread(self._file.write, ended)
            except OSError as error:  # a full disk, say, which is reported where it hurts
                _log.info("activity-not-written", reason=str(error))
            except Exception:  # noqa: BLE001 - the boundary of a task: recording must go on
                _log.exception("activity-not-recorded")
            await asyncio.sleep(INTERVAL_SECONDS)

    async def sample(self, now: float) -> ActivitySample | None:
        """Take a sample at a time in seconds; return the minute that it ends, None: none."""
        if self._ticks % TICKS_PER_MINUTE == 0 or self._topics.count <= FEW_TOPICS:
            self.samples = await self._counters.samples()
            self.groups = await self._lagging()
        self._ticks += 1
        elapsed = None if self._at is None else max(0.001, now - self._at)
        self._at = now
        totals, before = self._counted(), self._totals
        self._totals = totals
        rates = {
            name: 0.0 if elapsed is None else max(0.0, value - before.get(name, 0.0)) / elapsed
            for name, value in totals.items()
        }
        self._rank(elapsed)
        return self.history.add(
            ActivitySample(
                at=float(self._topics.now_ms()),
                lag=self.gauge("router_backlog_messages"),
                lag_seconds=max((one["seconds"] or 0.0 for one in self.groups), default=0.0),
                disk_free=self.gauge("router_disk_free_bytes"),
                log_bytes=self.gauge("router_log_bytes"),
                sync_ms=self._sync_ms(),
                **{name: float(count) for name, count in self.connected().items()},
                **rates,
            )
        )

    def gauge(self, name: str) -> float:
        """Return a gauge as it was within the last minute, 0: there is none."""
        return sum(value for known, _, value in self.samples if known == name)

    def _counted(self) -> dict[str, float]:
        tally, total = self._topics.tally, self._counters.total
        requests = "router_http_requests_total"
        pushed = 0 if self._nats is None else self._nats.consumers.deliveries
        return {
            "messages_in": float(tally.messages),
            "messages_out": float(tally.delivered + pushed),
            "bytes_in": float(tally.bytes),
            "requests": total(requests),
            "errors": total(requests, lambda labels: labels.get("status", "").startswith("5")),
            "refused": total(
                "router_logins_total", lambda labels: labels.get("outcome") != "verified"
            ),
            "damaged": float(tally.damaged),
        }

    def _sync_ms(self) -> float:
        """Return the time that one in a hundred of the syncs since the last call took at least."""
        name = "router_broker_sync_seconds_bucket"
        counts = {
            dict(labels)["le"]: value
            for known, labels, value in self._topics.store.sync_samples()
            if known == name
        }
        grown = {edge: value - self._syncs.get(edge, 0.0) for edge, value in counts.items()}
        self._syncs = counts
        return quantile_ms(grown)

    def _rank(self, elapsed: float | None) -> None:
        """Rank the topics by what was stored in a second."""
        stored, grown = dict[str, int](), Counter[str]()
        for partition in self._topics.loaded():
            name = f"{partition.topic_name} {partition.index}"
            stored[name] = partition.ledger.next_index
            grown[partition.topic_name] += max(
                0, stored[name] - self._stored.get(name, stored[name])
            )
        self._stored = stored
        largest = heapq.nlargest(MAX_RANKED, grown.items(), key=lambda item: item[1])
        self.topics = [
            {"topic": name, "rate": count / elapsed} for name, count in largest if count and elapsed
        ]

    async def _lagging(self) -> list[dict[str, Any]]:
        """Return the groups with the largest lag, and for how many seconds a message waits."""
        found = [
            (value, dict(labels))
            for name, labels, value in self.samples
            if name == "router_group_backlog_messages" and value > 0
        ]
        largest = heapq.nlargest(MAX_RANKED, found, key=lambda item: item[0])
        return [
            {**labels, "lag": int(lag), "seconds": await self._age(labels, rank)}
            for rank, (lag, labels) in enumerate(largest)
        ]

    async def _age(self, labels: Mapping[str, str], rank: int) -> float | None:
        record = self._topics.find(labels["topic"])
        if record is None or rank >= MAX_AGED or record.partitions > MAX_AGED_PARTITIONS:
            return None
        try:
            times = [
                await earliest_ms(subscription)
                for partition in self._topics.partitions(record)
                if (subscription := partition.subscriptions.get(labels["group"])) is not None
            ]
        except (OSError, DamagedError):  # who reads it reports it
            return None
        oldest = min((time for time in times if time is not None), default=None)
        return None if oldest is None else max(0.0, (self._topics.now_ms() - oldest) / 1000)


def quantile_ms(counts: Mapping[str, float]) -> float:
    """Return the upper edge in ms of the bucket that has the QUANTILE, 0: nothing was counted.

    `counts` has how many were counted between an edge in seconds and the edge before.
    """
    total, below, last = sum(counts.values()), 0.0, 0.0
    for edge, count in sorted(counts.items(), key=lambda item: float(item[0])):
        below += count
        if edge != "+Inf":
            last = float(edge) * 1000
        if count and below >= QUANTILE * total:
            return last
    return 0.0
