"""The supervisor: restarts with growing pauses, gives up where it must, leaves nobody behind."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from router.cli.supervise import (
    LONG_LIFE_SECONDS,
    MAX_DELAY_SECONDS,
    MIN_DELAY_SECONDS,
    RestartDelay,
    meaning,
)
from router.process import node_socket
from router.process.supervised import take
from tests.processes import DEADLINE, wait_until

# A supervisor of one child in a process of its own; the child writes its pid into the file.
SCRIPT = """
import os, signal, sys, time
from pathlib import Path
from router.cli.supervise import Child, GaveUpError, Supervisor, ignore_hangup
from router.process.systemd import Notifier

mode, file = sys.argv[1], Path(sys.argv[2])

def run():
    if mode == "deaf":
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
    if mode == "reloads":
        signal.signal(signal.SIGUSR1, lambda *_: print("reloaded", flush=True))
    with file.open("a") as out:
        out.write(f"{os.getpid()}\\n")
    if mode == "dies":
        raise SystemExit(65)
    while True:
        time.sleep(1)

def judge(end):
    if end.status == 65:
        raise GaveUpError("damaged", 65)

ignore_hangup()
child = Child("the child", run, judge, stop_timeout=3.0, reload=signal.SIGUSR1)
try:
    say = lambda sentence: print(sentence, flush=True)
    Supervisor([child], say, Notifier.take(os.environ)).run(lambda: 3600.0)
except GaveUpError as error:
    print(error)
    sys.exit(error.status)
