"""Extents of partitions: many topics in one question, and the entries that bounds lie in."""

from __future__ import annotations

import asyncio
import tempfile
from collections.abc import Iterator
from itertools import accumulate
from pathlib import Path
from typing import cast

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from router.backends.pulsar.admin import BrokerAdmin
from router.backends.pulsar.extents import EntryPosition, EntryRead
from router.broker.node.rpc import topics as rpc_topics
from router.broker.storage import PULSAR_FORMAT, Store, StoreOptions
from router.broker.topics.calls import AdminCalls
from router.errors import BadRequestError
from router.model import TopicInfo, TopicName
from router.model.policies import Policies
from router.pulsar_client.link import PulsarLink
from tests.unit.broker.topics.test_administration import Direct

T = TopicName("public", "default", "t")
NAMES = [TopicName("public", "default", f"t{number}") for number in range(6)]


@pytest.fixture
def direct(folder: Path) -> Iterator[Direct]:
    found = Direct(folder)
    yield found
    found.close()


async def synced(store: Store) -> None:
    """Wait until what was appended is stored."""
    stored = asyncio.Event()
    store.after_sync(stored.set)
    await stored.wait()


def append(direct: Direct, topic: TopicName, sizes: list[int], partition: int = 0) -> None:
    """Append entries of so many messages, published at 0, 10, 20 …"""
    ledger = direct.topics.pieces(topic)[partition].ledger

    async def work() -> None:
        for number, size in enumerate(sizes):
            ledger.append(b"v", PULSAR_FORMAT, size, 10 * number, lambda _: None)
        await synced(direct.store)

    direct.runner.run(work())


@pytest.mark.parametrize(("page", "answers"), [(1, 6), (2, 3), (100, 1)])
def test_topics_are_located_in_one_question_unless_the_answer_is_too_large(
    direct: Direct, monkeypatch: pytest.MonkeyPatch, page: int, answers: int
) -> None:
    admin = BrokerAdmin(cast(PulsarLink, direct))
    for topic in NAMES[1:]:
        admin.create(TopicInfo(topic), 0)
        append(direct, topic, [3, 2])
    monkeypatch.setattr(rpc_topics, "MAX_LOCATED_PARTITIONS", page)
    direct.answers = 0
    found = admin.extents(dict.fromkeys(NAMES, ()), 0)
    assert direct.answers == answers
    # The first topic does not exist.
    assert list(found) == NAMES[1:]
    for (one,) in found.values():
        assert (one.first_index, one.stop_index) == (0, 5)
        assert (one.first.entry, one.stop.entry) == (0, 2)
        assert one.size > 0


def test_partition_that_a_topic_does_not_have_is_refused(direct: Direct) -> None:
    admin = BrokerAdmin(cast(PulsarLink, direct))
    admin.create(TopicInfo(T, 2), 0)
    with pytest.raises(BadRequestError, match="no partition 2"):
        admin.extents({T: [EntryRead(2, EntryPosition(0, 0))]}, 0)


@pytest.mark.parametrize(
    ("time_ms", "entry"), [(0, 0), (1, 1), (10, 1), (11, 2), (20, 2), (21, 3), (10_000, 3)]
)
def test_stretch_begins_at_the_first_entry_of_a_time(
    direct: Direct, time_ms: int, entry: int
) -> None:
    admin = BrokerAdmin(cast(PulsarLink, direct))
    admin.create(TopicInfo(T), 0)
    append(direct, T, [4, 1, 2])
    ((found,),) = admin.extents({T: [EntryRead(-1, time_ms=time_ms)]}, 0).values()
    assert found.start.entry == entry
    assert found.start_index == [0, 4, 5, 7][entry]


@settings(max_examples=20)
@given(sizes=st.lists(st.integers(1, 5), min_size=1, max_size=9), index=st.integers(0, 40))
def test_entry_that_holds_a_message_is_found_by_its_number(sizes: list[int], index: int) -> None:
    before = [0, *accumulate(sizes)]
    expected = sum(1 for last in before[1:] if last <= index)

    async def work() -> int:
        with tempfile.TemporaryDirectory() as folder:
            store = await Store.open(Path(folder), StoreOptions(), lambda: 1_000.0)
            (number,) = (await store.create_topic("t", 0, Policies(), {})).ledger_ids
            ledger = store.ledger(number)
            for size in sizes:
                ledger.append(b"v", PULSAR_FORMAT, size, 1, lambda _: None)
            await synced(store)
            try:
                return await ledger.entry_of_number(index)
            finally:
                await store.close()

    assert asyncio.run(work()) == expected


@pytest.mark.parametrize(
    ("number", "entry", "index"),
    [(0, 0, 0), (2, 0, 2), (3, 1, -1), (4, 2, 0), (5, 2, 1), (6, 3, -1), (99, 3, -1)],
)
def test_entry_of_a_number_has_the_index_in_its_batch(
    direct: Direct, number: int, entry: int, index: int
) -> None:
    BrokerAdmin(cast(PulsarLink, direct)).create(TopicInfo(T, 2), 0)
    append(direct, T, [3, 1, 2], 1)
    ledger = direct.topics.pieces(T)[1].ledger.id
    calls = AdminCalls(direct.topics)
    assert direct.runner.run(calls.entry_at(str(T), 1, number)) == (ledger, entry, index)
    with pytest.raises(BadRequestError):
        direct.runner.run(calls.entry_at(str(T), 2, number))
