"""Staged batches are whole or absent, whatever is killed or cut in between."""

from __future__ import annotations

from pathlib import Path

import pytest

from router.errors import ReadFailedError
from router.pipelines.sinks.staging import SinkTopic, Staged, Staging, StagingDisk, StagingPlan
from tests.unit.pipelines.staged import CrashError, FailingDisk, writing

OLD = [(b"k", b"old %d" % n) for n in range(9)]
NEW = [(b"k", b"new %d" % n) for n in range(9)]
PLAN = StagingPlan("t")
STEPS = 12


def contents(staged: Staged) -> list[bytes]:
    return [path.read_bytes() for path in staged.files]


def make(folder: Path, disk: StagingDisk | None = None) -> Staged:
    return Staging(folder, "q", disk).make(3, writing(OLD), PLAN)


@pytest.mark.parametrize("after", [False, True])
@pytest.mark.parametrize("step", range(1, STEPS))
def test_make_leaves_a_whole_batch_or_none_when_it_is_killed_at_a_step(
    folder: Path, step: int, after: bool
) -> None:
    disk = FailingDisk(step, after=after)
    try:
        make(folder / "staging", disk)
    except CrashError:
        pass
    else:
        assert disk.steps < step, "it was not killed"
    staging = Staging(folder / "staging", "q")
    found = staging.find(3)
    again = found or staging.make(3, writing(NEW), PLAN)
    expected = make(folder / "other") if found else again
    assert contents(again) == contents(expected)
    assert [path.name for path in (folder / "staging").iterdir()].count("batch=3") == 1


def test_make_takes_more_steps_than_one_and_less_than_are_tried(folder: Path) -> None:
    disk = FailingDisk(0, after=False)
    make(folder / "staging", disk)
    assert 4 < disk.steps < STEPS


def test_make_refuses_what_spark_did_not_finish(folder: Path) -> None:
    staging = Staging(folder / "staging", "q")
    with pytest.raises(ReadFailedError, match="not written to its end"):
        staging.make(3, writing(OLD, whole=False), PLAN)
    assert staging.find(3) is None


def test_find_gives_the_plan_of_then_when_limits_changed_since(folder: Path) -> None:
    plan = StagingPlan("t", rows=3, bytes=100, window_rows=7, window_bytes=500)
    Staging(folder, "q").make(0, writing(OLD), plan)
    found = Staging(folder, "q").find(0)
    assert found is not None
    assert found.plan == plan


@pytest.mark.parametrize("begun", [False, True])
def test_find_gives_nothing_of_a_batch_that_is_cut_anywhere(folder: Path, begun: bool) -> None:
    whole = make(folder / "whole")
    names = [path.name for path in whole.files] + ["manifest.json"]
    for name in names:
        size = (whole.folder / name).stat().st_size
        for length in {0, 1, size // 2, size - 1}:
            at = folder / f"{name}-{length}"
            staging = Staging(at, "q")
            staged = make(at)
            if begun:
                staging.begin(staged, 1, "p")
            with (staged.folder / name).open("r+b") as file:
                file.truncate(length)
            if begun:
                with pytest.raises(ReadFailedError, match="published already"):
                    staging.find(3)
            else:
                assert staging.find(3) is None
                assert staging.batches() == []


def test_find_refuses_a_batch_of_another_checkpoint(folder: Path) -> None:
    make(folder)
    with pytest.raises(ReadFailedError, match="belongs to a checkpoint that is gone"):
        Staging(folder, "another").find(3)


def test_begin_tells_the_first_time_when_it_is_called_again(folder: Path) -> None:
    staged = make(folder)
    assert [Staging(folder, "q").begin(staged, now, "p") for now in (5, 9)] == [5, 5]


def test_places_are_what_was_decided_when_another_process_looks(folder: Path) -> None:
    staged = make(folder)
    assert Staging(folder, "q").places(staged) is None
    Staging(folder, "q").decide(staged, {"t": SinkTopic("persistent://a/b/t", 4)})
    assert Staging(folder, "q").places(staged) == {"t": SinkTopic("persistent://a/b/t", 4)}


@pytest.mark.parametrize("name", ["begun.json", "places.json"])
def test_notes_that_are_damaged_are_refused(folder: Path, name: str) -> None:
    staged = make(folder)
    (staged.folder / name).write_bytes(b'{"ms"')
    staging = Staging(folder, "q")
    with pytest.raises(ReadFailedError, match="is damaged"):
        staging.begin(staged, 1, "p") if name == "begun.json" else staging.places(staged)


@pytest.mark.parametrize("after", [False, True])
@pytest.mark.parametrize("step", [1, 2])
def test_forget_leaves_nothing_of_a_batch_when_it_is_killed_and_another_is_made(
    folder: Path, step: int, after: bool
) -> None:
    make(folder)
    with pytest.raises(CrashError):
        Staging(folder, "q", FailingDisk(step, after=after)).forget(lambda batch: batch < 4)
    staging = Staging(folder, "q")
    staging.forget(lambda batch: batch < 4)
    staging.make(4, writing(NEW), PLAN)
    assert [path.name for path in folder.iterdir()] == ["batch=4"]


def test_discard_keeps_a_batch_that_was_begun(folder: Path) -> None:
    staging, staged = Staging(folder, "q"), make(folder)
    staging.begin(staged, 1, "p")
    with pytest.raises(ReadFailedError):
        staging.discard(staged)
    assert staging.find(3) == staged
