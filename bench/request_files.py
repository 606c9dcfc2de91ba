"""What a warm request crosses of `router/`: `python -m bench.request_files [TREE]`.

The tool runs `router serve` of a source tree, this checkout's by default, with the embedded
backend, one worker and a users file. Every process of it records by `sys.setprofile` each call of a
function of `router/` while a request is under way: the worker that reads HTTP, the application, and
the broker. These operations are measured after WARMING of the same, all with Basic authentication:

- POST: a message of text/plain to `/events/<topic>`;
- poll: a GET of `/events/<topic>/<group>/<consumer>` that finds a message;
- SEND: a message from the official Pulsar client;
- produce: a POST of one message to PIP 64's `/topics/public/default/<topic>`, which names STRING;
- produce, topic's schema: the same where the body names none, so that the topic's is looked up;
- fetch, acknowledge: one message by PIP 64's `…/messages`, and the POST to `…/cursor` behind it;
- JetStream publish, JetStream fetch, JetStream acknowledge: the same by `/jetstream/…`;
- NATS publish: a message of a NATS client to a stream, and its acknowledgement;
- NATS pull and acknowledge: one message of a durable consumer, and its confirmed acknowledgement.

Each is done ROUNDS times, and is over when nothing is recorded any more: a poll is acknowledged
behind its answer. Of these the QUIET ones count that have the fewest calls, because timers and
maintenance run at the same time now and then, and on a busy machine mostly: a file if most of them
cross it, and of the numbers of calls the median. There are more rounds, MAX_ROUNDS at most, until
the QUIET ones have as many calls one as the other. A byte of a mapped file names the
request that is under way, 0 for none; the processes append what they record to a file that the tool
reads at the end.
"""

from __future__ import annotations

import base64
import contextlib
import http.client
import mmap
import os
import re
import signal
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import FrameType
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
MARK, SEEN, PACKAGE = "REQUEST_FILES_MARK", "REQUEST_FILES_SEEN", "REQUEST_FILES_PACKAGE"
WARMING, ROUNDS, MAX_ROUNDS, QUIET = 20, 9, 21, 3
PRODUCE = "/topics/public/default/files"
CURSOR = f"{PRODUCE}/subscription/s/cursor"
START_SECONDS, STOP_SECONDS = 60.0, 20.0
LOOK_SECONDS, REST_LOOKS, REST_SECONDS = 0.02, 5, 10.0
"""A request is over when so many looks find nothing more recorded, or after so many seconds."""
USER, PASSWORD = "anna", "secret-of-anna"


def record() -> None:
    """Record the files of PACKAGE that this process calls into while MARK is not 0."""
    with Path(os.environ[MARK]).open("r+b") as file:
        mark = mmap.mmap(file.fileno(), 1)
    package = os.environ[PACKAGE]
    output = os.open(os.environ[SEEN], os.O_WRONLY | os.O_APPEND)
    side = "broker" if "router.broker" in sys.orig_argv else "front"

    def note(frame: FrameType, event: str, _argument: object) -> None:
        request = mark[0]
        if not request or event != "call":
            return
        path = frame.f_code.co_filename
        if path.startswith(package):
            line = f"{side} {request} {path.removeprefix(package)}\n"
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
        self.port, self.pulsar, self.nats = _free_port(), _free_port(), _free_port()
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
            "ROUTER_BROKER_NATS": f"127.0.0.1:{self.nats}",
            "ROUTER_CONSUME_EMPTY_POLLS_PER_MINUTE": "0",
        }
        self._root = root
        self._operations: list[str] = []
        self._of_broker: set[int] = set()
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

    def measure(
        self, operations: Mapping[str, Callable[[], object]], *, of_broker: bool = False
    ) -> None:
        """Call operations one after the other until they are warm, then recorded.

        `of_broker`: the broker serves them alone; what others do meanwhile is not theirs.
        """
        first = len(self._operations)
        self._operations += operations
        if of_broker:
            self._of_broker.update(range(first, len(self._operations)))
        for turn in range(-WARMING, MAX_ROUNDS):
            if turn >= ROUNDS and all(map(_is_quiet, self._calls()[first:])):
                break
            for number, call in enumerate(operations.values(), first):
                self._mark[0] = 1 + number * MAX_ROUNDS + turn if turn >= 0 else 0
                try:
                    call()
                    if turn >= 0:
                        self._rest()
                finally:
                    self._mark[0] = 0

    def _rest(self) -> None:
        """Wait until no process records any more: what follows an answer is of its request."""
        seen, same, until = self._folder / "seen", 0, time.monotonic() + REST_SECONDS
        size = seen.stat().st_size
        while same < REST_LOOKS and time.monotonic() < until:
            time.sleep(LOOK_SECONDS)
            before, size = size, seen.stat().st_size
            same = same + 1 if size == before else 0

    def _recorded(self) -> Iterator[tuple[str, int, int, str]]:
        """Yield the recorded calls: front or broker, the operation, its round, and the file."""
        for line in (self._folder / "seen").read_text().splitlines():
            side, request, path = line.split(" ", 2)
            operation, turn = divmod(int(request) - 1, MAX_ROUNDS)
            if side == "broker" or operation not in self._of_broker:
                yield side, operation, turn, path

    def _calls(self) -> list[Counter[int]]:
        """Return how many calls each round of each operation has."""
        calls: list[Counter[int]] = [Counter() for _ in self._operations]
        for _, operation, turn, _ in self._recorded():
            calls[operation][turn] += 1
        return calls

    def crossed(self) -> dict[str, Crossed]:
        """Return what each operation crossed."""
        rounds: defaultdict[tuple[int, str, str], set[int]] = defaultdict(set)
        for side, operation, turn, path in self._recorded():
            rounds[operation, side, path].add(turn)
        fewest = [dict(counts.most_common()[-QUIET:]) for counts in self._calls()]
        found = {
            name: Crossed(set(), set(), round(statistics.median(counts.values())))
            for name, counts in zip(self._operations, fewest, strict=True)
        }
        for (operation, side, path), turns in rounds.items():
            if 2 * len(turns & fewest[operation].keys()) > QUIET:
                crossed = found[self._operations[operation]]
                (crossed.broker if side == "broker" else crossed.front).add(path)
        return found


