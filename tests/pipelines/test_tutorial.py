"""The tutorial of docs/pipelines.md, command for command, and a replay of what it archived."""

from __future__ import annotations

import re
import sys
from pathlib import Path

import pytest

from tests.pipelines.pages import done
from tests.pipelines.quick import ready

pytestmark = [pytest.mark.timeout(900), pytest.mark.java, pytest.mark.system, pytest.mark.slow]

PAGE = Path(__file__).parents[2] / "docs" / "pipelines.md"
ORDER = '{"id": %d, "customer": "anna", "cents": %d}'


def blocks(kind: str) -> list[str]:
    """Return the tutorial's blocks of a language."""
    tutorial = PAGE.read_text().partition("## Ten minutes")[2].partition("\n## ")[0]
    return re.findall(rf"```{kind}\n(.*?)```", tutorial, re.DOTALL)


def test_tutorial_ends_with_the_table_that_it_shows(user: Path) -> None:
    ready()
    installing, commands = blocks("sh")
    (query,), (shown,) = blocks("python"), blocks("text")
    assert "router pipeline install" in installing
    done(user, "bash", "-euo", "pipefail", "-c", commands)
    assert shown.strip() in done(user, sys.executable, "-c", query)
    archive = "pipelines/tables/archive"
    done(user, "router", "pipeline", "replay", archive, "--to", "again", "--rate", "100000")
    again = done(user, "router", "sub", "again", "--from", "earliest", "--count", "1000")
    assert again.splitlines() == [ORDER % (number, number) for number in range(1, 1001)]
