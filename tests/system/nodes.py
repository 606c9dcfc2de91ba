"""Several nodes over one Kafka and one ZooKeeper, the traffic of many clients, and its judge.

Theory of operation. Each node speaks to Kafka and to ZooKeeper through proxies of its own, so that
one node can be cut off and the other not. Publishers post numbered messages with keys, each to its
nodes in turn, and never repeat one; pollers poll theirs in turn and keep every answer, and when
each message came first. What is stored is read from Kafka itself, past everything that is tested
here. Then:

- nothing that was acknowledged is missing, neither in Kafka nor in what the group was given;
- what was acknowledged is stored in the order of its publisher, and nothing is stored twice;
- each poller is given the messages of a key in their order, except for what it is given again;
- what the group was given more than once is counted: each fault may cost what was under way then.

The last is a bound and not zero, because an answer may be out before its acknowledgement is in.
"""

from __future__ import annotations

import abc
import contextlib
import http.client
import json
import os
import re
import signal
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from itertools import chain
from pathlib import Path
from typing import Protocol

from kafka import KafkaConsumer, TopicPartition

from tests.servers.kafka import Kafka
from tests.servers.proxy import TcpProxy
from tests.servers.zookeeper import Zookeeper
from tests.system.stack import Stack, descendants
from tests.system.traffic import TEXT

SESSION = 2.0
# Documented is a second for ZooKeeper's ticks and for handing over. What it really took is logged;
# the rest is for a machine that is busy with all of this, and still far from any timeout.
TAKEOVER = float(os.environ.get("SOAK_NODE_TAKEOVER", SESSION + 8))
# What Kafka has to answer a call, and a publish its receipt.
SECONDS = 4.0
LIMIT = 20
# What a publisher's groups may be behind: a machine that posts faster than it polls would otherwise
# have the messages wait for one another, and that is not the waiting that is measured.
AHEAD = 50
# Between two posts of a publisher and two polls of a poller: how fast they are is not tested.
PACE = 0.1
# One for each partition, be there four or six of them.
KEYS = ("s0", "s1", "s3", "s6", "s13", "s21")
PATIENCE = 6.0
SETTINGS = {
    "consume_empty_polls_per_minute": "0",
    "consume_idle": "1s",
    "backend_timeout": f"{SECONDS:g}s",
    "publish_timeout": f"{SECONDS:g}s",
    "zookeeper_session": f"{SESSION:g}s",
}


class Node(Stack):
    """One node of several, reached on its own port."""

    def __init__(self, folder: Path, kafka: str, zookeeper: str, **settings: str) -> None:
        folder.mkdir()
        flags = ["--backend", f"kafka://{kafka}", "--zookeeper", f"{zookeeper}/nodes"]
        super().__init__(folder, "--workers", "1", *flags, **SETTINGS | settings)

    def pause(self) -> None:
        """SIGSTOP everything that belongs to the node."""
        self._signal(signal.SIGSTOP)

    def resume(self) -> None:
        """SIGCONT all of it."""
        self._signal(signal.SIGCONT)

    def _signal(self, number: signal.Signals) -> None:
        assert self.process is not None
        for pid in [self.process.pid, *descendants(self.process.pid)]:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, number)


def start_all(nodes: Sequence[Stack]) -> None:
    """Start nodes at once, and wait until each is ready."""
    with ThreadPoolExecutor(len(nodes)) as pool:
        list(pool.map(lambda node: node.start(), nodes))


