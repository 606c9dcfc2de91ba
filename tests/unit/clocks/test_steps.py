"""Wake-ups, by standing still and by being called, and steps taken to their end."""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import pytest
from hypothesis import given
from hypothesis import strategies as st

from router.clocks.steps import YIELD_TO_LOOP, Event, Steps, Wait, run_blocking

PATIENCE = 20.0
ROUNDS = 3_000


@contextmanager
def at_once() -> Iterator[None]:
    """Fail if the block waits."""
    begin = time.monotonic()
    yield
    assert time.monotonic() - begin < PATIENCE / 2


@pytest.fixture
def hasty() -> Iterator[None]:
    """Threads that take turns as often as they can."""
    usual = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    yield
    sys.setswitchinterval(usual)


def test_wait_ends_at_once_when_woken_before() -> None:
    wakeup = Event()
    wakeup.wake()
    with at_once():
        wakeup.wait(PATIENCE)


def test_wait_ends_when_woken_meanwhile() -> None:
    wakeup = Event()
    waker = threading.Timer(0.05, wakeup.wake)
    waker.start()
    with at_once():
        wakeup.wait(None)
    waker.join()


def test_wait_ends_after_its_time_when_nobody_wakes() -> None:
    wakeup = Event()
    with at_once():
        begin = time.monotonic()
        wakeup.wait(0.05)
    assert time.monotonic() - begin > 0.04


def test_wait_forgets_the_wake_that_ended_it() -> None:
    wakeup = Event()
    wakeup.wait(0)
    for _ in range(2):
        wakeup.wake()
        wakeup.wait(PATIENCE)
        begin = time.monotonic()
        wakeup.wait(0.02)
        assert time.monotonic() - begin > 0.01


def test_wakes_are_one_when_nobody_waited_between_them() -> None:
    wakeup, called = Event(), list[str]()
    wakeup.wake()
    wakeup.wake()
    wakeup.wait(PATIENCE)
    wakeup.call(lambda: called.append("x"))
    assert called == []


def test_call_comes_at_once_when_woken_before() -> None:
    wakeup, called = Event(), list[str]()
    wakeup.wake()
    wakeup.call(lambda: called.append("x"))
    assert called == ["x"]


def test_call_comes_once_when_woken_twice() -> None:
    wakeup, called = Event(), list[str]()
    wakeup.call(lambda: called.append("x"))
    assert called == []
    wakeup.wake()
    assert called == ["x"]
    wakeup.wake()
    assert called == ["x"]


def test_call_comes_in_the_thread_of_whoever_wakes() -> None:
    wakeup, called = Event(), list[int]()
    wakeup.call(lambda: called.append(threading.get_ident()))
    waker = threading.Thread(target=wakeup.wake)
    waker.start()
    waker.join()
    assert called == [waker.ident]


def test_call_may_be_asked_for_again_where_it_comes() -> None:
    wakeup, called = Event(), list[str]()

    def again() -> None:
        called.append("x")
        wakeup.clear()
        wakeup.call(lambda: called.append("y"))

    wakeup.call(again)
    wakeup.wake()
    assert called == ["x"]
    wakeup.wake()
    assert called == ["x", "y"]


def test_nobody_is_called_after_clear() -> None:
    wakeup, called = Event(), list[str]()
    wakeup.call(lambda: called.append("x"))
    wakeup.clear()
    wakeup.wake()
    assert called == []


@given(steps=st.lists(st.sampled_from(["wake", "call", "clear", "wait"]), max_size=30))
def test_calls_and_waits_agree_with_a_flag_and_a_callback(steps: list[str]) -> None:
    wakeup, called = Event(), list[int]()
    expected: list[int] = []
    woken, callback = False, None
    for number, step in enumerate(steps):
        match step:
            case "wake":
                wakeup.wake()
                woken = True
            case "call":
                wakeup.call(lambda number=number: called.append(number))  # type: ignore[misc]
                callback = number
            case "clear":
                wakeup.clear()
                woken, callback = False, None
            case _:
                with at_once():
                    wakeup.wait(PATIENCE if woken else 0)
                woken, callback = False, None
        if woken and callback is not None:
            expected.append(callback)
            callback = None
        assert called == expected


class Interrupted(Event):
    """Has another thread do something at one look at its state, or change of it."""

    def __init__(self, at: int, meanwhile: Callable[[Event], None]) -> None:
        super().__init__()
        self.meanwhile = meanwhile
        self.left = at

    def __getattribute__(self, name: str) -> object:
        if name in Event.__slots__:
            self.look()
        return super().__getattribute__(name)

    def __setattr__(self, name: str, value: object) -> None:
        # None takes the place of a callback as that is taken: one step, as the interpreter goes on.
        if name in Event.__slots__ and value is not None:
            self.look()
        super().__setattr__(name, value)

    def look(self) -> None:
        if (left := self.__dict__.get("left")) is not None:
            self.left = left - 1
            if left == 0:
                self.meanwhile(self)


LOOKS = range(12)


