"""The page about pipelines knows every key of a declaration, and no other."""

from __future__ import annotations

import re

import pytest
import yaml

from router.cli.pipeline import command
from router.pipelines.jobs.options import KEYS
from tests.docs.console import ROOT

PAGE = (ROOT / "docs" / "pipelines.md").read_text(encoding="utf-8")
PACKAGE = ROOT / "router" / "pipelines"
# How `loading` reads the keys of each table: the function, and what its keys begin with.
TABLES = {
    "_pipeline": "",
    "_source": "source.",
    "_starting": "source.",
    "_watermark": "source.watermark.",
    "_tables": "table.",
    "_steps": "step.",
    "_sink": "sink.",
    "_trigger": "trigger.",
    "_limits": "limits.",
    "_job": "job.",
}
_READ = re.compile(
    r'(?:table|inner|top)\.(?:text|number|share|flag|seconds|choice|words|texts)\(\s*"(\w+)"'
)


def declared() -> set[str]:
    """Return the keys that the reader of declarations asks for, by their full names."""
    source = (PACKAGE / "loading.py").read_text(encoding="utf-8")
    found = {"source.watermark", "step.watermark", "source.settings", "resources"}
    # The names of views are read in one place; a stream has the keys of a source.
    found |= {"stream.name", "table.name", "table.options", "step.name"}
    for function in re.split(r"^def ", source, flags=re.MULTILINE)[1:]:
        name = function.partition("(")[0]
        found |= {TABLES[name] + key for key in _READ.findall(function) if name in TABLES}
    return found


def tables(text: str) -> dict[str, tuple[str, str]]:
    """Return default and meaning of the keys that the tables of a text have."""
    rows = [line.strip("|").split("|") for line in text.splitlines() if line.startswith("| `")]
    cells = [[cell.strip() for cell in row] for row in rows if len(row) == 3]
    return {name.strip("`"): (default, said) for name, default, said in cells}


def documented() -> set[str]:
    """Return the keys that the page's tables have."""
    keys = ("source.", "stream.", "table.", "step.", "sink.", "trigger.", "limits.", "job.")
    top = {"description", "checkpoint", "bad_records", "dead_letters", "resources"}
    return {name for name in tables(PAGE) if name in top or name.startswith(keys)}


def test_every_key_of_a_declaration_is_documented_and_no_other() -> None:
    jobs = {f"job.{name}" for keys in KEYS.values() for name in keys}
    assert len(declared()) > 25
    assert documented() == declared() | jobs


@pytest.mark.parametrize("kind", KEYS)
def test_keys_of_a_job_are_documented_with_what_they_are_without(kind: str) -> None:
    section = PAGE.partition(f"\n### {kind}\n")[2].partition("\n#")[0]
    rows = {name.removeprefix("job."): row for name, row in tables(section).items()}
    assert {name: said for name, (_, said) in rows.items()} == {
        name: key.sentence for name, key in KEYS[kind].items()
    }
    for name, key in KEYS[kind].items():
        if isinstance(key.default, bool):
            assert rows[name][0] == f"`{str(key.default).lower()}`"
        elif key.default and isinstance(key.default, str | float):
            text = f"{key.default:g}" if isinstance(key.default, float) else key.default
            assert rows[name][0] == f"`{text}`"
        elif key.default is None:
            assert not rows[name][0]


def test_every_shipped_pipeline_is_documented() -> None:
    shipped = {path.stem for path in (PACKAGE / "shipped").glob("*.toml")}
    assert len(shipped) == 6
    assert {name for name in shipped if f"\n| `{name}` |" in PAGE} == shipped


def test_examples_for_other_tools_can_be_read() -> None:
    section = PAGE.partition("\n## Airflow and dbt\n")[2].partition("\n## ")[0]
    [dag], [sources] = (
        re.findall(rf"```{kind}\n(.*?)```", section, re.DOTALL) for kind in ("python", "yaml")
    )
    compile(dag, "dag.py", "exec")
    [source] = yaml.safe_load(sources)["sources"]
    assert [table["name"] for table in source["tables"]] == ["customers", "router_batches"]
    called = set(re.findall(r"router pipeline (\w+) orders", dag))
    assert called == {"run", "maintain"} <= set(command.commands)
