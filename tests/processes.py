"""Processes and clocks that tests start, hold in their hand, and put away again."""

from __future__ import annotations

import os
import signal
import ssl
import subprocess
import sys
import tempfile
import time
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

DEADLINE = 60.0

StartBroker = Callable[..., "subprocess.Popen[str]"]


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

    arguments: tuple[str, ...] = ("router", "broker")

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
        """Start and wait until it says that it listens, with `broker_http` also over HTTP."""
        command = [sys.executable, "-m", *self.arguments, "--data", str(self.folder)]
        announced = [b"Broker listens on "]
        if "ROUTER_BROKER_HTTP" in self._environ:
            announced.append(b"Administration and lookups: ")
        with tempfile.TemporaryFile() as output:
            self.process = subprocess.Popen(
                [*command, "--pulsar", self._pulsar],
                env=os.environ | self._environ,
                cwd=self.folder.parent,
                stdout=output,
            )
            until = time.monotonic() + DEADLINE
            while not all(one in os.pread(output.fileno(), 1 << 16, 0) for one in announced):
                assert self.process.poll() is None, f"the broker ended: {self.process.returncode}"
                assert time.monotonic() < until, "the broker does not say where it listens"
                time.sleep(0.02)

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


def outdated_tls() -> ssl.SSLContext:
    """Return what speaks TLS before 1.2 alone, and trusts everyone."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    context.set_ciphers("ALL:@SECLEVEL=0")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        context.minimum_version = ssl.TLSVersion.TLSv1
        context.maximum_version = ssl.TLSVersion.TLSv1_1
    return context


@contextmanager
def broker_starter(folder: Path, **variables: str) -> Iterator[StartBroker]:
    """Give what starts brokers of a folder; those that still run in the end are killed."""
    started: list[subprocess.Popen[str]] = []

    def start(*arguments: str, **settings: str) -> subprocess.Popen[str]:
        broker = subprocess.Popen(
            [sys.executable, "-m", "router.broker", "--data", str(folder), *arguments],
            env=os.environ | {"ROUTER_CONFIG": ""} | variables | settings,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        started.append(broker)
        return broker

    yield start
    for broker in started:
        if broker.poll() is None:
            broker.kill()
        broker.communicate()


def run_serve(folder: Path, *flags: str, **settings: str) -> subprocess.CompletedProcess[str]:
    """Run a `serve` that is expected to end by itself."""
    environ = {f"ROUTER_{name.upper()}": value for name, value in settings.items()}
    return subprocess.run(
        [sys.executable, "-m", "router", "serve", *flags],
        cwd=folder,
        env=os.environ | environ,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
