"""Polls: the router on its own store, on Apache Kafka, and an HTTP bridge on that Kafka, in turns.

The bridge (`bench/go`, with franz-go) does what an HTTP bridge such as kafka-pixy does: the
consumer of a group lives in its process, hands out one record a request, and commits twice a second
on its own what it handed out, written or not. It reads the topics that the router on Kafka reads.

Each turn polls for groups that had one answer before, over the same connections, so that no group
is made meanwhile and none changes from one worker to another. Processor time is that of all
processes of a server, and Kafka's separately. The load generator is the one in Go; its time is not
counted.
"""

from __future__ import annotations

import argparse
import http.client
import os
import secrets
import socket
import statistics
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

import uvloop
from confluent_kafka import Producer

from bench import wire
from bench.kafka import FLUSH_SECONDS, Compiled
from bench.load import Result, request, run_go
from bench.pulsar import Peer
from bench.servers import Server, bridge, router

KIB = b"x" * 1024
TURNS = 4
TOGETHER = 500
GROUPS = 32
FILL_SECONDS = 120.0
DRAIN_SECONDS = 60.0


@dataclass(frozen=True)
class Paths:
    """Where a server takes messages and polls.

    `settled_ms`: how long a new group may have to wait for the messages that there are.
    """

    publish: str
    poll: str
    settled_ms: int = 0


ROUTER = Paths("/events/{topic}", "/events/{topic}/{group}/c?timeout={timeout}")
BRIDGE = Paths(
    "/topics/{topic}/messages", "/topics/{topic}/messages?group={group}&timeout={timeout}", 2_000
)


@dataclass
class Side:
    """A server that is polled; `fill` stores messages in a topic, so many together, so many."""

    name: str
    server: Server
    fill: Callable[[str, int, int], None]
    paths: Paths = ROUTER
    kafka: Peer | None = None
    topics: dict[tuple[int, int], str] = field(default_factory=dict)

    def topic(self, together: int, messages: int) -> str:
        """Return a topic that has so many messages, which were published so many together."""
        key = together, messages
        if key not in self.topics:
            topic = f"polled-{secrets.token_hex(8)}"
            self.fill(topic, together, messages)
            self.topics[key] = topic
        return self.topics[key]

    def poll(self, topic: str, limit: int) -> bytes:
        """Return the polls of a new group, from the first message on."""
        group = f"g{secrets.token_hex(8)}"
        path = self.paths.poll.format(topic=topic, group=group, timeout=5_000)
        return request("GET", path + f"&from=earliest&limit={limit}")


def side(server: Server, name: str = "router", paths: Paths = ROUTER) -> Side:
    """Return a router on its own store, or a server on Kafka."""
    if server.kafka:
        return Side(name, server, partial(_produce, server.kafka), paths)
    return Side(name, server, partial(_publish, f"pulsar://127.0.0.1:{server.pulsar}"), paths)


