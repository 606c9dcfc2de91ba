"""What all templates and scripts of the console have to have."""

from __future__ import annotations

import re
from importlib import resources
from typing import Final

import pytest

FOLDER: Final = resources.files("router.web.console")
TEMPLATES: Final = {
    found.name: found.read_text(encoding="utf-8")
    for found in (FOLDER / "templates").iterdir()
    if found.name.endswith(".html")
}
SCRIPTS: Final = {
    found.name: found.read_text(encoding="utf-8")
    for found in (FOLDER / "static").iterdir()
    if found.name.endswith(".js")
}
STYLES: Final = {
    found.name: found.read_text(encoding="utf-8")
    for found in (FOLDER / "static").iterdir()
    if found.name.endswith(".css")
}
MAX_BYTES: Final = 90 * 1024
_FORM: Final = re.compile(r"<form\b([^>]*)>(.*?)</form>", re.S | re.I)


@pytest.mark.parametrize("name", TEMPLATES)
def test_form_that_changes_something_has_the_token(name: str) -> None:
    text = TEMPLATES[name]
    forms = _FORM.findall(text)
    assert len(forms) == len(re.findall(r"<form\b", text, re.I)), "a form is not closed"
    for attributes, inside in forms:
        posts = re.search(r"""method\s*=\s*["']?post""", attributes, re.I)
        assert bool(posts) == ("{{ csrf() }}" in inside), attributes
    # A button may have a form sent by another method.
    assert "formmethod" not in text


@pytest.mark.parametrize("name", SCRIPTS)
def test_scripts_ask_by_the_function_that_sends_the_token(name: str) -> None:
    calls = len(re.findall(r"\bfetch\(", SCRIPTS[name]))
    assert calls == (1 if name == "console.js" else 0)
    assert "XMLHttpRequest" not in SCRIPTS[name]
    assert "sendBeacon" not in SCRIPTS[name]


def test_scripts_and_styles_are_small() -> None:
    assert sum(len(text.encode()) for text in (SCRIPTS | STYLES).values()) <= MAX_BYTES


@pytest.mark.parametrize("name", sorted(set(STYLES) - {"tokens.css"}))
def test_colours_are_tokens(name: str) -> None:
    assert re.findall(r"#[0-9a-fA-F]{3,8}\b", STYLES[name]) == []
    used = set(re.findall(r"var\((--[\w-]+)\)", STYLES[name]))
    assert used <= set(re.findall(r"(--[\w-]+):", STYLES["tokens.css"]))
