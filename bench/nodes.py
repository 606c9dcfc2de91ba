"""Two nodes behind nginx, over a real Kafka and a real ZooKeeper: publishing, delivery, leases.

Everything shares the machine: the load, nginx with the files of deploy/, two nodes of one worker
each, Kafka and ZooKeeper. The floor is the bare Flask view with two workers, alone and behind the
same nginx; for a delivery it is kafka-python without HTTP. What a poll costs ZooKeeper is read off
its transaction number (zxid), which every write raises by one and nothing else does.
"""

from __future__ import annotations

import http.client
import itertools
import json
import os
import re
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

from kafka import KafkaConsumer, KafkaProducer

from bench.load import Result, request, run
from bench.polls import deliveries, spread
from bench.servers import Server, floor, node
from tests.deploy.nginx import Nginx
from tests.ports import free_port
from tests.servers.kafka import Kafka
from tests.servers.zookeeper import Zookeeper

KIB = b"x" * 1024
GROUPS = 32
IDLE = 12.0
TOGETHER = 20
NOT_HASHED = {"hash $router_group consistent;": ""}


@dataclass
class Cluster:
    """What runs: the servers behind, two nodes, and nginx with and without hashing before them."""

    kafka: Kafka
    zookeeper: Zookeeper
    nodes: list[Server]
    hashed: int
    turns: int

    def writes(self) -> int:
        """Return how many writes ZooKeeper has done, modulo what a new epoch would add."""
        found = re.search(r"Zxid: 0x([0-9a-f]+)", self.zookeeper.ask("srvr"))
        assert found is not None
        return int(found[1], 16)


@contextmanager
def cluster() -> Iterator[Cluster]:
    """Run all of it on loopback, and stop it again."""
    with ExitStack() as owned:
        parent = os.environ.get("BENCH_DIR")
        folder = Path(owned.enter_context(tempfile.TemporaryDirectory("", "bench-", parent)))
        zookeeper, kafka = Zookeeper(folder / "zookeeper"), Kafka(folder / "kafka")
        owned.callback(zookeeper.stop)
        owned.callback(kafka.close)
        zookeeper.start()
        kafka.start()
        nodes = [
            owned.enter_context(node(kafka.address, zookeeper.address, server_workers="1"))
            for _ in range(2)
        ]
        ports = [server.port for server in nodes]
        fronts = [free_port(), free_port()]
        for port, changes in zip(fronts, ({}, NOT_HASHED), strict=True):
            owned.enter_context(Nginx(folder / f"nginx-{port}", port, ports, changes))
        yield Cluster(kafka, zookeeper, nodes, *fronts)


def nodes(seconds: float) -> None:
    """All figures of two nodes, one after the other."""
    with cluster() as running:
        for measure in (publishing, batches, delivering, handing_over, polling):
            measure(running, seconds)
            print(f"{'':<26} load average {os.getloadavg()[0]:.1f}")


def publishing(running: Cluster, seconds: float) -> None:
    """One message of 1 KiB a request through nginx, against the floor with and without nginx."""
    posts = [request("POST", "/events/bench", KIB)]
    with ExitStack() as owned:
        bare = owned.enter_context(floor("-w", "2"))
        folder = Path(owned.enter_context(tempfile.TemporaryDirectory("", "bench-")))
        before = owned.enter_context(Nginx(folder, free_port(), [bare.port]))
        floors = {"floor behind nginx": before.port, "floor alone": bare.port}
        for connections in (1, 32):
            ours, words = costed(running.hashed, running.nodes, posts, connections, seconds)
            print(f"POST 1 KiB c={connections:<13} ours {words}")
            for name, port in floors.items():
                other, words = costed(port, [bare], posts, connections, seconds)
                ratio = ours.rate() / other.rate()
                print(f"{'':<26} {name} {words}: ratio {ratio:.2f}")


def batches(running: Cluster, seconds: float) -> None:
    """A hundred messages of 1 KiB a request, in cambria."""
    body = (b"1.1024.k" + KIB + b"\n") * 100
    posts = [request("POST", "/events/batch", body, "application/cambria")]
    for connections in (8, 32):
        result, words = costed(running.hashed, running.nodes, posts, connections, seconds)
        print(f"100 x 1 KiB c={connections:<12} {result.rate() * 100:.0f} msg/s; {words}")


def delivering(running: Cluster, seconds: float) -> None:
    """From the start of a POST until a waiting GET has its answer, both through nginx."""
    print(f"POST to waiting GET        {spread(deliveries(running.hashed, seconds))}")
    print(f"  kafka-python, no HTTP    {spread(bare_deliveries(running.kafka.address, seconds))}")


