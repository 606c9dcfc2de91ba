"""Processes and clocks that tests start, hold in their hand, and put away again."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

from router import node_socket

DEADLINE = 20.0


class ManualClock:
    """Seconds that pass only when the test says so."""

    def __init__(self, now: float = 1_000.0) -> None:
        self.now = now

    def __call__(self) -> float:
        return self.now

    def advance(self, seconds: float) -> None:
        """Let time pass."""
        self.now += seconds


class BrokerProcess:
    """`python -m router broker` on one folder; `url` is for Pulsar clients."""

    def __init__(self, folder: Path, port: int, **settings: str) -> None:
        self.folder = folder
        self.url = f"pulsar://127.0.0.1:{port}"
        self._pulsar = f"127.0.0.1:{port}"
        self._environ = {f"ROUTER_{name.upper()}": value for name, value in settings.items()}
        self.process: subprocess.Popen[bytes] | None = None

    @property
    def pid(self) -> int:
        """The process id, while it runs."""
        assert self.process is not None
        return self.process.pid

    def start(self) -> None:
        """Start and wait until the socket answers."""
        command = [sys.executable, "-m", "router", "broker", "--data", str(self.folder)]
        self.process = subprocess.Popen(
            [*command, "--pulsar", self._pulsar],
            env=os.environ | self._environ,
            cwd=self.folder.parent,
        )
        until = time.monotonic() + DEADLINE
        while time.monotonic() < until:
            assert self.process.poll() is None, f"the broker ended: {self.process.returncode}"
            try:
                node_socket.connect(self.folder, 1).close()
            except OSError:
                time.sleep(0.02)
            else:
                return
        raise AssertionError("the broker does not answer")

    def stop(self) -> int:
        """Stop it as a user does, and return its exit status."""
        assert self.process is not None
        self.process.terminate()
        return self.process.wait(DEADLINE)

    def kill(self) -> None:
        """Kill -9."""
        assert self.process is not None
        os.kill(self.process.pid, signal.SIGKILL)
        self.process.wait(DEADLINE)


def wait_until(ready: Callable[[], bool], seconds: float = DEADLINE) -> None:
    """Wait until something holds; fail when it does not for so long."""
    until = time.monotonic() + seconds
    while not ready():
        assert time.monotonic() < until, "it did not happen"
        time.sleep(0.02)
