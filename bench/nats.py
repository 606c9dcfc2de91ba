"""Our NATS listener and nats-server in turns, with nats.go as the client of all.

Ours syncs to disk before it acknowledges; nats-server leaves that to a sync every two minutes,
unless `sync_interval` is `always`: it runs in both ways. The turns are short and go back and forth,
so that what else the machine does falls on all; figures are medians of the turns. The first turn of
each is not counted. The client is a program in Go, which the tests build.
"""

from __future__ import annotations

import json
import statistics
import subprocess
import tempfile
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

from bench.kafka import broker_process
from bench.pulsar import TURNS, Figure, Peer, show
from bench.servers import router
from tests.ports import free_port
from tests.servers.golang import NATS, built
from tests.servers.nats import Nats

SIZE = 128
LARGE = 1_024
LOAD_SECONDS = 180.0

Shown = Callable[[dict[str, Any]], float]


class Syncing(Nats):
    """nats-server that syncs before it acknowledges, as ours does."""

    def _command(self) -> list[str]:
        path = self.folder / "nats.conf"
        path.write_text(f'jetstream {{ store_dir: "{self.folder}", sync_interval: always }}\n')
        program, *where, _, _, _ = super()._command()
        return [program, "--config", str(path), *where]


@contextmanager
def servers() -> Iterator[list[Peer]]:
    """Run all servers."""
    address = f"127.0.0.1:{free_port()}"
    with ExitStack() as owned:
        ours = owned.enter_context(router(broker_nats=address, server_workers="1"))
        found = [Peer("ours", f"nats://{address}", broker_process(ours))]
        for name, kind in (("nats-server", Nats), ("sync always", Syncing)):
            folder = owned.enter_context(tempfile.TemporaryDirectory("", "bench-"))
            server = kind(Path(folder))
            owned.callback(server.stop)
            server.start()
            found.append(Peer(name, server.url, server.pid))
        yield found


def _rate(found: dict[str, Any]) -> float:
    return float(found["messages"] / found["seconds"])


def _median(found: dict[str, Any]) -> float:
    return statistics.median(found["latencies"])


def _late(found: dict[str, Any]) -> float:
    return statistics.quantiles(found["latencies"], n=100)[98]


MEASURES: list[tuple[str, str, int, list[tuple[str, str, Shown]]]] = [
    (
        "publish, one at a time",
        "sync",
        SIZE,
        [("rate", "msg/s", _rate), ("p50", "ms", _median), ("p99", "ms", _late)],
    ),
    ("publish, 16 connections, one at a time each", "syncs", SIZE, [("rate", "msg/s", _rate)]),
    ("publish, 4,000 not acknowledged", "async", SIZE, [("rate", "msg/s", _rate)]),
    ("publish, 4,000 not acknowledged", "async", LARGE, [("rate", "msg/s", _rate)]),
    ("consume a backlog, each acknowledged", "consume", SIZE, [("rate", "msg/s", _rate)]),
    ("plain, to 100 subscribers", "fanout", SIZE, [("rate", "msg/s", _rate)]),
]


def compare(seconds: float) -> None:
    """All figures, a line for each server, and the ratios of ours to the others'."""
    with servers() as peers:
        for title, kind, size, views in MEASURES:
            turns: dict[str, list[tuple[dict[str, Any], float]]] = {one.name: [] for one in peers}
            for _ in range(TURNS + 1):
                for peer in peers:
                    turns[peer.name].append(_turn(peer, kind, seconds / TURNS, size))
            for name, unit, view in views:
                figures = {
                    one: [Figure(view(found), cost) for found, cost in turn]
                    for one, turn in turns.items()
                }
                show(f"{title}, {size} bytes, {name}", unit, figures)


def _turn(peer: Peer, kind: str, seconds: float, size: int) -> tuple[dict[str, Any], float]:
    before = peer.processor_seconds()
    command = [str(built(NATS)), "load", kind, peer.url, str(seconds), str(size)]
    done = subprocess.run(command, capture_output=True, timeout=LOAD_SECONDS, check=True)
    found = dict(json.loads(done.stdout))
    return found, (peer.processor_seconds() - before) / max(1, found["messages"]) * 1e6
