"""Publishing while backups are taken, in turns with publishing alone; and how long a cut takes."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import threading
import time
from contextlib import closing
from pathlib import Path
from shutil import rmtree
from statistics import median

from bench.load import Result, request, run
from bench.servers import ROOT, router_on
from router.node.administration import BackupCalls
from router.node.spawn import open_link
from router.settings import load

TURNS = 8
LOG_BYTES = 2 << 30
TOPICS = 10_000
KIB = b"x" * 1024
LARGE = b"x" * (900 << 10)


def backups(seconds: float) -> None:
    """c=8 beside full copies of 2 GiB, with and without a bound; incremental ones; the cut.

    Where a turn ends before a full copy, the copy is ended with it. An incremental one is begun
    half a second after the end of the one before.
    """
    with tempfile.TemporaryDirectory(prefix="bench-", dir=os.environ.get("BENCH_DIR")) as name:
        data, target = Path(name) / "data", Path(name) / "backups"
        with router_on(data) as server:
            _fill(server.port)
            for title, options, fresh in (
                ("full copies at 20 MB/s", ["--rate", "20M"], True),
                ("full copies at 50 MB/s", ["--rate", "50M"], True),
                ("full copies, no bound", ["--rate", "0"], True),
                ("incremental copies", [], False),
            ):
                _compare(server.port, data, target, options, title, fresh, seconds / TURNS)
            _many_topics(server.port, data)


def _fill(port: int) -> None:
    requests = [request("POST", f"/events/large{n}", LARGE) for n in range(8)]
    done = 0
    while done * len(LARGE) < LOG_BYTES:
        done += len(run(port, requests, 4, 2.0).latencies)


def _compare(
    port: int, data: Path, target: Path, options: list[str], title: str, fresh: bool, each: float
) -> None:
    post = [request("POST", "/events/bench", KIB)]
    alone: list[Result] = []
    beside: list[Result] = []
    taken = 0
    run(port, post, 8, 1.0)
    if not fresh:
        subprocess.run([*_command(data, target), "--rate", "0"], cwd=ROOT, check=True)
    for turn in range(TURNS):
        for with_backups in (turn % 2 == 0, turn % 2 == 1):
            stopped, begun = threading.Event(), threading.Event()
            counts: list[int] = []
            thread = threading.Thread(
                target=_back_up, args=(data, target, options, fresh, stopped, begun, counts)
            )
            if with_backups:
                thread.start()
                begun.wait(30)
            result = run(port, post, 8, max(2.0, each))
            (beside if with_backups else alone).append(result)
            stopped.set()
            if with_backups:
                thread.join()
                taken += len(counts)
    rmtree(target, ignore_errors=True)
    rates = [b.rate() / a.rate() for a, b in zip(alone, beside, strict=True)]
    p50s = [b.percentile(50) / a.percentile(50) for a, b in zip(alone, beside, strict=True)]
    print(
        f"{title:<24} alone {median(r.rate() for r in alone):6.0f} req/s"
        f" p50 {median(r.percentile(50) for r in alone):5.2f}"
        f" p99 {median(r.percentile(99) for r in alone):6.2f} ms | beside"
        f" {median(r.rate() for r in beside):6.0f} req/s"
        f" p50 {median(r.percentile(50) for r in beside):5.2f}"
        f" p99 {median(r.percentile(99) for r in beside):6.2f} ms | ratio of rates"
        f" {median(rates):4.2f}, of p50 {median(p50s):4.2f} | {taken} backups"
    )


def _back_up(
    data: Path,
    target: Path,
    options: list[str],
    fresh: bool,
    stopped: threading.Event,
    begun: threading.Event,
    counts: list[int],
) -> None:
    while not stopped.is_set():
        if fresh:
            rmtree(target, ignore_errors=True)
        command = [*_command(data, target), *options]
        with subprocess.Popen(command, cwd=ROOT, stdout=subprocess.DEVNULL) as process:
            while process.poll() is None and not stopped.is_set():
                time.sleep(0.01)
                if (data / "backup").exists():
                    begun.set()  # its process has started, and the broker holds the cut
            process.terminate()
        counts.append(process.returncode)
        if not fresh:
            stopped.wait(0.5)


def _command(data: Path, target: Path) -> list[str]:
    return [sys.executable, "-m", "router", "backup", str(target), "--data", str(data)]


def _many_topics(port: int, data: Path) -> None:
    """The longest POST while the broker makes a cut of many topics that were just written."""
    requests = [request("POST", f"/events/t{n}", b"first") for n in range(TOPICS)]
    while len(run(port, requests, 32, 10.0).latencies) < TOPICS:
        pass
    settings = load(None, {}, {"data.dir": str(data), "broker.spawn": "false"})
    for state in ("all written", "at rest"):
        results: list[Result] = []
        load_thread = threading.Thread(target=_publish, args=(port, results))
        load_thread.start()
        time.sleep(1)
        with closing(open_link(settings)) as link:
            began = time.perf_counter()
            cut = BackupCalls(link).begin()
            held = time.perf_counter() - began
            BackupCalls(link).end(cut)
        load_thread.join()
        (found,) = results
        print(
            f"cut, {TOPICS} topics {state:<12} {held * 1000:6.0f} ms until it is held; POST"
            f" meanwhile p50 {found.percentile(50):5.2f} p99 {found.percentile(99):6.2f}"
            f" longest {max(found.latencies):6.1f} ms, errors {found.errors}"
        )


def _publish(port: int, results: list[Result]) -> None:
    results.append(run(port, [request("POST", "/events/t0", KIB)], 8, 6.0))
