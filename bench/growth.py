"""How cost grows: with topics, with groups on a topic, and with the size of the log.

`python -m bench growth` measures all points, `python -m bench.growth topics log=1e9,2e10` those of
some axes, or some points of them; `--json FILE` keeps the figures, `--draw FOLDER` draws them.
BENCH_SCALE multiplies the sizes, BENCH_DIR is where the folders are.

At each point two routers run at once, one that is grown and one that is new, and are loaded in
turns: what else the machine does falls on both, so the ratio says more than the figure. Of an axis
one folder is grown from point to point.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import shutil
import statistics
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import TypeVar

import uvloop

from bench import growth_pages, passes, wire
from bench.load import Connection, Result, request, run
from bench.polls import deliveries
from bench.sites import ACTIVE, KIB, Site

T = TypeVar("T")
Fill = Callable[[Site, int, int], None]
"""Grows a site from one size to another."""

GB = 1_000_000_000
FILL_CONNECTIONS = 32
FILL_SECONDS = 3_600.0
BATCHES = wire.Load(100, 1024, under_way=64)
SINGLES = wire.Load(1, 1024, under_way=1_000)


@dataclass(frozen=True)
class Effort:
    """How long a load takes, and how often things are done; of each the first `warm` do not count.

    `oldest`: how many polls begin at the oldest message.
    """

    seconds: float = 2.0
    turns: int = 5
    restarts: int = 3
    oldest: int = 7
    warm: int = 1


@dataclass(frozen=True)
class Axis:
    """What grows, the sizes, what a size is, and how it is made."""

    name: str
    sizes: tuple[int, ...]
    unit: str
    fill: Fill


@dataclass
class Point:
    """One size of an axis: figures of the grown router, and of the new one in the same turns."""

    axis: str
    size: int
    grown: dict[str, float] = field(default_factory=dict)
    new: dict[str, float] = field(default_factory=dict)


def _topics(site: Site, have: int, size: int) -> None:
    """Each topic has one message; the active one is among them."""
    _answered(site, [request("POST", f"/events/t{i}", KIB) for i in range(max(1, have), size)])


def _groups(site: Site, have: int, size: int) -> None:
    """Each group of the active topic was polled once, at the end of the log."""
    path = f"/events/{ACTIVE}/g{{}}/c?timeout=0"
    _answered(site, [request("GET", path.format(i)) for i in range(have, size)])


def _logged(load: wire.Load) -> Fill:
    def fill(site: Site, have: int, size: int) -> None:
        entries = (size - have) // (load.messages * load.size)
        topic = f"persistent://public/default/{ACTIVE}"
        url = f"pulsar://127.0.0.1:{site.server.pulsar}"
        if entries:
            uvloop.run(wire.fill(url, topic, load, entries, FILL_SECONDS))

    return fill


def _answered(site: Site, requests: Sequence[bytes]) -> None:
    """Send each request once, over several connections."""

    class Once(Connection):
        def send(self) -> None:
            if self.turn < len(self.requests):
                super().send()
            else:
                self.transport.close()

    async def load() -> None:
        loop, result = asyncio.get_running_loop(), Result()
        until = time.perf_counter() + FILL_SECONDS
        made = [
            await loop.create_connection(
                partial(Once, requests[first::FILL_CONNECTIONS], result, until),
                "127.0.0.1",
                site.server.port,
            )
            for first in range(FILL_CONNECTIONS)
        ]
        await asyncio.wait([c.done for _, c in made], timeout=FILL_SECONDS)
        # Each connection ends before its time, which counts as an error.
        assert result.errors == FILL_CONNECTIONS, result.errors
        assert len(result.latencies) == len(requests), (len(result.latencies), len(requests))

    uvloop.run(load())


AXES = {
    axis.name: axis
    for axis in (
        Axis("topics", (100, 10_000), "topics", _topics),
        Axis("groups", (1_000,), "groups on the topic", _groups),
        Axis("log", (GB, 20 * GB), "bytes in entries of 100 messages of 1 KiB", _logged(BATCHES)),
        Axis("singles", (GB,), "bytes in entries of one message of 1 KiB", _logged(SINGLES)),
    )
}


def growth(seconds: float) -> None:
    """Measure all axes, scaled by BENCH_SCALE; a load takes a quarter of `seconds`."""
    effort = Effort(seconds / 4)
    points = measure(AXES.values(), effort, float(os.environ.get("BENCH_SCALE", "1")))
    print(growth_pages.tables([*points]))


def measure(axes: Iterable[Axis], effort: Effort, scale: float = 1.0) -> Iterator[Point]:
    """Yield the points of some axes."""
    for axis in axes:
        have = 0
        with tempfile.TemporaryDirectory(prefix="bench-", dir=os.environ.get("BENCH_DIR")) as top:
            for whole in axis.sizes:
                size = max(2, round(whole * scale))
                yield _point(axis, Path(top), have, size, effort)
                have = size


def _point(axis: Axis, top: Path, have: int, size: int, effort: Effort) -> Point:
    point = Point(axis.name, size)
    new, grown = Site(top / f"new-{size}"), Site(top / "grown")
    with ExitStack() as stack:
        for site in (new, grown):
            stack.callback(site.stop)
            site.start()
        began = time.perf_counter()
        axis.fill(grown, have, size)
        point.grown["fill seconds"] = time.perf_counter() - began
        _note_memory(grown, point.grown, "used")
        grown.kill()
        point.grown["start after fill and kill, s"] = grown.start()
        turns = Turns(point, new, grown, effort)
        turns.load()
        turns.restart()
        turns.concurrent()
        for site, figures in ((new, point.new), (grown, point.grown)):
            figures["log bytes"] = site.log_bytes()
            site.stop()
            _note_passes(site, figures)
    shutil.rmtree(new.folder)
    return point


class Turns:
    """A new router and a grown one that do the same in turns; figures go to a point."""

    def __init__(self, point: Point, new: Site, grown: Site, effort: Effort) -> None:
        self._point = point
        self._new = new
        self._grown = grown
        self._effort = effort
        self._figures = (point.new, point.grown)

    def load(self) -> None:
        """One request at a time: POSTs, deliveries, polls from the oldest message, overviews."""
        seconds = self._effort.seconds
        self._posts(1)

        def deliver(site: Site) -> tuple[list[float], float]:
            before = site.server.processor_seconds()
            waits = deliveries(site.server.port, seconds, ACTIVE)
            used = site.server.processor_seconds() - before
            return waits, used / len(waits) * 1e6

        for figures, found in zip(self._figures, self._both(deliver, 3), strict=True):
            taken = sorted(latency for turn, _ in found for latency in turn)
            figures["POST to waiting GET, us"] = statistics.median(cost for _, cost in found)
            figures["POST to waiting GET p50, ms"] = statistics.median(taken)
            figures["POST to waiting GET p99, ms"] = taken[int(len(taken) * 0.99)]
        groups = iter(range(1_000_000))

        def oldest(site: Site) -> float:
            site.drop_pages()
            path = f"/events/{ACTIVE}/oldest{next(groups)}/c?from=earliest&limit=100&timeout=20000"
            return site.timed("GET", path)

        self._timed("poll from the oldest message, ms", self._both(oldest, self._effort.oldest))
        for path in ("/topics/listAll", "/metrics"):

            def overview(site: Site, path: str = path) -> float:
                return site.timed("GET", path)

            self._timed(f"GET {path}, ms", self._both(overview, 3))

    def restart(self) -> None:
        """Start again after a stop, and after a kill under load."""

        def stopped(site: Site) -> tuple[float, float, float]:
            began = time.perf_counter()
            site.stop()
            ended = time.perf_counter() - began
            return site.start(), site.server.processor_seconds(), ended

        def killed(site: Site) -> tuple[float, float]:
            site.post(8, 1.0)
            site.kill()
            return site.start(), site.server.processor_seconds()

        stops = self._both(stopped, self._effort.restarts)
        self._started("stop", stops)
        self._timed("stop, s", ([each[2] for each in turn] for turn in stops))
        for site, figures in zip((self._new, self._grown), self._figures, strict=True):
            _note_memory(site, figures, "idle")
        self._started("kill", self._both(killed, self._effort.restarts))

    def concurrent(self) -> None:
        """32 requests at a time to the active topic, and to a thousand topics where there are."""
        self._posts(32)
        if self._point.axis == "topics" and self._point.size > 100:
            size, seconds = min(self._point.size, 1_001), self._effort.seconds
            many = [request("POST", f"/events/t{i}", KIB) for i in range(1, size)]
            port = self._grown.server.port
            run(port, many, 32, seconds * 2)
            rates = [run(port, many, 32, seconds).rate() for _ in range(self._effort.turns)]
            self._point.grown["POST c=32 to 1,000 topics, req/s"] = statistics.median(rates)

    def _posts(self, connections: int) -> None:
        seconds, effort = self._effort.seconds, self._effort
        turns = self._both(lambda site: site.post(connections, seconds), effort.turns)
        what = f"POST c={connections}"
        for figures, found in zip(self._figures, turns, strict=True):
            for percent in (50, 99):
                each = [result.percentile(percent) for result, _ in found]
                figures[f"{what} p{percent}, ms"] = statistics.median(each)
            figures[f"{what}, req/s"] = statistics.median(r.rate() for r, _ in found)
            figures[f"{what}, us"] = statistics.median(cost for _, cost in found)

    def _started(self, after: str, turns: Iterable[Sequence[tuple[float, ...]]]) -> None:
        found = [*turns]
        for number, what in enumerate(("s", "processor time of all, s")):
            self._timed(f"start after {after}, {what}", ([e[number] for e in t] for t in found))

    def _timed(self, title: str, turns: Iterable[Sequence[float]]) -> None:
        for figures, found in zip(self._figures, turns, strict=True):
            figures[title] = statistics.median(found)

    def _both(self, operation: Callable[[Site], T], turns: int) -> tuple[list[T], list[T]]:
        """Do it on both in turns, in changing order; the first turns of each do not count."""
        results: tuple[list[T], list[T]] = ([], [])
        warm = self._effort.warm
        for turn in range(turns + warm):
            pairs = [(self._new, results[0]), (self._grown, results[1])]
            for site, found in reversed(pairs) if turn % 2 else pairs:
                done = operation(site)
                if turn >= warm:
                    found.append(done)
        return results


def _note_memory(site: Site, figures: dict[str, float], state: str) -> None:
    held = site.memory()
    figures[f"broker's memory, {state}, MiB"] = held.resident / 2**20
    figures[f"broker's open files, {state}"] = held.files


def _note_passes(site: Site, figures: dict[str, float]) -> None:
    found = passes.measure(site.folder)
    figures["store opened, ms"] = found.open_seconds * 1000
    figures["store's memory, MiB"] = found.open_bytes / 2**20
    for title, cost in (("retention pass", found.retention), ("gauges", found.gauges)):
        figures[f"{title}, ms"] = cost.total
        figures[f"{title}: longest piece, ms"] = cost.longest


def _axis(text: str) -> Axis:
    name, _, sizes = text.partition("=")
    if not sizes:
        return AXES[name]
    return replace(AXES[name], sizes=tuple(int(float(size)) for size in sizes.split(",")))


def main() -> None:
    """Measure the axes that are named, or draw what an earlier run kept."""
    parser = argparse.ArgumentParser("bench.growth")
    parser.add_argument("axes", nargs="*", type=_axis, help=f"{', '.join(AXES)}, or NAME=SIZE,SIZE")
    parser.add_argument("--json", type=Path, help="keep the figures in this file, adding to it")
    parser.add_argument("--draw", type=Path, help="draw the figures of --json into this folder")
    parser.add_argument(
        "--beside", type=Path, help="draw those of this file, of a build before, too"
    )
    options = parser.parse_args()
    points = _kept(options.json) if options.json and options.json.exists() else []
    if options.axes or not options.draw:
        axes = options.axes or list(AXES.values())
        for found in measure(axes, Effort(), float(os.environ.get("BENCH_SCALE", "1"))):
            points = [p for p in points if (p.axis, p.size) != (found.axis, found.size)] + [found]
            points.sort(key=lambda point: ([*AXES].index(point.axis), point.size))
            if options.json:
                options.json.write_text(json.dumps([asdict(p) for p in points], indent=1))
            print(f"{found.axis} {found.size}: measured", flush=True)
    print(growth_pages.tables(points))
    if options.draw:
        before = {"before": _kept(options.beside)} if options.beside else {}
        growth_pages.draw({**before, "now": points}, options.draw)


def _kept(file: Path) -> list[Point]:
    return [Point(**point) for point in json.loads(file.read_text())]


if __name__ == "__main__":
    main()
