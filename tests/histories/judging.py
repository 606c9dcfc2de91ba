"""The judge, a Go program with porcupine: is a history linearizable by its model?"""

from __future__ import annotations

import json
import subprocess
from pathlib import Path

from tests.histories.recording import History
from tests.servers import golang

LEGAL, ILLEGAL, UNDECIDED = "legal", "illegal", "undecided"
TIMEOUT_SECONDS = 20
# Of the process: porcupine needs some time after its timeout, to draw.
PROCESS_SECONDS = 60


def judge(history: History, picture: Path | None = None) -> str:
    """Return LEGAL, ILLEGAL or UNDECIDED; an illegal history is drawn to the picture, an HTML file.

    Raises tests.servers.maven.MissingServerError if the judge cannot be built.
    """
    command = [str(golang.built(golang.JUDGE)), "-model", history.model]
    command += ["-timeout", f"{TIMEOUT_SECONDS}s"]
    if picture is not None:
        command += ["-picture", str(picture)]
    done = subprocess.run(
        command,
        input=history.text(),
        capture_output=True,
        text=True,
        timeout=PROCESS_SECONDS,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return str(json.loads(done.stdout)["verdict"])
