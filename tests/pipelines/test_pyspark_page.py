"""The page about plain PySpark: each of its blocks runs, and prints what stands below it."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.contract.conftest import stop_broker
from tests.docs.console import ROOT, blocks
from tests.pipelines.quick import ready

pytestmark = [pytest.mark.timeout(900), pytest.mark.java, pytest.mark.system, pytest.mark.slow]

PAGE = ROOT / "docs" / "pyspark.md"
DEADLINE_SECONDS = 400.0
# Stands between the output of two blocks.
MARK = "-- end of block --"


@pytest.fixture
def user(tmp_path: Path) -> Iterator[Path]:
    """An empty folder, whose broker is ended at the end."""
    yield tmp_path
    stop_broker(tmp_path / "data")


def done(user: Path, *command: str) -> str:
    """Run a command there, with `router` on the path, and return what it printed."""
    programs = str(Path(sys.executable).parent)
    environ = {
        "PATH": f"{programs}:{os.environ['PATH']}",
        "PYSPARK_PYTHON": sys.executable,
        "SPARK_LOCAL_IP": "127.0.0.1",
    }
    result = subprocess.run(
        command,
        cwd=user,
        env=os.environ | environ,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=DEADLINE_SECONDS,
        check=False,
    )
    assert result.returncode == 0, result.stderr[-4000:]
    return result.stdout


def plain(text: str) -> str:
    """Return a text without blanks at the ends of lines, and without empty lines."""
    return "\n".join(line.rstrip() for line in text.splitlines() if line.strip())


def test_blocks_of_the_page_print_what_it_shows(user: Path) -> None:
    ready()
    (publishing,) = blocks(PAGE, "sh")
    programs, shown = blocks(PAGE, "python"), blocks(PAGE, "text")
    assert len(programs) == len(shown) >= 6
    assert not set(re.findall(r"^```(\w+)$", PAGE.read_text(), re.MULTILINE)) - {
        *("sh", "python", "text")
    }
    done(user, "bash", "-euo", "pipefail", "-c", publishing)
    program = f"\nprint({MARK!r}, flush=True)\n".join(programs)
    printed = done(user, sys.executable, "-c", program).split(MARK)
    assert [plain(text) for text in printed] == [plain(text) for text in shown]
