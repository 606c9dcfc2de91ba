"""A small HTTP load generator: keep-alive connections that each repeat one request.

It parses just as much of an answer as both sides of a comparison need (status and length), so that
the client's own cost is the same for ours and for the floor. Only loopback, always bounded in time.
Python's (`run`) takes about as much for a request as a router does; the one in Go (`run_go`) takes
a fraction of that, so that its rates say more about the server.
"""

from __future__ import annotations

import asyncio
import base64
import json
import random
import subprocess
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from itertools import cycle, islice
from typing import cast

import uvloop

from tests.servers import golang

GO_SECONDS = 60.0
"""How long the load generator in Go may take beyond the time of its load."""


def request(method: str, path: str, body: bytes = b"", content_type: str = "text/plain") -> bytes:
    """Return the bytes of a keep-alive request."""
    head = f"{method} {path} HTTP/1.1\r\nHost: 127.0.0.1\r\n"
    if body:
        head += f"Content-Type: {content_type}\r\nContent-Length: {len(body)}\r\n"
    return head.encode() + b"\r\n" + body


@dataclass
class Result:
    """Latencies in milliseconds, and the time that it all took.

    `bytes` of the answers' bodies are counted by `run_go` only.
    """

    latencies: list[float] = field(default_factory=list)
    errors: int = 0
    seconds: float = 0.0
    bytes: int = 0

    def rate(self) -> float:
        """Return the answered requests per second."""
        return len(self.latencies) / self.seconds

    def percentile(self, percent: float) -> float:
        """Return a latency percentile in milliseconds."""
        ranked = sorted(self.latencies)
        return ranked[min(len(ranked) - 1, int(len(ranked) * percent / 100))]


class Connection(asyncio.Protocol):
    """One keep-alive connection that sends the next request when the last was answered."""

    def __init__(self, requests: Sequence[bytes], result: Result, until: float) -> None:
        self.requests = requests
        self.result = result
        self.until = until
        self.turn = 0
        self.buffer = b""
        self.done = asyncio.get_running_loop().create_future()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Send the first request."""
        self.transport = cast("asyncio.Transport", transport)  # uvloop's derive from nothing
        self.send()

    def send(self) -> None:
        """Send the next request, or stop when the time is over."""
        self.started = time.perf_counter()
        if self.started >= self.until:
            self.transport.close()
            return
        self.transport.write(self.next_request())
        self.turn += 1

    def next_request(self) -> bytes:
        """Return the next request."""
        return self.requests[self.turn % len(self.requests)]

    def data_received(self, data: bytes) -> None:
        """Collect one answer; count it when it is whole."""
        self.buffer += data
        end = self.buffer.find(b"\r\n\r\n")
        if end < 0:
            return
        head = self.buffer[:end].lower()
        length = int(head.partition(b"content-length:")[2].split(b"\r\n", 1)[0] or b"0")
        if len(self.buffer) < end + 4 + length:
            return
        if self.buffer[9:12] == b"200":
            self.result.latencies.append((time.perf_counter() - self.started) * 1000)
        else:
            self.result.errors += 1
        self.buffer = b""
        self.send()

    def connection_lost(self, error: Exception | None) -> None:
        """Count a connection that broke."""
        if time.perf_counter() < self.until:
            self.result.errors += 1
        if not self.done.done():
            self.done.set_result(None)


class Shuffled(Connection):
    """One that sends any of the requests each time: connections do not come to go in step."""

    def next_request(self) -> bytes:
        """Return one of the requests."""
        return random.choice(self.requests)


def run(
    port: int,
    requests: Sequence[bytes],
    connections: int,
    seconds: float,
    *,
    own: bool = False,
    make: Callable[[Sequence[bytes], Result, float], Connection] = Connection,
) -> Result:
    """Load a server on loopback for some seconds over that many connections, made by `make`.

    Each connection sends all requests in turn, from another one on; with `own` only that one.
    """

    async def load() -> Result:
        loop = asyncio.get_running_loop()
        result = Result()
        until = time.perf_counter() + seconds
        started = time.perf_counter()
        made = [
            await loop.create_connection(
                partial(
                    make,
                    [requests[first]] if own else [*requests[first:], *requests[:first]],
                    result,
                    until,
                ),
                "127.0.0.1",
                port,
            )
            for first in islice(cycle(range(len(requests))), connections)
        ]
        await asyncio.wait([c.done for _, c in made], timeout=seconds + 30)
        result.seconds = time.perf_counter() - started
        return result

    return uvloop.run(load())


def run_go(
    port: int,
    sends: Sequence[Sequence[bytes]],
    seconds: float,
    *,
    least: int = 0,
    enough: int = 0,
    begins: Callable[[], None] | None = None,
) -> Result:
    """Load a server on loopback for some seconds; `sends`: the requests of each connection.

    A body of less than `least` bytes is an error. A connection that received `enough` bytes of
    bodies ends earlier; 0: none does. With `begins` each connection has an answer first, which is
    not counted; then it is called. Raises RuntimeError if all requests fail.
    """
    order = {
        "address": f"127.0.0.1:{port}",
        "seconds": seconds,
        "least": least,
        "enough": enough,
        "sends": [[base64.b64encode(one).decode() for one in requests] for requests in sends],
        "first": begins is not None,
    }
    command = [str(golang.built(golang.BENCH)), "load"]
    pipe = subprocess.PIPE
    with subprocess.Popen(command, stdin=pipe, stdout=pipe, stderr=pipe) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        try:
            process.stdin.write(json.dumps(order).encode() + b"\n")
            process.stdin.flush()
            if begins is not None and process.stdout.readline():
                begins()
            said, failure = process.communicate(b"\n", seconds + GO_SECONDS)
        finally:
            process.kill()
    if process.returncode:
        raise RuntimeError(failure.decode())
    found = json.loads(said)
    reason = found.pop("failure")
    if reason and not found["latencies"]:
        raise RuntimeError(reason)
    return Result(**found)
