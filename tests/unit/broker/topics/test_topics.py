"""The set of topics, over a real store and a clock that the test moves."""

from __future__ import annotations

import asyncio
import sqlite3
import threading
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest

from router.broker.consume import StartPosition
from router.broker.disk.files import Disk
from router.broker.entries import ENTRY_FORMATS
from router.broker.storage import Store, StoreOptions, TopicRecord
from router.broker.topics import topics as topics_module
from router.broker.topics.descriptions import topic_info
from router.broker.topics.groups import TopicSubscriptions
from router.broker.topics.maintenance import Maintenance
from router.broker.topics.topics import TopicOptions, Topics
from router.errors import (
    BadNameError,
    NotAllowedError,
    RouterError,
    SubscriptionLimitError,
    SubscriptionNotFoundError,
    TopicExistsError,
    TopicNotFoundError,
)
from router.model import NOT_PARTITIONED, TopicInfo, TopicName
from router.model.policies import Policies
from tests.processes import ManualClock

DAY = 86_400.0
TIMEOUT_SECONDS = 10.0
T = TopicName("public", "default", "t")


class HeldCommits(Disk):
    """A disk on which a commit, once `hold` is called, waits until it is released."""

    def __init__(self) -> None:
        super().__init__()
        self.held, self.released = threading.Event(), threading.Event()
        self.released.set()

    def hold(self) -> None:
        """Have the next commit wait."""
        self.released.clear()

    def commit(self, connection: sqlite3.Connection) -> None:
        if not self.released.is_set():
            self.held.set()
            assert self.released.wait(TIMEOUT_SECONDS)
        super().commit(connection)


def with_topics(
    folder: Path,
    test: Callable[[Topics], Awaitable[None]],
    clock: Callable[[], float] = lambda: 1_000.0,
    disk: Disk | None = None,
    **options: Any,
) -> None:
    async def run() -> None:
        store = await Store.open(folder, StoreOptions(), clock, disk)
        try:
            await test(Topics(store, TopicOptions(**options), clock, ENTRY_FORMATS))
        finally:
            await store.close()

    asyncio.run(run())


def test_topics_and_groups_are_there_again_when_the_store_is_opened_again(folder: Path) -> None:
    async def make(topics: Topics) -> None:
        policies = Policies(retention_ms=7, deduplication=True)
        await topics.create(T, 3, policies, {"owner": "me"})
        await TopicSubscriptions(topics).subscribe(T, "g", StartPosition(earliest=True))

    async def look(topics: Topics) -> None:
        stats = await topics.describe(T)
        assert (stats.info.partitions, stats.info.policies.retention_ms) == (3, 7)
        assert stats.info.properties == {"owner": "me"}
        assert [(s.name, s.partition) for s in stats.subscriptions] == [("g", n) for n in range(3)]

    with_topics(folder, make)
    with_topics(folder, look)


def test_one_topic_is_made_when_many_create_it_at_once(folder: Path) -> None:
    async def test(topics: Topics) -> None:
        partitions = await asyncio.gather(*(topics.open("t", create=True) for _ in range(5)))
        assert len(set(map(id, partitions))) == 1
        results = await asyncio.gather(
            *(topics.create(TopicName("a", "b", "c")) for _ in range(3)), return_exceptions=True
        )
        assert sum(isinstance(result, TopicExistsError) for result in results) == 2

    with_topics(folder, test)


def test_topic_can_be_made_again_while_it_is_being_deleted(folder: Path) -> None:
    async def test(topics: Topics) -> None:
        await topics.create(T)
        _, record = await asyncio.gather(topics.delete(T), topics.create(T, 2))
        assert topics.find("t") is record
        assert len(topics.partitions(record)) == 2

    with_topics(folder, test)


