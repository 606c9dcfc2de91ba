"""Runs a test in a process of its own, under gevent as workers are: the tests' own is not."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from functools import wraps
from pathlib import Path

ROOT = Path(__file__).parents[4]
RUN = (
    "from gevent import monkey; monkey.patch_all();"
    "import importlib, sys; module, name = sys.argv[1:];"
    "getattr(importlib.import_module(module), name).__wrapped__()"
)


def under_gevent(test: Callable[[], None]) -> Callable[[], None]:
    """Return the test that passes when this one does there, and writes nothing to stderr."""

    # What is called takes no fixtures.
    @wraps(test)
    def run() -> None:
        ended = subprocess.run(
            [sys.executable, "-c", RUN, test.__module__, test.__name__],
            cwd=ROOT,
            capture_output=True,
            text=True,
            timeout=50,
            check=False,
        )
        assert (ended.returncode, ended.stderr) == (0, ""), ended.stderr

    return run
