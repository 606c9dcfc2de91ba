"""The page about plain PySpark: each of its blocks runs, and prints what stands below it."""

from __future__ import annotations

import re
import sys
from pathlib import Path

import pytest

from tests.docs.console import ROOT, blocks
from tests.pipelines.pages import done
from tests.pipelines.quick import ready

pytestmark = [pytest.mark.timeout(900), pytest.mark.java, pytest.mark.system, pytest.mark.slow]

PAGE = ROOT / "docs" / "pyspark.md"
# Stands between the output of two blocks.
MARK = "-- end of block --"


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
    # Spark looks for packages on the path, where an editable install puts none. A session may be
    # told all the same.
    path = f"import os; os.environ['PYTHONPATH'] = {str(ROOT)!r}\n"
    registered = "\nfrom router.spark import register; register(spark)\npart = ("
    program = path + program.replace("\npart = (", registered, 1)
    printed = done(user, sys.executable, "-c", program).split(MARK)
    assert [plain(text) for text in printed] == [plain(text) for text in shown]
