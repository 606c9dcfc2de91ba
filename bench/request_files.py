"""What a warm request crosses of `router/`: `python -m bench.request_files [TREE]`.

The tool runs `router serve` of a source tree, this checkout's by default, with the embedded
backend, one worker and a users file. Every process of it records by `sys.setprofile` each call of a
function of `router/` while a request is under way: the worker that reads HTTP, the application, and
the broker. Three operations are measured after WARMING of the same:

- POST: a message of text/plain to `/events/<topic>`, with Basic authentication;
- poll: a GET of `/events/<topic>/<group>/<consumer>` that finds a message;
- SEND: a message from the official Pulsar client.

Each is done ROUNDS times. A file counts if most of these cross it, and of the numbers of calls the
median: timers and maintenance run now and then at the same time. The processes are told by a byte
of a mapped file which request is under way, 0 for none, and append what they see to a file that the
tool reads at the end.
"""

from __future__ import annotations

import base64
import contextlib
import http.client
import mmap
import os
import signal
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from types import FrameType
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
MARK, SEEN, PACKAGE = "REQUEST_FILES_MARK", "REQUEST_FILES_SEEN", "REQUEST_FILES_PACKAGE"
WARMING, ROUNDS = 20, 9
OPERATIONS = ("POST", "poll", "SEND")
START_SECONDS, STOP_SECONDS = 60.0, 20.0
USER, PASSWORD = "anna", "secret-of-anna"


def record() -> None:
    """Record the files of PACKAGE that this process calls into while MARK is not 0."""
    with Path(os.environ[MARK]).open("r+b") as file:
        mark = mmap.mmap(file.fileno(), 1)
    package = os.environ[PACKAGE]
    output = os.open(os.environ[SEEN], os.O_WRONLY | os.O_APPEND)

    def note(frame: FrameType, event: str, _argument: object) -> None:
        request = mark[0]
        if not request or event != "call":
            return
        path = frame.f_code.co_filename
        if path.startswith(package):
            line = f"{os.getpid()} {request} {path.removeprefix(package)}\n"
            os.write(output, line.encode())

    import threading  # noqa: PLC0415 - gevent has to patch it before it is imported elsewhere

    threading.setprofile(note)
    sys.setprofile(note)


@dataclass(frozen=True)
class Crossed:
    """The files that an operation crossed, of the front and of the broker, and its calls."""

    front: set[str]
    broker: set[str]
    calls: int


