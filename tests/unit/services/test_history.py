"""Histories for charts: bounded in time and number, whatever the clock does."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from router.model import TopicName
from router.services.history import (
    MAX_SAMPLES,
    MAX_SERIES,
    MIN_SAMPLE_INTERVAL_MS,
    SPAN_MS,
    Histories,
    Sample,
    rate,
)

T = TopicName.parse("t")


class Clock:
    def __init__(self) -> None:
        self.now = 1_000_000

    def __call__(self) -> int:
        return self.now


def test_looks_that_come_too_soon_are_not_noted() -> None:
    clock = Clock()
    histories = Histories(clock)
    assert histories.note((T, ""), 1, 2) == [Sample(1_000_000, 1, 2)]
    clock.now += MIN_SAMPLE_INTERVAL_MS - 1
    assert len(histories.note((T, ""), 5, 5)) == 1
    clock.now += 1
    assert histories.note((T, ""), 6, 0)[1] == Sample(clock.now, 6, 0)
    assert histories.note((T, "g"), 6, 0) == [Sample(clock.now, 6, 0)]


def test_what_is_older_than_the_span_goes() -> None:
    clock = Clock()
    histories = Histories(clock)
    histories.note((T, ""), 1, 0)
    clock.now += SPAN_MS + 1
    assert [sample.messages for sample in histories.note((T, ""), 2, 0)] == [2]


def test_series_that_were_looked_at_longest_ago_go_first() -> None:
    clock = Clock()
    histories = Histories(clock)
    for number in range(MAX_SERIES):
        histories.note((T, f"g{number}"), 0, 0)
    clock.now += MIN_SAMPLE_INTERVAL_MS
    histories.note((T, "g0"), 0, 0)
    histories.note((T, "new"), 0, 0)
    assert len(histories._series) == MAX_SERIES
    assert len(histories.note((T, "g0"), 0, 0)) == 2
    assert len(histories.note((T, "g1"), 0, 0)) == 1


@given(st.lists(st.integers(-2 * SPAN_MS, 2 * SPAN_MS), max_size=400))
def test_samples_are_in_order_and_within_bounds_whatever_the_clock_does(steps: list[int]) -> None:
    clock = Clock()
    histories = Histories(clock)
    for step in steps:
        clock.now += step
        found = [sample.at for sample in histories.note((T, ""), 1, 1)]
        assert found == sorted(set(found))
        assert 1 <= len(found) <= MAX_SAMPLES
        assert all(clock.now - SPAN_MS <= at <= clock.now for at in found)


def test_rate_is_that_since_the_oldest_sample_within_a_minute() -> None:
    samples = [Sample(0, 100, 0), Sample(30_000, 200, 0)]
    assert rate(samples, 10_000, 300) == 20.0
    assert rate(samples, 60_000, 400) == 5.0
    assert rate(samples, 65_000, 200) == 0.0
    assert rate(samples, 100_000, 200) is None


def test_rate_is_not_known_at_once_and_when_messages_went_away() -> None:
    assert rate([Sample(0, 100, 0)], 999, 200) is None
    assert rate([Sample(0, 100, 0)], 2_000, 99) is None
    assert rate([], 2_000, 99) is None