class Cluster:
    """Two nodes over a Kafka and a ZooKeeper of their own, with proxies between for each node."""

    def __init__(self, folder: Path) -> None:
        self.kafka = Kafka(folder / "kafka")
        self.zookeeper = Zookeeper(folder / "zookeeper")
        self.to_kafka = [self.kafka.proxied() for _ in range(2)]
        self.to_zookeeper = [TcpProxy(self.zookeeper.address) for _ in range(2)]
        self.nodes = [
            Node(folder / f"node-{number}", kafka.address, zookeeper.address)
            for number, (kafka, zookeeper) in enumerate(
                zip(self.to_kafka, self.to_zookeeper, strict=True)
            )
        ]

    def start(self) -> None:
        """Start everything."""
        self.zookeeper.start()
        self.kafka.start()
        start_all(self.nodes)

    def mend(self) -> None:
        """Put everything right that a test may have left broken."""
        for proxy in (*self.to_kafka, *self.to_zookeeper):
            proxy.heal()
        for node in self.nodes:
            node.resume()
            if node.process is None or node.process.poll() is not None:
                node.start()
            node.wait_ready()

    def close(self) -> None:
        """Stop everything."""
        with contextlib.ExitStack() as owned:
            owned.callback(self.zookeeper.stop)
            owned.callback(self.kafka.close)
            for proxy in self.to_zookeeper:
                owned.callback(proxy.close)
            for node in self.nodes:
                owned.callback(node.stop)


class Served(Protocol):
    """What listens for HTTP on a port of loopback: a node, or nginx."""

    port: int


class Client(threading.Thread, abc.ABC):
    """Sends one request after another to its nodes in turn, each within a bound, until told."""

    def __init__(self, nodes: Sequence[Served], patience: float = PATIENCE) -> None:
        super().__init__(daemon=True)
        self.nodes = nodes
        self.patience = patience
        self.stopping = threading.Event()
        self.failures: Counter[int] = Counter()
        self._clients = [self._connection(node) for node in nodes]

    def _connection(self, node: Served) -> http.client.HTTPConnection:
        return http.client.HTTPConnection("127.0.0.1", node.port, timeout=self.patience)

    def run(self) -> None:
        """Send requests, counting what they failed with; 0: no answer."""
        turn = 0
        while not self.stopping.is_set():
            client = self._clients[turn % len(self._clients)]
            turn += 1
            try:
                failed = self.step(client)
            except (OSError, http.client.HTTPException):
                client.close()
                failed = 0
            if failed is not None:
                self.failures[failed] += 1
                self.stopping.wait(0.05)
        for client in self._clients:
            client.close()

    @abc.abstractmethod
    def step(self, client: http.client.HTTPConnection) -> int | None:
        """Send one request; return the status that it failed with."""

    def end(self) -> None:
        """Stop, and wait for the last answer."""
        self.stopping.set()
        self.join(2 * self.patience)
        assert not self.is_alive(), "a request was never answered"


class Publisher(Client):
    """Posts numbered messages under one key; keeps which were acknowledged, and when sent."""

    def __init__(self, nodes: Sequence[Stack], topic: str, label: str) -> None:
        super().__init__(nodes)
        self.label = label
        self.path = f"/events/{topic}?partitionKey={label}"
        self.sent: list[float] = []
        self.acknowledged: list[int] = []
        self.groups: Sequence[list[Poller]] = ()

    def step(self, client: http.client.HTTPConnection) -> int | None:
        """Post the next message, unless the groups are far behind."""
        if len(self.acknowledged) > AHEAD:
            message = f"{self.label}:{self.acknowledged[-AHEAD]}"
            if not all(arrival(group, message) for group in self.groups):
                self.stopping.wait(0.02)
                return None
        number = len(self.sent)
        self.sent.append(time.monotonic())
        client.request("POST", self.path, f"{self.label}:{number}".encode(), TEXT)
        with client.getresponse() as answer:  # one that ends the connection holds its socket
            answer.read()
        if answer.status != 200:
            return answer.status
        self.acknowledged.append(number)
        self.stopping.wait(PACE)
        return None


class Poller(Client):
    """Polls with one consumer id and keeps all that it is given."""

    def __init__(self, nodes: Sequence[Stack], path: str) -> None:
        super().__init__(nodes)
        self.path = f"/events/{path}?timeout=1000&limit={LIMIT}&from=earliest"
        self.received: list[list[str]] = []
        self.came: dict[str, float] = {}

    def step(self, client: http.client.HTTPConnection) -> int | None:
        """Poll once."""
        client.request("GET", self.path)
        with client.getresponse() as answer:
            body = answer.read()
        if answer.status != 200:
            assert answer.status != 503 or int(answer.headers["Retry-After"]) >= 1
            return answer.status
        if messages := json.loads(body):
            self.received.append(messages)
            for message in messages:
                self.came.setdefault(message, time.monotonic())
            self.stopping.wait(PACE / 2)
        return None


