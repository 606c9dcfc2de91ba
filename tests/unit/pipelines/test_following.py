"""Commands that take minutes: what is said meanwhile, and how they end."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from router.pipelines.connectors import run_followed

# Ends when a file is there.
UNTIL = "import pathlib, sys, time\nwhile not pathlib.Path(sys.argv[1]).exists(): time.sleep(0.01)"


def test_command_that_takes_long_is_said_to_go_on(tmp_path: Path) -> None:
    ended, message = tmp_path / "ended", list[str]()

    def notify(line: str) -> None:
        message.append(line)
        ended.touch()

    command = [sys.executable, "-c", f"{UNTIL}\nprint(1)", str(ended)]
    done = run_followed(command, "Fetching", notify, 50.0, every=0.05)
    assert (done.returncode, done.stdout) == (0, b"1\n")
    assert message[0].startswith("Fetching: 0 s (at most 50 s)")


def test_command_that_takes_too_long_is_killed(tmp_path: Path) -> None:
    command = [sys.executable, "-c", UNTIL, str(tmp_path / "never")]
    with pytest.raises(subprocess.TimeoutExpired):
        run_followed(command, "Fetching", print, 0.1, every=0.05)


def test_status_and_errors_of_a_command_are_returned() -> None:
    program = "import sys; print('no', file=sys.stderr); sys.exit(3)"
    done = run_followed([sys.executable, "-c", program], "Fetching", print, 50.0)
    assert (done.returncode, done.stdout) == (3, b"no\n")
