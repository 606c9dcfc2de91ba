"""The bound on how fast a job publishes holds for any batches and any pauses."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from router.pipelines.jobs.replaying import ReplayPace
from tests.processes import ManualClock


@given(
    rate=st.floats(0.5, 10_000),
    steps=st.lists(st.tuples(st.integers(1, 5_000), st.floats(0, 10)), max_size=30),
)
def test_rows_never_leave_faster_than_the_rate_whatever_the_batches(
    rate: float, steps: list[tuple[int, float]]
) -> None:
    clock = ManualClock()

    def wait(seconds: float) -> bool:
        clock.advance(seconds)
        return False

    pace = ReplayPace(rate, clock, wait)
    starts: list[tuple[float, int]] = []
    for rows, busy in steps:
        assert pace.before(rows)
        starts.append((clock(), rows))
        clock.advance(busy)
    for i, (begin, _) in enumerate(starts):
        for j in range(i + 1, len(starts)):
            sent = sum(rows for _, rows in starts[i:j])
            assert sent <= rate * (starts[j][0] - begin) * (1 + 1e-6) + 1e-3


def test_a_pause_is_not_saved_up_when_the_store_was_slow() -> None:
    clock = ManualClock()
    waits: list[float] = []

    def wait(seconds: float) -> bool:
        waits.append(seconds)
        clock.advance(seconds)
        return False

    pace = ReplayPace(10, clock, wait)
    clock.advance(100)
    assert pace.before(20)
    assert pace.before(20)
    assert waits == [2.0]


def test_rest_of_a_file_starts_at_the_end_of_its_time_and_the_next_file_waits() -> None:
    clock = ManualClock()

    def wait(seconds: float) -> bool:
        clock.advance(seconds)
        return False

    pace, begin = ReplayPace(1, clock, wait, file_seconds=60), clock()
    starts = []
    for first in (True, False, False, False, True, False):
        assert pace.before(50, first=first)
        starts.append(clock() - begin)
    assert starts == [0, 50, 60, 60, 200, 250]


def test_pace_gives_up_when_told_to_stop() -> None:
    pace = ReplayPace(1, ManualClock(), lambda _: True)
    assert pace.before(5)
    assert not pace.before(5)
