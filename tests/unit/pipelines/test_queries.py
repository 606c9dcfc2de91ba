"""Queries of a run: which are started again, and which end it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from router.pipelines.progress import PipelineProgress
from router.pipelines.queries import RESTART_SECONDS, Queries, Retries, RunFailedError
from tests.processes import ManualClock

LATE = "Python worker failed to connect back.\n=== Streaming Query ==="
_REFUSED = "[STREAM_FAILED] org.apache.kafka.common.errors.SaslAuthenticationException: "
THROTTLED = f"{_REFUSED}too-many-requests: There were too many password checks."
MISSED = (
    "[FAILED_READ_FILE.FILE_NOT_EXIST] Encountered error while reading file"
    " file:///tables/1.json. File does not exist."
)


class FakeQuery:
    """A query of Spark's as far as it is looked at."""

    def __init__(self, error: str | None = None) -> None:
        self.error = error
        self.active = error is None
        self.trigger = False

    @property
    def isActive(self) -> bool:  # noqa: N802 - Spark's name
        return self.active

    @property
    def status(self) -> dict[str, Any]:
        return {"isTriggerActive": self.trigger}

    def exception(self) -> Exception | None:
        return None if self.error is None else RuntimeError(self.error)

    def stop(self) -> None:
        self.active = False


class Starts:
    """Gives queries one after the other, and counts them."""

    def __init__(self, *queries: FakeQuery) -> None:
        self.left = list(queries)
        self.count = 0

    def __call__(self) -> Any:
        self.count += 1
        return self.left.pop(0)


def queries(
    clock: ManualClock, retry_seconds: float = 60.0, reread: Callable[[], bool] = lambda: True
) -> Queries:
    return Queries(PipelineProgress(clock), retries(clock, retry_seconds), reread)


def retries(clock: ManualClock, retry_seconds: float = 60.0) -> Retries:
    """Return retries whose pauses pass at once."""

    def wait(seconds: float) -> bool:
        clock.now += seconds
        return False

    return Retries(retry_seconds, wait, clock)


@pytest.mark.parametrize("reason", [LATE, THROTTLED])
def test_query_that_ended_with_what_passes_is_started_again(
    clock: ManualClock, reason: str
) -> None:
    found, starts = queries(clock), Starts(FakeQuery(reason), FakeQuery())
    found.start("files", starts)
    found.check({})
    assert found.running()
    assert starts.count == 2
    found.check({})
    assert starts.count == 2


def test_queries_are_started_again_one_at_a_time(clock: ManualClock) -> None:
    found = queries(clock)
    all_starts = [Starts(FakeQuery(LATE), FakeQuery()) for _ in range(3)]
    for number, starts in enumerate(all_starts):
        found.start(str(number), starts)
    for restarted in range(1, 4):
        found.check({})
        assert sum(starts.count for starts in all_starts) == 3 + restarted
        clock.now += RESTART_SECONDS


def test_workers_that_are_late_for_ever_end_the_run(clock: ManualClock) -> None:
    found = queries(clock)
    found.start("files", Starts(*(FakeQuery(LATE) for _ in range(20))))
    for _ in range(6):
        found.check({})
        clock.now += RESTART_SECONDS
    with pytest.raises(RunFailedError, match="sink files: Python worker failed to connect back"):
        found.check({})


def test_query_that_ran_idle_for_long_is_started_again_for_as_long_as_the_first_time(
    clock: ManualClock,
) -> None:
    found, second = queries(clock), FakeQuery()
    found.start("s", starts := Starts(FakeQuery(LATE), second, FakeQuery()))
    found.check({})
    clock.advance(3600)
    found.check({})
    second.error, second.active = LATE, False
    found.check({})
    assert starts.count == 3


def test_any_other_failure_ends_the_run_with_its_reason(clock: ManualClock) -> None:
    found = queries(clock)
    found.start("files", Starts(FakeQuery("boom\n\nat org.apache.x")))
    with pytest.raises(RunFailedError, match=r"sink files: boom$"):
        found.check({})
    with pytest.raises(RunFailedError, match="sink files: the disk is full"):
        found.check({"files": "the disk is full"})


