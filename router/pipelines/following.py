"""Commands that take minutes: run with a deadline, and with signs of life for the terminal."""

from __future__ import annotations

import subprocess
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Final

PROGRESS_SECONDS: Final = 10.0

Say = Callable[[str], None]
"""Shows a line to the user."""


def run_followed(
    command: Sequence[str],
    what: str,
    say: Say,
    timeout: float,
    *,
    cwd: Path | None = None,
    every: float = PROGRESS_SECONDS,
) -> subprocess.CompletedProcess[bytes]:
    """Run a command and return what it wrote; say every so many seconds how long `what` takes.

    Raises TimeoutExpired after `timeout` seconds, when the command is killed, and OSError.
    """
    begun = time.monotonic()
    with subprocess.Popen(  # noqa: S603 - the callers' own programs, by their full paths
        command,
        cwd=cwd,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
    ) as process:
        while True:
            try:
                output, _ = process.communicate(timeout=every)
            except subprocess.TimeoutExpired:
                took = time.monotonic() - begun
                if took >= timeout:
                    process.kill()
                    raise
                say(f"{what}: {took:.0f} s (at most {timeout:.0f} s)")
            except BaseException:
                process.kill()
                raise
            else:
                return subprocess.CompletedProcess(command, process.returncode, output)