def bare_deliveries(address: str, seconds: float) -> list[float]:
    """Return how many milliseconds messages take from one kafka-python client to another."""
    producer = KafkaProducer(bootstrap_servers=address, acks="all", linger_ms=0)
    producer.send("bare", KIB).get(30)
    consumer = KafkaConsumer("bare", bootstrap_servers=address, consumer_timeout_ms=30_000)
    latencies: list[float] = []
    ready, sent = threading.Event(), threading.Semaphore(0)

    def consume() -> None:
        for record in consumer:
            now = time.perf_counter()
            if record.value == b"ready":
                ready.set()
                continue
            latencies.append((now - float(record.key)) * 1000)
            sent.release()
            if record.value == b"end":
                return

    reader = threading.Thread(target=consume)
    reader.start()
    while not ready.wait(0.1):
        producer.send("bare", b"ready").get(30)
    until = time.perf_counter() + seconds
    value = KIB
    while value != b"end":
        time.sleep(0.02)
        value = KIB if time.perf_counter() < until else b"end"
        producer.send("bare", value, key=repr(time.perf_counter()).encode()).get(30)
        assert sent.acquire(timeout=30)
    reader.join(30)
    consumer.close()
    producer.close()
    return latencies


def handing_over(running: Cluster, seconds: float) -> None:
    """One consumer id that polls the two nodes in turn, a message each, and then one node alone."""
    total = int(seconds * 400)
    publish(running, "handed", total)
    ports = [server.port for server in running.nodes]
    clients = [http.client.HTTPConnection("127.0.0.1", port, timeout=30) for port in ports]
    got: list[str] = []

    def poll(client: http.client.HTTPConnection) -> float:
        began = time.perf_counter()
        client.request("GET", "/events/handed/g/c?limit=1&timeout=20000&from=earliest")
        answer = json.loads(client.getresponse().read())
        assert len(answer) == 1, answer
        got.extend(answer)
        return (time.perf_counter() - began) * 1000

    for name, turns in (("in turn", clients), ("one node", clients[:1])):
        poll(turns[0])
        before, began = running.writes(), time.perf_counter()
        until = began + seconds
        latencies = []
        for client in itertools.cycle(turns):
            latencies.append(poll(client))
            if time.perf_counter() >= until or len(got) > total - 2:
                break
        rate = len(latencies) / (time.perf_counter() - began)
        writes = (running.writes() - before) / len(latencies)
        print(
            f"polls of a message, {name:<8} {rate:.0f}/s, {spread(latencies)}, {writes:.2f} writes"
        )
    print(f"{'':<26} {len(got)} messages, {len(got) - len(set(got))} of them twice")


def polling(running: Cluster, seconds: float) -> None:
    """Polls of a message by 32 groups at once, with the hashing of deploy/nginx and without."""
    publish(running, "polled", int(seconds * 1000) + 5000)
    for name, port in (("hashed", running.hashed), ("in turn", running.turns)):
        polls = [
            request("GET", f"/events/polled/{name[:1]}{i}/c?limit=1&timeout=20000&from=earliest")
            for i in range(GROUPS)
        ]
        # longer than consume.idle: what was polled before gives its leases back meanwhile
        run(port, polls, GROUPS, IDLE, own=True)
        before, used = running.writes(), processor_seconds(running.nodes)
        result = run(port, polls, GROUPS, seconds, own=True)
        number = max(1, len(result.latencies))
        writes = (running.writes() - before) / number
        cost = (processor_seconds(running.nodes) - used) / number * 1e6
        print(f"polls of 32 groups, {name:<8} {worded(result)}, cpu {cost:.0f} us", end=", ")
        print(f"{writes:.3f} writes a poll")


def publish(running: Cluster, topic: str, messages: int) -> None:
    """Publish numbered messages, as lines, some at a time: a poll reads whole batches of Kafka."""
    client = http.client.HTTPConnection("127.0.0.1", running.hashed, timeout=60)
    for first in range(0, messages, TOGETHER):
        body = "\n".join(f"message {first + i}" for i in range(TOGETHER)).encode()
        client.request("POST", f"/events/{topic}", body, {"Content-Type": "text/plain"})
        answer = client.getresponse().read()
        assert json.loads(answer).get("count") == TOGETHER, answer
    client.close()


def costed(
    port: int, servers: list[Server], requests: list[bytes], connections: int, seconds: float
) -> tuple[Result, str]:
    """Load a port, after a second that does not count; say what came, and the servers' costs."""
    run(port, requests, connections, 1.0)
    before = processor_seconds(servers)
    result = run(port, requests, connections, seconds)
    used = processor_seconds(servers) - before
    cost = used / max(1, len(result.latencies)) * 1e6
    return result, f"{worded(result)}, cpu {cost:.0f} us"


def processor_seconds(servers: list[Server]) -> float:
    """Return the processor time that servers have used, with all that they started."""
    return sum(server.processor_seconds() for server in servers)


def worded(result: Result) -> str:
    """Return rate, latencies and errors of a result in words."""
    return (
        f"{result.rate():.0f} req/s, p50 {result.percentile(50):.2f}, "
        f"p99 {result.percentile(99):.2f} ms, errors {result.errors}"
    )
