"""The programs and commands of the page of how-tos do what it says."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.docs.console import ROOT, URL, blocks
from tests.system.stack import Stack
from tests.system.traffic import poll, post

pytestmark = [pytest.mark.system, pytest.mark.slow]

PAGE = ROOT / "docs" / "howto.md"


def program(language: str, router: Stack) -> str:
    """Return the page's program in a language, for a router that is elsewhere."""
    (found,) = blocks(PAGE, language)
    assert URL in found
    return found.replace(URL, router.url)


def run(folder: Path, *command: str) -> list[str]:
    """Run a command in a folder; return the lines that it prints."""
    done = subprocess.run(
        command, cwd=folder, capture_output=True, text=True, check=False, timeout=120
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines()


def test_python_program_publishes_and_reads(router: Stack, tmp_path: Path) -> None:
    (tmp_path / "publish.py").write_text(program("python", router))
    assert run(tmp_path, sys.executable, "publish.py") == ["1 stored", "anna"]


@pytest.mark.java
@pytest.mark.timeout(180)
def test_java_program_publishes_and_reads(router: Stack, tmp_path: Path) -> None:
    (tmp_path / "Publish.java").write_text(program("java", router))
    java = shutil.which("java")
    assert java is not None
    found = run(tmp_path, java, "-XX:TieredStopAtLevel=1", "Publish.java")
    assert found == ["200", '["{\\"customer\\": \\"anna\\"}"]']


def test_backup_restores_messages_and_groups(router: Stack, tmp_path: Path) -> None:
    saving, restoring = (
        text.replace("router ", f"{sys.executable} -m router ")
        for text in blocks(PAGE, "sh")
        if "router backup" in text or "router restore" in text
    )
    post(router, "kept", "first\nsecond")
    assert poll(router, "kept/g/c", 5, "from=earliest&limit=1").json == ["first"]
    (line,) = run(tmp_path, "bash", "-ec", saving)
    assert line.startswith("backup 2")
    assert poll(router, "kept/g/c", 5).json == ["second"]
    router.stop()
    run(tmp_path, "bash", "-ec", restoring)
    router.start()
    assert poll(router, "kept/g/c", 5).json == ["second"]
