"""Thousands of clients that do next to nothing: what each costs, and what others notice of them."""

from __future__ import annotations

import contextlib
import os
import resource
import socket
import time
from collections.abc import Iterator

from bench.load import request, run
from bench.polls import begin, make_topics, readable
from bench.servers import Server, router

SLOW, POLLS, IDLE, MANY = 2_000, 1_500, 5_000, 10_000
SETTLE = 5.0
BUSY = request("POST", "/events/busy", b"x" * 1024)
# They all come from one address, and shall stay as they are for as long as it takes.
SETTINGS = {"server_connections_per_address": "0", "server_head_timeout": "10m"}


def crowd(seconds: float) -> None:
    """A POST's latency among slow connections and polls; memory for idle connections and polls.

    BENCH_SCALE multiplies how many there are.
    """
    scale = float(os.environ.get("BENCH_SCALE", "1"))
    slow, polls, idle, many = (round(number * scale) for number in (SLOW, POLLS, IDLE, MANY))
    _allow_files(max(slow + polls, idle, many) + 1_000)
    with _warm() as server:
        alone = run(server.port, [BUSY], 8, seconds)
        held = begin(server.port, polls) + [_slow(server.port, number) for number in range(slow)]
        time.sleep(SETTLE)
        for connections in (8, 32):
            result = run(server.port, [BUSY], connections, seconds)
            print(
                f"POST c={connections} among {slow} slow connections and {polls} polls"
                f" ({readable(held)} ended early): {result.rate():.0f} req/s,"
                f" p50 {result.percentile(50):.2f}, p99 {result.percentile(99):.2f} ms,"
                f" errors {result.errors}; alone, c=8: p99 {alone.percentile(99):.2f} ms"
            )
        _close(held)
    with _warm() as server:
        before = server.memory()
        held = [_used(server.port) for _ in range(idle)]
        _tell(f"{idle} idle connections", server, before, held)
    with _warm() as server:
        before = server.memory()
        held = begin(server.port, many)
        _tell(f"{many} idle polls", server, before, held)


@contextlib.contextmanager
def _warm() -> Iterator[Server]:
    """Run the router, and have the topics there and every part of it used."""
    with router(**SETTINGS) as server:
        run(server.port, [BUSY], 8, 2.0)
        make_topics(server.port)
        yield server


def _slow(port: int, number: int) -> socket.socket:
    """Return a connection with half a head, or half a body."""
    sock = socket.create_connection(("127.0.0.1", port), 30)
    sock.sendall(BUSY[: (20, -20)[number % 2]])
    return sock


def _used(port: int) -> socket.socket:
    """Return a connection that had its answer, and stays."""
    sock = socket.create_connection(("127.0.0.1", port), 30)
    sock.sendall(request("GET", "/health"))
    assert sock.recv(65_536)[9:12] == b"200"
    return sock


def _tell(what: str, server: Server, before: int, held: list[socket.socket]) -> None:
    time.sleep(SETTLE)
    grown = server.memory() - before
    print(
        f"{what} ({readable(held)} ended early): {grown / len(held) / 1024:.1f} KiB each,"
        f" {server.memory() / 2**20:.0f} MiB in all, {before / 2**20:.0f} MiB before"
    )
    _close(held)


def _close(held: list[socket.socket]) -> None:
    for sock in held:
        sock.close()


def _allow_files(needed: int) -> None:
    """Have this process, and those that it starts, open so many files, if the system lets it."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft < needed:
        resource.setrlimit(resource.RLIMIT_NOFILE, (min(needed, hard), hard))
