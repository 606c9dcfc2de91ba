"""Thousands of clients that do next to nothing: what each costs, and what others notice of them."""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import resource
import selectors
import socket
import time
from collections.abc import Iterator
from multiprocessing.connection import Connection

from bench.load import request, run, run_go
from bench.servers import Server, router

SLOW, POLLS, IDLE, MANY = 2_000, 1_500, 5_000, 20_000
TOPICS = 100
MAKERS, MAKING_SECONDS = 8, 120.0
SETTLE = 5.0
MAX_POLLS_OF_A_PROCESS = 5_000
"""Systems limit the open files of a process."""
BUSY = request("POST", "/events/busy", b"x" * 1024)
# They all come from one address, and shall stay as they are for as long as it takes.
SETTINGS = {"server_connections_per_address": "0", "server_head_timeout": "10m"}
SETTINGS |= {"server_connections": str(MANY)}


def crowd(seconds: float) -> None:
    """A POST's latency among slow connections and polls; memory for idle connections and polls.

    BENCH_SCALE multiplies how many there are.
    """
    scale = float(os.environ.get("BENCH_SCALE", "1"))
    slow, polls, idle, many = (round(number * scale) for number in (SLOW, POLLS, IDLE, MANY))
    _allow_files(max(slow, idle, many) + 1_000)
    with _warm() as server:
        alone = run(server.port, [BUSY], 8, seconds)
        with waiting_polls(server.port, polls) as waiting:
            held = [_slow(server.port, number) for number in range(slow)]
            time.sleep(SETTLE)
            for connections in (8, 32):
                result = run(server.port, [BUSY], connections, seconds)
                ended = _readable(held) + waiting.ended()
                print(
                    f"POST c={connections} among {slow} slow connections and {polls} polls"
                    f" ({ended} ended early): {result.rate():.0f} req/s,"
                    f" p50 {result.percentile(50):.2f}, p99 {result.percentile(99):.2f} ms,"
                    f" errors {result.errors}; alone, c=8: p99 {alone.percentile(99):.2f} ms"
                )
            _close(held)
    with _warm() as server:
        before = server.memory()
        held = [_used(server.port) for _ in range(idle)]
        time.sleep(SETTLE)
        ended, grown = _readable(held), _grown(server, before, idle)
        print(f"{idle} idle connections ({ended} ended early): {grown}")
        _close(held)
    many_polls(many, seconds)


def many_polls(many: int, seconds: float) -> None:
    """Print the memory of so many polls that wait, a POST's latency meanwhile, and what remains.

    Each is of a group of its own. Groups are made before, and they stay.
    """
    with _warm() as server:
        alone = run_go(server.port, [[BUSY]] * 8, seconds)
        before = server.memory()
        _make_groups(server.port, many)
        print(f"{many} groups: {_grown(server, before, many)}", flush=True)
        for _ in range(2):
            before = server.memory()
            with waiting_polls(server.port, many) as waiting:
                time.sleep(SETTLE)
                grown = _grown(server, before, many)
                result = run_go(server.port, [[BUSY]] * 8, seconds)
                print(
                    f"{many} idle polls ({waiting.ended()} ended early): {grown};"
                    f" POST c=8 meanwhile {result.rate():.0f} req/s,"
                    f" p50 {result.percentile(50):.2f}, p99 {result.percentile(99):.2f} ms,"
                    f" errors {result.errors}; alone p99 {alone.percentile(99):.2f} ms;"
                    f" load average {os.getloadavg()[0]:.1f}",
                    flush=True,
                )
            time.sleep(SETTLE)
            print(f"    when they have ended: {server.memory() / 2**20:.0f} MiB", flush=True)


def _make_groups(port: int, groups: int) -> None:
    """Make the groups that `waiting_polls` polls."""
    polls = [_poll(number, 0) for number in range(groups)]
    sends = [polls[first::MAKERS] for first in range(MAKERS)]
    run_go(port, sends, MAKING_SECONDS, enough=groups // MAKERS * len(b"[]"))


def _poll(number: int, timeout_ms: int) -> bytes:
    path = f"/events/i{number % TOPICS}/g{number // TOPICS}/c?timeout={timeout_ms}"
    return request("GET", path)


class WaitingPolls:
    """Polls of the topics `i0` to `i99`, held by processes of their own."""

    def __init__(self, port: int, polls: int) -> None:
        self._holders: list[tuple[multiprocessing.Process, Connection]] = []
        for first in range(0, polls, MAX_POLLS_OF_A_PROCESS):
            ours, theirs = multiprocessing.Pipe()
            numbers = range(first, min(polls, first + MAX_POLLS_OF_A_PROCESS))
            process = multiprocessing.Process(target=_hold, args=(port, numbers, theirs))
            process.start()
            self._holders.append((process, ours))
        self.ended()

    def ended(self) -> int:
        """Return how many were answered, or lost their connection, by now."""
        for _, pipe in self._holders:
            pipe.send(None)
        return sum(pipe.recv() for _, pipe in self._holders)

    def close(self) -> None:
        """Close all connections."""
        for process, _ in self._holders:
            process.kill()
            process.join(10)


@contextlib.contextmanager
def waiting_polls(port: int, polls: int) -> Iterator[WaitingPolls]:
    """Have so many polls wait while the block lasts, each of a group of its own."""
    waiting = WaitingPolls(port, polls)
    try:
        yield waiting
    finally:
        waiting.close()


def _hold(port: int, numbers: range, pipe: Connection) -> None:
    held = []
    for i in numbers:
        sock = socket.create_connection(("127.0.0.1", port), 30)
        sock.sendall(_poll(i, 110_000))
        held.append(sock)
    while True:
        pipe.recv()
        pipe.send(_readable(held))


def _readable(socks: list[socket.socket]) -> int:
    """Return on how many of these something came, be it their end."""
    with selectors.DefaultSelector() as selector:
        for sock in socks:
            selector.register(sock, selectors.EVENT_READ)
        return len(selector.select(0))


@contextlib.contextmanager
def _warm() -> Iterator[Server]:
    """Run the router, and have the topics there and every part of it used."""
    with router(**SETTINGS) as server:
        run(server.port, [BUSY], 8, 2.0)
        topics = [request("POST", f"/events/i{i}", b"x") for i in range(TOPICS)]
        run_go(
            server.port, [topics], 30.0, enough=TOPICS * len(b'{"serverTimeMs":10000,"count":1}')
        )
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


def _grown(server: Server, before: int, number: int) -> str:
    now = server.memory()
    return (
        f"{(now - before) / number / 1024:.1f} KiB each, {now / 2**20:.0f} MiB in all,"
        f" {before / 2**20:.0f} MiB before"
    )


def _close(held: list[socket.socket]) -> None:
    for sock in held:
        sock.close()


def _allow_files(needed: int) -> None:
    """Have this process, and those that it starts, open so many files, if the system lets it."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft < needed:
        resource.setrlimit(resource.RLIMIT_NOFILE, (min(needed, hard), hard))
