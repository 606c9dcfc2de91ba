"""Declarations that come with the router, and those of its pages, are in order as they are."""

from __future__ import annotations

import tomllib
from pathlib import Path

import pytest

from router.pipelines import jobs
from router.pipelines.finding import SHIPPED, write_new
from router.pipelines.loading import load, parse
from router.pipelines.reading import DeclarationError
from router.pipelines.run import check_declared
from tests.docs.console import ROOT, blocks

EXAMPLES = ROOT / "config" / "pipelines"
FILES = [*SHIPPED.glob("*.toml"), *EXAMPLES.glob("*.toml")]


@pytest.mark.parametrize("file", FILES, ids=lambda file: f"{file.parent.name}/{file.stem}")
def test_declaration_is_in_order(file: Path) -> None:
    pipeline = load(file, file.stem)
    check_declared(pipeline)
    assert pipeline.description.endswith(".")
    assert pipeline.checkpoint == f"pipelines/checkpoints/{file.stem}"


def test_no_two_declarations_share_a_checkpoint() -> None:
    found = [load(file, file.stem).checkpoint for file in FILES]
    assert len(set(found)) == len(found) > 7


def test_declarations_of_the_page_are_in_order(tmp_path: Path) -> None:
    texts = blocks(ROOT / "docs" / "pipelines.md", "toml")
    declarations = [text for text in texts if "[source]" in text]
    assert declarations
    for text in declarations:
        check_declared(parse(text, tmp_path / "page.toml", "page"))
    [example] = [text for text in declarations if "Large orders" in text]
    assert (EXAMPLES / "large-orders.toml").read_text("utf-8") == example


def test_test_of_the_page_is_the_shipped_one() -> None:
    [text] = [t for t in blocks(ROOT / "docs" / "pipelines.md", "toml") if "[[case]]" in t]
    shipped = (EXAMPLES / "tests" / "large-orders.toml").read_text("utf-8")
    for part in text.split("\n\n", 1):
        assert part in shipped


@pytest.mark.parametrize("kind", ["replay", "audit", "maintain", "validate"])
def test_job_with_a_wrong_key_is_refused_with_its_line(tmp_path: Path, kind: str) -> None:
    path = write_new("mine", kind, tmp_path)
    path.write_text(
        path.read_text("utf-8").replace('kind = "', 'unknwon = 1\nkind = "', 1), "utf-8"
    )
    text = path.read_text("utf-8")
    if kind == "validate":
        (tmp_path / "orders.schema.json").write_text("{}")
    line = text.splitlines().index("[job]") + 1
    with pytest.raises(
        DeclarationError, match=rf"mine.toml:{line}:1: unknwon is no key of the job"
    ):
        check_declared(load(path, "mine"))


def test_only_validate_is_a_stream() -> None:
    kinds = {file.stem: load(file, file.stem).job for file in SHIPPED.glob("*.toml")}
    streams = {name for name, job in kinds.items() if job is not None and jobs.streams(job)}
    assert streams == {"validate"}
    assert {name for name, job in kinds.items() if job is None} == {"archive", "rollup"}


def test_schema_that_is_missing_is_one_sentence(tmp_path: Path) -> None:
    path = write_new("mine", "validate", tmp_path)
    with pytest.raises(
        DeclarationError, match=r"mine.toml:\d+:1: the schema of orders cannot be read"
    ):
        check_declared(load(path, "mine"))
    assert tomllib.loads(path.read_text("utf-8"))["checkpoint"] == "pipelines/checkpoints/mine"


@pytest.mark.parametrize("kind", ["replay", "maintain"])
def test_replay_takes_a_checkpoint_on_this_machine_only(tmp_path: Path, kind: str) -> None:
    path = write_new("mine", kind, tmp_path)
    text = path.read_text("utf-8")
    here = 'checkpoint = "pipelines/checkpoints/mine"'
    path.write_text(text.replace(here, 'checkpoint = "file:///c"'), "utf-8")
    check_declared(load(path, "mine"))
    path.write_text(text.replace(here, 'checkpoint = "s3a://b/c"'), "utf-8")
    if kind == "replay":
        with pytest.raises(DeclarationError, match=r"mine.toml:\d+:1: .*, and s3a://b/c is none"):
            check_declared(load(path, "mine"))
    else:
        check_declared(load(path, "mine"))
