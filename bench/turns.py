"""Two source trees in turns: `python -m bench.turns OLD_TREE [--only TEXT] [--kafka]`.

Both routers run all the time and one of them is under load: what else the machine does falls on
both. Processor time is that of all processes of a router; the load generator's is not counted.
Printed are the medians of the turns, and the ratio of this tree to the old one.

With `--kafka` both routers keep their messages in one Apache Kafka. What that uses is not counted.

Where rates say something about the router, the load generator is the one in Go (`run_go`).
"""

from __future__ import annotations

import argparse
import json
import os
import re
import socket
import statistics
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from itertools import count
from pathlib import Path

import uvloop

from bench import kafka, nats, polls, wire
from bench.load import Shuffled, request, run, run_go
from bench.pulsar import LARGER, SINGLES
from bench.servers import ROOT, Server, router
from tests.ports import free_port
from tests.servers.golang import NATS, built
from tests.servers.kafka import Kafka

TURNS = 6
SECONDS = 2.5
KIB = b"x" * 1024
BATCH = (b"1.1024.k" + KIB + b"\n") * 100
BACKLOG_ENTRIES = 4_000
MANY_TOPICS = 1_000
WAITING_MESSAGES = 40_000
FETCHED_MESSAGES = 60_000
NAMED_MESSAGES = 6_000
STREAM_MESSAGES = 60_000

Measure = Callable[[Server], int]
"""Puts a router under load and returns how many operations that were."""

_topics = count()


def _posts(connections: int) -> Measure:
    def measure(server: Server) -> int:
        sends = [[request("POST", "/events/turns", KIB)]] * connections
        return len(run_go(server.port, sends, SECONDS).latencies)

    return measure


def _many_topics(server: Server) -> int:
    requests = [request("POST", f"/events/many-{n}", KIB) for n in range(MANY_TOPICS)]
    return len(run(server.port, requests, 32, SECONDS, make=Shuffled).latencies)


def _batches(server: Server) -> int:
    requests = [request("POST", "/events/batches", BATCH, "application/cambria")]
    return len(run(server.port, requests, 8, SECONDS).latencies)


def _polls(server: Server) -> int:
    """A POST and the poll that gets it, each connection on a topic of its own."""
    topic = f"polled-{next(_topics)}"
    requests = [
        request("POST", f"/events/{topic}", KIB),
        request("GET", f"/events/{topic}/g/c?from=earliest&timeout=5000"),
    ]
    return len(run(server.port, requests, 1, SECONDS).latencies) // 2


class NotServedError(RuntimeError):
    """A tree does not serve what is to be measured."""


class WaitingPolls:
    """Polls of messages that wait, prepared before each turn; `begins` is called at its begin."""

    def __init__(self, groups: int, limit: int, together: int) -> None:
        self._polls = polls.Polls(groups, limit, together, WAITING_MESSAGES)
        self._sides: dict[int, polls.Side] = {}
        self._sends: list[list[bytes]] = []
        self.begins: Callable[[], None] = lambda: None

    def prepare(self, server: Server) -> None:
        """Publish what polls are answered."""
        self._sends = self._polls.prepare(self._side(server))

    def __call__(self, server: Server) -> int:
        """Poll; return the number of polls."""
        result = self._polls.run(self._side(server), self._sends, SECONDS, self.begins)
        if result.errors:
            raise RuntimeError(f"{result.errors} polls had no message")
        return len(result.latencies)

    def _side(self, server: Server) -> polls.Side:
        return self._sides.setdefault(server.port, polls.side(server))


