"""A worker's memory for requests: granted in order, bounded for those that wait."""

from __future__ import annotations

from contextlib import closing

import pytest

from router.clocks.steps import Event, Steps
from router.errors import OverloadedError
from router.services.memory_budget import MemoryBudget, Reservation

DEADLINE = 10.0


class Clock:
    now = 0.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def budget(clock: Clock) -> MemoryBudget:
    return MemoryBudget(100, clock)


def granted(steps: Steps[Reservation]) -> Reservation:
    with pytest.raises(StopIteration) as stop:
        next(steps)
    found: Reservation = stop.value.value
    return found


def waits(steps: Steps[Reservation]) -> Event:
    return next(steps)[0]


def woken(wakeup: Event) -> bool:
    called: list[bool] = []
    wakeup.call(lambda: called.append(True))
    return bool(called)


def test_reservation_waits_until_there_is_room(budget: MemoryBudget) -> None:
    first = granted(budget.reserve(60, 0, DEADLINE))
    steps = budget.reserve(60, 0, DEADLINE)
    wakeup = waits(steps)
    assert not woken(wakeup)
    first.release()
    assert woken(wakeup)
    with granted(steps):
        assert budget.used() == 60
    assert budget.used() == 0


def test_reservations_are_granted_in_their_order(budget: MemoryBudget) -> None:
    first = granted(budget.reserve(80, 0, DEADLINE))
    large, small = budget.reserve(90, 0, DEADLINE), budget.reserve(10, 0, DEADLINE)
    waits(large)
    waits(small)
    first.shrink(20)
    assert budget.used() == 20, "the small one must not pass the large one"
    first.release()
    granted(large)
    granted(small)
    assert budget.used() == 100


def test_reservation_that_does_not_wait_passes_none_that_does(budget: MemoryBudget) -> None:
    first = granted(budget.reserve(60, 0, DEADLINE))
    assert budget.try_reserve(60) is None
    with closing(budget.reserve(60, 0, DEADLINE)) as steps:
        waits(steps)
        assert budget.try_reserve(10) is None
    second = budget.try_reserve(10)
    assert second is not None
    assert budget.used() == 70
    for held in (first, second):
        held.release()
    assert budget.used() == 0


def test_reservation_larger_than_the_budget_gets_all_of_it(budget: MemoryBudget) -> None:
    with granted(budget.reserve(1_000, 0, DEADLINE)):
        assert budget.used() == 100


def test_reservation_is_given_back_once(budget: MemoryBudget) -> None:
    other, found = (
        granted(budget.reserve(50, 0, DEADLINE)),
        granted(budget.reserve(50, 0, DEADLINE)),
    )
    found.shrink(20)
    found.shrink(30)
    found.release()
    found.release()
    assert budget.used() == 50
    other.release()


def test_reservation_is_refused_when_its_time_is_over(budget: MemoryBudget, clock: Clock) -> None:
    first = granted(budget.reserve(100, 0, DEADLINE))
    late, behind = budget.reserve(100, 0, DEADLINE), budget.reserve(50, 0, 2 * DEADLINE)
    waits(late)
    waits(behind)
    first.shrink(50)
    clock.now = DEADLINE
    with pytest.raises(OverloadedError):
        next(late)
    granted(behind)  # what was behind it has room now


def test_what_waits_may_hold_no_more_than_the_budget(budget: MemoryBudget) -> None:
    first = granted(budget.reserve(100, 0, DEADLINE))
    waiting = budget.reserve(10, 60, DEADLINE)
    waits(waiting)
    with pytest.raises(OverloadedError) as refusal:
        next(budget.reserve(10, 41, DEADLINE))
    assert refusal.value.retry_after
    first.release()
    granted(waiting)
    granted(budget.reserve(10, 100, DEADLINE))


@pytest.mark.parametrize("already_granted", [False, True])
def test_wait_that_is_given_up_leaves_nothing_behind(
    budget: MemoryBudget, already_granted: bool
) -> None:
    first = granted(budget.reserve(100, 0, DEADLINE))
    with closing(budget.reserve(70, 100, DEADLINE)) as steps:
        waits(steps)
        if already_granted:
            first.release()
    first.release()
    assert budget.used() == 0
    granted(budget.reserve(100, 0, DEADLINE))
    waits(budget.reserve(10, 100, DEADLINE))
