"""Every curl of the documentation runs, and answers what the page says."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

import pytest

from tests.docs.console import ROOT, URL, Step, blocks, steps
from tests.system.stack import Stack

PAGES = [
    "README.md",
    "docs/tutorial.md",
    "docs/howto.md",
    "docs/http.md",
    "docs/pulsar-rest.md",
    "docs/pulsar-admin.md",
    "docs/jetstream-http.md",
    "docs/migrating-from-message-router.md",
]
RUN_ON_SERVERS = "docs/growing.md"
"""Its steps need Kafka, Pulsar and nginx: tests/system/test_growing.py runs them."""


@pytest.mark.system
@pytest.mark.slow
@pytest.mark.parametrize("page", PAGES)
def test_page_shows_what_really_happens(router: Stack, tmp_path: Path, page: str) -> None:
    done = 0
    for step in steps(ROOT / page):
        command = step.command.replace(URL, router.url).replace("curl ", "curl -sS ")
        result = subprocess.run(
            [
                "bash",
                "-c",
                command.replace("/dev/tcp/127.0.0.1/3904", f"/dev/tcp/127.0.0.1/{router.port}"),
            ],
            cwd=tmp_path,
            capture_output=True,
            text=True,
            timeout=30,
            check=False,
        )
        assert step.matches(result.stdout), f"{step}\nanswered {result.stdout!r} {result.stderr!r}"
        done += 1
    assert done >= 3


def test_steps_know_all_curls_that_need_no_password() -> None:
    for page in (ROOT / "docs").glob("*.md"):
        if f"docs/{page.name}" in {*PAGES, RUN_ON_SERVERS}:
            continue
        assert not re.search(r"^(\$ )?curl ", page.read_text(encoding="utf-8"), re.MULTILINE), page
    for name in PAGES:
        for block in blocks(ROOT / name, "sh"):
            assert "curl" not in re.sub(r"curl -u \w+", "", block)


@pytest.mark.parametrize(
    ("expected", "output", "match"),
    [
        ("a…b", "a1\n2b", True),
        ("a…b", "a1", False),
        ("a.c", "abc", False),
        ("", "something", False),
        ("x", "x\r\n", True),
    ],
)
def test_step_matches_like_a_reader(expected: str, output: str, match: bool) -> None:
    assert Step("", expected).matches(output) is match
