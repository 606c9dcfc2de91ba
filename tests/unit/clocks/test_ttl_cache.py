"""Values that are read from elsewhere."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor

import pytest

from router.clocks.ttl_cache import MAX_STALE_SECONDS, TTLCache, TTLMap
from router.errors import BackendTimeoutError, BackendUnavailableError, ConflictError, RouterError
from tests.processes import ManualClock


class Source:
    """Counts how often it is read, and fails when told to."""

    def __init__(self) -> None:
        self.reads = 0
        self.failure: RouterError | None = None

    def read(self, name: str) -> str:
        if self.failure is not None:
            raise self.failure
        self.reads += 1
        return f"{name}{self.reads}"


def test_value_is_read_again_when_its_time_is_over(clock: ManualClock) -> None:
    known = TTLCache(Source().read, 5, 10, clock)
    assert [known.get("a") for _ in range(3)] == ["a1"] * 3
    clock.advance(4.9)
    assert known.get("a") == "a1"
    clock.advance(0.1)
    assert known.get("a") == "a2"


def test_value_that_is_forgotten_is_read_again(clock: ManualClock) -> None:
    known = TTLCache(Source().read, 5, 10, clock)
    assert known.get("a") == "a1"
    known.forget("a")
    known.forget("b")
    assert known.get("a") == "a2"


@pytest.mark.parametrize("failure", [BackendUnavailableError(), BackendTimeoutError()])
def test_old_value_stands_in_while_nobody_answers(clock: ManualClock, failure: RouterError) -> None:
    source = Source()
    known = TTLCache(source.read, 5, 10, clock)
    known.get("a")
    source.failure = failure
    clock.advance(MAX_STALE_SECONDS - 1)
    assert known.get("a") == "a1"
    with pytest.raises(type(failure)):
        known.get("unseen")
    clock.advance(5)
    with pytest.raises(type(failure)):
        known.get("a")
    source.failure = None
    assert known.get("a") == "a2"


def test_who_does_not_answer_is_not_asked_all_the_time(clock: ManualClock) -> None:
    asked = []

    def read(name: str) -> str:
        asked.append(clock.now)
        if len(asked) > 1:
            clock.advance(15)  # that long it takes until a call is given up
            raise BackendTimeoutError
        return name

    known = TTLCache(read, 1, 10, clock)
    for _ in range(9):
        assert known.get("a") == "a"
        clock.advance(1)
    assert len(asked) == 3


def test_refusal_is_no_outage(clock: ManualClock) -> None:
    source = Source()
    known = TTLCache(source.read, 5, 10, clock)
    known.get("a")
    source.failure = ConflictError()
    clock.advance(5)
    with pytest.raises(ConflictError):
        known.get("a")


def test_no_more_than_so_many_are_remembered(clock: ManualClock) -> None:
    source = Source()
    known = TTLCache(source.read, 5, 3, clock)
    for number in range(10):
        known.get(str(number))
    assert len(known._known) <= 3


def test_names_that_nobody_else_asks_for_push_out_none_in_use(clock: ManualClock) -> None:
    source = Source()
    known = TTLCache(source.read, 5, 10, clock)
    for number in range(50):
        source.failure = None
        known.get("used")
        known.get(f"stranger{number}")
        source.failure = BackendUnavailableError()
        assert known.get("used").startswith("used")
        clock.advance(5)


def test_others_take_the_old_value_while_one_reads(clock: ManualClock) -> None:
    entered, go = threading.Event(), threading.Event()

    def slow(name: str) -> str:
        if clock.now > 1_000:
            entered.set()
            assert go.wait(20)
            return "new"
        return "old"

    known = TTLCache(slow, 5, 10, clock)
    assert known.get("a") == "old"
    clock.advance(5)
    with ThreadPoolExecutor() as pool:
        reader = pool.submit(known.get, "a")
        assert entered.wait(20)
        assert known.get("a") == "old"
        go.set()
        assert reader.result(20) == "new"
    assert known.get("a") == "new"


def test_map_forgets_values_whose_time_is_over_and_the_oldest() -> None:
    clock = ManualClock()
    values: TTLMap[str, int] = TTLMap(2.0, 2, clock)
    values.put("a", 1)
    clock.advance(1.0)
    values.put("b", 2)
    assert (values.get("a"), values.get("b")) == (1, 2)
    clock.advance(1.0)
    assert (values.get("a"), values.get("b"), "a" in values) == (None, 2, True)
    values.put("b", 3)
    values.put("c", 4)
    assert (values.get("b"), values.get("c"), "a" in values) == (3, 4, False)
    values.remove("b")
    assert values.get("b") is None
