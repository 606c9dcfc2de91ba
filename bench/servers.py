"""Starts and stops the two sides of a comparison, and reads their memory and processor time."""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

from tests.ports import free_port
from tests.servers import golang

ROOT = Path(__file__).parent.parent
TICKS = os.sysconf("SC_CLK_TCK")


@dataclass
class Server:
    """A server under load: its port, its first process, and what stores for it.

    `pulsar`: the port of its listener; `kafka`: the address of the Kafka in which it stores;
    `listeners`: the addresses of its listeners for Kafka's and NATS's clients, by protocol.
    """

    port: int
    process: subprocess.Popen[bytes]
    pulsar: int = 0
    kafka: str = ""
    listeners: dict[str, str] = field(default_factory=dict)

    def tree(self) -> list[int]:
        """Return the process ids of the server and of all that it started."""
        parents: dict[int, int] = {}
        for entry in Path("/proc").iterdir():
            with contextlib.suppress(OSError, ValueError):
                stat = (entry / "stat").read_text().rpartition(")")[2].split()
                parents[int(entry.name)] = int(stat[1])
        found = {self.process.pid}
        while grown := {pid for pid, parent in parents.items() if parent in found} - found:
            found |= grown
        return sorted(found)

    def broker(self) -> int:
        """Return the process id of the router's broker."""
        until = time.monotonic() + 5
        while time.monotonic() < until:
            for pid in self.tree():
                with contextlib.suppress(OSError):
                    if b"router.broker" in Path(f"/proc/{pid}/cmdline").read_bytes():
                        return pid
            time.sleep(0.05)
        raise RuntimeError("there is no broker process")

    def kill(self) -> None:
        """Kill the whole tree at once, as a crash of the machine does; return when it is gone.

        It is stopped first, so that no process of it replaces one that is killed already.
        """
        pids = self.tree()
        for sent in (signal.SIGSTOP, signal.SIGKILL):
            for pid in pids:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, sent)
        self.process.wait(20)
        until = time.monotonic() + 20
        while any(_runs(pid) for pid in pids) and time.monotonic() < until:
            time.sleep(0.002)

    def processor_seconds(self) -> float:
        """Return the processor time that the whole tree has used."""
        used = 0
        for pid in self.tree():
            with contextlib.suppress(OSError):
                stat = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
                used += int(stat[11]) + int(stat[12])
        return used / TICKS

    def memory(self) -> int:
        """Return the bytes of memory that the whole tree holds (proportional set size)."""
        held = 0
        for pid in self.tree():
            with contextlib.suppress(OSError):
                for line in Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines():
                    if line.startswith("Pss:"):
                        held += int(line.split()[1]) * 1024
        return held


def _runs(pid: int) -> bool:
    try:
        stat = Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return False
    return stat.rpartition(")")[2].split()[0] != "Z"


def _await(port: int, path: str, process: subprocess.Popen[bytes]) -> None:
    until = time.monotonic() + 30
    while time.monotonic() < until:
        if process.poll() is not None:
            raise RuntimeError(f"the server ended with status {process.returncode}")
        with (
            contextlib.suppress(OSError),
            socket.create_connection(("127.0.0.1", port), 2) as probe,
        ):
            if not path:
                return
            probe.sendall(f"GET {path} HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n".encode())
            if probe.recv(12)[9:12] == b"200":
                return
        time.sleep(0.02)
    raise RuntimeError("the server did not answer within 30 s")


@contextlib.contextmanager
def _running(
    command: list[str],
    environ: dict[str, str],
    port: int,
    path: str,
    pulsar: int = 0,
    root: Path = ROOT,
) -> Iterator[Server]:
    process = subprocess.Popen(
        command,
        cwd=root,
        env=os.environ | environ,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    try:
        _await(port or pulsar, path, process)
        yield Server(port, process, pulsar)
    finally:
        process.send_signal(signal.SIGTERM)
        try:
            process.wait(60)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait(5)


@contextlib.contextmanager
def router(root: Path = ROOT, **settings: str) -> Iterator[Server]:
    """Run the router of a source tree on an empty data folder; yield it when it is ready."""
    with (
        tempfile.TemporaryDirectory(prefix="bench-", dir=os.environ.get("BENCH_DIR")) as folder,
        router_on(folder, root, **settings) as server,
    ):
        yield server


@contextlib.contextmanager
def router_on(
    folder: str | Path, root: Path = ROOT, ready: str = "/ready", **settings: str
) -> Iterator[Server]:
    """Run the router of a source tree on a data folder; yield it when it is ready.

    With an empty `ready` it is yielded as soon as its port accepts connections.
    """
    port, pulsar = free_port(), free_port()
    environ = {"ROUTER_LOG_LEVEL": "warning", "ROUTER_CONSUME_EMPTY_POLLS_PER_MINUTE": "0"}
    environ |= {f"ROUTER_{name.upper()}": value for name, value in settings.items()}
    environ["PYTHONPATH"] = str(root)
    command = [sys.executable, "-m", "router", "serve", "--port", str(port)]
    command += ["--data", str(folder)]
    kafka = settings.get("backend_url", "").removeprefix("kafka://")
    if not kafka:  # only the embedded store has a listener
        command += ["--pulsar", f"127.0.0.1:{pulsar}"]
    with _running(command, environ, port, ready, pulsar, root) as server:
        server.kafka = kafka
        yield server


@contextlib.contextmanager
def broker() -> Iterator[Server]:
    """Run the broker alone on an empty data folder; yield it when it is ready."""
    pulsar = free_port()
    with tempfile.TemporaryDirectory(prefix="bench-", dir=os.environ.get("BENCH_DIR")) as folder:
        command = [sys.executable, "-m", "router", "broker", "--data", f"{folder}/data"]
        command += ["--pulsar", f"127.0.0.1:{pulsar}"]
        with _running(command, {"ROUTER_LOG_LEVEL": "warning"}, 0, "", pulsar) as server:
            yield server


@contextlib.contextmanager
def node(kafka: str, zookeeper: str, **settings: str) -> Iterator[Server]:
    """Run one of several nodes over a Kafka and a ZooKeeper; yield it when it is ready."""
    port = free_port()
    with tempfile.TemporaryDirectory(prefix="bench-", dir=os.environ.get("BENCH_DIR")) as folder:
        environ = {"ROUTER_LOG_LEVEL": "warning", "ROUTER_CONSUME_EMPTY_POLLS_PER_MINUTE": "0"}
        environ |= {f"ROUTER_{name.upper()}": value for name, value in settings.items()}
        command = [sys.executable, "-m", "router", "serve", "--port", str(port), "--data", folder]
        command += ["--backend", f"kafka://{kafka}", "--zookeeper", zookeeper]
        with _running(command, environ, port, "/ready") as server:
            yield server


@contextlib.contextmanager
def bridge(kafka: str) -> Iterator[Server]:
    """Run the bridge of `bench/go` over a Kafka; yield it when it is ready."""
    port = free_port()
    command = [str(golang.built(golang.BENCH)), "bridge", f"127.0.0.1:{port}", kafka]
    with _running(command, {}, port, "/ready") as server:
        server.kafka = kafka
        yield server


@contextlib.contextmanager
def floor(*options: str) -> Iterator[Server]:
    """Run the bare Flask view under the router's gunicorn settings, but for these options."""
    port = free_port()
    command = [sys.executable, "-m", "gunicorn", "-c", "config/gunicorn.py", "bench.floor:app"]
    command += options
    environ = {"ROUTER_SERVER_PORT": str(port), "ROUTER_LOG_LEVEL": "warning"}
    with _running(command, environ, port, "/ready", 0) as server:
        yield server
