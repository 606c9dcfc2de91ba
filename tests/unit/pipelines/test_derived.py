"""Pipelines that commands make of a declared one: in order, with names and places of their own."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from click.testing import CliRunner

from router.cli import main
from router.errors import SettingError
from router.pipelines.declaration import SinkSpec
from router.pipelines.derived import maintain_of, rebuild_of, swap_of
from router.pipelines.finding import named
from router.pipelines.progress import write_status
from router.pipelines.run import check_declared
from tests.unit.pipelines.declared import GOOD, read

TABLE = SinkSpec("table", "delta", "large", path="tables/large/")


def test_pipeline_that_maintains_another_is_in_order_and_has_a_lease_of_its_own() -> None:
    found = maintain_of(read(), {"where": "date > '2026'"})
    check_declared(found)
    assert (found.name, found.checkpoint) == ("large.maintain", "")
    assert [sink.path for sink in found.sinks] == ["out", ""]


def test_rebuild_reads_a_range_into_a_folder_beside_the_table_and_sends_no_dead_letters() -> None:
    whole = replace(read(), checkpoint="ck/", bad_records="dlq", sinks=(*read().sinks, TABLE))
    found = rebuild_of(whole, "", 5, 9)
    check_declared(found)
    suffix = found.name.removeprefix("large")
    assert suffix.startswith(".rebuild-")
    assert (found.checkpoint, found.bad_records) == (f"ck{suffix}", "skip")
    assert [sink.path for sink in found.sinks] == [f"tables/large{suffix}"]
    source = found.source
    assert (source.starting, source.since_ms, source.until_ms) == ("5", 5, 9)
    assert rebuild_of(whole, "table", 0, 0).source.starting == "earliest"
    swap = swap_of(whole, "", (5, 9), "id > 2")
    check_declared(swap)
    assert swap.job is not None
    assert str(swap.job.options["shadow"]).endswith(found.sinks[0].path)


def test_rebuild_of_another_range_or_of_other_sql_begins_at_a_place_of_its_own() -> None:
    whole = replace(read(), sinks=(TABLE,))
    large, minutes = whole.steps
    changed = replace(whole, steps=(replace(large, sql=f"{large.sql} LIMIT 1"), minutes))
    moved = replace(whole, sinks=(replace(TABLE, declared=("sink", 9)),))
    names = [
        rebuild_of(*one).name for one in ((whole, "", 5, 9), (whole, "", 5, 8), (changed, "", 5, 9))
    ]
    assert len(set(names)) == 3
    assert rebuild_of(moved, "", 5, 9).name == names[0]


@pytest.mark.parametrize("name", ["", "files", "no"])
def test_rebuild_names_the_tables_that_there_are(name: str) -> None:
    several = replace(read(), sinks=(*read().sinks, TABLE, replace(TABLE, name="second")))
    with pytest.raises(SettingError, match="table, second"):
        rebuild_of(several, name, 0, 0)


def test_command_swaps_no_rebuild_in_that_is_not_at_its_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("router.cli.pipeline._run", lambda *_: pytest.fail("it runs"))
    table = '[[sink]]\nname = "table"\nkind = "delta"\nfrom = "large"\npath = "tables/large"\n'
    Path("large.toml").write_text(GOOD + table)
    rebuild = rebuild_of(named("large", tmp_path), "", 0, 0)
    write_status(Path(rebuild.checkpoint), {"state": "stopped", "complete": False})
    command = ["pipeline", "rebuild", "large", "--folder", "."]
    result = CliRunner().invoke(main, [*command, "--swap"])
    assert (result.exit_code, "is not at its end (stopped)" in result.stderr) == (78, True)
    result = CliRunner().invoke(main, [*command, "--where", "id = 1"])
    assert (result.exit_code, "--where is for --swap" in result.stderr) == (78, True)
