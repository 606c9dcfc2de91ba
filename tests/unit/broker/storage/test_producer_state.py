"""What producers stored last is remembered, for a time and for so many."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from router.broker.storage.producer_state import ProducerState, ProducerStates


def test_what_a_producer_stored_last_is_remembered() -> None:
    producers = ProducerStates(1000, 10)
    mark = ProducerState(7, 3, 1, 0)
    producers.record("p", mark)
    assert producers.last("other") is None
    assert producers.last("p") == mark


def test_the_one_used_longest_ago_goes_when_there_are_too_many() -> None:
    producers = ProducerStates(1000, 2)
    for name in ("a", "b", "a", "c"):
        producers.record(name, ProducerState(0, 0, 1, 0))
    assert [name for name, _mark in producers] == ["a", "c"]
    assert len(producers) == 2


@given(st.lists(st.tuples(st.sampled_from("abcd"), st.integers(0, 50)), max_size=20))
def test_marks_older_than_the_window_are_forgotten(uses: list[tuple[str, int]]) -> None:
    producers, now, last = ProducerStates(100, 10), 0, dict[str, int]()
    for name, pause in uses:
        now += pause
        producers.record(name, ProducerState(0, 0, 1, now))
        last[name] = now
    gone = producers.expire(now + 60)
    assert set(gone) == {name for name, used in last.items() if used <= now - 40}
    assert {name for name, _mark in producers} == set(last) - set(gone)