class Tree:
    """A router of one source tree, whose processes record."""

    def __init__(self, root: Path, folder: Path) -> None:
        self._folder, self._users = folder, folder / "users"
        self.port, self.pulsar = _free_port(), _free_port()
        (folder / "mark").write_bytes(b"\0")
        (folder / "seen").touch()
        hook = folder / "hook"
        hook.mkdir()
        (hook / "sitecustomize.py").write_text(
            f"import runpy\nrunpy.run_path({str(Path(__file__).resolve())!r})['record']()\n"
        )
        self._environ = os.environ | {
            "PYTHONPATH": f"{hook}:{root}",
            MARK: str(folder / "mark"),
            SEEN: str(folder / "seen"),
            PACKAGE: f"{root}/router/",
            "ROUTER_LOG_LEVEL": "warning",
            "ROUTER_SERVER_WORKERS": "1",
            "ROUTER_AUTH_USERS": str(self._users),
            "ROUTER_DATA_DIR": str(folder / "data"),
            "ROUTER_CONSUME_EMPTY_POLLS_PER_MINUTE": "0",
        }
        self._root = root
        with (folder / "mark").open("r+b") as file:
            self._mark = mmap.mmap(file.fileno(), 1)

    @contextlib.contextmanager
    def serving(self) -> Iterator[None]:
        """Serve until the block ends."""
        router = [sys.executable, "-m", "router"]
        subprocess.run(
            [*router, "user", "add", USER, "--password-stdin", "--file", str(self._users)],
            input=PASSWORD.encode(),
            env=self._environ,
            cwd=self._root,
            check=True,
            stdout=subprocess.DEVNULL,
        )
        process = subprocess.Popen(
            [*router, "serve", "--port", str(self.port), "--pulsar", f"127.0.0.1:{self.pulsar}"],
            env=self._environ,
            cwd=self._root,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        try:
            _await(self.port, process)
            yield
        finally:
            process.send_signal(signal.SIGTERM)
            process.wait(STOP_SECONDS)

    def measure(self, operation: int, call: Callable[[], object]) -> None:
        """Call what makes one request until it is warm, then ROUNDS times with records."""
        for _ in range(WARMING):
            call()
        for turn in range(ROUNDS):
            self._mark[0] = 1 + operation * ROUNDS + turn
            try:
                call()
            finally:
                self._mark[0] = 0

    def crossed(self) -> dict[str, Crossed]:
        """Return what each operation crossed."""
        calls: list[Counter[int]] = [Counter() for _ in OPERATIONS]
        rounds: defaultdict[tuple[int, int, str], set[int]] = defaultdict(set)
        brokers: set[int] = set()
        for line in (self._folder / "seen").read_text().splitlines():
            pid, request, path = line.split(" ", 2)
            operation, turn = divmod(int(request) - 1, ROUNDS)
            calls[operation][turn] += 1
            rounds[operation, int(pid), path].add(turn)
            if path.startswith("broker/"):
                brokers.add(int(pid))
        found = {
            name: Crossed(set(), set(), round(statistics.median(calls[at].values())))
            for at, name in enumerate(OPERATIONS)
        }
        for (operation, process, path), turns in rounds.items():
            if 2 * len(turns) > ROUNDS:
                crossed = found[OPERATIONS[operation]]
                side = crossed.broker if process in brokers else crossed.front
                side.add(path)
        return found


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def _await(port: int, process: subprocess.Popen[bytes]) -> None:
    until = time.monotonic() + START_SECONDS
    while time.monotonic() < until:
        if process.poll() is not None:
            raise RuntimeError(f"the router ended with status {process.returncode}")
        client = http.client.HTTPConnection("127.0.0.1", port, timeout=5)
        with contextlib.suppress(OSError), contextlib.closing(client):
            client.request("GET", "/ready")
            if client.getresponse().status == http.HTTPStatus.OK:
                return
        time.sleep(0.05)
    raise RuntimeError(f"the router did not answer within {START_SECONDS} s")


class Requests:
    """One request after the other on a connection that is kept."""

    def __init__(self, port: int) -> None:
        self._socket = socket.create_connection(("127.0.0.1", port), 30)
        credentials = base64.b64encode(f"{USER}:{PASSWORD}".encode()).decode()
        self._fields = (
            f"Host: 127.0.0.1\r\nAuthorization: Basic {credentials}\r\nContent-Type: text/plain\r\n"
        )

    def close(self) -> None:
        """Close the connection."""
        self._socket.close()

    def post(self) -> None:
        """Publish one message."""
        self._call("POST", "/events/files", b"a message")

    def poll(self) -> None:
        """Receive one message, of those that were published before."""
        body = self._call(
            "GET", "/events/files/group/consumer?from=earliest&limit=1&timeout=5000", b""
        )
        if body in {b"", b"[]"}:
            raise RuntimeError("the poll found no message")

    def _call(self, method: str, path: str, body: bytes) -> bytes:
        """Send head and body together: what crosses files must not depend on how they arrive."""
        head = f"{method} {path} HTTP/1.1\r\nContent-Length: {len(body)}\r\n{self._fields}\r\n"
        self._socket.sendall(head.encode() + body)
        answer = http.client.HTTPResponse(self._socket, method=method)
        answer.begin()
        found = answer.read()
        if answer.status != http.HTTPStatus.OK:
            raise RuntimeError(f"{method} {path}: {answer.status} {found[:200]!r}")
        return found


@contextlib.contextmanager
def sending(port: int) -> Iterator[Callable[[], object]]:
    """Return what sends one message from the official Pulsar client."""
    import pulsar  # noqa: PLC0415 - the processes that record do not pay for it

    client: Any = pulsar.Client(
        f"pulsar://127.0.0.1:{port}",
        authentication=pulsar.AuthenticationBasic(USER, PASSWORD),
        logger=pulsar.ConsoleLogger(pulsar.LoggerLevel.Error),
    )
    try:
        producer = client.create_producer("files", batching_enabled=False)
        yield lambda: producer.send(b"a message")
    finally:
        client.close()


def measure(root: Path, folder: Path) -> dict[str, Crossed]:
    """Return what each operation crosses in a source tree; `folder` is an empty one."""
    tree = Tree(root, folder)
    with tree.serving(), contextlib.closing(Requests(tree.port)) as requests:
        for _ in range(WARMING):
            requests.post()
        tree.measure(0, requests.post)
        tree.measure(1, requests.poll)
        with sending(tree.pulsar) as send:
            tree.measure(2, send)
    return tree.crossed()


def main() -> None:
    """Measure the tree that the command line names, and print the files."""
    root = Path(sys.argv[1] if len(sys.argv) > 1 else ROOT).resolve()
    with tempfile.TemporaryDirectory(prefix="request-files-") as folder:
        found = measure(root, Path(folder))
    for operation, crossed in found.items():
        front, broker = crossed.front, crossed.broker
        print(
            f"\n## {operation}: {crossed.calls} calls, {len(front | broker)} files"
            f" (front {len(front)}, broker {len(broker)}, both {len(front & broker)})"
        )
        for side, files in (("front", front), ("broker", broker)):
            for path in sorted(files):
                print(f"  {side:<6}  router/{path}")


if __name__ == "__main__":
    main()
