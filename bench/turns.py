"""Two source trees in turns: `python -m bench.turns OLD_TREE`, processor time for each operation.

Both routers run all the time and one of them is under load: what else the machine does falls on
both. Processor time is that of all processes of a router; the load generator's is not counted.
Printed are the medians of the turns, and the ratio of this tree to the old one.
"""

from __future__ import annotations

import statistics
import sys
from collections.abc import Callable
from contextlib import ExitStack
from itertools import count
from pathlib import Path

import uvloop

from bench import wire
from bench.load import request, run
from bench.pulsar import LARGER, SINGLES
from bench.servers import ROOT, Server, router

TURNS = 6
SECONDS = 2.5
KIB = b"x" * 1024
BATCH = (b"1.1024.k" + KIB + b"\n") * 100
BACKLOG_ENTRIES = 4_000

Measure = Callable[[Server], int]
"""Puts a router under load and returns how many operations that were."""

_topics = count()


def _posts(connections: int) -> Measure:
    def measure(server: Server) -> int:
        requests = [request("POST", "/events/turns", KIB)]
        return len(run(server.port, requests, connections, SECONDS).latencies)

    return measure


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
    "POST 100 x 1 KiB in cambria, c=8": _batches,
    "POST and the poll that gets it, c=1": _polls,
    "single SENDs of 1 KiB": _sends(SINGLES),
    "SENDs of 100 x 1 KiB, a message": _sends(LARGER),
    "singles published and drained": _backlog(SINGLES),
    "batches published and drained, a message": _backlog(LARGER),
}


def main() -> None:
    """Measure each operation on both trees in turns, and print the ratio of their medians."""
    old = Path(sys.argv[1]).resolve()
    with ExitStack() as stack:
        servers = [stack.enter_context(router(tree)) for tree in (old, ROOT)]
        for title, measure in MEASURES.items():
            costs = _in_turns(servers, measure)
            before, now = (statistics.median(cost) for cost in costs)
            spread = " | ".join(f"{min(cost):.1f}-{max(cost):.1f}" for cost in costs)
            print(
                f"{title:<42} old {before:8.1f} us, new {now:8.1f} us, ratio {now / before:.3f}"
                f" ({spread})",
                flush=True,
            )


def _in_turns(servers: list[Server], measure: Measure) -> list[list[float]]:
    costs: list[list[float]] = [[] for _ in servers]
    for turn in range(TURNS + 1):
        # The order changes, so that neither always runs behind the other.
        pairs = list(zip(servers, costs, strict=True))
        for server, cost in reversed(pairs) if turn % 2 else pairs:
            before = server.processor_seconds()
            done = measure(server)
            used = server.processor_seconds() - before
            if turn:  # the first turn fills caches
                cost.append(used / max(1, done) * 1e6)
    return costs


if __name__ == "__main__":
    main()
