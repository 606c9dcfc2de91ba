"""Our broker and Apache Pulsar in turns: publishing, latency, a backlog; CPU time for each message.

Ours syncs to disk before it answers, Apache Pulsar does not (`journalSyncData=false`). The turns
are short and go back and forth, so that what else the machine does falls on both; figures are
medians of the turns. The first turn of each is not counted: a JVM compiles meanwhile. With
PULSAR_PEER set to a service URL that server is the peer, and its processor time is not known.
"""

from __future__ import annotations

import os
import statistics
import tempfile
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

import uvloop

from bench import clients, wire
from bench.servers import TICKS, broker
from bench.wire import Load
from tests.servers.pulsar import Pulsar

TURNS = 4
BATCHES = Load(messages=1_000, size=100, under_way=8, connections=4)
LARGER = Load(messages=100, size=1_024, under_way=8, connections=4)
SINGLES = Load(messages=1, size=1_024, under_way=250, connections=4)
SYNC = Load(messages=1, size=1_024)


@dataclass(frozen=True)
class Peer:
    """A server under test; process 0: it is not on this machine, or not ours to look at."""

    name: str
    url: str
    process: int

    def processor_seconds(self) -> float:
        """Return the processor time that the server has used."""
        if not self.process:
            return float("nan")
        stat = Path(f"/proc/{self.process}/stat").read_text().rpartition(")")[2].split()
        return (int(stat[11]) + int(stat[12])) / TICKS


@dataclass(frozen=True)
class Figure:
    """What one turn came to: a rate or milliseconds, and microseconds of processor time each."""

    value: float
    cost: float


Measure = Callable[[str, float], tuple[float, int]]
"""Measures a URL for about so long; returns the value, and how many messages it took."""


class Compiled(Pulsar):
    """Apache Pulsar as it is at its best, rather than soon started."""

    HEAP = "1g"

    def _properties(self) -> list[str]:
        return [*super()._properties(), "-XX:TieredStopAtLevel=4"]


@contextmanager
def peers() -> Iterator[list[Peer]]:
    """Run both servers, or ours and what PULSAR_PEER names."""
    with ExitStack() as owned:
        ours = owned.enter_context(broker())
        found = [Peer("ours", f"pulsar://127.0.0.1:{ours.pulsar}", ours.process.pid)]
        if url := os.environ.get("PULSAR_PEER"):
            found.append(Peer("peer", url, 0))
        else:
            parent = os.environ.get("BENCH_DIR")
            folder = owned.enter_context(tempfile.TemporaryDirectory("", "bench-", parent))
            apache = Compiled(Path(folder), journalSyncData="false")
            owned.callback(apache.stop)
            apache.start()
            found.append(Peer("Apache Pulsar", apache.url, apache.pid))
        yield found


def compare(seconds: float) -> None:
    """All figures, one line for each server and the ratio of ours to the other's."""
    with peers() as servers:
        for title, unit, measure in MEASURES:
            figures: dict[str, list[Figure]] = {server.name: [] for server in servers}
            for _ in range(TURNS + 1):
                for server in servers:
                    figures[server.name].append(_turn(server, measure, seconds / TURNS))
            show(title, unit, figures)


def _turn(server: Peer, measure: Measure, seconds: float) -> Figure:
    before = server.processor_seconds()
    value, messages = measure(server.url, seconds)
    return Figure(value, (server.processor_seconds() - before) / max(1, messages) * 1e6)


def show(title: str, unit: str, figures: dict[str, list[Figure]]) -> None:
    """Print the medians of all servers, and the ratios of the first one's to the others'."""
    print(f"{title}, load average {os.getloadavg()[0]:.1f}")
    medians = []
    for name, found in figures.items():
        value = statistics.median(figure.value for figure in found[1:])
        cost = statistics.median(figure.cost for figure in found[1:])
        medians.append((value, cost))
        print(f"    {name:<14} {value:>12,.2f} {unit:<6} {cost:>9.2f} µs of processor time")
    (ours, cost), *others = medians
    for other, others_cost in others:
        print(f"    {'ratio':<14} {ours / other:>12.2f} {'':<6} {cost / others_cost:>9.2f}")


def _rate(load: Load) -> Measure:
    def measure(url: str, seconds: float) -> tuple[float, int]:
        sent = uvloop.run(wire.publish(url, load, seconds))
        return sent.messages / sent.seconds, sent.messages

    return measure


def _sync(url: str, seconds: float) -> tuple[float, int]:
    sent = uvloop.run(wire.publish(url, SYNC, seconds))
    return statistics.median(sent.latencies), sent.messages


def _sync_late(url: str, seconds: float) -> tuple[float, int]:
    sent = uvloop.run(wire.publish(url, SYNC, seconds))
    return statistics.quantiles(sent.latencies, n=100)[98], sent.messages


def _end_to_end(url: str, seconds: float) -> tuple[float, int]:
    latencies = uvloop.run(wire.end_to_end(url, SYNC.size, seconds))
    return statistics.median(latencies), len(latencies)


def _drain(url: str, seconds: float) -> tuple[float, int]:
    drained = uvloop.run(wire.drain(url, LARGER, int(500 * seconds)))
    return drained.messages / drained.seconds, drained.messages


def _official(url: str, seconds: float) -> tuple[float, int]:
    with clients.connected(url) as client:
        rate, count = clients.batched(client, wire.new_topic(), int(10_000 * seconds))
        return rate, count


def _official_sync(url: str, seconds: float) -> tuple[float, int]:
    with clients.connected(url) as client:
        latencies = clients.one_by_one(client, wire.new_topic(), seconds)
        return statistics.median(latencies), len(latencies)


MEASURES: list[tuple[str, str, Measure]] = [
    ("batches of 1,000 of 100 bytes", "msg/s", _rate(BATCHES)),
    ("batches of 100 of 1 KiB", "msg/s", _rate(LARGER)),
    ("single messages of 1 KiB, 1,000 under way", "msg/s", _rate(SINGLES)),
    ("one message of 1 KiB at a time, p50", "ms", _sync),
    ("one message of 1 KiB at a time, p99", "ms", _sync_late),
    ("from SEND to MESSAGE, p50", "ms", _end_to_end),
    ("a backlog of batches of 100 of 1 KiB, with its publishing", "msg/s", _drain),
    ("pulsar-client, asynchronous and batched, 1 KiB", "msg/s", _official),
    ("pulsar-client, one message of 1 KiB at a time, p50", "ms", _official_sync),
]
