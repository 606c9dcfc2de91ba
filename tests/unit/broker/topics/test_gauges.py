"""Gauges of a real store: backlogs are right, bounded in number, and looked at now and then."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest

from router.broker.disk.files import measure_disk
from router.broker.storage import PULSAR_FORMAT, Ack, Store, StoreOptions
from router.broker.topics import gauges as log_gauges
from router.broker.topics.gauges import LogGauges
from router.metrics import Sample, fits, render
from router.model.policies import Policies
from tests.processes import ManualClock

BACKLOG = "router_group_backlog_messages"


def with_store(folder: Path, test: Callable[[Store], Awaitable[None]]) -> None:
    """Run the test on a store."""

    async def run() -> None:
        store = await Store.open(folder, StoreOptions(), lambda: 1_000.0)
        try:
            await test(store)
        finally:
            await store.close()

    asyncio.run(run())


async def fill(store: Store, name: str, partitions: list[int], groups: list[str]) -> None:
    """Make a topic with so many messages in each of its partitions, all unread by the groups."""
    topic = await store.create_topic(name, len(partitions), Policies(), {})
    for number, messages in zip(topic.ledger_ids, partitions, strict=True):
        ledger = store.ledger(number)
        for group in groups:
            await store.create_subscription(number, group, -1, {})
        for _ in range(messages):
            ledger.append(b"v", PULSAR_FORMAT, 1, 1, lambda _: None)
    stored = asyncio.Event()
    store.after_sync(stored.set)
    await stored.wait()


def backlogs(samples: list[Sample]) -> dict[tuple[str, str], float]:
    """Return the backlog of each topic and group."""
    return {
        (dict(labels)["topic"], dict(labels)["group"]): value
        for name, labels, value in samples
        if name == BACKLOG
    }


def value(samples: list[Sample], wanted: str) -> float:
    """Return the one sample of a name."""
    (found,) = (value for name, _, value in samples if name == wanted)
    return found


def test_a_group_that_holds_nothing_back_is_no_backlog(folder: Path, clock: ManualClock) -> None:
    async def test(store: Store) -> None:
        await fill(store, "persistent://public/default/t", [3], ["g"])
        (topic,) = store.topics()
        await store.create_subscription(topic.ledger_ids[0], "passive", 0, {}, passive=True)
        samples = await LogGauges(store, 100, clock).collect()
        name = "persistent://public/default/t"
        assert backlogs(samples) == {(name, "g"): 3, (name, "passive"): 2}
        assert value(samples, "router_backlog_messages") == 3

    with_store(folder, test)


def test_backlog_is_that_of_all_partitions(folder: Path, clock: ManualClock) -> None:
    async def test(store: Store) -> None:
        await fill(store, "persistent://public/default/t", [3, 4], ["g", "h"])
        (topic,) = store.topics()
        (record, _) = store.subscriptions(topic.ledger_ids[0])
        acknowledged = asyncio.Event()
        store.acknowledge(record, Ack(0, cumulative=True), acknowledged.set)
        await acknowledged.wait()
        samples = await LogGauges(store, 100, clock).collect()
        name = "persistent://public/default/t"
        assert backlogs(samples) == {(name, record.name): 6, (name, "h"): 7}
        assert value(samples, "router_backlog_messages") == 13
        assert value(samples, "router_broker_subscriptions") == 2
        assert value(samples, "router_log_bytes") > 0
        assert value(samples, "router_broker_sync_seconds_count") >= 1
        assert value(samples, "router_disk_free_bytes") > 0
        assert value(samples, "router_disk_reserve_bytes") == store.reserve
        assert value(samples, "router_disk_full") == 0
        assert value(samples, "router_journal_bytes") == measure_disk(folder).journal > 0
        assert all(map(fits, samples))
        assert f'{BACKLOG}{{group="h",topic="{name}"}} 7.0' in render(samples)

    with_store(folder, test)


@pytest.mark.parametrize("most", [0, 2])
def test_series_are_bounded_and_the_largest_stay(
    folder: Path, clock: ManualClock, most: int
) -> None:
    async def test(store: Store) -> None:
        for messages in (1, 3, 2):
            await fill(store, f"persistent://public/default/t{messages}", [messages], ["g"])
        samples = await LogGauges(store, most, clock).collect()
        assert sorted(backlogs(samples).values(), reverse=True) == [3.0, 2.0][:most]
        assert value(samples, "router_backlog_messages") == 6

    with_store(folder, test)


def test_store_is_collected_at_once_in_an_interval(folder: Path, clock: ManualClock) -> None:
    async def test(store: Store) -> None:
        await fill(store, "persistent://public/default/t", [1], ["g"])
        gauges = LogGauges(store, 100, clock)
        first = await gauges.collect()
        await fill(store, "persistent://public/default/u", [1], ["g"])
        assert backlogs(await gauges.collect()) == backlogs(first)
        clock.advance(log_gauges.COLLECT_INTERVAL_SECONDS)
        assert len(backlogs(await gauges.collect())) == 2

    with_store(folder, test)
