"""The page on architecture names files that there are: who adds something starts from it."""

from __future__ import annotations

import re

from tests.docs.console import ROOT

PAGES = ("architecture", "contributing", "testing")
FOLDERS = ("bench", "config", "deploy", "docs", "router", "tests")
# A path in code marks; one with a placeholder names no file.
PATH = re.compile(r"`([a-z_0-9/.]+/|[A-Za-z_0-9/.]+\.(?:py|proto|yaml))`")


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
