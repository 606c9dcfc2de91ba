"""Token buckets and empty polls."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from router.sharing import limits
from router.sharing.limits import MINUTE, EmptyPolls, TokenBuckets
from tests.processes import ManualClock


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


ROUNDING_SECONDS = 1e-9


@given(st.lists(st.floats(0, 20), min_size=1, max_size=40), st.floats(1, 600), st.integers(1, 5))
def test_never_more_tokens_than_burst_and_rate_when_asked_at_any_times(
    steps: list[float], rate: float, burst: int
) -> None:
    clock = ManualClock()
    buckets = TokenBuckets(clock)
    began, granted = clock.now, 0
    for step in steps:
        clock.now += step
        granted += buckets.take("b", rate, burst) is None
        assert granted <= burst + (clock.now - began) * rate / MINUTE + 1e-6


@given(st.floats(0.5, 6000), st.integers(1, 5))
def test_token_is_granted_when_the_returned_time_has_passed(rate: float, burst: int) -> None:
    clock = ManualClock()
    buckets = TokenBuckets(clock)
    while (wait := buckets.take("b", rate, burst)) is None:
        pass
    clock.now += wait + 1e-6
    assert buckets.take("b", rate, burst) is None


def test_buckets_are_apart_when_named_differently(clock: ManualClock) -> None:
    buckets = TokenBuckets(clock)
    assert buckets.take("a", 60, 1) is None
    assert buckets.take("a", 60, 1) is not None
    assert buckets.take("b", 60, 1) is None


@pytest.mark.parametrize("rate", [0.0, -1.0, math.nan, math.inf])
def test_token_is_refused_with_a_time_when_the_rate_is_none(
    clock: ManualClock, rate: float
) -> None:
    assert TokenBuckets(clock).take("b", rate, 0) == MINUTE


def test_buckets_longest_unused_go_when_there_are_too_many(
    clock: ManualClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(limits, "MAX_BUCKETS", 2)
    buckets = TokenBuckets(clock)
    buckets.take("a", 60, 1)
    buckets.take("b", 60, 1)
    buckets.take("c", 60, 1)
    assert buckets.take("c", 60, 1) is not None
    assert buckets.take("a", 60, 1) is None


def test_looking_takes_no_token(clock: ManualClock) -> None:
    buckets = TokenBuckets(clock)
    assert buckets.take("b", 60, 1, look_only=True) is None
    assert buckets.take("b", 60, 1) is None
    assert buckets.take("b", 60, 1, look_only=True) == 1.0


@given(st.lists(st.tuples(st.floats(0, 30), st.booleans()), max_size=60), st.integers(1, 5))
def test_empty_polls_are_limited_when_a_minute_has_too_many(
    steps: list[tuple[float, bool]], limit: int
) -> None:
    clock = ManualClock()
    polls = EmptyPolls(clock)
    model: list[float] = []
    for step, found in steps:
        clock.now += step
        if found:
            polls.delivered("c1")
            model = []
        else:
            polls.empty("c1", limit)
            model.append(clock.now)
        wait = polls.wait("c1", limit)
        within = [at for at in model if at + MINUTE > clock.now]
        share = model[-1] + MINUTE / limit - clock.now if model else 0.0
        assert (wait is not None) == (len(within) >= limit and share > 0)
        if wait is not None:
            assert wait == pytest.approx(min(within[-limit] + MINUTE - clock.now, share))
            assert wait <= MINUTE / limit + ROUNDING_SECONDS


def test_id_is_let_in_when_the_wait_that_it_was_told_is_over(clock: ManualClock) -> None:
    polls = EmptyPolls(clock)
    for _ in range(10):
        polls.empty("c1", 10)
    for _ in range(30):
        wait = polls.wait("c1", 10)
        assert wait is not None
        assert wait <= 6
        clock.now += wait
        assert polls.wait("c1", 10) is None
        polls.empty("c1", 10)
    assert polls.wait("c1", 10) is not None


def test_empty_polls_are_not_limited_when_the_limit_is_zero(clock: ManualClock) -> None:
    polls = EmptyPolls(clock)
    for _ in range(100):
        polls.empty("c1", 0)
    assert polls.wait("c1", 0) is None
    assert len(polls) == 0


def test_empty_polls_are_forgotten_when_their_minute_is_over(clock: ManualClock) -> None:
    polls = EmptyPolls(clock)
    for poller in range(50):
        polls.empty(poller, 10)
    clock.now += MINUTE
    polls.empty("c1", 10)
    assert len(polls) == 1


def test_pollers_longest_silent_go_when_there_are_too_many(
    clock: ManualClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(limits, "MAX_EMPTY_POLLERS", 3)
    polls = EmptyPolls(clock)
    for poller in ("a", "b", "a", "c", "d"):
        polls.empty(poller, 1)
    assert [p for p in "abcd" if polls.wait(p, 1)] == ["a", "c", "d"]
