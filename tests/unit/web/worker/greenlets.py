"""Runs the tests of a module in one process under gevent, as workers are: the tests' own is not.

One process for each test would import the application for each, which takes longer than most of
them. A test that fails ends the process, and the next one begins another.
"""

from __future__ import annotations

import importlib
import os
import select
import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable
from functools import wraps
from pathlib import Path

ROOT = Path(__file__).parents[4]
START = (
    "from gevent import monkey; monkey.patch_all();"
    "from tests.unit.web.worker.greenlets import serve; serve()"
)
# Coverage is written then, on a machine that may have much other work.
ENDING_SECONDS = 30.0
PASSED = b"passed\n"


class _Child:
    """The process that runs the tests of a module, by name."""

    def __init__(self, module: str) -> None:
        self._stderr = tempfile.TemporaryFile()  # noqa: SIM115 - `end` closes it
        self._process = subprocess.Popen(
            [sys.executable, "-X", "faulthandler", "-c", START, module],
            cwd=ROOT,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._stderr,
        )

    def passes(self, name: str, seconds: float) -> bool:
        """Return whether a test passes in time, and nothing was written to stderr so far."""
        given, answers = self._process.stdin, self._process.stdout
        assert given is not None
        assert answers is not None
        given.write(f"{name}\n".encode())
        given.flush()
        answered, _, _ = select.select([answers], [], [], seconds)
        passed = bool(answered) and os.read(answers.fileno(), 100) == PASSED
        return passed and not os.fstat(self._stderr.fileno()).st_size

    def end(self) -> tuple[int, str]:
        """End the process; return its status, and what it wrote to stderr."""
        with self._stderr, self._process as process:
            assert process.stdin is not None
            process.stdin.close()
            try:
                process.wait(ENDING_SECONDS)
            except subprocess.TimeoutExpired:
                process.send_signal(signal.SIGABRT)  # its stack is written to stderr
            status = process.wait(ENDING_SECONDS)
            self._stderr.seek(0)
            return status, self._stderr.read().decode(errors="replace")


_children: dict[str, _Child] = {}


def under_gevent(test: Callable[[], None], *, seconds: float = 45) -> Callable[[], None]:
    """Return the test that passes when this one does there, in time, and writes no stderr."""

    # What is called takes no fixtures.
    @wraps(test)
    def run() -> None:
        module = test.__module__
        if module not in _children:
            _children[module] = _Child(module)
        if not _children[module].passes(test.__name__, seconds):
            raise AssertionError(_children.pop(module).end())

    return run


def end_children() -> None:
    """End the processes; fails if one of them fails at its end."""
    while _children:
        module, child = _children.popitem()
        ended = child.end()
        assert ended == (0, ""), (module, *ended)


def serve() -> None:
    """Run the tests whose names come, in the process of a `_Child`."""
    answers = os.dup(sys.stdout.fileno())
    # What the tests print, such as logs of the application, is no answer.
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    module = importlib.import_module(sys.argv[1])
    while name := sys.stdin.readline().strip():
        getattr(module, name).__wrapped__()
        os.write(answers, PASSED)
