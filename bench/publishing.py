"""POST: the first one, single messages, batches, and many topics at once, against the bare floor.

The floor is a bare Flask view under all of the router's gunicorn settings, its worker class among
them. As that class alone makes the floor faster, the single messages are also compared with the
same view on gunicorn's own gevent worker, which is what Flask costs without the router's code.
"""

from __future__ import annotations

import http.client
import json
import statistics
import time
from collections.abc import Callable, Sequence

from bench.load import Connection, Result, Shuffled, request, run
from bench.servers import Server, floor, router

KIB = b"x" * 1024


def _line(name: str, ours: Result, bare: Result, cpu_ours: float, cpu_bare: float) -> None:
    print(
        f"{name:<22} ours {ours.rate():8.0f} req/s p50 {ours.percentile(50):7.2f} "
        f"p99 {ours.percentile(99):7.2f} ms cpu {cpu_ours:6.0f} us | "
        f"floor {bare.rate():8.0f} req/s p50 {bare.percentile(50):7.2f} "
        f"p99 {bare.percentile(99):7.2f} ms cpu {cpu_bare:6.0f} us | "
        f"ratio {ours.rate() / bare.rate():5.2f} | errors {ours.errors}+{bare.errors}"
    )


def _costed(
    server: Server,
    requests: list[bytes],
    connections: int,
    seconds: float,
    make: Callable[[Sequence[bytes], Result, float], Connection] = Connection,
) -> tuple[Result, float]:
    run(server.port, requests, connections, 1.0, make=make)
    before = server.processor_seconds()
    result = run(server.port, requests, connections, seconds, make=make)
    used = server.processor_seconds() - before
    return result, used / max(1, len(result.latencies)) * 1e6


def start(seconds: float) -> None:
    """Time from the command to the first accepted POST, on an empty folder."""
    taken = []
    for _ in range(5):
        began = time.perf_counter()
        with router() as server:
            client = http.client.HTTPConnection("127.0.0.1", server.port, timeout=10)
            client.request("POST", "/events/first", b"x", {"Content-Type": "text/plain"})
            assert client.getresponse().status == 200
            taken.append(time.perf_counter() - began)
    print(f"start to first accepted POST: median {statistics.median(taken):.2f} s of {len(taken)}")


def single(seconds: float) -> None:
    """One message of 1 KiB a request, at 1, 32 and 256 connections."""
    requests = [request("POST", "/events/bench", KIB)]
    with router() as ours, floor() as bare, floor("-k", "gevent") as stock:
        for connections in (1, 32, 256):
            mine, cpu = _costed(ours, requests, connections, seconds)
            theirs, floor_cpu = _costed(bare, requests, connections, seconds)
            _line(f"POST 1 KiB c={connections}", mine, theirs, cpu, floor_cpu)
            others, stock_cpu = _costed(stock, requests, connections, seconds)
            print(
                f"{'':<22} on gunicorn's own worker the floor has {others.rate():.0f} req/s,"
                f" p50 {others.percentile(50):.2f} ms, cpu {stock_cpu:.0f} us:"
                f" ratio {mine.rate() / others.rate():.2f}"
            )


def batches(seconds: float) -> None:
    """A hundred messages of 1 KiB a request, in cambria and JSON, against single bare requests."""
    record = b"1.1024.k" + KIB + b"\n"
    objects = json.dumps([{"value": "x" * 1012} for _ in range(100)]).encode()
    bodies = {
        "cambria": request("POST", "/events/batch", record * 100, "application/cambria"),
        "json": request("POST", "/events/batch", objects, "application/json"),
    }
    with router() as ours, floor() as bare:
        theirs, floor_cpu = _costed(bare, [request("POST", "/events/b", KIB)], 32, seconds)
        for name, body in bodies.items():
            mine, cpu = _costed(ours, [body], 32, seconds)
            _line(f"100 x 1 KiB {name}", mine, theirs, cpu, floor_cpu)
            messages = mine.rate() * 100
            print(f"{'':<22} {messages:.0f} msg/s, {messages / theirs.rate():.1f} per bare request")


def topics(seconds: float) -> None:
    """A thousand topics at once in any order, one message a request, and one topic beside it."""
    requests = [request("POST", f"/events/t{i}", KIB) for i in range(1000)]
    with router() as ours, floor() as bare:
        run(ours.port, requests, 32, 4.0, make=Shuffled)
        mine, cpu = _costed(ours, requests, 32, seconds, Shuffled)
        theirs, floor_cpu = _costed(bare, requests, 32, seconds)
        _line("1,000 topics c=32", mine, theirs, cpu, floor_cpu)
        one, one_cpu = _costed(ours, requests[:1], 32, seconds)
        print(
            f"{'':<22} one of them alone {one.rate():.0f} req/s, cpu {one_cpu:.0f} us:"
            f" ratio {mine.rate() / one.rate():.2f}"
        )