def test_topic_and_group_are_there_until_their_deletion_is_on_disk(folder: Path) -> None:
    disk = HeldCommits()

    async def test(topics: Topics) -> None:
        record = await topics.create(T)
        await TopicSubscriptions(topics).subscribe(T, "g", StartPosition(earliest=True))
        (partition,) = topics.partitions(record)
        subscription = partition.subscriptions["g"]

        async def held(change: Awaitable[None]) -> asyncio.Task[None]:
            disk.hold()
            task = asyncio.ensure_future(change)
            await asyncio.to_thread(disk.held.wait, TIMEOUT_SECONDS)
            disk.held.clear()
            return task

        deleting = await held(partition.delete(subscription))
        assert partition.subscriptions == {"g": subscription}
        assert [one.name for one in topics.store.subscriptions(partition.ledger.id)] == ["g"]
        disk.released.set()
        await deleting
        assert not partition.subscriptions
        assert not topics.store.subscriptions(partition.ledger.id)

        deleting = await held(topics.delete(T))
        assert topics.find("t") is record
        assert not partition.closed
        disk.released.set()
        await deleting
        assert topics.find("t") is None
        assert partition.closed

    with_topics(folder, test, disk=disk)


@pytest.mark.parametrize(("create", "allowed"), [(False, True), (True, False)])
def test_missing_topic_is_not_found_when_it_may_not_be_created(
    folder: Path, create: bool, allowed: bool
) -> None:
    async def test(topics: Topics) -> None:
        with pytest.raises(TopicNotFoundError):
            await topics.open("t", create=create)
        assert topics.count == 0

    with_topics(folder, test, auto_create=allowed)


def test_topics_are_not_created_by_their_first_use_where_there_are_too_many(folder: Path) -> None:
    async def test(topics: Topics) -> None:
        await topics.open("a", create=True)
        await topics.open("b", create=True)
        for _ in range(2):
            with pytest.raises(NotAllowedError, match=r"topics\.auto_max_topics"):
                await topics.open("c", create=True)
        await topics.open("a", create=True)
        await topics.create(TopicName.parse("c"))
        assert topics.count == 3

    with_topics(folder, test, auto_max_topics=2)


def test_missing_topic_gets_the_partitions_that_settings_say(folder: Path) -> None:
    async def test(topics: Topics) -> None:
        with pytest.raises(NotAllowedError, match="Found partitioned metadata"):
            await topics.open("t", create=True)
        assert topics.known(T).partitions == 4
        assert (await topics.open("t-partition-3", create=False)).index == 3

    with_topics(folder, test, auto_partitions=4)


@pytest.mark.parametrize(
    ("name", "error"),
    [
        ("t-partition-2", TopicNotFoundError),
        ("t-partition-00", None),
        ("u-partition-0", TopicNotFoundError),
        ("non-persistent://public/default/x", NotAllowedError),
        ("a/b", BadNameError),
    ],
)
def test_names_that_look_like_partitions_are_partitions_only(
    folder: Path, name: str, error: type[RouterError] | None
) -> None:
    async def test(topics: Topics) -> None:
        await topics.create(T, 2)
        if error is None:
            assert (await topics.open(name, create=True)).index == NOT_PARTITIONED
            return
        with pytest.raises(error):
            await topics.open(name, create=True)

    with_topics(folder, test)


def test_topics_are_listed_in_order_after_they_are_loaded_made_and_deleted(folder: Path) -> None:
    names = [f"persistent://public/default/{letter}" for letter in "abcdef"]

    async def make(topics: Topics) -> None:
        for name in names[::-2]:
            await topics.create(topics.parse(name))

    async def test(topics: Topics) -> None:
        assert topics.names("public/default") == names[1::2]
        for name in names[::2]:
            await topics.create(topics.parse(name))
        await topics.delete(topics.parse("c"))
        left = [name for name in names if not name.endswith("c")]
        assert topics.names("public/default") == left
        for at, name in enumerate(left):
            assert [str(one.topic) for one in topics.listed_after(name)] == left[at + 1 :]
        assert [str(one.topic) for one in topics.listed_after(names[2])] == names[3:]

    with_topics(folder, make)
    with_topics(folder, test)