class Traffic:
    """Publishers to one topic, which is all that it holds, and the pollers of two groups.

    `steady` publishers use the last node alone. Of the group `apart` one id polls the first node
    and one the last, so that each holds something whenever something breaks; of the group `over`
    one id polls all nodes in turn, and one all of them at once.
    """

    def __init__(self, nodes: Sequence[Stack], kafka: Kafka, topic: str) -> None:
        self.kafka = kafka
        self.topic = topic
        backwards, last = list(reversed(nodes)), nodes[-1:]
        self.steady = [Publisher(last, topic, key) for key in KEYS]
        self.publishers = [
            *self.steady,
            Publisher(nodes, topic, "a"),
            Publisher(backwards, topic, "b"),
        ]
        self.apart = [
            Poller(nodes[:1], f"{topic}/apart/first"),
            Poller(last, f"{topic}/apart/last"),
        ]
        self.over = [
            Poller(nodes, f"{topic}/over/turns"),
            Poller(nodes, f"{topic}/over/both"),
            Poller(backwards, f"{topic}/over/both"),
        ]
        self.groups = (self.apart, self.over)
        for publisher in self.publishers:
            publisher.groups = self.groups
        self.pollers = [*self.apart, *self.over]

    def start(self) -> None:
        """Begin, and return when messages flow."""
        for client in (*self.publishers, *self.pollers):
            client.start()
        self.flow(time.monotonic(), 60)

    def flow(self, since: float, seconds: float) -> None:
        """Wait until each group had a message of each key of the steady ones, sent after this."""
        for publisher in self.steady:
            for group in self.groups:
                until_true(partial(flows, publisher, group, since), seconds)

    def interruption(self, since: float, seconds: float) -> float:
        """Wait until `apart` had all that the steady publishers sent since; return the longest.

        How long the longest was under way; `seconds` bounds the waiting from now on.
        """
        sent = {
            f"{publisher.label}:{number}": publisher.sent[number]
            for publisher in self.steady
            for number in list(publisher.acknowledged)
            if publisher.sent[number] > since
        }
        until_true(lambda: all(map(partial(arrival, self.apart), sent)), seconds)
        return max((arrival(self.apart, message) or 0.0) - sent[message] for message in sent)

    def end(self) -> int:
        """Stop, let the groups have all there is, and judge; return how many came repeatedly."""
        for publisher in self.publishers:
            publisher.stopping.set()
        for publisher in self.publishers:
            publisher.end()
        by_partition = read_kafka(self.kafka.address, self.topic)
        steady = {publisher.label for publisher in self.steady}
        assert all(steady & {split(m)[0] for m in messages} for messages in by_partition)
        stored = {message for messages in by_partition for message in messages}
        for group in self.groups:
            until_true(lambda group=group: stored <= given(group).keys(), 60)  # type: ignore[misc] # a default
        self._settle()
        for poller in self.pollers:
            poller.end()
        return self.judge(list(chain(*read_kafka(self.kafka.address, self.topic))))

    def _settle(self) -> None:
        """Wait until nothing comes any more."""
        seen = -1
        while (now := sum(map(answers, self.pollers))) != seen:
            seen = now
            time.sleep(1.5)

    def judge(self, stored: list[str]) -> int:
        """Hold what is stored, and what was given, against what was acknowledged."""
        places = {message: place for place, message in enumerate(stored)}
        assert len(places) == len(stored), "stored twice"
        for publisher in self.publishers:
            expect_stored(publisher, places)
        for group in self.groups:
            came = given(group).keys()
            assert came <= places.keys(), f"never stored: {sorted(came - places.keys())[:5]}"
            missed = places.keys() - came
            assert not missed, f"never given: {sorted(missed)[:5]}, {len(missed)} in all"
        for poller in self.pollers:
            expect_order(poller, places)
        return sum(given(self.pollers).values()) - len(self.groups) * len(stored)

    def told(self) -> str:
        """Return in words what the clients were refused with."""
        publishers = sum((p.failures for p in self.publishers), Counter())
        pollers = sum((p.failures for p in self.pollers), Counter())
        return f"refused posts {dict(publishers)}, polls {dict(pollers)}"


