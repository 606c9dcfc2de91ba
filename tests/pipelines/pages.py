"""Pages of the documentation that are run command for command, in a folder of a user's own."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

DEADLINE_SECONDS = 400.0


def done(user: Path, *command: str, python: str = sys.executable) -> str:
    """Run a command there, with the `router` of a Python on the path; return what it printed."""
    programs = str(Path(python).parent)
    environ = {
        "PATH": f"{programs}:{os.environ['PATH']}",
        "PYSPARK_PYTHON": python,
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