@dataclass
class Acks:
    """Fetches of so many messages of a stream, each followed by a request that acknowledges them.

    One connection; the consumer is another one in each turn, so that the messages are there again.
    """

    batch: int
    consumer: str = ""
    filled: set[int] = field(default_factory=set)

    def prepare(self, server: Server) -> None:
        """Fill the stream before the first turn, and make the consumer of this one."""
        self.consumer = f"c{next(_topics)}"
        config = {"durable_name": self.consumer, "ack_policy": "explicit"}
        client = _Client(server.port)
        if server.port not in self.filled:
            self.filled.add(server.port)
            stream = {"name": "ACKED", "subjects": ["acked"]}
            client.post("/jetstream/api/STREAM.CREATE.ACKED", json.dumps(stream).encode())
            publish, stored = request("POST", "/jetstream/publish/acked", KIB[:128]), 0
            while stored < STREAM_MESSAGES:
                stored += len(run(server.port, [publish], 128, 1.0).latencies)
        made = json.dumps({"stream_name": "ACKED", "config": config}).encode()
        client.post(f"/jetstream/api/CONSUMER.CREATE.ACKED.{self.consumer}", made)

    def __call__(self, server: Server) -> int:
        """Fetch and acknowledge; return the number of pairs."""
        client = _Client(server.port)
        fetch = f"/jetstream/fetch/ACKED/{self.consumer}?batch={self.batch}&expires=0"
        done, until = 0, time.monotonic() + SECONDS
        while time.monotonic() < until:
            tokens = re.findall(rb"\$JS\.ACK\.[^\"]+", client.post(fetch))
            if not tokens:
                break
            if (answer := client.post("/jetstream/ack", b"\n".join(tokens))) != b"+OK":
                raise RuntimeError(answer.decode())
            done += 1
        return done


class _Client:
    """One connection, whose next request depends on the last answer."""

    def __init__(self, port: int) -> None:
        self._socket = socket.create_connection(("127.0.0.1", port), 30)

    def post(self, path: str, body: bytes = b"") -> bytes:
        """Return the body of the answer to a POST."""
        return self.body(request("POST", path, body))

    def body(self, sent: bytes) -> bytes:
        """Return the body of the answer to a request."""
        return self.answer(sent)[1]

    def answer(self, sent: bytes) -> tuple[bytes, bytes]:
        """Return the head and the body of an answer, which says its length."""
        self._socket.sendall(sent)
        answer = b""
        while (end := answer.find(b"\r\n\r\n")) < 0 or len(answer) < end + 4 + _length(answer):
            if not (piece := self._socket.recv(1 << 18)):
                raise RuntimeError("the router closed the connection")
            answer += piece
        return answer[:end], answer[end + 4 :]


def _length(answer: bytes) -> int:
    found = re.search(rb"\r\ncontent-length: *(\d+)", answer, re.IGNORECASE)
    return int(found[1]) if found else 0


@dataclass
class Fetches:
    """Fetches of so many messages of a REST consumer, each acknowledged, or none of them.

    One connection; the topic is another one in each turn.
    """

    limit: int
    acknowledges: bool = True
    path: str = ""

    def prepare(self, server: Server) -> None:
        """Publish what fetches are answered, and create their consumer."""
        topic = f"fetched-{next(_topics)}"
        together = 1 if self.limit == 1 else polls.TOGETHER
        publish = request("POST", f"/events/{topic}", b"\n".join([KIB] * together))
        published = 0
        while published < min(self.limit * 4_000, FETCHED_MESSAGES):
            published += len(run(server.port, [publish], 32, 0.3).latencies) * together
        self.path = f"/topics/public/default/{topic}/subscription/s"
        client = _Client(server.port)
        client.post(self.path, b'{"id":"c","start":"earliest"}')

    def __call__(self, server: Server) -> int:
        """Fetch, and acknowledge; return the number of fetches."""
        client = _Client(server.port)
        fetch = f"{self.path}/consumer/c/messages?timeout=0&max_messages={self.limit}"
        done, until = 0, time.monotonic() + SECONDS
        while time.monotonic() < until:
            ids = re.findall(rb'"messageId":("[^"]+")', client.body(request("GET", fetch)))
            if len(ids) != self.limit:
                break
            if self.acknowledges:
                named = b'{"type":"individual","messageIds":[%b]}' % b",".join(ids)
                if refusal := client.post(f"{self.path}/cursor", named):
                    raise RuntimeError(refusal.decode())
            done += 1
        return done


