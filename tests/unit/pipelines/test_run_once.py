"""A job that runs once, without Spark: it ends with its lease."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import pytest

from router import settings as all_settings
from router.backends.memory import MemoryBackend
from router.errors import SettingError
from router.pipelines import jobs
from router.pipelines.declaration import Pipeline, SourceSpec, Trigger
from router.pipelines.lease import RunningError
from router.pipelines.run import PipelineRun, RunOptions, Stop, check_complete
from router.pipelines.tables import Tables
from tests.processes import ManualClock
from tests.unit.pipelines.test_queries import LATE, FakeQuery, Starts, queries


class Lost:
    """A lease that another run has by now."""

    def check(self) -> None:
        raise RunningError("pipeline p lost its lease: it is another's")


class Held:
    """A lease that stays; who looks at it does what is `meanwhile`."""

    def __init__(self, meanwhile: Callable[[], None] = lambda: None) -> None:
        self._meanwhile = meanwhile

    def check(self) -> None:
        """Say nothing."""
        self._meanwhile()


def run(folder: Path, lease: object) -> PipelineRun:
    pipeline = Pipeline("p", SourceSpec(), checkpoint=str(folder))
    settings = all_settings.load(None, {}, {"data.dir": str(folder)})
    return PipelineRun(
        pipeline, settings, RunOptions(), MemoryBackend(), cast("Any", lease), Stop()
    )


def test_job_is_told_to_stop_and_fails_when_the_lease_is_lost(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    one, told = run(folder, Lost()), list[bool]()

    def job(context: jobs.JobContext) -> bool:
        told.append(context.stop.wait(30))
        return True

    monkeypatch.setattr(jobs, "run", job)
    with pytest.raises(RunningError, match="lost its lease"):
        one.once(cast("Any", None))
    assert told == [True]


@pytest.mark.parametrize("well", [True, False])
def test_job_says_how_it_ended_when_the_lease_is_kept(
    folder: Path, monkeypatch: pytest.MonkeyPatch, well: bool
) -> None:
    monkeypatch.setattr(jobs, "run", lambda _: well)
    assert run(folder, Held()).once(cast("Any", None)) is well


def test_rebuild_that_was_stopped_or_failed_is_not_complete(folder: Path) -> None:
    one = run(folder, Held())
    check_complete(one.pipeline, one.settings)  # it ran on another machine, if at all
    for state, error in (("stopped", ""), ("failed", "the disk is full")):
        one.write(state, error)
        with pytest.raises(SettingError, match=f"p is not at its end \\({state}\\)"):
            check_complete(one.pipeline, one.settings)
    one.stop.event.set()
    assert not one._watch(cast("Any", None), cast("Any", None)), "stopped before all was read"
    one.complete = True
    one.write("stopped")
    check_complete(one.pipeline, one.settings)


def test_query_that_fails_behind_the_check_is_started_again(
    folder: Path, clock: ManualClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("router.pipelines.run.POLL_SECONDS", 0)
    query, again = FakeQuery(), FakeQuery()
    again.active = False  # it comes to its end at once

    def fail() -> None:
        query.error, query.active = LATE, False

    one = run(folder, Held(fail))
    one.pipeline = replace(one.pipeline, trigger=Trigger(available_now=True))
    found = queries(clock)
    found.start("files", starts := Starts(query, again))
    assert one._watch(found, Tables(cast("Any", None), [], clock))
    assert starts.count == 2
