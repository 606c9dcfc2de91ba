"""Positions of groups by message number: one for commits and acknowledgements, kept over a kill."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from router.broker.consume import LiveMember, Partition, PartitionSubscription, StartPosition
from router.broker.entries import ENTRY_FORMATS
from router.broker.storage import PULSAR_FORMAT, Ack, CommittedPosition, Store, StoreOptions
from router.broker.topics.groups import TopicSubscriptions
from router.broker.topics.maintenance import Maintenance
from router.broker.topics.offsets import GroupOffsets
from router.broker.topics.topics import TopicOptions, Topics
from router.model import NOT_PARTITIONED, TopicName
from tests.unit.broker.storage.rig import killed

TOPIC = TopicName("public", "default", "orders")
DAY_SECONDS = 86_400


class Log:
    """A topic of one partition, with batches of three messages each."""

    def __init__(self, topics: Topics, clock: list[float]) -> None:
        self.topics = topics
        self.clock = clock
        self.forgotten: list[tuple[str, str | None]] = []
        self.offsets = GroupOffsets(topics, lambda *what: self.forgotten.append(what))

    @property
    def partition(self) -> Partition:
        (partition,) = self.topics.pieces(TOPIC)
        return partition

    async def publish(self, entries: int) -> None:
        stored = asyncio.Event()
        for _ in range(entries):
            self.partition.ledger.append(b"v", PULSAR_FORMAT, 3, 1_000_000, lambda _: None)
        self.topics.store.after_sync(stored.set)
        await stored.wait()

    async def commit(self, number: int, metadata: str = "") -> None:
        await self.offsets.commit(self.partition, "g", CommittedPosition(number, 0, metadata))
        await self.topics.store.synced()

    async def position(self) -> CommittedPosition | None:
        found = await self.offsets.position(self.partition, "g")
        return None if found is None else CommittedPosition(*found[:4])

    def subscription(self) -> PartitionSubscription:
        return self.partition.subscriptions["g"]


@asynccontextmanager
async def opened(folder: Path, clock: list[float]) -> AsyncIterator[Log]:
    store = await Store.open(folder, StoreOptions(), lambda: clock[0])
    topics = Topics(store, TopicOptions(), lambda: clock[0], ENTRY_FORMATS)
    if topics.find(str(TOPIC)) is None:
        await topics.create(TOPIC)
    try:
        yield Log(topics, clock)
    finally:
        await store.close()


@asynccontextmanager
async def filled(folder: Path) -> AsyncIterator[Log]:
    async with opened(folder, [1_000.0]) as log:
        await log.publish(4)
        yield log


@pytest.mark.parametrize("number", [0, 1, 2, 3, 7, 11, 12])
async def test_a_position_is_what_was_committed(tmp_path: Path, number: int) -> None:
    async with filled(tmp_path) as log:
        assert await log.position() is None
        await log.commit(number, "note")
        assert await log.position() == CommittedPosition(number, 0, "note")


async def test_a_commit_goes_back_into_a_batch(tmp_path: Path) -> None:
    async with filled(tmp_path) as log:
        for number in (11, 4, 5, 0):
            await log.commit(number)
            assert await log.position() == CommittedPosition(number, 0)


async def test_a_commit_beyond_the_log_is_kept_as_it_is(tmp_path: Path) -> None:
    """The log grows past the cursor, and the folder is opened again, as is the cluster of Kafka."""
    far = CommittedPosition(500, 0, "far")
    async with opened(tmp_path, [1_000.0]) as log:
        await log.publish(4)
        await log.commit(500, "far")
        assert await log.position() == far
        await log.publish(2)
        assert await log.position() == far
    async with opened(tmp_path, [1_000.0]) as log:
        assert await log.position() == far
        await log.publish(1)
        assert await log.position() == far


async def test_a_commit_beyond_the_log_ends_for_good_when_the_group_reads_on(
    tmp_path: Path,
) -> None:
    async with filled(tmp_path) as log:
        await log.commit(500, "far")
        await log.publish(2)
        record = log.subscription().record
        assert record is not None
        for acknowledged, number in ((4, 15), (5, 18)):
            log.topics.store.acknowledge(record, Ack(acknowledged, cumulative=True))
            assert await log.position() == CommittedPosition(number)


async def test_a_commit_before_the_log_is_kept_as_it_is(tmp_path: Path) -> None:
    async with filled(tmp_path) as log:
        await log.commit(4, "note")
        await log.topics.store.delete_before(log.partition.ledger, 9)
        assert await log.position() == CommittedPosition(4, 0, "note")


async def test_an_acknowledgement_moves_the_position_and_drops_the_metadata(tmp_path: Path) -> None:
    async with filled(tmp_path) as log:
        await log.commit(4, "note")
        record = log.subscription().record
        assert record is not None
        log.topics.store.acknowledge(record, Ack(2, cumulative=True))
        assert await log.position() == CommittedPosition(9)


async def test_a_commit_backwards_drops_what_polls_left(tmp_path: Path) -> None:
    async with filled(tmp_path) as log:
        await log.commit(9)
        epoch = log.subscription().epoch
        assert not log.forgotten
        await log.commit(3)
        assert log.forgotten == [(str(TOPIC), "g")]
        assert log.subscription().epoch != epoch


async def test_a_group_of_commits_alone_is_passive_until_a_consumer_comes(tmp_path: Path) -> None:
    async with filled(tmp_path) as log:
        await log.commit(5)
        assert log.subscription().passive
        await TopicSubscriptions(log.topics).subscribe(TOPIC, "g", StartPosition())
        assert not log.subscription().passive
        assert (await log.position() or CommittedPosition(0)).number == 5
        await log.commit(7)
        assert not log.subscription().passive


async def test_positions_are_kept_over_a_kill(tmp_path: Path) -> None:
    clock = [1_000.0]
    async with killed(tmp_path, StoreOptions()) as store:
        topics = Topics(store, TopicOptions(), lambda: clock[0], ENTRY_FORMATS)
        await topics.create(TOPIC)
        log = Log(topics, clock)
        await log.publish(4)
        await log.commit(10, "first")
        await log.commit(5, "ümlaut")
    for _ in range(2):
        async with opened(tmp_path / "data", clock) as log:
            assert await log.position() == CommittedPosition(5, 0, "ümlaut")
            assert log.subscription().passive


@pytest.mark.parametrize("passive", [True, False])
async def test_positions_expire(tmp_path: Path, passive: bool) -> None:
    async with filled(tmp_path) as log:
        await log.commit(5)
        if not passive:
            await TopicSubscriptions(log.topics).subscribe(TOPIC, "g", StartPosition())
        log.clock[0] += 6 * DAY_SECONDS
        await Maintenance(log.topics).maintain()
        assert await log.position() is not None
        log.clock[0] += 2 * DAY_SECONDS
        await Maintenance(log.topics).maintain()
        assert await log.position() is None


async def test_the_position_of_a_group_with_members_is_in_use_though_nothing_is_read(
    tmp_path: Path,
) -> None:
    """Its members come back some time after the next start."""
    member = LiveMember("m", "client", frozenset({NOT_PARTITIONED}))
    clock = [1_000.0]
    async with opened(tmp_path, clock) as log:
        await log.commit(5)
    async with opened(tmp_path, clock) as log:
        (record,) = log.topics.records()
        assert log.topics.store.idle(record.ledger_ids[0]) is not None
        log.topics.live_members.replace(str(TOPIC), "g", [member])
        clock[0] += 6 * DAY_SECONDS
        await Maintenance(log.topics).maintain()  # notes it; the next one writes it down
        await Maintenance(log.topics).maintain()
    clock[0] += 2 * DAY_SECONDS
    async with opened(tmp_path, clock) as log:
        await Maintenance(log.topics).maintain()
        assert await log.position() is not None


async def test_a_position_that_is_deleted_is_forgotten_by_polls_too(tmp_path: Path) -> None:
    async with filled(tmp_path) as log:
        await log.commit(5)
        await log.offsets.delete(log.partition, "g")
        assert await log.position() is None
        assert log.forgotten == [(str(TOPIC), "g")]
        await log.offsets.delete(log.partition, "g")


async def test_a_commit_of_the_same_position_begins_its_time_again(tmp_path: Path) -> None:
    async with filled(tmp_path) as log:
        await log.commit(5)
        log.clock[0] += 60
        await log.commit(5)
        record = log.subscription().record
        assert record is not None
        assert record.last_used_ms == log.topics.now_ms()
