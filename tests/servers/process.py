"""A server of another make in a test's hand: started, stopped, killed, paused, never outliving it.

A guard, a shell that reads from a pipe of the tests' process, kills the server when that pipe
ends: so the server dies with the tests, however they end. The alternative, PR_SET_PDEATHSIG, fires
when the thread that started it ends, and tests do restart servers from threads.
"""

from __future__ import annotations

import abc
import contextlib
import signal
import subprocess
import time
from pathlib import Path

from tests.ports import free_port

DEADLINE = 100.0


class ServerProcess(abc.ABC):
    """One server on one folder; `start` brings it back on the same ports with the same data."""

    NAME = ""
    SECONDS = 100.0
    """That it has to come up, on a machine that does other things as well."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.folder.mkdir(parents=True, exist_ok=True)
        self.port = free_port()
        self._process: subprocess.Popen[bytes] | None = None
        self._guard: subprocess.Popen[bytes] | None = None

    @property
    def address(self) -> str:
        """host:port of the server."""
        return f"127.0.0.1:{self.port}"

    @property
    def pid(self) -> int:
        """The process id, while it runs."""
        assert self._process is not None, f"{self.NAME} does not run"
        return self._process.pid

    @property
    def log(self) -> Path:
        """What the server writes to its output."""
        return self.folder / f"{self.NAME}.log"

    def start(self) -> None:
        """Start and wait until it serves."""
        self.launch()
        self.wait_ready()

    def launch(self) -> None:
        """Start and do not wait."""
        assert self._process is None, f"{self.NAME} runs already"
        with self.log.open("ab") as log:
            self._process = subprocess.Popen(
                self._command(),
                cwd=self.folder,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )
        self._guard = subprocess.Popen(
            ["sh", "-c", f"read _; kill -KILL {self._process.pid}"],
            stdin=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        )

    def wait_ready(self) -> None:
        """Wait until it serves; fails with the end of its log."""
        until = time.monotonic() + self.SECONDS
        while not self._ready():
            assert self._process is not None
            assert self._process.poll() is None, f"{self.NAME} ended: {self._last_words()}"
            assert time.monotonic() < until, f"{self.NAME} is not ready: {self._last_words()}"
            time.sleep(0.05)

    def stop(self) -> None:
        """Stop it as an operator does; nothing to do when it does not run."""
        if self._process is not None:
            self.resume()
            self._process.terminate()
            with contextlib.suppress(subprocess.TimeoutExpired):
                self._process.wait(15)
            self.kill()

    def kill(self) -> None:
        """Kill -9; nothing to do when it does not run."""
        process, self._process = self._process, None
        guard, self._guard = self._guard, None
        if guard is not None:
            # first: from here on the server's process id may go to somebody else
            guard.kill()
            guard.communicate()
        if process is not None:
            process.kill()
            process.wait(DEADLINE)

    def pause(self) -> None:
        """SIGSTOP: return when all of it stands still; its connections stay."""
        self._signal(signal.SIGSTOP)
        assert self._process is not None
        until = time.monotonic() + DEADLINE
        while not _stands_still(self._process.pid):  # threads go on until each has its turn
            assert time.monotonic() < until, f"{self.NAME} does not stand still"
            time.sleep(0.005)

    def resume(self) -> None:
        """SIGCONT."""
        self._signal(signal.SIGCONT)

    def _signal(self, number: signal.Signals) -> None:
        assert self._process is not None, f"{self.NAME} does not run"
        self._process.send_signal(number)

    def restart(self) -> None:
        """Stop, then start as it was."""
        self.stop()
        self.start()

    @abc.abstractmethod
    def _command(self) -> list[str]:
        """Write the configuration; return the command line."""

    @abc.abstractmethod
    def _ready(self) -> bool:
        """Return whether it answers."""

    def _last_words(self) -> str:
        return self.log.read_text(errors="replace")[-3000:]


def _stands_still(pid: int) -> bool:
    """Return whether all threads of a process are stopped."""
    states = set()
    for path in Path(f"/proc/{pid}/task").glob("*/stat"):
        with contextlib.suppress(OSError):  # the thread has just ended
            states.add(path.read_text().rpartition(")")[2].split()[0])
    return states == {"T"}
