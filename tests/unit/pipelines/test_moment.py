"""All sinks of a pipeline begin at one moment, also when a run was killed between their starts."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from router.errors import SettingError
from router.pipelines.declaration import Pipeline, SinkSpec, SourceSpec
from router.pipelines.schemas import MOMENT_FILE, together

LATEST = SourceSpec(topics=("t",), starting="latest")
ONE = Pipeline("p", LATEST, sinks=(SinkSpec("s", "topic", topic="t"),))
DEAD = replace(ONE, bad_records="dlq")


def test_sinks_begin_at_the_time_of_the_first_run_when_there_are_several(folder: Path) -> None:
    sources = {"records": LATEST, "others": replace(LATEST, starting="earliest")}
    first = together(DEAD, sources, folder / "new", 1_000)
    assert first == {**sources, "records": replace(LATEST, starting="1000")}
    assert together(DEAD, sources, folder / "new", 2_000) == first


@pytest.mark.parametrize("starting", ["earliest", "17"])
def test_source_stays_as_it_is_when_it_begins_elsewhere(folder: Path, starting: str) -> None:
    source = {"records": replace(LATEST, starting=starting)}
    assert together(DEAD, source, folder, 1_000) == source
    assert together(ONE, {"records": LATEST}, folder, 1_000) == {"records": LATEST}
    assert not (folder / MOMENT_FILE).exists()


@pytest.mark.parametrize("kept", ["", "[]", "{}", '{"ms": "x"}'])
def test_damaged_moment_is_refused(folder: Path, kept: str) -> None:
    (folder / MOMENT_FILE).write_text(kept)
    with pytest.raises(SettingError, match=MOMENT_FILE):
        together(DEAD, {"records": LATEST}, folder, 1_000)
