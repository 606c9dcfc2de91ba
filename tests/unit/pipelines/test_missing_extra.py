"""`router pipeline` where the extra is not installed: what works without it, and one sentence."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

WITHOUT = """
import sys
for name in ("sqlglot", "jsonschema", "pyspark", "pyarrow", "pandas", "delta", "py4j"):
    sys.modules[name] = None
from router.cli import main
main(sys.argv[1:])
"""
DECLARED = """
[source]
topics = ["orders"]

[[sink]]
kind = "topic"
topic = "copies"
"""


def router(folder: Path, *words: str) -> tuple[int, str]:
    """Run a command of the router where nothing of the extra can be imported."""
    (folder / "config" / "pipelines").mkdir(parents=True, exist_ok=True)
    (folder / "config" / "pipelines" / "copy.toml").write_text(DECLARED)
    done = subprocess.run(
        [sys.executable, "-c", WITHOUT, "pipeline", *words],
        cwd=folder,
        capture_output=True,
        timeout=50,
        check=False,
        text=True,
    )
    return done.returncode, done.stdout + done.stderr


@pytest.mark.slow
@pytest.mark.parametrize(
    ("words", "status", "said"),
    [
        (("list",), 0, "copy"),
        (("new", "other"), 0, "config/pipelines/other.toml"),
        (("status", "copy"), 1, "copy: never ran"),
    ],
)
def test_command_works_without_the_extra_when_it_needs_nothing_of_it(
    folder: Path, words: tuple[str, ...], status: int, said: str
) -> None:
    found, text = router(folder, *words)
    assert (found, said in text) == (status, True), text


@pytest.mark.slow
@pytest.mark.parametrize(
    "words", [("check", "copy"), ("run", "copy"), ("run", "validate"), ("replay", "archive")]
)
def test_command_says_what_to_install_when_it_needs_the_extra(
    folder: Path, words: tuple[str, ...]
) -> None:
    status, text = router(folder, *words)
    assert status == 78
    assert text.count("\n") == 1
    assert text.endswith(
        "is missing, which pipelines need: install dragoman with its extra `pipelines`,"
        " in a checkout pip install '.[pipelines]'\n"
    )
