"""Token buckets, empty polls and the node's metrics."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from router.broker import counters
from router.broker.counters import MINUTE, Counters, EmptyPolls
from router.wire.pulsar import pulsar_pb2 as pb


class Clock:
    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock() -> Clock:
    return Clock()


def ask(bucket: str = "b", per_minute: float = 60, burst: int = 3) -> pb.TakeToken:
    return pb.TakeToken(bucket=bucket, per_minute=per_minute, burst=burst)


ROUNDING_SECONDS = 1e-9


@given(st.lists(st.floats(0, 20), min_size=1, max_size=40), st.floats(1, 600), st.integers(1, 5))
def test_never_more_tokens_than_burst_and_rate_when_asked_at_any_times(
    steps: list[float], rate: float, burst: int
) -> None:
    clock = Clock()
    node = Counters(clock)
    began, granted = clock.now, 0
    for step in steps:
        clock.now += step
        granted += node.take_token(ask("b", rate, burst)).granted
        assert granted <= burst + (clock.now - began) * rate / MINUTE + 1e-6


@given(st.floats(0.5, 6000), st.integers(1, 5))
def test_token_is_granted_when_the_told_time_has_passed(rate: float, burst: int) -> None:
    clock = Clock()
    node = Counters(clock)
    while (answer := node.take_token(ask("b", rate, burst))).granted:
        pass
    clock.now += answer.retry_after_ms / 1000 + 1e-6
    assert node.take_token(ask("b", rate, burst)).granted


def test_buckets_are_apart_when_named_differently(clock: Clock) -> None:
    node = Counters(clock)
    assert node.take_token(ask("a", burst=1)).granted
    assert not node.take_token(ask("a", burst=1)).granted
    assert node.take_token(ask("b", burst=1)).granted


@pytest.mark.parametrize("rate", [0.0, -1.0, math.nan, math.inf])
def test_token_is_refused_with_a_time_when_the_rate_is_none(clock: Clock, rate: float) -> None:
    answer = Counters(clock).take_token(ask("b", rate, 0))
    assert (answer.granted, answer.retry_after_ms) == (False, 60_000)


def test_buckets_longest_unused_go_when_there_are_too_many(
    clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(counters, "MAX_BUCKETS", 2)
    node = Counters(clock)
    node.take_token(ask("a", burst=1))
    node.take_token(ask("b", burst=1))
    node.take_token(ask("c", burst=1))
    assert not node.take_token(ask("c", burst=1)).granted
    assert node.take_token(ask("a", burst=1)).granted


def pushed(counter: float = 0, gauge: float | None = None) -> pb.PushMetrics:
    push = pb.PushMetrics()
    if counter:
        push.counters.add(name="router_published_messages_total", value=counter)
    if gauge is not None:
        push.gauges.add(name="router_polls_waiting", value=gauge)
    return push


def test_counters_stay_and_gauges_go_when_a_worker_goes(clock: Clock) -> None:
    node = Counters(clock)
    node.push("w1", pushed(2, 5))
    node.push("w1", pushed(1, 4))
    node.push("w2", pushed(10, 1))
    assert "router_published_messages_total 13.0" in node.render()
    assert "router_polls_waiting 5.0" in node.render()
    node.gone("w1")
    assert "router_published_messages_total 13.0" in node.render()
    assert "router_polls_waiting 1.0" in node.render()


@pytest.mark.parametrize("value", [-1.0, math.nan, math.inf])
def test_counters_do_not_move_when_a_sample_is_nonsense(clock: Clock, value: float) -> None:
    node = Counters(clock)
    before = node.render()
    node.push("w1", pushed(value))
    assert node.render() == before


def test_new_series_are_left_out_when_there_are_too_many(
    clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(counters, "MAX_SERIES", 2)
    node = Counters(clock)
    for code in ("a", "b", "c", "a"):
        node.inc("router_publish_refused_total", (("code", code),))
    shown = node.render()
    assert 'router_publish_refused_total{code="a"} 2.0' in shown
    assert 'code="c"' not in shown


def test_watched_gauges_are_read_when_rendered(clock: Clock) -> None:
    node = Counters(clock)
    claims = [1.0]
    node.watch("router_broker_claims", lambda: claims[0])
    claims[0] = 7
    assert "router_broker_claims 7.0" in node.render()


@given(st.lists(st.tuples(st.floats(0, 30), st.booleans()), max_size=60), st.integers(1, 5))
def test_empty_polls_are_limited_when_a_minute_has_too_many(
    steps: list[tuple[float, bool]], limit: int
) -> None:
    clock = Clock()
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


def test_id_is_let_in_when_the_wait_that_it_was_told_is_over(clock: Clock) -> None:
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


def test_empty_polls_are_not_limited_when_the_limit_is_zero(clock: Clock) -> None:
    polls = EmptyPolls(clock)
    for _ in range(100):
        polls.empty("c1", 0)
    assert polls.wait("c1", 0) is None
    assert len(polls) == 0


def test_empty_polls_are_forgotten_when_their_minute_is_over(clock: Clock) -> None:
    polls = EmptyPolls(clock)
    for poller in range(50):
        polls.empty(poller, 10)
    clock.now += MINUTE
    polls.empty("c1", 10)
    assert len(polls) == 1


def test_pollers_longest_silent_go_when_there_are_too_many(
    clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(counters, "MAX_EMPTY_POLLERS", 3)
    polls = EmptyPolls(clock)
    for poller in ("a", "b", "a", "c", "d"):
        polls.empty(poller, 1)
    assert [p for p in "abcd" if polls.wait(p, 1)] == ["a", "c", "d"]
