"""The node's metrics, and its token buckets as workers ask for them."""

from __future__ import annotations

import math

import pytest

from router.broker.node import counters
from router.broker.node.counters import NodeCounters
from router.metrics import Sample
from tests.processes import ManualClock


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


def pushed(counter: float, gauge: float | None = None) -> tuple[list[Sample], list[Sample]]:
    gauges: list[Sample] = [] if gauge is None else [("router_polls_waiting", (), gauge)]
    return [("router_published_messages_total", (), counter)], gauges


def test_counters_stay_and_gauges_go_when_a_worker_goes(clock: ManualClock) -> None:
    node = NodeCounters(clock)
    node.push("w1", *pushed(2, 5))
    node.push("w1", *pushed(1, 4))
    node.push("w2", *pushed(10, 1))
    assert "router_published_messages_total 13.0" in node.render()
    assert "router_polls_waiting 5.0" in node.render()
    node.gone("w1")
    assert "router_published_messages_total 13.0" in node.render()
    assert "router_polls_waiting 1.0" in node.render()


@pytest.mark.parametrize("value", [-1.0, math.nan, math.inf])
def test_counters_do_not_move_when_a_sample_is_nonsense(clock: ManualClock, value: float) -> None:
    node = NodeCounters(clock)
    before = node.render()
    node.push("w1", *pushed(value))
    assert node.render() == before


def test_new_series_are_left_out_when_there_are_too_many(
    clock: ManualClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(counters, "MAX_SERIES", 2)
    node = NodeCounters(clock)
    for code in ("a", "b", "c", "a"):
        node.inc("router_publish_refused_total", (("code", code),))
    shown = node.render()
    assert 'router_publish_refused_total{code="a"} 2.0' in shown
    assert 'code="c"' not in shown


def test_watched_gauges_are_read_when_rendered(clock: ManualClock) -> None:
    node = NodeCounters(clock)
    claims = [1.0]
    node.watch("router_broker_claims", lambda: claims[0])
    claims[0] = 7
    assert "router_broker_claims 7.0" in node.render()


def test_token_is_refused_with_the_time_until_there_is_one(clock: ManualClock) -> None:
    node = NodeCounters(clock)
    assert node.take_token("b", 60, 1) is None
    assert node.take_token("b", 60, 1) == 1.0
    clock.now += 1
    assert node.take_token("b", 60, 1) is None
