"""Polls of many new groups at once: groups are made a few at a time, and every poll is answered."""

from __future__ import annotations

from pathlib import Path

import pytest

from router.broker.consume.polls import engine
from router.errors import OverloadedError
from router.model import Message
from tests.unit.broker.consume.polls.polling import House, Worker


async def test_polls_wait_their_turn_when_many_groups_are_made_at_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(engine, "MAX_PREPARING", 2)
    house = await House.open(tmp_path)
    await house.publish([Message(b"a")])
    gone = Worker("worker pid 2")
    left = [house.begin(group=f"left{number}", worker=gone) for number in range(5)]
    polls = [house.begin(group=f"g{number}") for number in range(9)]
    assert len(house.engine._tasks) == 2
    house.engine.gone(gone)
    await house.settle()
    assert [[got.value for got in house.answer(poll)] for poll in polls] == [[b"a"]] * 9
    assert left[0] not in gone.answers
    await house.close()


async def test_polls_are_refused_when_too_many_wait_for_their_groups(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(engine, "MAX_PREPARING", 1)
    monkeypatch.setattr(engine, "MAX_UNPREPARED", 2)
    house = await House.open(tmp_path)
    await house.publish([Message(b"a")])
    polls = [house.begin(group=f"g{number}") for number in range(4)]
    await house.settle()
    for poll in polls[:3]:
        assert [got.value for got in house.answer(poll)] == [b"a"]
    with pytest.raises(OverloadedError):
        house.answer(polls[3])
    await house.close()
