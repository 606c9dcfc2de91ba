"""The page on architecture names files that there are: who adds something starts from it."""

from __future__ import annotations

import re

from tests.docs.console import ROOT

PAGES = ("architecture", "contributing", "testing")
FOLDERS = ("bench", "config", "deploy", "docs", "router", "tests")
# A path in code marks; one with a placeholder names no file.
PATH = re.compile(r"`([a-z_0-9/.]+/|[A-Za-z_0-9/.]+\.(?:py|js|proto|yaml))`")


def places() -> set[str]:
    """Return the files of the project and its folders, each folder with a slash at its end."""
    found = {f"/{folder}/" for folder in FOLDERS}
    for folder in FOLDERS:
        for path in (ROOT / folder).rglob("*"):
            found.add(f"/{path.relative_to(ROOT)}{'/' if path.is_dir() else ''}")
    return found


def test_files_that_pages_name_are_there() -> None:
    found = places()
    for page in PAGES:
        text = (ROOT / "docs" / f"{page}.md").read_text("utf-8")
        named = set(PATH.findall(text))
        lost = {path for path in named if not any(one.endswith(f"/{path}") for one in found)}
        assert lost == set(), page


def test_places_of_changes_are_whole_paths() -> None:
    text = (ROOT / "docs" / "architecture.md").read_text("utf-8")
    table = text.partition("## Where to add something")[2].partition("\n## ")[0]
    lost = []
    for row in table.split("\n| ")[3:]:
        change, *columns = row.split(" | ")
        assert len(columns) == 2, change
        for base, places in zip(("router", "tests"), columns, strict=True):
            folder = ROOT
            for path in PATH.findall(places):
                alone = "/" not in path and (folder / path).exists()
                within = folder if alone else ROOT / base
                if not (within / path).exists():
                    lost.append((change, path))
                folder = within / path if path.endswith("/") else (within / path).parent
    assert lost == []
