"""The lines that pages show for a shell."""

from __future__ import annotations

import subprocess

import pytest

from router.model import Principal
from router.web.console import commands


@pytest.mark.parametrize(
    "text",
    ["plain", "two words", "it's", "$(id)", "`id`", "a\nb", "\\", "", "ä€", "-n", "*", "a;b|c&d"],
)
@pytest.mark.parametrize(
    "control", ["", "\u202e", "\ufeff", "\x1b[201~", "\r", "\x7f", "\x9b", "\x00"[:0]]
)
def test_word_comes_out_of_a_shell_as_it_was(text: str, control: str) -> None:
    line = commands.word(text + control)
    said = subprocess.run(
        ["bash", "-c", f"printf %s {line}"], capture_output=True, check=True, timeout=30
    )
    assert said.stdout.decode() == text + control
    assert not set(line) & {"\u202e", "\ufeff", "\x1b", "\r", "\x7f", "\x9b"}


def test_one_with_a_name_is_asked_for_the_password() -> None:
    assert commands.curl(Principal("anna"), "http://h/topics") == "curl -u anna http://h/topics"
    assert commands.curl(Principal(), "http://h/t?a&b") == "curl 'http://h/t?a&b'"