def flows(publisher: Publisher, group: list[Poller], since: float) -> bool:
    """Return whether a group had a message that was sent after this."""
    for number in reversed(list(publisher.acknowledged)):
        if publisher.sent[number] <= since:
            return False
        if arrival(group, f"{publisher.label}:{number}"):
            return True
    return False


def arrival(group: list[Poller], message: str) -> float | None:
    """Return when a group was given a message first."""
    return min((p.came[message] for p in group if message in p.came), default=None)


def answers(poller: Poller) -> int:
    """Return how many answers with messages came."""
    return len(poller.received)


def given(pollers: list[Poller]) -> Counter[str]:
    """Return how often each message was given to them."""
    return Counter(
        message for poller in pollers for messages in list(poller.received) for message in messages
    )


def expect_stored(publisher: Publisher, places: dict[str, int]) -> None:
    """What was acknowledged is there, in order."""
    mine = [f"{publisher.label}:{number}" for number in publisher.acknowledged]
    lost = [message for message in mine if message not in places]
    assert not lost, f"acknowledged and lost: {lost[:5]}, {len(lost)} in all"
    order = [places[message] for message in mine]
    assert order == sorted(order), f"{publisher.label}: reordered"
    assert len(mine) > 5, f"{publisher.label}: no load"


def expect_order(poller: Poller, places: dict[str, int]) -> None:
    """An answer has each key's messages in order; so have all answers, but for repetitions."""
    furthest: dict[str, int] = {}
    seen: set[str] = set()
    for messages in poller.received:
        last: dict[str, int] = {}
        for message in messages:
            label, place = split(message)[0], places[message]
            assert last.get(label, -1) < place, f"{poller.path}: reordered in an answer: {message}"
            last[label] = place
            if message not in seen:
                assert furthest.get(label, -1) < place, f"{poller.path}: reordered: {message}"
                furthest[label] = place
        seen.update(messages)


def split(message: str) -> tuple[str, int]:
    """Return a message's publisher and number."""
    found = re.fullmatch(r"(\w+):(\d+)", message)
    assert found is not None, message
    return found[1], int(found[2])


def read_kafka(address: str, topic: str) -> list[list[str]]:
    """Return what Kafka at an address has stored in each partition, as its own client reads it."""
    consumer = KafkaConsumer(
        bootstrap_servers=address, enable_auto_commit=False, isolation_level="read_committed"
    )
    with contextlib.closing(consumer):
        numbers = sorted(consumer.partitions_for_topic(topic))
        partitions = [TopicPartition(topic, number) for number in numbers]
        consumer.assign(partitions)
        consumer.seek_to_beginning(*partitions)
        ends = consumer.end_offsets(partitions)
        found: dict[TopicPartition, list[str]] = {partition: [] for partition in partitions}
        until = time.monotonic() + 30
        while any(consumer.position(partition) < ends[partition] for partition in partitions):
            assert time.monotonic() < until, "Kafka does not hand out what it has"
            for partition, records in consumer.poll(500).items():
                found[partition] += [record.value.decode() for record in records]
        return list(found.values())


def until_true(condition: Callable[[], bool], seconds: float) -> None:
    """Wait for a condition, at most so long."""
    until = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < until, f"it did not happen within {seconds} s"
        time.sleep(0.02)


@contextlib.contextmanager
def traffic(nodes: Sequence[Stack], kafka: Kafka, topic: str) -> Iterator[Traffic]:
    """Run traffic while the block lasts; whoever opened it ends and judges it."""
    made = Traffic(nodes, kafka, topic)
    try:
        made.start()
        yield made
    finally:
        for client in (*made.publishers, *made.pollers):
            client.stopping.set()
