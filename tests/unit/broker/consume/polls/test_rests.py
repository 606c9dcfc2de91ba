"""What a poll that delivered holds until its id polls again, and who may have it meanwhile."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from router.broker.consume.membership.leases import ClaimRequest, ClaimUpdate
from router.broker.consume.polls import engine
from router.broker.consume.polls.engine import REST_SECONDS
from router.broker.consume.polls.poll import HANDOVER_SECONDS
from router.coordination import Lease
from router.model import Message, PollOutcome, TopicName
from tests.unit.broker.consume.polls.polling import GROUP, TOPIC, House, Worker

IDLE_SECONDS = 5.0
"""After which an id is forgotten, see `House`."""


async def with_messages(folder: Path, count: int, partitions: int = 0) -> House:
    house = await House.open(folder, partitions)
    for number in range(count):
        await house.publish([Message(b"%d" % number)], number % max(1, partitions) or -1)
    return house


def generation(house: House, partition: int = -1) -> int:
    return house.leases.generation(TOPIC, GROUP, partition)


def claims(house: House) -> int:
    return house.leases._count_claims()


class Claiming:
    """A worker that claims partitions itself."""

    name = "worker pid 2"

    def __init__(self) -> None:
        self.granted: set[int] = set()

    def claim_updated(self, claim_id: int, update: ClaimUpdate) -> None:
        self.granted |= update.granted.keys()


async def test_polls_of_an_id_go_on_with_what_the_last_one_claimed(tmp_path: Path) -> None:
    house = await with_messages(tmp_path, 5)
    assert await house.poll(limit=1) == [b"0"]
    first = generation(house)
    assert claims(house) == 0
    for number in range(1, 5):
        assert await house.poll(limit=1) == [b"%d" % number]
    assert generation(house) == first
    await house.close()


async def test_poll_of_an_id_goes_on_at_another_worker_when_its_own_is_gone(tmp_path: Path) -> None:
    house = await with_messages(tmp_path, 2)
    assert await house.poll(limit=1) == [b"0"]
    house.engine.gone(house.worker)
    house.worker = Worker("worker pid 2")
    assert await house.poll(limit=1) == [b"1"]
    await house.close()


async def test_another_id_has_its_share_at_once(tmp_path: Path) -> None:
    house = await with_messages(tmp_path, 20, partitions=2)
    assert len(await house.poll("a")) == 20
    for number in range(20):
        await house.publish([Message(b"more")], number % 2)
    assert len(await house.poll("b")) == 10
    assert len(await house.poll("a")) == 10
    await house.close()


async def test_what_claims_by_itself_gets_it_at_once(tmp_path: Path) -> None:
    house = await with_messages(tmp_path, 2)
    assert await house.poll(limit=1) == [b"0"]
    claiming = Claiming()
    house.leases.claim(claiming, 7, ClaimRequest(TOPIC, GROUP, "c"))
    assert claiming.granted == {-1}
    house.leases.release(claiming, 7, PollOutcome.REFUSED)
    assert await house.poll(limit=1) == [b"1"]
    await house.close()


async def test_lease_that_is_lost_meanwhile_is_claimed_anew(tmp_path: Path) -> None:
    house = await with_messages(tmp_path, 2)
    assert await house.poll(limit=1) == [b"0"]
    house.leases.lost(Lease(TOPIC, GROUP, -1))
    await house.settle()
    assert await house.poll(limit=1) == [b"1"]
    await house.close()


async def test_administrator_who_recalls_it_does_not_wait_for_the_next_poll(tmp_path: Path) -> None:
    house = await with_messages(tmp_path, 1)
    assert await house.poll(limit=1) == [b"0"]
    recall = asyncio.create_task(house.leases.recall(TOPIC, GROUP))
    await asyncio.sleep(0)
    house.begin(timeout=60)
    await house.settle()
    assert recall.done()
    await house.close()


async def test_second_poll_of_the_id_that_waits_is_next(tmp_path: Path) -> None:
    house = await with_messages(tmp_path, 2)
    first = house.begin(limit=1)
    second = house.begin(limit=1, timeout=60)
    await house.settle()
    assert second not in house.worker.answers
    house.done(first)
    await house.settle()
    assert [got.value for got in house.answer(second)] == [b"1"]
    house.done(second)
    await house.close()


async def test_poll_that_waited_for_a_handover_ends_with_its_own_time(tmp_path: Path) -> None:
    house = await with_messages(tmp_path, 1)
    first = house.begin(limit=1)
    second = house.begin(timeout=HANDOVER_SECONDS / 2)
    await house.settle()
    house.clock.advance(HANDOVER_SECONDS / 4)
    house.done(first)
    await house.settle()
    assert second not in house.worker.answers
    house.clock.advance(HANDOVER_SECONDS / 4)
    await house.settle()
    assert house.answer(second) == []
    await house.close()


async def test_rest_ends_with_its_time_and_the_id_is_forgotten_after_that(tmp_path: Path) -> None:
    house = await with_messages(tmp_path, 2)
    await house.poll(limit=1)
    found = (await house.leases.members(TOPIC, GROUP)).members[0]
    assert (found.polls, found.polling_ms, found.idle_ms) == (0, None, 0)
    house.clock.advance(2 * REST_SECONDS)
    await house.settle()
    assert not house.engine._resting
    assert house.leases.is_live(TOPIC, GROUP)
    house.clock.advance(IDLE_SECONDS)
    await house.settle()
    assert not house.leases.is_live(TOPIC, GROUP)
    assert not house.engine._groups
    assert await house.poll(limit=1) == [b"1"]
    await house.close()


async def test_topic_that_grew_or_was_made_again_is_claimed_anew(tmp_path: Path) -> None:
    house = await with_messages(tmp_path, 2, partitions=1)
    assert len(await house.poll()) == 2
    name = TopicName.parse(TOPIC)
    await house.topics.change(name, lambda topic: house.store.grow_topic(topic, 2))
    await house.publish([Message(b"new")], 1)
    assert await house.poll() == [b"new"]
    await house.topics.delete(name)
    await house.topics.create(name, 0)
    await house.publish([Message(b"again")])
    assert await house.poll() == [b"again"]
    await house.close()


async def test_so_many_rest_at_most(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(engine, "MAX_RESTING", 3)
    house = await with_messages(tmp_path, 1)
    for number in range(5):
        assert await house.poll(group=f"g{number}") == [b"0"]
    assert len(house.engine._resting) == 3
    await house.close()
