"""Our Kafka listener and Apache Kafka in turns, with librdkafka as the client of both.

Ours syncs to disk before it answers, Apache Kafka does not (it leaves that to the page cache and to
replicas). The turns are short and go back and forth, so that what else the machine does falls on
both; figures are medians of the turns. The first turn of each is not counted: a JVM compiles
meanwhile. The client is this process and takes most of a core itself.
"""

from __future__ import annotations

import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from itertools import count
from pathlib import Path
from typing import Any

from confluent_kafka import Consumer, Producer, TopicPartition

from bench.load import request, run_go
from bench.pulsar import TURNS, Figure, Peer, show
from bench.servers import ROOT, Server, router
from tests.ports import free_port
from tests.servers.kafka import Kafka

SIZE = 1_024
VALUE = bytes(range(256)) * (SIZE // 256)
MEBIBYTE = 1 << 20
POST = request("POST", "/events/beside", VALUE)
POST_CONNECTIONS = 8
START_SECONDS = 0.5
"""That a producer sends before and after the POSTs beside it."""
FLUSH_SECONDS = 60.0
COMMITTED = 100
BATCHED = {
    "linger.ms": 5,
    "batch.size": MEBIBYTE,
    "batch.num.messages": 10_000,
    "queue.buffering.max.messages": 200_000,
    "queue.buffering.max.kbytes": 256 << 10,
}

Measure = Callable[[str, float], tuple[float, int]]
"""Measures a bootstrap address for about so long; returns the value and the number of records."""

_topics = count()


class Compiled(Kafka):
    """Apache Kafka as it is at its best, rather than soon started."""

    HEAP = "1g"

    def _properties(self) -> list[str]:
        return [*super()._properties(), "-XX:TieredStopAtLevel=4"]


@contextmanager
def servers() -> Iterator[tuple[Server, list[Peer]]]:
    """Run both servers."""
    address = f"127.0.0.1:{free_port()}"
    with ExitStack() as owned:
        ours = owned.enter_context(router(broker_kafka=address, server_workers="1"))
        apache = Compiled(Path(owned.enter_context(tempfile.TemporaryDirectory("", "bench-"))))
        owned.callback(apache.close)
        apache.start()
        yield (
            ours,
            [
                Peer("ours", address, broker_process(ours)),
                Peer("Apache Kafka", apache.address, apache.pid),
            ],
        )


def broker_process(server: Server) -> int:
    """Return the process of the broker that serves a router's Kafka clients."""
    for pid in server.tree():
        if b"router.broker" in Path(f"/proc/{pid}/cmdline").read_bytes():
            return pid
    raise RuntimeError("the router has no broker process")


def produced(address: str, seconds: float, topic: str, **settings: Any) -> int:
    """Produce as fast as the client can; return how many records were answered."""
    producer = Producer({"bootstrap.servers": address, "acks": "all"} | BATCHED | settings)
    failed: list[Any] = []

    def delivered(error: Any, _: Any) -> None:
        if error is not None:
            failed.append(error)

    sent, until = 0, time.monotonic() + seconds
    while time.monotonic() < until:
        for _ in range(500):
            try:
                producer.produce(topic, VALUE, partition=0, on_delivery=delivered)
            except BufferError:
                producer.poll(0.01)
            else:
                sent += 1
        producer.poll(0)
    if producer.flush(FLUSH_SECONDS) or failed:
        raise RuntimeError(f"records were not stored: {failed[:1]}")
    return sent


def produce(address: str, seconds: float, **settings: Any) -> tuple[float, int]:
    """Produce batches; return MiB a second, and the number of records."""
    began = time.monotonic()
    sent = produced(address, seconds, f"bench-{next(_topics)}", **settings)
    return sent * SIZE / MEBIBYTE / (time.monotonic() - began), sent


def _produce_compressed(address: str, seconds: float) -> tuple[float, int]:
    return produce(address, seconds, **{"compression.codec": "lz4"})


def _produce_idempotent(address: str, seconds: float) -> tuple[float, int]:
    return produce(address, seconds, **{"enable.idempotence": True})


def _transact(address: str, seconds: float) -> tuple[float, int]:
    """Commit transactions of COMMITTED records; return how many a second, and the records."""
    topic = f"bench-{next(_topics)}"
    settings = {"bootstrap.servers": address, "transactional.id": topic, "linger.ms": 0}
    producer = Producer(settings)
    producer.init_transactions(FLUSH_SECONDS)
    began, commits = time.monotonic(), 0
    while time.monotonic() - began < seconds:
        producer.begin_transaction()
        for _ in range(COMMITTED):
            producer.produce(topic, VALUE, partition=0)
        producer.commit_transaction(FLUSH_SECONDS)
        commits += 1
    return commits / (time.monotonic() - began), commits * COMMITTED


def consume(address: str, seconds: float) -> tuple[float, int]:
    """Read a backlog that was just produced."""
    topic = f"bench-{next(_topics)}"
    wanted = produced(address, seconds, topic)
    settings = {"bootstrap.servers": address, "group.id": "bench", "enable.auto.commit": False}
    settings |= {"queued.min.messages": 100_000, "fetch.wait.max.ms": 100}
    consumer = Consumer(settings)
    consumer.assign([TopicPartition(topic, 0, 0)])
    began, found = time.monotonic(), 0
    while found < wanted:
        messages = consumer.consume(10_000, 5.0)
        if not messages:
            raise RuntimeError(f"{found} of {wanted} records came")
        found += len(messages)
    took = time.monotonic() - began
    consumer.close()
    return found * SIZE / MEBIBYTE / took, found


def _one_by_one(address: str, seconds: float) -> list[float]:
    producer = Producer({"bootstrap.servers": address, "acks": "all", "linger.ms": 0})
    topic, latencies = f"bench-{next(_topics)}", []
    until = time.monotonic() + seconds
    while time.monotonic() < until:
        began = time.perf_counter()
        producer.produce(topic, VALUE, partition=0)
        if producer.flush(FLUSH_SECONDS):
            raise RuntimeError("a record was not stored")
        latencies.append((time.perf_counter() - began) * 1000)
    return latencies[1:]


def _median(address: str, seconds: float) -> tuple[float, int]:
    latencies = _one_by_one(address, seconds)
    return statistics.median(latencies), len(latencies)


def _late(address: str, seconds: float) -> tuple[float, int]:
    latencies = _one_by_one(address, seconds)
    return statistics.quantiles(latencies, n=100)[98], len(latencies)


MEASURES: list[tuple[str, str, Measure]] = [
    ("produce, batched, 1 KiB", "MiB/s", produce),
    ("produce, batched, lz4, 1 KiB", "MiB/s", _produce_compressed),
    ("produce, batched, idempotent, 1 KiB", "MiB/s", _produce_idempotent),
    (f"transactions of {COMMITTED} records of 1 KiB", "/s", _transact),
    ("consume a backlog, 1 KiB", "MiB/s", consume),
    ("produce one record of 1 KiB at a time, p50", "ms", _median),
    ("produce one record of 1 KiB at a time, p99", "ms", _late),
]


def compare(seconds: float) -> None:
    """All figures, one line for each server and the ratio of ours to the other's."""
    with servers() as (ours, peers):
        for title, unit, measure in MEASURES:
            figures: dict[str, list[Figure]] = {peer.name: [] for peer in peers}
            for _ in range(TURNS + 1):
                for peer in peers:
                    figures[peer.name].append(_turn(peer, measure, seconds / TURNS))
            show(title, unit, figures)
        _beside(ours, peers, seconds)


def _turn(peer: Peer, measure: Measure, seconds: float) -> Figure:
    before = peer.processor_seconds()
    value, records = measure(peer.url, seconds)
    return Figure(value, (peer.processor_seconds() - before) / max(1, records) * 1e6)


def _beside(server: Server, peers: list[Peer], seconds: float) -> None:
    """Print what POSTs come to alone, and beside a Kafka producer that sends as fast as it can.

    It sends to the router, and to the other server: so much of it is the machine's, not the
    router's.
    """
    cases = [("alone", None), *((f"beside a producer to {peer.name}", peer) for peer in peers)]
    found: dict[str, list[tuple[float, float, float, float]]] = {title: [] for title, _ in cases}
    for turn in range(TURNS + 1):
        for title, peer in cases:
            figures = _posts(server, peer, seconds / TURNS)
            if turn:
                found[title].append(figures)
    print(f"POST of 1 KiB, {POST_CONNECTIONS} connections, load average {os.getloadavg()[0]:.1f}")
    medians = []
    for title, turns in found.items():
        rate, middle, late, produced = (statistics.median(one) for one in zip(*turns, strict=True))
        medians.append(middle)
        print(
            f"    {title:<35} {rate:>7,.0f}/s, p50 {middle:6.2f} ms, p99 {late:6.2f} ms;"
            f" produced {produced:4.0f} MiB/s"
        )
    alone, ours, others = medians
    print(f"    ratio of p50 to alone {ours / alone:.2f}, to beside the other {ours / others:.2f}")


def _posts(
    server: Server, neighbour: Peer | None, seconds: float
) -> tuple[float, float, float, float]:
    """Return POSTs a second, their p50 and p99 in ms, and what a neighbour produced in MiB/s."""
    sends = [[POST]] * POST_CONNECTIONS
    if neighbour is None:
        posted, produced_bytes = run_go(server.port, sends, seconds), 0
    else:
        # In a process of its own, so that it does not hold up the load of POSTs.
        length = seconds + START_SECONDS
        command = [sys.executable, "-m", "bench.kafka", neighbour.url, str(length)]
        with subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE) as producer:
            assert producer.stdout is not None
            producer.stdout.readline()  # it begins
            posted = run_go(server.port, sends, seconds)
            produced_bytes = int(producer.communicate(timeout=FLUSH_SECONDS)[0]) * SIZE
        produced_bytes = int(produced_bytes * seconds / length)
    rate, middle, late = posted.rate(), posted.percentile(50), posted.percentile(99)
    return rate, middle, late, produced_bytes / MEBIBYTE / seconds


if __name__ == "__main__":
    print("begins", flush=True)
    print(produced(sys.argv[1], float(sys.argv[2]), "bench-beside"))
