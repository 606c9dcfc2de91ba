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
    first = together(DEAD, LATEST, folder / "new", 1_000)
    assert first == replace(LATEST, starting="1000")
    assert together(DEAD, LATEST, folder / "new", 2_000) == first


@pytest.mark.parametrize("starting", ["earliest", "17"])
def test_source_stays_as_it_is_when_it_begins_elsewhere(folder: Path, starting: str) -> None:
    source = replace(LATEST, starting=starting)
    assert together(DEAD, source, folder, 1_000) is source
    assert together(ONE, LATEST, folder, 1_000) is LATEST
    assert not (folder / MOMENT_FILE).exists()


@pytest.mark.parametrize("kept", ["", "[]", "{}", '{"ms": "x"}'])
def test_damaged_moment_is_refused(folder: Path, kept: str) -> None:
    (folder / MOMENT_FILE).write_text(kept)
    with pytest.raises(SettingError, match=MOMENT_FILE):
        together(DEAD, LATEST, folder, 1_000)
