"""Room for frames on their way in: bounded, in order, and nobody waits for ever."""

from __future__ import annotations

from collections import deque
from functools import partial
from pathlib import Path
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from router.broker.transport import memory_budget as module
from router.broker.transport.memory_budget import FrameBudget, high_water
from tests.processes import ManualClock
from tests.unit.broker.pulsar.test_connection import CONNECT, PRODUCER, Client, opened_client, send

LIMIT = 10


@given(st.lists(st.integers(1, 15) | st.none(), max_size=60), st.randoms())
def test_budget_is_bounded_and_reserved_in_the_order_of_requests(
    steps: list[int | None], chance: Random
) -> None:
    budget, holding, waiting = FrameBudget(LIMIT), dict[int, int](), deque[int]()
    sizes: list[int] = []

    def found(number: int) -> None:
        assert waiting.popleft() == number
        holding[number] = sizes[number]

    def leave() -> None:
        number = chance.choice([*holding, *waiting])
        if number in holding:
            del holding[number]
        else:
            waiting.remove(number)
        budget.release(number)

    for size in steps:
        if size is not None:
            sizes.append(size)
            number = len(sizes) - 1
            waiting.append(number)
            if budget.reserve(number, size, partial(found, number)):
                found(number)
        elif holding or waiting:
            leave()
        assert sum(holding.values()) <= LIMIT or len(holding) == 1
        # Whoever waits has somebody to wait for.
        assert holding or not waiting
    while holding:
        leave()
    assert not waiting


def test_owner_of_room_is_overdue_only_if_others_wait() -> None:
    clock = ManualClock()
    budget = FrameBudget(LIMIT, clock)
    budget.reserve("slow", LIMIT, lambda: None)
    clock.advance(1_000)
    assert not budget.overdue("slow")
    budget.reserve("next", 1, lambda: None)
    assert budget.overdue("slow")
    assert not budget.overdue("next")
    budget.release("slow")
    budget.reserve("last", LIMIT, lambda: None)
    # Its time counts from when it had budget, not from when it asked.
    assert not budget.overdue("next")


def test_connections_share_what_may_wait_to_leave() -> None:
    assert high_water(1 << 20, 1) == high_water(1 << 20, 128) == 1 << 20
    assert high_water(1 << 20, 1_024) == 128 << 10
    assert high_water(1 << 20, 100_000) == module.MIN_HIGH_WATER_BYTES
    assert high_water(1_000, 100_000) == 1_000


async def test_rest_of_a_large_frame_is_read_when_another_is_stored(folder: Path) -> None:
    frame = send(0, b"x" * 100_000)
    async with opened_client(folder) as (first, context):
        context.transport.memory_budget = FrameBudget(len(frame))
        second = Client(context)
        second.send(CONNECT)
        for client in (first, second):
            client.send(PRODUCER)
            await client.settle()
            client.received()
            client.send(frame[:70_000])
        assert (first.transport.reading, second.transport.reading) == (True, False)
        first.send(frame[70_000:])
        await first.settle()
        assert first.kinds() == ["SEND_RECEIPT"]
        assert second.transport.reading
        second.send(frame[70_000:])
        await second.settle()
        assert second.kinds() == ["SEND_RECEIPT"]


async def test_lost_connection_leaves_its_room_to_others(folder: Path) -> None:
    frame = send(0, b"x" * 100_000)
    async with opened_client(folder) as (first, context):
        context.transport.memory_budget = FrameBudget(len(frame))
        second = Client(context)
        second.send(CONNECT)
        for client in (first, second):
            client.send(frame[:1_000])
        assert not second.transport.reading
        first.connection.connection_lost(None)
        assert second.transport.reading


async def test_client_that_is_too_slow_is_let_go_when_others_wait(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "MAX_FRAME_SECONDS", 0.0)
    frame = send(0, b"x" * 100_000)
    async with opened_client(folder) as (first, context):
        context.transport.memory_budget = FrameBudget(len(frame))
        first.send(frame[:1_000])
        first.connection.check_liveness(0.0)
        assert not first.transport.ended
        second = Client(context)
        second.send(CONNECT, frame[:1_000])
        first.connection.check_liveness(0.0)
        assert first.transport.ended
