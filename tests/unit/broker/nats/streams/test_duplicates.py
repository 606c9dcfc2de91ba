"""The ids of messages within the duplicate window."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from router.broker.nats.streams.log.duplicates import MessageIds

STEPS = st.lists(st.tuples(st.sampled_from("abc"), st.integers(0, 5)), max_size=12)


@given(steps=STEPS, window=st.integers(1, 8))
def test_an_id_is_known_for_as_long_as_the_window(
    steps: list[tuple[str, int]], window: int
) -> None:
    ids, now = MessageIds(), 0
    stored: dict[str, tuple[int, int]] = {}
    for sequence, (message_id, later) in enumerate(steps, 1):
        now += later
        ids.add(message_id, sequence, now, now - window)
        stored[message_id] = sequence, now
        for one, (place, time) in stored.items():
            assert ids.find(one, now - window) == (place if time > now - window else 0)


def test_an_id_that_is_older_than_the_window_is_forgotten_when_it_comes() -> None:
    ids = MessageIds()
    ids.add("late", 1, 5, 10)
    assert len(ids) == 0
