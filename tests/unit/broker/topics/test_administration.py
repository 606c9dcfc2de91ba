"""Administration of topics, asked as our own client asks, over a real store."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, cast

import pytest

from router.backends import Start
from router.backends.pulsar.admin import BrokerAdmin
from router.broker.consume import StartPosition
from router.broker.entries import ENTRY_FORMATS, Transcoder
from router.broker.node.counters import NodeCounters
from router.broker.node.rpc import topics as rpc_topics
from router.broker.node.rpc.topics import TopicRequests
from router.broker.storage import DamagedError, Ledger, Store, StoreOptions
from router.broker.topics import descriptions
from router.broker.topics.administration import TopicAdmin
from router.broker.topics.groups import MAX_NAME_CHARACTERS, TopicSubscriptions
from router.broker.topics.topics import TopicOptions, Topics
from router.errors import ReadFailedError, SubscriptionNotFoundError
from router.model import Subscription, TopicInfo, TopicName
from router.pulsar_client.link import Make, PulsarLink
from router.wire import node
from router.wire.node import node_pb2 as pb

T = TopicName("public", "default", "t")
GROUPS = ["a", "b", "c"]


async def answered(
    requests: TopicRequests, asked: pb.CommandAdmin, response: pb.CommandAdminResponse
) -> None:
    """Answer a request about topics."""
    name = asked.WhichOneof("body")
    assert name is not None
    await requests.answers[name](getattr(asked, name), response)


class Direct:
    """A link without a connection: what is asked is answered here."""

    def __init__(self, folder: Path) -> None:
        self.runner = asyncio.Runner()
        self.store = self.runner.run(Store.open(folder, StoreOptions(), lambda: 1_000.0))
        self.topics = Topics(self.store, TopicOptions(), lambda: 1_000.0, ENTRY_FORMATS)
        self.answers = 0
        counters = NodeCounters(time.monotonic)
        self._admin = TopicRequests(
            TopicAdmin(self.topics, counters, self), Transcoder(ENTRY_FORMATS)
        )

    def forget(self, topic: str, subscription: str | None = None) -> None:
        """Nothing is left for a next poll here."""

    def call(self, make: Make, deadline: float, *, again: bool = True) -> Any:
        del deadline, again
        response = pb.CommandAdminResponse(request_id=1)
        asked = node.read(make(1).extension).admin
        self.runner.run(answered(self._admin, asked, response))
        self.answers += 1
        return response

    def close(self) -> None:
        self.runner.run(self.store.close())
        self.runner.close()


@pytest.fixture
def direct(folder: Path) -> Iterator[Direct]:
    found = Direct(folder)
    yield found
    found.close()


@pytest.fixture
def admin(direct: Direct) -> BrokerAdmin:
    return BrokerAdmin(cast(PulsarLink, direct))


@pytest.mark.parametrize(("page", "answers"), [(1, 10), (2, 5), (4, 3), (9, 2), (100, 1)])
def test_a_topic_is_described_in_pages(
    direct: Direct, admin: BrokerAdmin, monkeypatch: pytest.MonkeyPatch, page: int, answers: int
) -> None:
    admin.create(TopicInfo(T, 3), 0)
    for name in GROUPS:
        admin.subscribe(Subscription(T, name), Start.LATEST, 0)
    monkeypatch.setattr(descriptions, "MAX_SUBSCRIPTIONS_PER_PAGE", page)
    monkeypatch.setattr(rpc_topics, "MAX_SUBSCRIPTIONS_PER_PAGE", page)
    direct.answers = 0
    stats = admin.describe(T, 0)
    assert [(s.partition, s.name) for s in stats.subscriptions] == [
        (partition, name) for partition in range(3) for name in GROUPS
    ]
    assert [p.partition for p in stats.partitions] == [0, 1, 2]
    assert direct.answers == answers


@pytest.mark.parametrize("size", [0, 100, 10_000])
def test_topics_are_listed_in_pages(
    direct: Direct, admin: BrokerAdmin, monkeypatch: pytest.MonkeyPatch, size: int
) -> None:
    monkeypatch.setattr(rpc_topics, "MAX_TOPICS_BYTES", size)
    for number in range(12):
        admin.create(TopicInfo(TopicName("public", "ab"[number % 2], f"t{number}")), 0)
    direct.answers = 0
    names = [str(info.topic) for info in admin.topics(0)]
    assert len(names) == 12
    assert names == sorted(names)
    assert (direct.answers > 1) == (size < 1_000)


@pytest.mark.parametrize(("most", "answers"), [(5, 3), (6, 2), (12, 1), (100, 1)])
def test_a_page_of_topics_has_a_bounded_number(
    direct: Direct, admin: BrokerAdmin, monkeypatch: pytest.MonkeyPatch, most: int, answers: int
) -> None:
    monkeypatch.setattr(rpc_topics, "MAX_TOPICS", most)
    for number in range(12):
        admin.create(TopicInfo(TopicName("public", "a", f"t{number}")), 0)
    direct.answers = 0
    assert len(admin.topics(0)) == 12
    assert direct.answers == answers


def test_a_page_fits_into_a_frame_however_long_its_names_are() -> None:
    longest = pb.SubscriptionStats(
        name="\U0001f600" * MAX_NAME_CHARACTERS,
        partition=999,
        backlog=2**63,
        consumers=2**31,
        durable=True,
    )
    partition = pb.PartitionStats(
        partition=999, ledger=2**62, first_entry=2**62, next_entry=2**62, messages=2**62,
        bytes=2**62, producers=2**31,
    )  # fmt: skip
    stats = pb.TopicStats(
        partitions=[partition] * 1_000,
        subscriptions=[longest] * descriptions.MAX_SUBSCRIPTIONS_PER_PAGE,
    )
    assert stats.ByteSize() < 5 * 1024 * 1024


def test_a_reset_that_meets_damage_says_so(
    direct: Direct, admin: BrokerAdmin, monkeypatch: pytest.MonkeyPatch
) -> None:
    admin.create(TopicInfo(T), 0)
    admin.subscribe(Subscription(T, "g"), Start.LATEST, 0)

    async def damaged(ledger: Ledger, timestamp_ms: int) -> int:
        raise DamagedError(ledger.id, Path("x.seg"), 0, timestamp_ms, 0, 1)

    monkeypatch.setattr(Ledger, "find_time", damaged)
    with pytest.raises(ReadFailedError, match="damaged"):
        admin.reset(Subscription(T, "g"), 5, 0)


def test_a_subscription_that_goes_during_a_reset_is_not_moved(
    direct: Direct, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def work() -> None:
        topics = direct.topics
        await topics.create(T)
        await TopicSubscriptions(topics).subscribe(T, "g", StartPosition())

        async def slow(whence: StartPosition, ledger: Ledger) -> int:
            await TopicSubscriptions(topics).unsubscribe(T, "g")
            return ledger.first_entry

        monkeypatch.setattr(StartPosition, "entry", slow)
        with pytest.raises(SubscriptionNotFoundError):
            await TopicSubscriptions(topics).reset(T, "g", StartPosition(earliest=True))

    direct.runner.run(work())
