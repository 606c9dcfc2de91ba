"""Polls whose answers a later poll acknowledges by naming where they end."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

import pytest

from router.broker.consume.membership.leases import ClaimUpdate
from router.broker.consume.polls.poll import Poll
from router.errors import ConflictError, SubscriptionBusyError
from router.model import Message, PollOutcome, Position
from tests.unit.broker.consume.polls.polling import House
from tests.unit.broker.consume.polls.test_polls_model import on_a_house

MANY = 32


async def explicit(
    house: House,
    named: Sequence[Position] = (),
    consumer: str = "c",
    limit: int = 100,
    partitions: int = MANY,
) -> tuple[list[bytes], list[Position]]:
    """Poll and have the answer delivered; return its values, and where it ends."""
    poll = house.begin(consumer, limit, explicit_partitions=partitions, acknowledged=named)
    await house.stored()
    found = house.answer(poll)
    ends = house.ends(poll) if found else []
    house.done(poll)
    return [got.value for got in found], ends


async def test_answer_comes_again_until_it_is_named() -> None:
    async with on_a_house() as house:
        await house.publish([Message(b"a"), Message(b"b"), Message(b"c")])
        ends = list[Position]()
        for _ in range(2):
            found, ends = await explicit(house, limit=2)
            assert found == [b"a", b"b"]
        for _ in range(2):
            assert (await explicit(house, ends))[0] == [b"c"]
        assert await explicit(house, ends, limit=0) == ([], [])
        assert await house.poll() == [b"c"]


@pytest.mark.parametrize("limit", [0, 100])
async def test_answer_from_before_a_reset_acknowledges_nothing(limit: int) -> None:
    async with on_a_house() as house:
        await house.publish([Message(b"a")])
        _, ends = await explicit(house)
        await house.partition(-1).subscriptions["g"].reset_durably(0)
        if limit:
            assert (await explicit(house, ends))[0] == [b"a"]
        else:
            with pytest.raises(ConflictError, match=r"^Not acknowledged in partition 0: the group"):
                await explicit(house, ends, limit=0)
        assert await house.poll() == [b"a"]


async def test_answer_is_not_acknowledged_where_another_id_has_the_partition() -> None:
    async with on_a_house() as house:
        await house.publish([Message(b"a")])
        _, ends = await explicit(house)
        house.clock.advance(30.0)
        other = house.begin("d")
        await house.settle()
        assert house.answer(other)
        with pytest.raises(ConflictError, match="another consumer has the partition"):
            await explicit(house, ends, limit=0)
        house.done(other, delivered=False)
        assert await house.poll("c") + await house.poll("d") == [b"a"]


async def test_answer_has_messages_of_so_many_partitions() -> None:
    async with on_a_house(partitions=4) as house:
        for partition in range(4):
            await house.publish([Message(b"%d" % partition)], partition)
        taken, ends = list[bytes](), list[Position]()
        for left in (3, 1):
            found, ends = await explicit(house, ends, partitions=3)
            assert len(found) == len(ends) == left
            taken += found
        assert sorted(taken) == [b"0", b"1", b"2", b"3"]
        assert await explicit(house, ends, limit=0) == ([], [])
        assert await house.poll() == []


async def test_poll_takes_nothing_while_a_partition_of_the_named_answer_is_on_its_way(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    update_claim, late = Poll.claim_updated, list[Callable[[], None]]()

    def update_partly(poll: Poll, claim_id: int, update: ClaimUpdate) -> None:
        granted = {0: update.granted[0]}
        late.append(lambda: update_claim(poll, claim_id, update))
        update_claim(poll, claim_id, replace(update, granted=granted, waiting=True))

    async with on_a_house(partitions=2) as house:
        for partition in range(2):
            await house.publish([Message(b"%d" % partition)], partition)
        found, ends = await explicit(house)
        assert sorted(found) == [b"0", b"1"]
        house.clock.advance(30.0)  # the claim ends
        await house.publish([Message(b"more")], 0)
        with monkeypatch.context() as patch:
            patch.setattr(Poll, "claim_updated", update_partly)
            for limit in (100, 0):
                refused = house.begin("c", limit, explicit_partitions=MANY, acknowledged=ends)
                house.clock.advance(1.0)
                await house.settle()
                assert isinstance(house.worker.answers[refused], SubscriptionBusyError)
            waiting = house.begin(timeout=60.0, explicit_partitions=MANY, acknowledged=ends)
            await house.settle()
        assert waiting not in house.worker.answers
        late[-1]()
        await house.settle()
        assert [got.value for got in house.answer(waiting)] == [b"more"]


async def test_what_is_said_to_be_passed_over_is_acknowledged_all_the_same() -> None:
    async with on_a_house() as house:
        await house.publish([Message(b"large")])
        await house.publish([Message(b"b")])
        poll = house.begin(limit=1, explicit_partitions=MANY)
        await house.settle()
        (got,) = house.answer(poll)
        ends = house.ends(poll)
        house.engine.done(house.worker, poll, PollOutcome.DELIVERED, keep=False, upto=ends)
        assert got.value == b"large"
        assert (await explicit(house))[0] == [b"b"]


async def test_final_acknowledgement_is_on_disk_when_it_is_answered() -> None:
    async with on_a_house() as house:
        await house.publish([Message(b"a")])
        _, ends = await explicit(house)
        waiting = list[Callable[[], object]]()
        after_sync, house.store.after_sync = house.store.after_sync, waiting.append  # type: ignore[method-assign, assignment]
        poll = house.begin(limit=0, explicit_partitions=MANY, acknowledged=ends)
        await house.settle()
        assert poll not in house.worker.answers
        house.store.after_sync = after_sync  # type: ignore[method-assign]
        for stored in waiting:
            stored()
        assert house.answer(poll) == []
