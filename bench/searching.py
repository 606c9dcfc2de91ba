"""A search of the console through 1,000,000 messages: how long it takes, and what POSTs feel.

The search is what the page does: one bounded request after the other, each where the last ended,
with the pauses of `search.js`. POSTs come at a steady rate over CONNECTIONS connections, in turns
without and with the search; a turn without stands before each with it.
"""

from __future__ import annotations

import http.client
import json
import random
import statistics
import threading
import time

from bench.load import Connection, Result, request, run
from bench.servers import Server, router

MESSAGES = 1_000_000
BATCH = 1_000
TURNS = 6
CONNECTIONS = 16
RATE = 200
"""POSTs a second of all connections together."""
PAGE = "/console/topics/searched"
PAUSE = 0.05
"""Seconds between the requests of a search, as in search.js."""


class Paced(Connection):
    """One that sends RATE / CONNECTIONS requests a second, whatever the answers take.

    Connections begin at different times: in step, each would wait for the others.
    """

    def send(self) -> None:
        """Send the next request in its turn."""
        pause = CONNECTIONS / RATE
        if not hasattr(self, "next_at"):
            self.next_at = time.perf_counter() + random.uniform(-pause, 0)
        self.next_at += pause
        wait = max(0.0, self.next_at - time.perf_counter())
        self.done.get_loop().call_later(wait, super().send)


class Search:
    """Searches until it is stopped, from the newest again when it is through."""

    def __init__(self, server: Server) -> None:
        self.checked = self.rounds = 0
        self.seconds = 0.0
        self._client = http.client.HTTPConnection("127.0.0.1", server.port, timeout=30)
        self._ends = threading.Event()
        self._thread = threading.Thread(target=self._run)
        self._next = ""

    def __enter__(self) -> Search:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ends.set()
        self._thread.join()

    def _run(self) -> None:
        began = time.perf_counter()
        while not self._ends.is_set():
            query = self._next or "?tab=messages&filter=no-such-words"
            self._client.request("GET", f"{PAGE}{query}&format=json")
            found = json.loads(self._client.getresponse().read())["search"]
            self.checked += found["checked"]
            self._next = found["next"]
            self._ends.wait(PAUSE)
        self.seconds = time.perf_counter() - began


def searching(seconds: float) -> None:
    """POSTs of 1 KiB beside a search through 1,000,000 messages, in turns with none."""
    posts = [request("POST", "/events/posted", b"x" * 1024)]
    with router() as server:
        fill(server)
        run(server.port, posts, CONNECTIONS, 2.0, make=Paced)
        ratios, alone, beside, rates = [], Result(), Result(), []
        for _ in range(TURNS):
            before = run(server.port, posts, CONNECTIONS, seconds, make=Paced)
            with Search(server) as search:
                after = run(server.port, posts, CONNECTIONS, seconds, make=Paced)
            alone.latencies += before.latencies
            beside.latencies += after.latencies
            ratios.append(after.percentile(99) / before.percentile(99))
            rates.append(search.checked / search.seconds)
    print(
        f"POST alone p50 {alone.percentile(50):.2f} p99 {alone.percentile(99):.2f} ms |"
        f" beside a search p50 {beside.percentile(50):.2f} p99 {beside.percentile(99):.2f} ms |"
        f" p99 ratio {beside.percentile(99) / alone.percentile(99):.2f},"
        f" of turns {statistics.median(ratios):.2f} ({min(ratios):.2f} .. {max(ratios):.2f}) |"
        f" {statistics.median(rates):,.0f} messages checked a second,"
        f" {MESSAGES / statistics.median(rates):.0f} s for 1,000,000"
    )


def fill(server: Server) -> None:
    """Store the messages that are searched."""
    client = http.client.HTTPConnection("127.0.0.1", server.port, timeout=60)
    for first in range(0, MESSAGES, BATCH):
        lines = "\n".join(f"message {number} of many" for number in range(first, first + BATCH))
        client.request("POST", "/events/searched", lines, {"Content-Type": "text/plain"})
        answer = client.getresponse()
        assert answer.status == 200, answer.read()
        answer.read()
    client.close()