print("stopped")
"""


class Supervised:
    """The running script, and the children that it had."""

    def __init__(self, folder: Path, mode: str) -> None:
        self.file = folder / "pids"
        self.process = subprocess.Popen(
            [sys.executable, "-c", SCRIPT, mode, str(self.file)], stdout=subprocess.PIPE, text=True
        )

    def child(self, number: int) -> int:
        """Return the pid of the child that was started as the nth."""
        until = time.monotonic() + 20
        while time.monotonic() < until:
            pids = self.file.read_text().splitlines() if self.file.exists() else []
            if len(pids) >= number:
                return int(pids[number - 1])
            time.sleep(0.01)
        raise AssertionError(f"child {number} was not started")

    def end(self) -> tuple[int, str]:
        """Wait for the end; return status and output."""
        output, _ = self.process.communicate(timeout=20)
        return self.process.returncode, output


@contextmanager
def supervised(folder: Path, mode: str) -> Iterator[Supervised]:
    """Run the script; kill it and its last child when the test leaves it behind."""
    running = Supervised(folder, mode)
    try:
        yield running
    finally:
        running.process.kill()
        running.process.communicate()


def ignores(pid: int, number: int) -> bool:
    """Return whether a process ignores a signal."""
    status = Path(f"/proc/{pid}/status").read_text()
    ignored = int(status.partition("SigIgn:")[2].split()[0], 16)
    return bool(ignored >> (number - 1) & 1)


def gone(pid: int) -> bool:
    """Return whether the process ends within a few seconds."""
    until = time.monotonic() + 5
    while time.monotonic() < until:
        try:
            if Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z":
                return True
        except FileNotFoundError:
            return True
        time.sleep(0.01)
    return False


def test_supervisor_starts_a_killed_child_again(tmp_path: Path) -> None:
    with supervised(tmp_path, "lives") as running:
        os.kill(running.child(1), signal.SIGKILL)
        assert running.child(2) != running.child(1)
        running.process.terminate()
        status, output = running.end()
        assert status == 0
        assert "SIGKILL" in output
        assert gone(running.child(2))


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_supervisor_stops_its_child_when_told_to_stop(tmp_path: Path, number: int) -> None:
    with supervised(tmp_path, "lives") as running:
        child = running.child(1)
        running.process.send_signal(number)
        assert running.end() == (0, "stopped\n")
        assert gone(child)


def test_supervisor_hands_a_hangup_on_as_the_signal_to_reload(tmp_path: Path) -> None:
    with supervised(tmp_path, "reloads") as running:
        running.child(1)
        running.process.send_signal(signal.SIGHUP)
        assert running.process.stdout is not None
        said = [running.process.stdout.readline() for _ in range(2)]
        assert "reloaded\n" in said
        running.process.terminate()
        assert running.end() == (0, "stopped\n")
        assert len(running.file.read_text().splitlines()) == 1


def test_a_child_ignores_the_signal_to_reload_until_it_has_a_handler(tmp_path: Path) -> None:
    with supervised(tmp_path, "lives") as running:
        assert ignores(running.child(1), signal.SIGUSR1)
        running.process.terminate()
        assert running.end() == (0, "stopped\n")


@pytest.mark.slow
@pytest.mark.parametrize("command", [["broker"], ["serve", "--port", "0", "--workers", "1"]])
def test_a_service_ignores_a_hangup_while_it_starts(tmp_path: Path, command: list[str]) -> None:
    data = tmp_path / "data"
    with closing(take(data)):
        process = subprocess.Popen(
            [sys.executable, "-m", "router", *command, "--data", str(data)],
            env=os.environ | {"ROUTER_CONFIG": ""},
        )
        try:
            wait_until(lambda: ignores(process.pid, signal.SIGHUP))
            process.send_signal(signal.SIGHUP)
        except BaseException:
            process.kill()
            process.wait()
            raise
    try:
        wait_until(lambda: node_socket.answers(data))
        process.terminate()
        assert process.wait(DEADLINE) == 0
    finally:
        process.kill()
        process.wait()


def test_supervisor_tells_systemd_of_a_reload_and_of_the_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as systemd:
        systemd.bind(str(tmp_path / "notify"))
        systemd.settimeout(20)
        monkeypatch.setenv("NOTIFY_SOCKET", str(tmp_path / "notify"))
        with supervised(tmp_path, "lives") as running:
            running.child(1)
            running.process.send_signal(signal.SIGHUP)
            assert systemd.recv(100).startswith(b"RELOADING=1\nMONOTONIC_USEC=")
            assert systemd.recv(100) == b"READY=1"
            running.process.terminate()
            assert systemd.recv(100) == b"STOPPING=1"
            assert running.end()[0] == 0


def test_supervisor_gives_up_when_a_restart_does_not_help(tmp_path: Path) -> None:
    with supervised(tmp_path, "dies") as running:
        assert running.end() == (65, "damaged\n")


def test_supervisor_kills_a_child_that_does_not_stop(tmp_path: Path) -> None:
    with supervised(tmp_path, "deaf") as running:
        child = running.child(1)
        running.process.terminate()
        status, output = running.end()
        assert (status, output) == (0, "the child is killed\nstopped\n")
        assert gone(child)


def test_supervisor_takes_its_child_along_when_it_is_killed(tmp_path: Path) -> None:
    with supervised(tmp_path, "lives") as running:
        child = running.child(1)
        running.process.kill()
        assert gone(child)


def test_supervisor_keeps_its_child_in_a_group_of_its_own(tmp_path: Path) -> None:
    with supervised(tmp_path, "lives") as running:
        child = running.child(1)
        assert os.getpgid(child) == child


STATUS = st.sampled_from([-9, 1, 74])


@given(
    st.lists(st.tuples(STATUS, st.floats(0, LONG_LIFE_SECONDS * 2)), max_size=20),
    STATUS,
    st.floats(LONG_LIFE_SECONDS, 1e6),
)
def test_backoff_stays_in_its_bounds_and_starts_afresh_after_a_long_life(
    deaths: list[tuple[int, float]], status: int, lifetime: float
) -> None:
    backoff = RestartDelay()
    for death in deaths:
        assert MIN_DELAY_SECONDS <= backoff.delay(*death) <= MAX_DELAY_SECONDS
    assert backoff.delay(status, lifetime) == MIN_DELAY_SECONDS


@given(st.lists(st.floats(0, LONG_LIFE_SECONDS, exclude_max=True), min_size=1, max_size=20))
def test_backoff_doubles_when_a_child_gives_up_early(lifetimes: list[float]) -> None:
    backoff = RestartDelay()
    delays = [backoff.delay(1, lifetime) for lifetime in lifetimes]
    assert delays == [min(MIN_DELAY_SECONDS * 2**n, MAX_DELAY_SECONDS) for n in range(len(delays))]


@given(st.floats(1, LONG_LIFE_SECONDS))
def test_backoff_stays_short_when_a_child_that_served_is_killed(lifetime: float) -> None:
    backoff = RestartDelay()
    assert max(backoff.delay(-9, lifetime) for _ in range(20)) == MIN_DELAY_SECONDS


def test_meaning_names_signals() -> None:
    assert meaning(-9) == "SIGKILL"
    assert meaning(65) == "exit status 65"