def test_wrong_password_ends_the_run_at_once(clock: ManualClock) -> None:
    found = queries(clock)
    # The SQL of a pipeline stands in what Spark says, whatever is in it.
    text = "The password is wrong.\n== SQL ==\nSELECT 'too-many-requests: '"
    found.start("files", Starts(FakeQuery(_REFUSED + text)))
    with pytest.raises(RunFailedError, match=r"The password is wrong\.$"):
        found.check({})


def test_table_that_was_written_again_is_read_once_more_when_it_has_files(
    clock: ManualClock,
) -> None:
    looked: list[float] = []

    def reread() -> bool:
        looked.append(clock.now)
        return len(looked) > 1

    found, begun = queries(clock, reread=reread), clock.now
    starts = Starts(FakeQuery(MISSED), FakeQuery(MISSED))
    found.start("files", starts)
    for _ in range(2):
        found.check({})
        # What writes it again may not be done yet.
        assert looked == []
        clock.now += RESTART_SECONDS / 2
    found.check({})
    assert starts.count == 1
    clock.now += RESTART_SECONDS
    found.check({})
    assert looked == [begun + RESTART_SECONDS, begun + 2 * RESTART_SECONDS]
    assert starts.count == 2
    with pytest.raises(RunFailedError, match=r"the file /tables/1\.json is not there any more"):
        found.check({})
    assert len(looked) == 2


def test_table_that_is_not_written_again_ends_the_run(clock: ManualClock) -> None:
    found = queries(clock, 2 * RESTART_SECONDS, reread=lambda: False)
    found.start("files", starts := Starts(FakeQuery(MISSED)))
    for _ in range(3):
        found.check({})
        clock.now += RESTART_SECONDS
    with pytest.raises(RunFailedError, match=r"the file /tables/1\.json is not there any more"):
        found.check({})
    assert starts.count == 1


def test_query_that_ended_well_is_done(clock: ManualClock) -> None:
    found, query = queries(clock), FakeQuery()
    found.start("files", Starts(query))
    query.active = False
    found.check({})
    assert not found.running()


def test_query_is_between_batches_when_none_is_under_way(clock: ManualClock) -> None:
    found, query = queries(clock), FakeQuery()
    found.start("files", Starts(query))
    query.trigger = True
    assert not found.between("files", 0)
    assert found.between("files", -1)
    query.trigger = False
    assert found.between("files", 0)


def failing(times: int, reason: str) -> Callable[[], int]:
    """Return a call that fails so often; it returns how often it was called."""
    called = 0

    def call() -> int:
        nonlocal called
        called += 1
        if called <= times:
            raise RuntimeError(reason)
        return called

    return call


def test_call_is_repeated_while_workers_start_late(clock: ManualClock) -> None:
    assert retries(clock).call(failing(3, LATE)) == 4


def test_call_that_fails_otherwise_is_not_repeated(clock: ManualClock) -> None:
    with pytest.raises(RuntimeError, match="boom"):
        retries(clock).call(failing(1, "boom"))


def test_call_is_repeated_no_longer_than_its_patience(clock: ManualClock) -> None:
    begun = clock.now
    with pytest.raises(RuntimeError, match="connect back"):
        retries(clock, 60.0).call(failing(100, LATE))
    assert 60 <= clock.now - begun <= 60 + RESTART_SECONDS


def test_call_is_not_repeated_when_the_run_is_told_to_stop(clock: ManualClock) -> None:
    stopping = Retries(60.0, lambda _: True, clock)
    with pytest.raises(RuntimeError, match="connect back"):
        stopping.call(failing(1, LATE))


def test_query_that_cannot_be_started_for_want_of_a_worker_is_started_again(
    clock: ManualClock,
) -> None:
    found, calls = queries(clock), failing(2, LATE)

    def start() -> Any:
        calls()
        return FakeQuery()

    found.start("files", start)
    assert found.running()