def _is_quiet(rounds: Counter[int]) -> bool:
    """Return whether the QUIET rounds with the fewest calls have as many one as the other."""
    return len(set(sorted(rounds.values())[:QUIET])) == 1


def _free_port() -> int:
    from tests.ports import free_port  # noqa: PLC0415 - the processes that record do not load it

    return free_port()


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
        self._fields = f"Host: 127.0.0.1\r\nAuthorization: Basic {credentials}\r\n"
        self._fetched = b""

    def close(self) -> None:
        """Close the connection."""
        self._socket.close()

    def post(self) -> None:
        """Publish one message."""
        self._call("POST", "/events/files", b"a message", "text/plain")

    def poll(self) -> None:
        """Receive one message, of those that were published before."""
        body = self._call("GET", "/events/files/group/consumer?from=earliest&limit=1&timeout=5000")
        if body in {b"", b"[]"}:
            raise RuntimeError("the poll found no message")

    def create_consumers(self) -> None:
        """Create the subscription, the stream and the consumer of what follows."""
        self._call("POST", CURSOR.removesuffix("/cursor"), b'{"id":"c","start":"earliest"}')
        api = "/jetstream/api"
        self._call("POST", f"{api}/STREAM.CREATE.FILES", b'{"name":"FILES","subjects":["filed"]}')
        config = b'{"durable_name":"c","ack_policy":"explicit"}'
        self._call(
            "POST",
            f"{api}/CONSUMER.CREATE.FILES.c",
            b'{"stream_name":"FILES","config":%b}' % config,
        )

    def produce(self) -> None:
        """Publish one message by PIP 64, with a schema that the request names."""
        self._call("POST", PRODUCE, b'{"schema_type":"STRING","messages":[{"value":"a message"}]}')

    def produce_by_topic(self) -> None:
        """Publish one message by PIP 64, with the schema that the topic has: none."""
        self._call("POST", PRODUCE, b'{"messages":[{"value":"a message"}]}')

    def fetch(self) -> None:
        """Receive one message by PIP 64."""
        path = CURSOR.removesuffix("/cursor") + "/consumer/c/messages?timeout=0&max_messages=1"
        self._fetched = self._find(rb'"messageId":("[^"]+")', self._call("GET", path))

    def acknowledge(self) -> None:
        """Acknowledge the message that was fetched last."""
        self._call("POST", CURSOR, b'{"type":"individual","messageIds":[%b]}' % self._fetched)

    def jetstream_publish(self) -> None:
        """Publish one message to a stream."""
        self._call("POST", "/jetstream/publish/filed", b"a message")

    def jetstream_fetch(self) -> None:
        """Receive one message of a stream."""
        answer = self._call("POST", "/jetstream/fetch/FILES/c?batch=1&expires=0")
        self._fetched = self._find(rb"(\$JS\.ACK\.[^\"]+)", answer)

    def jetstream_acknowledge(self) -> None:
        """Acknowledge the message that was fetched last."""
        self._call("POST", "/jetstream/ack", self._fetched)

    def _find(self, pattern: bytes, answer: bytes) -> bytes:
        if (match := re.search(pattern, answer)) is None:
            raise RuntimeError(f"the fetch found no message: {answer[:200]!r}")
        return match[1]

    def _call(
        self, method: str, path: str, body: bytes = b"", content_type: str = "application/json"
    ) -> bytes:
        """Send head and body together: what crosses files must not depend on how they arrive."""
        head = f"{method} {path} HTTP/1.1\r\nContent-Length: {len(body)}\r\n{self._fields}"
        head += f"Content-Type: {content_type}\r\n\r\n"
        self._socket.sendall(head.encode() + body)
        answer = http.client.HTTPResponse(self._socket, method=method)
        answer.begin()
        content = answer.read()
        if answer.status >= http.HTTPStatus.BAD_REQUEST:
            raise RuntimeError(f"{method} {path}: {answer.status} {content[:200]!r}")
        return content