@pytest.mark.parametrize("at", LOOKS)
def test_call_comes_once_when_woken_anywhere_within_it(at: int) -> None:
    called: list[int] = []
    wakeup = Interrupted(at, Event.wake)
    wakeup.call(lambda: called.append(at))
    if wakeup.left >= 0:  # it was over before
        assert called == []
        wakeup.wake()
    assert called == [at]


@pytest.mark.parametrize("at", LOOKS)
def test_call_comes_once_when_asked_for_anywhere_within_a_wake(at: int) -> None:
    called: list[int] = []
    wakeup = Interrupted(at, lambda it: it.call(lambda: called.append(at)))
    wakeup.wake()
    assert called == ([at] if wakeup.left < 0 else [])


@pytest.mark.parametrize("at", LOOKS)
def test_wait_ends_at_once_when_woken_anywhere_within_it(at: int) -> None:
    wakeup = Interrupted(at, Event.wake)
    with at_once():
        wakeup.wait(PATIENCE if at < 4 else 0)
        # What came as late as that is for the next.
        if at >= 4 and wakeup.left < 0:
            wakeup.wait(0)


@pytest.mark.usefixtures("hasty")
def test_no_call_is_lost_when_another_thread_wakes_at_the_same_time() -> None:
    wakeups = [Event() for _ in range(ROUNDS)]
    calls = [0] * ROUNDS
    begin = threading.Barrier(2)

    def wake() -> None:
        for number, wakeup in enumerate(wakeups):
            if number % 20 == 0:
                begin.wait(PATIENCE)
            wakeup.wake()

    waker = threading.Thread(target=wake)
    waker.start()
    for number, wakeup in enumerate(wakeups):

        def called(number: int = number) -> None:
            calls[number] += 1

        if number % 20 == 0:
            begin.wait(PATIENCE)
        wakeup.call(called)
    waker.join()
    assert calls == [1] * ROUNDS


@pytest.mark.usefixtures("hasty")
def test_no_wake_is_lost_when_two_threads_wait_for_each_other() -> None:
    here, there = Event(), Event()
    late: list[float] = []

    def answer(mine: Event, other: Event) -> None:
        for _ in range(ROUNDS):
            begin = time.monotonic()
            mine.wait(PATIENCE)
            if time.monotonic() - begin > PATIENCE / 2:
                late.append(begin)
                return
            other.wake()

    threads = [
        threading.Thread(target=answer, args=pair) for pair in ((here, there), (there, here))
    ]
    for thread in threads:
        thread.start()
    here.wake()
    for thread in threads:
        thread.join()
    assert not late


def test_lull_is_over_at_once_for_all_that_ask_however_often() -> None:
    called: list[int] = []
    for number in range(3):
        YIELD_TO_LOOP.call(lambda: called.append(1))
        YIELD_TO_LOOP.call(lambda: called.append(1))
        with at_once():
            YIELD_TO_LOOP.wait(PATIENCE)
            YIELD_TO_LOOP.wait(None)
        assert len(called) == 2 * (number + 1)
        YIELD_TO_LOOP.clear()
    YIELD_TO_LOOP.wake()
    assert len(called) == 6


class Noted(Event):
    """Keeps for how long it was waited for, and does not wait."""

    def __init__(self) -> None:
        super().__init__()
        self.waits: list[float | None] = []
        self.failure: BaseException | None = None

    def wait(self, timeout: float | None) -> None:
        self.waits.append(timeout)
        if self.failure is not None:
            raise self.failure


class Walk:
    """Steps of which can be told how they ended."""

    def __init__(self, *waits: Wait, failure: Exception | None = None) -> None:
        self.waits = waits
        self.failure = failure
        self.closed = False
        self.taken = 0

    def steps(self) -> Steps[str]:
        try:
            for wait in self.waits:
                yield wait
                self.taken += 1
            if self.failure is not None:
                raise self.failure
        except GeneratorExit:
            self.closed = True
            raise
        return "done"


def test_finish_returns_what_the_steps_return() -> None:
    assert run_blocking(Walk().steps()) == "done"
    assert run_blocking(Walk((YIELD_TO_LOOP, None), (YIELD_TO_LOOP, 1.0)).steps()) == "done"


def test_finish_waits_for_each_step_as_long_as_it_says() -> None:
    first, second = Noted(), Noted()
    walk = Walk((first, 1.5), (second, None), (first, 0.0))
    assert run_blocking(walk.steps()) == "done"
    assert (first.waits, second.waits, walk.taken) == ([1.5, 0.0], [None], 3)
    assert not walk.closed


def test_finish_raises_what_the_steps_raise() -> None:
    walk = Walk((YIELD_TO_LOOP, None), failure=ZeroDivisionError("x"))
    with pytest.raises(ZeroDivisionError, match="x"):
        run_blocking(walk.steps())


@pytest.mark.parametrize("failure", [KeyboardInterrupt(), TimeoutError(), SystemExit(1)])
def test_finish_closes_the_steps_when_the_wait_is_broken_off(failure: BaseException) -> None:
    noted = Noted()
    noted.failure = failure
    walk = Walk((noted, 1.0))
    steps = walk.steps()
    with pytest.raises(type(failure)):
        run_blocking(steps)
    assert (walk.closed, walk.taken) == (True, 0)
    assert list(steps) == []
