"""What the broker records of a real store: rates, lag and its age, and who is behind."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from router.broker.activity import recorder as module
from router.broker.activity.history import MinuteFile
from router.broker.activity.recorder import FILE, Recorder
from router.broker.entries import ENTRY_FORMATS
from router.broker.node.counters import NodeCounters
from router.broker.storage import PULSAR_FORMAT, Store, StoreOptions
from router.broker.topics.gauges import LogGauges
from router.broker.topics.topics import TopicOptions, Topics
from router.model.policies import Policies
from tests.processes import ManualClock

TOPIC = "persistent://public/default/orders"


async def _stored(store: Store) -> None:
    stored = asyncio.Event()
    store.after_sync(stored.set)
    await stored.wait()


def test_rates_lag_and_ranks_are_what_happened(tmp_path: Path) -> None:
    asyncio.run(_record(tmp_path))


async def _record(folder: Path) -> None:
    clock = ManualClock(1_000_000.0)
    store = await Store.open(folder, StoreOptions(), clock)
    record = await store.create_topic(TOPIC, 1, Policies(), {})
    topics, counters = Topics(store, TopicOptions(), clock, ENTRY_FORMATS), NodeCounters(clock)
    counters.observe(LogGauges(store, 10, clock).collect)
    recorder = Recorder(topics, None, counters, lambda: {"kafka": 2})
    (partition,) = topics.partitions(record)
    await store.create_subscription(partition.ledger.id, "slow", -1, {})
    await recorder.sample(clock())
    for _ in range(50):
        partition.ledger.append(b"v", PULSAR_FORMAT, 1, int(clock() * 1000), lambda _: None)
    topics.tally.messages += 50
    topics.tally.delivered += 20
    counters.inc("router_http_requests_total", _request("503"), 10)
    counters.inc("router_http_requests_total", _request("200"), 30)
    await _stored(store)
    clock.now += 10.0
    await recorder.sample(clock())
    found = recorder.history.recent[-1]
    assert (found.messages_in, found.messages_out) == (5.0, 2.0)
    assert (found.requests, found.errors) == (4.0, 1.0)
    assert (found.kafka, found.lag) == (2.0, 50.0)
    assert recorder.topics == [{"topic": TOPIC, "rate": 5.0}]
    (group,) = recorder.groups
    assert (group["topic"], group["group"], group["lag"]) == (TOPIC, "slow", 50)
    await store.close()


def _request(status: str) -> tuple[tuple[str, str], ...]:
    return (("method", "GET"), ("route", "/"), ("status", status))


async def test_recording_goes_on_behind_a_sample_that_failed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "INTERVAL_SECONDS", 0.001)
    clock = ManualClock(1_000_000.0)
    store = await Store.open(tmp_path, StoreOptions(), clock)
    topics, counters = Topics(store, TopicOptions(), clock, ENTRY_FORMATS), NodeCounters(clock)
    recorder, sampled, failures = Recorder(topics, None, counters, dict), asyncio.Event(), [1]

    async def sample(_now: float) -> None:
        if failures:
            failures.pop()
            raise KeyError("a topic that was deleted meanwhile")
        sampled.set()

    monkeypatch.setattr(recorder, "sample", sample)
    await recorder.start(tmp_path)
    await asyncio.wait_for(sampled.wait(), 10)
    recorder.stop()
    await store.close()


async def test_minutes_are_there_after_a_restart(tmp_path: Path) -> None:
    clock = ManualClock(1_000_000.0)
    store = await Store.open(tmp_path, StoreOptions(), clock)
    topics, counters = Topics(store, TopicOptions(), clock, ENTRY_FORMATS), NodeCounters(clock)
    recorder = Recorder(topics, None, counters, dict)
    ended = [await recorder.sample(clock())]
    clock.now += 60.0
    ended.append(await recorder.sample(clock()))
    assert ended[0] is None
    assert ended[1] is not None
    MinuteFile(tmp_path / FILE).write(ended[1])
    again = Recorder(topics, None, counters, dict)
    await again.start(tmp_path)
    again.stop()
    assert list(again.history.minutes)[:1] == [ended[1]]
    await store.close()