def test_topics_are_listed_by_namespace_in_order(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def test(topics: Topics) -> None:
        for name in ("b", "a", "x/y/c"):
            await topics.create(topics.parse(name))
        await topics.create(topics.parse("p"), 2)
        assert [info.topic.local for info in topics.listed_after("")] == ["a", "b", "p", "c"]
        after = topics.listed_after(str(topics.parse("a")), "public/default")
        assert [info.topic.local for info in after] == ["b", "p"]
        made: list[TopicRecord] = []

        def noted(record: TopicRecord) -> TopicInfo:
            made.append(record)
            return topic_info(record)

        # Who lists a namespace pays for what is in it.
        monkeypatch.setattr(topics_module, "topic_info", noted)
        assert [info.topic.local for info in topics.listed_after("", "x/y")] == ["c"]
        assert list(topics.listed_after("", "x")) == []
        assert [record.name for record in made] == ["persistent://x/y/c"]
        assert topics.names("x/y") == ["persistent://x/y/c"]
        assert topics.names("public/default", lambda name: name.endswith("/p")) == [
            f"persistent://public/default/p-partition-{index}" for index in range(2)
        ]

    with_topics(folder, test)


def test_group_is_made_nowhere_when_one_partition_has_no_room(folder: Path) -> None:
    async def test(topics: Topics) -> None:
        record = await topics.create(T, 2)
        await topics.partitions(record)[1].subscribe("other", 0)
        with pytest.raises(SubscriptionLimitError):
            await TopicSubscriptions(topics).subscribe(T, "g", StartPosition())
        with pytest.raises(SubscriptionNotFoundError):
            TopicSubscriptions(topics).find(T, "g")

    with_topics(folder, test, max_groups=1)


def test_groups_are_forgotten_when_nobody_used_them_for_long(folder: Path) -> None:
    clock = ManualClock(1_000_000.0)

    async def test(topics: Topics) -> None:
        partition = await topics.open("t", create=True)
        await partition.subscribe("old", 0)
        clock.advance(6 * DAY)
        await partition.subscribe("young", 0)
        await Maintenance(topics).maintain()
        assert set(partition.subscriptions) == {"old", "young"}
        clock.advance(DAY)
        await Maintenance(topics).maintain()
        assert set(partition.subscriptions) == {"young"}
        assert [record.name for record in topics.store.subscriptions(partition.ledger.id)] == [
            "young"
        ]

    with_topics(folder, test, clock)


def test_groups_of_partitions_that_are_not_loaded_are_forgotten_too(folder: Path) -> None:
    clock = ManualClock(1_000_000.0)

    async def make(topics: Topics) -> None:
        await topics.create(T, 2)
        await TopicSubscriptions(topics).subscribe(T, "g", StartPosition())

    async def expire(topics: Topics) -> None:
        clock.advance(8 * DAY)
        await Maintenance(topics).maintain()
        assert (await topics.describe(T)).subscriptions == ()

    with_topics(folder, make, clock)
    with_topics(folder, expire, clock)


@pytest.mark.parametrize("again", [False, True])
def test_topics_may_be_deleted_while_they_are_maintained(
    folder: Path, monkeypatch: pytest.MonkeyPatch, again: bool
) -> None:
    async def test(topics: Topics) -> None:
        first, second = TopicName.parse("first"), TopicName.parse("second")
        for name in (first, second):
            await topics.create(name, policies=Policies(ttl_seconds=60))
        ledger = (await topics.open("first", create=False)).ledger
        find = ledger.find_time

        async def deleting(timestamp_ms: int) -> int:
            await topics.delete(second)
            if again:
                await topics.create(second, policies=Policies(ttl_seconds=60))
            return await find(timestamp_ms)

        monkeypatch.setattr(ledger, "find_time", deleting)
        await Maintenance(topics).maintain()

    with_topics(folder, test)


def test_reader_that_never_came_back_is_forgotten_at_the_second_look(folder: Path) -> None:
    async def test(topics: Topics) -> None:
        partition = await topics.open("t", create=True)
        partition.read_from("r", 0)
        await Maintenance(topics).maintain()
        assert "r" in partition.subscriptions
        await Maintenance(topics).maintain()
        assert "r" not in partition.subscriptions

    with_topics(folder, test)
