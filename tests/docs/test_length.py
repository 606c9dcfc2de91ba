"""The documentation stays short: a reader has hours for it, not days."""

from __future__ import annotations

import re

from tests.docs.console import ROOT

# README and all pages, commands and tables included; a token without a letter is no word.
MAX_WORDS = 55_000


def words(text: str) -> int:
    """Return how many of the tokens of a text have a letter."""
    return sum(1 for token in text.split() if re.search("[A-Za-z]", token))


def test_a_word_has_a_letter() -> None:
    assert words("| 12 | a word: 3 %, `x=1` |") == 3


def test_all_pages_together_are_short() -> None:
    pages = {path.name: words(path.read_text("utf-8")) for path in (ROOT / "docs").glob("*.md")}
    pages["README.md"] = words((ROOT / "README.md").read_text("utf-8"))
    longest = sorted(pages.items(), key=lambda page: -page[1])[:8]
    assert sum(pages.values()) <= MAX_WORDS, f"shorten a page; the longest are {longest}"


def test_every_page_opens_with_whom_it_serves() -> None:
    silent = []
    for path in sorted((ROOT / "docs").glob("*.md")):
        text = re.sub(r"<!--.*?-->", "", path.read_text("utf-8"), flags=re.DOTALL)
        title, opening, *_ = [part for part in text.split("\n\n") if part.strip()]
        assert title.lstrip().startswith("# "), path.name
        if not opening.strip().startswith("For "):
            silent.append(path.name)
    assert silent == []
