"""Programs in other languages that run scenarios and print what they saw, one line each.

A line that begins with "!" is an order to an administrator, who does it and answers with a line:
so the programs need no administration of their own, which is not the same on both brokers.
"""

from __future__ import annotations

import json
import subprocess
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from tests.interop.world import Server
from tests.servers import maven
from tests.servers.java import FAST_START

SECONDS = 240.0
COMPILE_SECONDS = 300.0


def compiled(source: Path, folder: Path) -> list[str]:
    """Compile a Java program, with what it names in its folder; return the command to run it."""
    jars = maven.classpath("pulsar-client")
    command = ["javac", "-nowarn", "-cp", jars, "-sourcepath", str(source.parent)]
    command += ["-d", str(folder), str(source)]
    done = subprocess.run(command, capture_output=True, timeout=COMPILE_SECONDS, check=False)
    assert done.returncode == 0, done.stderr.decode()
    return ["java", "-Xmx256m", *FAST_START, "-cp", f"{jars}:{folder}", source.stem]


def outcome(command: Sequence[str], server: Server, name: str) -> Any:
    """Run one scenario of a program against a broker and return what it saw."""
    return outcomes(command, server, name)[name]


def outcomes(command: Sequence[str], server: Server, *names: str) -> dict[str, Any]:
    """Run a program against a broker and return what it saw, by scenario; a name: of that one."""
    found: dict[str, Any] = {}
    process = subprocess.Popen(
        [*command, server.url, server.namespace, *names],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
    )
    overdue = threading.Timer(SECONDS, process.kill)
    overdue.start()
    with process:
        try:
            assert process.stdout is not None
            assert process.stdin is not None
            for line in process.stdout:
                if line.startswith("!"):
                    obey(server, *json.loads(line[1:]))
                    process.stdin.write("done\n")
                    process.stdin.flush()
                elif line.startswith("["):
                    name, seen = json.loads(line)
                    found[name] = seen
        finally:
            overdue.cancel()
            overdue.join()
            process.kill()
    return found


def obey(server: Server, what: str, topic: str, how: str) -> None:
    """Do what a program wants of an administrator."""
    if what == "partitioned":
        server.create_partitioned(topic, int(how))
    elif what == "grow":
        server.grow(topic, int(how))
    elif what == "compact":
        server.compact(topic)
    else:
        assert what == "terminate", what
        server.terminate(topic)