def _publish(url: str, topic: str, together: int, messages: int) -> None:
    load = wire.Load(together, len(KIB), under_way=max(1, 2_000 // together))
    name = f"persistent://public/default/{topic}"
    uvloop.run(wire.fill(url, name, load, messages // together, FILL_SECONDS))


@dataclass(frozen=True)
class Polls:
    """Polls of messages that wait, each of so many groups over a connection of its own.

    `together`: how many messages were published in one request, of `messages` in all.
    """

    groups: int
    limit: int
    together: int
    messages: int

    def prepare(self, side: Side) -> list[list[bytes]]:
        """Return the requests of each connection: polls of new groups."""
        topic = side.topic(self.together, self.messages)
        return [[side.poll(topic, self.limit)] for _ in range(self.groups)]

    def run(
        self, side: Side, sends: list[list[bytes]], seconds: float, begins: Callable[[], None]
    ) -> Result:
        """Send polls until the time is over, or a group has all messages but a few.

        All groups have an answer first, over the same connection; then `begins` is called. An
        answer without a message is an error.
        """
        enough = (self.messages - 2 * self.limit) * len(KIB)
        try:
            return run_go(
                side.server.port, sends, seconds, least=len(KIB), enough=enough, begins=begins
            )
        except RuntimeError as error:
            raise RuntimeError(f"{side.name} answers no poll: {error}") from error


def delivery(seconds: float) -> None:
    """From the start of a POST until a waiting GET has its answer."""
    with router() as server:
        print(f"POST to waiting GET: {spread(deliveries(server.port, seconds))}")


def deliveries(port: int, seconds: float, topic: str = "d", paths: Paths = ROUTER) -> list[float]:
    """Return the milliseconds from the start of a POST to a waiting GET's answer, for each.

    The group is a new one, which has nothing else to get.
    """
    group = f"g{secrets.token_hex(8)}"
    latencies: list[float] = []
    post = http.client.HTTPConnection("127.0.0.1", port, timeout=30)
    poll = http.client.HTTPConnection("127.0.0.1", port, timeout=30)
    post.connect()
    assert post.sock is not None
    post.sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)

    def publish() -> float:
        began = time.perf_counter()
        path = paths.publish.format(topic=topic)
        post.request("POST", path, KIB, {"Content-Type": "text/plain"})
        post.getresponse().read()
        return began

    def polled(timeout: int) -> bytes:
        poll.request("GET", paths.poll.format(topic=topic, group=group, timeout=timeout))
        return poll.getresponse().read()

    publish()
    while len(polled(paths.settled_ms)) > len(KIB):
        pass
    until = time.perf_counter() + seconds
    while time.perf_counter() < until:
        answered: list[float] = []

        def wait(answered: list[float] = answered) -> None:
            body = polled(20_000)
            answered.append(time.perf_counter())
            assert len(body) > 1024, body[:80]

        waiter = threading.Thread(target=wait)
        waiter.start()
        time.sleep(0.02)
        began = publish()
        waiter.join(30)
        latencies.append((answered[0] - began) * 1000)
    post.close()
    poll.close()
    return latencies


def spread(latencies: list[float]) -> str:
    """Return the percentiles of some latencies in words."""
    ranked = sorted(latencies)
    return (
        f"p50 {ranked[len(ranked) // 2]:.2f} ms, "
        f"p99 {ranked[int(len(ranked) * 0.99)]:.2f} ms of {len(ranked)}"
    )


@contextmanager
def sides() -> Iterator[list[Side]]:
    """Run all three, and the Kafka."""
    with ExitStack() as owned:
        folder = owned.enter_context(tempfile.TemporaryDirectory("", "bench-"))
        apache = Compiled(Path(folder))
        owned.callback(apache.close)
        apache.start()
        ours = side(owned.enter_context(router()))
        stored = owned.enter_context(router(backend_url=f"kafka://{apache.address}"))
        on_kafka = side(stored, "router on Kafka")
        other = side(owned.enter_context(bridge(apache.address)), "bridge on Kafka", BRIDGE)
        other.topics = on_kafka.topics
        on_kafka.kafka = other.kafka = Peer("Kafka", apache.address, apache.pid)
        yield [ours, on_kafka, other]


def _produce(address: str, topic: str, together: int, messages: int) -> None:
    """Store messages in batches of so many."""
    settings = {"bootstrap.servers": address, "acks": "all", "linger.ms": 50}
    settings |= {"batch.num.messages": together, "queue.buffering.max.messages": messages}
    producer = Producer(settings)
    failed: list[object] = []

    def delivered(error: object, _: object) -> None:
        if error is not None:
            failed.append(error)

    for _ in range(messages):
        producer.produce(topic, KIB, on_delivery=delivered)
        producer.poll(0)
    if producer.flush(FLUSH_SECONDS) or failed:
        raise RuntimeError(f"messages were not stored: {failed[:1]}")


@dataclass
class Figures:
    """Of one side and one measure, an entry for each turn."""

    rates: list[float] = field(default_factory=list)
    medians: list[float] = field(default_factory=list)
    costs: list[float] = field(default_factory=list)
    kafka_costs: list[float] = field(default_factory=list)
    errors: int = 0


def compare(seconds: float) -> None:
    """Print all measures: a line for each side, and the router's ratios to the bridge."""
    each, quick = seconds / TURNS, seconds < 4
    turns, messages = (1, 8_000) if quick else (TURNS, 60_000)
    with sides() as running:
        for title, groups, together in (
            ("a single message, 1 consumer", 1, 1),
            ("a message of a batch of 500, 1 consumer", 1, TOGETHER),
            ("a single message, 32 groups", GROUPS, 1),
            ("a message of a batch of 500, 32 groups", GROUPS, TOGETHER),
        ):
            print(f"poll of {title}; load average {os.getloadavg()[0]:.1f}", flush=True)
            _show(running, _in_turns(running, Polls(groups, 1, together, messages), turns, each))
        for side in running[:2]:  # the bridge hands out one message a request
            _drain(side, 20_000 if quick else 100_000)
        for side in running:
            topic = f"delivered-{secrets.token_hex(8)}"
            found = deliveries(side.server.port, max(1.5, each), topic, side.paths)
            print(f"POST to waiting GET, {side.name}: {spread(found)}", flush=True)


def _in_turns(running: list[Side], polls: Polls, turns: int, seconds: float) -> list[Figures]:
    figures = [Figures() for _ in running]
    for turn in range(turns + 1):
        pairs = list(zip(running, figures, strict=True))
        for side, noted in reversed(pairs) if turn % 2 else pairs:
            meter = Meter(side)
            result = polls.run(side, polls.prepare(side), seconds, meter.begin)
            used, used_by_kafka = meter.used()
            if turn:  # in the first one caches fill, and a JVM compiles
                number = max(1, len(result.latencies))
                noted.rates.append(result.rate())
                noted.medians.append(result.percentile(50))
                noted.costs.append(used / number * 1e6)
                noted.kafka_costs.append(used_by_kafka / number * 1e6)
                noted.errors += result.errors
    return figures


class Meter:
    """Processor time of a side, and of its Kafka, in seconds since `begin`."""

    def __init__(self, side: Side) -> None:
        self._side = side
        self._began = self._now()

    def begin(self) -> None:
        """Begin again."""
        self._began = self._now()

    def used(self) -> tuple[float, float]:
        """Return both."""
        now, began = self._now(), self._began
        return now[0] - began[0], now[1] - began[1]

    def _now(self) -> tuple[float, float]:
        kafka = self._side.kafka
        return self._side.server.processor_seconds(), kafka.processor_seconds() if kafka else 0.0


def _show(running: list[Side], figures: list[Figures]) -> None:
    rates = [statistics.median(found.rates) for found in figures]
    costs = [statistics.median(found.costs) for found in figures]
    for side, found, rate, cost in zip(running, figures, rates, costs, strict=True):
        kafka = f", Kafka's {statistics.median(found.kafka_costs):.0f}" if side.kafka else ""
        print(
            f"    {side.name:<16} {rate:>7.0f}/s, p50 {statistics.median(found.medians):.2f} ms,"
            f" processor time {cost:.0f} us ({min(found.costs):.0f}-{max(found.costs):.0f}){kafka},"
            f" ratio to the bridge {rate / rates[-1]:.2f} in rate, {cost / costs[-1]:.2f} in"
            f" processor time; errors {found.errors}",
            flush=True,
        )


def _drain(side: Side, messages: int) -> None:
    """Print how fast one consumer reads messages of batches, 500 with each poll."""
    polls = Polls(1, TOGETHER, TOGETHER, messages)
    meter = Meter(side)
    result = polls.run(side, polls.prepare(side), DRAIN_SECONDS, meter.begin)
    used, drained = meter.used()[0], result.bytes // len(KIB)
    print(
        f"{drained} messages, 500 with each poll, {side.name}: {drained / result.seconds:.0f}/s,"
        f" processor time {used / drained * 1e6:.2f} us a message; errors {result.errors}",
        flush=True,
    )


def main() -> None:
    """Compare; `--quick` takes less than a minute, and says less."""
    options = argparse.ArgumentParser(prog="python -m bench.polls")
    options.add_argument("--quick", action="store_true")
    compare(2.0 if options.parse_args().quick else 8.0)


if __name__ == "__main__":
    main()
