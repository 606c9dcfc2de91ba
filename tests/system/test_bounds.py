"""Requests that are small on the wire and large in memory: a worker goes on serving the others."""

from __future__ import annotations

import gzip
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

import pytest
import requests

from tests.system.stack import Stack

pytestmark = [pytest.mark.system, pytest.mark.timeout(300)]
PATIENCE = 120.0
MIB = 1 << 20


@pytest.fixture
def stack(tmp_path: Path) -> Iterator[Stack]:
    stack = Stack(tmp_path, "--workers", "1", publish_timeout="100s")
    stack.start()
    yield stack
    stack.stop()


class Probe:
    """Asks for /health all the time, and notes the longest time without an answer."""

    def __init__(self, stack: Stack) -> None:
        self._url = f"{stack.url}/health"
        self._ending = threading.Event()
        self.longest = 0.0

    def ask(self) -> None:
        with requests.Session() as session:
            while not self._ending.is_set():
                began = time.monotonic()
                assert session.get(self._url, timeout=PATIENCE).status_code == 200
                self.longest = max(self.longest, time.monotonic() - began)

    @contextmanager
    def asking(self) -> Iterator[None]:
        with ThreadPoolExecutor(1) as pool:
            asking = pool.submit(self.ask)
            try:
                yield
            finally:
                self._ending.set()
                asking.result()


def peak(stack: Stack) -> int:
    """Return the most memory that a worker had so far, in bytes."""
    found = 0
    for pid in stack.workers():
        for line in Path(f"/proc/{pid}/status").read_text().splitlines():
            if line.startswith("VmHWM:"):
                found = max(found, int(line.split()[1]) * 1024)
    return found


def publish(stack: Stack, body: bytes, encoding: str = "identity") -> requests.Response:
    headers = {"Content-Type": "text/plain", "Content-Encoding": encoding}
    return requests.post(f"{stack.url}/events/t", body, headers=headers, timeout=PATIENCE)


def test_worker_serves_others_while_tiny_bodies_hold_100_000_lines_each(stack: Stack) -> None:
    body = gzip.compress(b"x\n" * 100_000, 9)
    assert len(body) < 300
    publish(stack, b"x")
    before, probe, began = peak(stack), Probe(stack), time.monotonic()
    with probe.asking(), ThreadPoolExecutor(20) as pool:
        answers = list(pool.map(lambda _: publish(stack, body, "gzip"), range(20)))
    took = time.monotonic() - began
    assert [answer.json()["count"] for answer in answers] == [100_000] * 20
    # On the event loop the work of many requests lies between two answers.
    assert probe.longest < took / 8
    assert peak(stack) - before < 140 * MIB


def test_worker_serves_others_while_it_reads_32_mb_of_line_feeds(stack: Stack) -> None:
    body = b"\n" * (32 * MIB)
    publish(stack, b"x")
    probe, began = Probe(stack), time.monotonic()
    with probe.asking():
        answers = [publish(stack, body) for _ in range(3)]
    took = time.monotonic() - began
    assert [answer.json()["count"] for answer in answers] == [0] * 3
    # Read in one call, each body would stop the worker for most of its time.
    assert probe.longest < took / 6
