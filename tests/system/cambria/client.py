"""The legacy Java client in a process of its own, which obeys orders one after the other."""

from __future__ import annotations

import contextlib
import json
import subprocess
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from tests.servers import maven

SOURCE = Path(__file__).with_name("Cambria.java")
SECONDS = 40.0


@contextlib.contextmanager
def running(classes: Path, host: str, *properties: str, **options: str) -> Iterator[Cambria]:
    """Start the client against a host:port (and perhaps a path); it ends with the block."""
    process = subprocess.Popen(
        ["java", "-Xmx64m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1", *properties]
        + ["-cp", f"{maven.classpath('cambria')}:{classes}", "Cambria", f"host={host}"]
        + [f"{name}={value}" for name, value in options.items()],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
    )
    with process:
        try:
            yield Cambria(process)
        finally:
            process.kill()


def compiled(folder: Path) -> Path:
    """Compile the program into a folder, and return it."""
    command = ["javac", "-nowarn", "-cp", maven.classpath("cambria"), "-d", str(folder)]
    done = subprocess.run([*command, str(SOURCE)], capture_output=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr.decode()
    return folder


class Cambria:
    """Orders for the Java program; each answer is what the client returned or raised."""

    def __init__(self, process: subprocess.Popen[bytes]) -> None:
        self._process = process

    def order(self, step: str, **needs: object) -> dict[str, Any]:
        """Have one step done; an answer that does not come ends the program."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(json.dumps({"step": step, **needs}).encode() + b"\n")
        self._process.stdin.flush()
        overdue = threading.Timer(SECONDS, self._process.kill)
        overdue.start()
        try:
            line = self._process.stdout.readline()
        finally:
            overdue.cancel()
            overdue.join()
        assert line, f"no answer to {step}"
        answer: dict[str, Any] = json.loads(line)
        return answer
