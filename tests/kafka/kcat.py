"""kcat, the command line of librdkafka: text without line ends goes in, lines of JSON come out."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Sequence
from typing import Any, Final

from tests.servers.maven import program, require

SECONDS: Final = 30.0


def kcat(bootstrap: str, *arguments: str, lines: Sequence[str] = ()) -> str:
    """Run it to its end; return what it prints."""
    require("kcat")
    done = subprocess.run(
        [program("kcat") or "kcat", "-b", bootstrap, "-q", *arguments],
        input="".join(f"{line}\n" for line in lines),
        capture_output=True,
        text=True,
        timeout=SECONDS,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def records(printed: str) -> list[dict[str, Any]]:
    """Return what `-J` printed."""
    return [json.loads(line) for line in printed.splitlines() if line.startswith("{")]