class NatsRequests:
    """A NATS client that does one operation after the other on a stream of its own."""

    def __init__(self, port: int) -> None:
        self._socket = socket.create_connection(("127.0.0.1", port), 30)
        options = '"verbose":false,"pedantic":false,"headers":true,"no_responders":true'
        self._send(f'CONNECT {{{options},"user":"{USER}","pass":"{PASSWORD}"}}', "SUB in 1", "PING")
        self._receive(rb"PONG\r\n()")
        self._create("STREAM.CREATE.CALLED", '{"name":"CALLED","subjects":["called"]}')

    def close(self) -> None:
        """Close the connection."""
        self._socket.close()

    def publish(self) -> None:
        """Store one message."""
        self._send("PUB called in 9", "a message")
        self._receive(rb'MSG in 1 \d+\r\n\{.*"seq":(\d+).*\}\r\n')

    def create_consumer(self) -> None:
        """Create the consumer of what follows."""
        config = '{"durable_name":"c","ack_policy":"explicit"}'
        self._create("CONSUMER.CREATE.CALLED.c", f'{{"stream_name":"CALLED","config":{config}}}')

    def pull_and_acknowledge(self) -> None:
        """Receive one message, and acknowledge it."""
        self._send("PUB $JS.API.CONSUMER.MSG.NEXT.CALLED.c in 1", "1")
        reply = self._receive(rb"MSG called 1 (\S+) 9\r\na message\r\n")
        self._send(f"PUB {reply.decode()} in 4", "+ACK")
        self._receive(rb"MSG in 1 0\r\n()\r\n")

    def _create(self, call: str, body: str) -> None:
        self._send(f"PUB $JS.API.{call} in {len(body)}", body)
        self._receive(rb'MSG in 1 \d+\r\n(\{.*"created".*\})\r\n')

    def _send(self, *lines: str) -> None:
        self._socket.sendall("".join(f"{line}\r\n" for line in lines).encode())

    def _receive(self, pattern: bytes) -> bytes:
        """Return what a pattern's group takes of what comes."""
        received = b""
        while (match := re.search(pattern, received)) is None:
            if not (piece := self._socket.recv(1 << 16)):
                raise RuntimeError(f"the broker closed the connection: {received!r}")
            received += piece
        return match[1]


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
        tree.measure({"POST": requests.post})
        tree.measure({"poll": requests.poll})
        with sending(tree.pulsar) as send:
            tree.measure({"SEND": send}, of_broker=True)
        requests.create_consumers()
        tree.measure(
            {
                "produce, topic's schema": requests.produce_by_topic,
                "fetch": requests.fetch,
                "acknowledge": requests.acknowledge,
            }
        )
        tree.measure({"produce": requests.produce})
        tree.measure(
            {
                "JetStream publish": requests.jetstream_publish,
                "JetStream fetch": requests.jetstream_fetch,
                "JetStream acknowledge": requests.jetstream_acknowledge,
            }
        )
        with contextlib.closing(NatsRequests(tree.nats)) as client:
            for _ in range(WARMING):
                client.publish()
            tree.measure({"NATS publish": client.publish}, of_broker=True)
            client.create_consumer()
            pulls = {"NATS pull and acknowledge": client.pull_and_acknowledge}
            tree.measure(pulls, of_broker=True)
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
