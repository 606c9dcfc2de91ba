"""Apache's own generated classes, asked in a Java process for what they read and write."""

from __future__ import annotations

import json
import subprocess
import threading
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from tests.servers import maven
from tests.wire.kafka.releases import Release

SOURCE = Path(__file__).with_name("Oracle.java")
COMPILE_SECONDS = 120.0

Question = dict[str, Any]


def question(release: Release, name: str, version: int, **given: Any) -> Question:
    """Return what the oracle is asked of a message: `hex` or `json`."""
    return {"class": release.class_of(name), "version": version, **given}


class Oracle:
    """Apache's classes in a process of their own."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        self._process = process

    def answers(self, questions: Iterable[Question]) -> list[dict[str, Any]]:
        """Return {hex, json} or {error} for each question; all are asked at once."""
        lines = [json.dumps(one) for one in questions]
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        writer = threading.Thread(target=self._write, args=(lines,))
        writer.start()
        found = [json.loads(self._process.stdout.readline()) for _ in lines]
        writer.join()
        return found

    def _write(self, lines: list[str]) -> None:
        assert self._process.stdin is not None
        for line in lines:
            self._process.stdin.write(line + "\n")
        self._process.stdin.flush()


@contextmanager
def running(folder: Path) -> Iterator[Oracle]:
    """Compile the oracle into a folder and run it."""
    jars = f"{maven.classpath('kafka-clients')}:{maven.classpath('kafka-server')}"
    command = ["javac", "-nowarn", "-cp", jars, "-d", str(folder), str(SOURCE)]
    done = subprocess.run(command, capture_output=True, timeout=COMPILE_SECONDS, check=False)
    assert done.returncode == 0, done.stderr.decode()
    options = ["-Xmx128m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1"]
    with subprocess.Popen(
        ["java", *options, "-cp", f"{jars}:{folder}", "Oracle"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
        encoding="utf-8",
    ) as process:
        try:
            yield Oracle(process)
        finally:
            process.kill()
