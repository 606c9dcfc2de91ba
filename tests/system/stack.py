"""The product as its users start it, for tests that kill it: one folder, restarts on one port."""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

from tests.ports import free_port

DEADLINE = 60.0
ANNOUNCEMENT = b"Dragoman listens on "


def children(pid: int) -> list[int]:
    """Return the direct children of a process."""
    found = []
    for entry in Path("/proc").iterdir():
        with contextlib.suppress(OSError, ValueError):
            if int((entry / "stat").read_text().rpartition(")")[2].split()[1]) == pid:
                found.append(int(entry.name))
    return found


def descendants(pid: int) -> list[int]:
    """Return a process's children, theirs, and so on."""
    found = children(pid)
    for child in list(found):
        found += descendants(child)
    return found


def command_line(pid: int) -> str:
    """Return what a process was started with; empty when it is gone."""
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode()
    except OSError:
        return ""


class Stack:
    """`python -m router serve` on one folder and port."""

    def __init__(self, folder: Path, *flags: str, **settings: str) -> None:
        self.folder = folder
        self.port = free_port()
        self.flags = flags
        self.environ = {f"ROUTER_{name.upper()}": value for name, value in settings.items()}
        self.process: subprocess.Popen[bytes] | None = None

    @property
    def url(self) -> str:
        """Where the HTTP server listens."""
        return f"http://127.0.0.1:{self.port}"

    def start(self) -> None:
        """Start and wait until the router says that it is ready."""
        command = [sys.executable, "-m", "router", "serve", "--port", str(self.port)]
        command += ["--data", str(self.folder / "data"), *self.flags]
        written = self.folder / "serve.log"
        with written.open("ab") as log:
            before = log.tell()
            self.process = subprocess.Popen(
                command, cwd=self.folder, env=os.environ | self.environ, stdout=log, stderr=log
            )
        until = time.monotonic() + DEADLINE
        while ANNOUNCEMENT not in (said := written.read_bytes()[before:]):
            assert self.process.poll() is None, said[-2000:].decode()
            assert time.monotonic() < until, f"not announced: {said[-2000:].decode()}"
            time.sleep(0.05)

    def wait_ready(self) -> None:
        """Wait until /ready answers 200."""
        until = time.monotonic() + DEADLINE
        while time.monotonic() < until:
            assert self.process is not None
            assert self.process.poll() is None, (self.folder / "serve.log").read_text()[-2000:]
            with (
                contextlib.suppress(OSError),
                socket.create_connection(("127.0.0.1", self.port), 2) as probe,
            ):
                probe.sendall(
                    b"GET /ready HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n"
                )
                if probe.recv(12)[9:12] == b"200":
                    return
            time.sleep(0.05)
        raise AssertionError("not ready: " + (self.folder / "serve.log").read_text()[-2000:])

    def broker(self) -> int:
        """Return the process id of the broker that serves this folder, once there is one."""
        assert self.process is not None
        until = time.monotonic() + DEADLINE
        while time.monotonic() < until:
            for pid in descendants(self.process.pid):
                if "router.broker" in command_line(pid):
                    return pid
            time.sleep(0.02)
        raise AssertionError("no broker process")

    def workers(self) -> list[int]:
        """Return the process ids of everything below `serve` that is not the broker."""
        assert self.process is not None
        return [p for p in descendants(self.process.pid) if "router.broker" not in command_line(p)]

    def kill(self) -> None:
        """Kill -9 everything at once."""
        assert self.process is not None
        for pid in [self.process.pid, *descendants(self.process.pid)]:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        self.process.wait(10)

    def stop(self) -> int:
        """Stop as a user does, and return the exit status."""
        if self.process is None:
            return 0
        with contextlib.suppress(ProcessLookupError):
            self.process.terminate()
        try:
            return self.process.wait(DEADLINE)
        except subprocess.TimeoutExpired:
            self.kill()
            raise