@dataclass
class NamedAnswers:
    """Polls of one message with `ack=explicit`, each of which names the answer before it."""

    topic: str = ""

    def prepare(self, server: Server) -> None:
        """Publish what polls are answered."""
        self.topic = f"named-{next(_topics)}"
        publish, published = request("POST", f"/events/{self.topic}", KIB), 0
        while published < NAMED_MESSAGES:
            published += len(run(server.port, [publish], 32, 0.3).latencies)

    def __call__(self, server: Server) -> int:
        """Poll; return the number of polls."""
        client = _Client(server.port)
        path = f"/events/{self.topic}/g/c?from=earliest&timeout=0&limit=1&ack="
        token, done, until = "explicit", 0, time.monotonic() + SECONDS
        while time.monotonic() < until:
            head, body = client.answer(request("GET", path + token))
            if body == b"[]":
                break
            if (match := re.search(rb"\r\nack-token: *([^\r]+)", head, re.IGNORECASE)) is None:
                raise NotServedError("a tree answers no Ack-Token: it does not know ack=explicit")
            token = match[1].decode()
            done += 1
        return done


def _kafka_client(measure: kafka.Measure) -> Measure:
    """Return what puts a router's Kafka listener under load; operations are records."""
    return lambda server: measure(server.listeners["kafka"], SECONDS)[1]


def _nats_client(kind: str) -> Measure:
    """Return what puts a router's NATS listener under load; operations are messages."""

    def measure(server: Server) -> int:
        where = f"nats://{server.listeners['nats']}", str(SECONDS), str(nats.SIZE)
        command = [str(built(NATS)), "load", kind, *where]
        done = subprocess.run(command, capture_output=True, timeout=nats.LOAD_SECONDS, check=True)
        return int(json.loads(done.stdout)["messages"])

    return measure


def _sends(load: wire.Load) -> Measure:
    def measure(server: Server) -> int:
        url = f"pulsar://127.0.0.1:{server.pulsar}"
        return uvloop.run(wire.publish(url, load, SECONDS)).messages

    return measure


def _backlog(load: wire.Load) -> Measure:
    def measure(server: Server) -> int:
        url = f"pulsar://127.0.0.1:{server.pulsar}"
        return uvloop.run(wire.drain(url, load, BACKLOG_ENTRIES)).messages

    return measure


MEASURES: dict[str, Measure] = {
    "POST 1 KiB, c=1": _posts(1),
    "POST 1 KiB, c=32": _posts(32),
    "POST 1 KiB, c=256": _posts(256),
    "POST 1 KiB, 1,000 topics, c=32": _many_topics,
    "POST 100 x 1 KiB in cambria, c=8": _batches,
    "POST and the poll that gets it, c=1": _polls,
    "poll of 1 message of 500, 1 consumer": WaitingPolls(1, 1, polls.TOGETHER),
    "poll of 1 message of 500, 32 groups": WaitingPolls(32, 1, polls.TOGETHER),
    "poll of 1 single message, 1 consumer": WaitingPolls(1, 1, 1),
    "poll of 1 single message, 32 groups": WaitingPolls(32, 1, 1),
    "poll of 500 messages, 1 consumer": WaitingPolls(1, 500, polls.TOGETHER),
    "fetch and acknowledge 1 message": Acks(1),
    "fetch and acknowledge 100 messages": Acks(100),
    "poll of 1 single message, ack=explicit": NamedAnswers(),
    "REST: fetch and acknowledge 1 message": Fetches(1),
    "REST: fetch and acknowledge 100 messages": Fetches(100),
    "REST: fetch 1 message, acknowledge none": Fetches(1, acknowledges=False),
    "single SENDs of 1 KiB": _sends(SINGLES),
    "SENDs of 100 x 1 KiB, a message": _sends(LARGER),
    "singles published and drained": _backlog(SINGLES),
    "batches published and drained, a message": _backlog(LARGER),
    "Kafka: produce, batched, a record": _kafka_client(kafka.produce),
    "Kafka: consume a backlog, a record": _kafka_client(kafka.consume),
    "NATS: publish, one at a time": _nats_client("sync"),
    "NATS: publish, 4,000 not acknowledged": _nats_client("async"),
    "NATS: consume, each acknowledged": _nats_client("consume"),
}


