"""A known user among clients that guess: names made up at random, a password check for each."""

from __future__ import annotations

import base64
import contextlib
import gzip
import multiprocessing
import random
import secrets
import tempfile
import time
from collections.abc import Iterator, Sequence
from multiprocessing.synchronize import Event
from pathlib import Path

from bench.load import Connection, Result, run
from bench.servers import router
from router.cli.user import hashed

GUESSING, KNOWN, ROUNDS = 400, 4, 3
SETTLE_SECONDS = 5.0
HEAD = "POST /events/logins HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Type: text/plain\r\n"


def logins(seconds: float) -> None:
    """A known user's gzip publish of 60 KiB, alone and among 400 connections with random names."""
    body = _body()
    with tempfile.TemporaryDirectory(prefix="bench-") as folder:
        users = Path(folder) / "users"
        users.write_text(f"known:{hashed('secret')}\n")
        with router(auth_users=str(users)) as server:
            publish = _publish("known", "secret", body)
            # Some connections for each worker, so that all of them have seen the user.
            run(server.port, [publish], 8 * KNOWN, seconds / 2)
            alone, among = Result(), Result()
            for _ in range(ROUNDS):
                alone.latencies += run(server.port, [publish], KNOWN, seconds).latencies
                with _guessers(server.port, 60 + seconds):
                    time.sleep(SETTLE_SECONDS)
                    turn = run(server.port, [publish], KNOWN, seconds)
                among.latencies += turn.latencies
                among.errors += turn.errors
    p99 = among.percentile(99)
    print(
        f"gzip of {len(body) // 1024} KiB by a known user, c={KNOWN}, {ROUNDS} turns:"
        f" p50 {alone.percentile(50):.1f}, p99 {alone.percentile(99):.1f} ms;"
        f" among {GUESSING} connections with random names"
        f" p50 {among.percentile(50):.1f}, p99 {p99:.1f} ms ({among.errors} errors),"
        f" ratio {p99 / alone.percentile(99):.2f} (wanted: 2 at most)"
    )


@contextlib.contextmanager
def _guessers(port: int, seconds: float) -> Iterator[None]:
    """Have GUESSING connections guess, in a process of their own, for so many seconds at most."""
    spawn = multiprocessing.get_context("spawn")
    begun = spawn.Event()
    process = spawn.Process(target=_guess, args=(port, seconds, begun))
    process.start()
    begun.wait(30)
    try:
        yield
    finally:
        process.terminate()
        process.join()


def _guess(port: int, seconds: float, begun: Event) -> None:
    """Ask with a new name each time, on all connections; `begun` is set when they do."""
    run(port, [b"begin"], GUESSING, seconds, make=lambda *of: _Guess(*of, begun))


class _Guess(Connection):
    """A connection that makes up a name for each request."""

    def __init__(
        self, requests: Sequence[bytes], result: Result, until: float, begun: Event
    ) -> None:
        super().__init__(requests, result, until)
        self._begun = begun

    def next_request(self) -> bytes:
        """Return a request with a name and a password that nobody has."""
        self._begun.set()
        return _publish(secrets.token_hex(8), "guess", b"x")


def _publish(name: str, password: str, body: bytes) -> bytes:
    basic = base64.b64encode(f"{name}:{password}".encode()).decode()
    coding = "Content-Encoding: gzip\r\n" if len(body) > 1 else ""
    head = f"{HEAD}Authorization: Basic {basic}\r\n{coding}Content-Length: {len(body)}\r\n\r\n"
    return head.encode() + body


def _body() -> bytes:
    """Return about 60 KiB of gzip: lines that shrink to half."""
    chance = random.Random(1)
    return gzip.compress("\n".join(chance.randbytes(60).hex() for _ in range(900)).encode())
