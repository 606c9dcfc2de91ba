"""The histogram of `router bench` against the sorted list of what it counted."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from router.cli.histogram import PERCENTILES, SUB_BUCKETS, Histogram

durations = st.lists(st.integers(0, 10**9).map(lambda us: us / 1_000_000), min_size=1, max_size=60)


def counted(seconds: list[float]) -> Histogram:
    found = Histogram()
    for one in seconds:
        found.record(one)
    return found


@given(seconds=durations)
def test_percentiles_are_those_of_the_list_but_for_the_width_of_a_bucket(
    seconds: list[float],
) -> None:
    found, ranked = counted(seconds), sorted(round(one * 1_000_000) for one in seconds)
    for percent in PERCENTILES:
        exact = ranked[max(1, -int(-len(ranked) * percent // 100)) - 1]
        assert exact <= found.percentile(percent) <= exact * (1 + 1 / SUB_BUCKETS)
    assert (found.least, found.most, found.count) == (ranked[0], ranked[-1], len(ranked))


@given(seconds=durations, others=durations)
def test_a_sum_of_histograms_is_the_histogram_of_all(
    seconds: list[float], others: list[float]
) -> None:
    found = counted(seconds)
    found.add(counted(others))
    assert found == counted(seconds + others)


@given(seconds=durations)
def test_doublings_count_everything_once(seconds: list[float]) -> None:
    assert sum(count for _, count in counted(seconds).doublings()) == len(seconds)


def test_a_histogram_of_nothing_says_so() -> None:
    assert set(Histogram().summary().values()) == {None}
    assert list(Histogram().doublings()) == []