class Meter:
    """Processor time of a router, and time, since `begin`."""

    def __init__(self, server: Server) -> None:
        self._server = server
        self.begin()

    def begin(self) -> None:
        """Begin again."""
        self._used, self._began = self._server.processor_seconds(), time.perf_counter()

    def used(self) -> tuple[float, float]:
        """Return both in seconds."""
        took = time.perf_counter() - self._began
        return self._server.processor_seconds() - self._used, took


@dataclass
class Figures:
    """Of one router and one operation, an entry for each turn."""

    costs: list[float] = field(default_factory=list)
    """Processor time of an operation, in microseconds."""
    rates: list[float] = field(default_factory=list)
    """Operations a second."""

    def note(self, done: int, used: float, took: float) -> None:
        """Note a turn: its operations, seconds of processors and seconds."""
        self.costs.append(used / max(1, done) * 1e6)
        self.rates.append(done / took)

    def spread(self) -> str:
        """Return the lowest and the highest processor time."""
        return f"{min(self.costs):.1f}-{max(self.costs):.1f}"


def main() -> None:
    """Measure each operation on both trees in turns, and print the ratio of their medians."""
    options = argparse.ArgumentParser(prog="python -m bench.turns")
    options.add_argument("old", type=Path, help="the source tree to compare with")
    options.add_argument("--only", default="", help="measure what has this in its title")
    options.add_argument("--kafka", action="store_true", help="measure HTTP over Apache Kafka")
    given = options.parse_args()
    with ExitStack() as stack:
        settings = (
            {"backend_url": f"kafka://{stack.enter_context(_kafka())}"} if given.kafka else {}
        )
        trees = given.old.resolve(), ROOT
        servers = [_serve(stack, tree, settings) for tree in trees]
        for title, measure in MEASURES.items():
            if given.only in title and not (given.kafka and title.startswith(("Kafka", "NATS"))):
                try:
                    line = _line(*_in_turns(servers, measure))
                except NotServedError as error:
                    line = f"skipped: {error}"
                print(f"{title:<42} {line}", flush=True)


def _serve(stack: ExitStack, tree: Path, settings: dict[str, str]) -> Server:
    """Run the router of a tree, with listeners for all clients where the store is its own."""
    listeners = {} if settings else {name: f"127.0.0.1:{free_port()}" for name in ("kafka", "nats")}
    addresses = {f"broker_{name}": address for name, address in listeners.items()}
    server = stack.enter_context(router(tree, **settings, **addresses))
    server.listeners = listeners
    return server


@contextmanager
def _kafka() -> Iterator[str]:
    """Run an Apache Kafka; yield its address."""
    parent = os.environ.get("BENCH_DIR")
    with tempfile.TemporaryDirectory(prefix="bench-", dir=parent) as folder:
        store = Kafka(Path(folder) / "kafka")
        try:
            store.start()
            yield store.address
        finally:
            store.close()


def _line(old: Figures, new: Figures) -> str:
    before, now = statistics.median(old.costs), statistics.median(new.costs)
    slower, faster = statistics.median(old.rates), statistics.median(new.rates)
    return (
        f"old {before:8.1f} us, new {now:8.1f} us, ratio {now / before:.3f}"
        f" ({old.spread()} | {new.spread()})"
        f" | old {slower:7.0f}/s, new {faster:7.0f}/s, ratio {faster / slower:.2f}"
    )


def _in_turns(servers: list[Server], measure: Measure) -> list[Figures]:
    figures = [Figures() for _ in servers]
    for turn in range(TURNS + 1):
        # The order changes, so that neither always runs behind the other.
        pairs = list(zip(servers, figures, strict=True))
        for server, noted in reversed(pairs) if turn % 2 else pairs:
            meter = Meter(server)
            if isinstance(measure, WaitingPolls | Acks | NamedAnswers | Fetches):
                measure.prepare(server)
            if isinstance(measure, WaitingPolls):
                measure.begins = meter.begin
            meter.begin()
            done = measure(server)
            if turn:  # the first turn fills caches
                noted.note(done, *meter.used())
    return figures


if __name__ == "__main__":
    main()
