"""Which bodies are read off the event loop, and how much of them a worker takes at once."""

from __future__ import annotations

import gzip
import itertools
import os
import sys
import threading
import time
import zlib
from collections.abc import Callable
from typing import Any

import pytest

from router.clocks.steps import run_blocking
from router.errors import BatchTooLargeError, OverloadedError
from router.model import Message
from router.services.memory_budget import MemoryBudget
from router.web.bodies import BodyReader, PublishBody, PublishBounds
from router.web.bodies.reader import LIGHT_BYTES, LIGHT_MESSAGES, MESSAGE_BYTES

BOUNDS = PublishBounds(batch=32 << 20, ratio=200, messages=100_000, message=1_000_000)
TEXT, JSON, CAMBRIA = "text/plain", "application/json", "application/cambria"
LINES = b"x\n" * 100_000
# Shrinks a hundredfold: less than would be refused, and more than a small body may grow to.
DULL = os.urandom(2_000).hex().encode() * 75


class Offloaded:
    """Calls here what should run elsewhere, and counts it."""

    def __init__(self) -> None:
        self.calls = 0

    def __call__(self, function: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Any:
        self.calls += 1
        return function(*args, **kwargs)


class Bench:
    def __init__(self, limit: int = 128 << 20, timeout: float = 0.0) -> None:
        self.offloaded = Offloaded()
        self.budget = MemoryBudget(limit, time.monotonic)
        self.reader = BodyReader(BOUNDS, self.budget, self.offloaded, timeout, time.monotonic)

    def read(self, body: PublishBody) -> list[Message]:
        messages, reserved = run_blocking(self.reader.messages(body))
        reserved.release()
        return messages


@pytest.mark.slow
@pytest.mark.parametrize(
    ("body", "count"),
    [
        (PublishBody(TEXT, "gzip", gzip.compress(LINES, 9)), 100_000),
        (PublishBody(TEXT, "deflate", zlib.compress(LINES, 9)), 100_000),
        (PublishBody(TEXT, "", b"x\r" * (LIGHT_MESSAGES + 1)), LIGHT_MESSAGES + 1),
        (PublishBody(JSON, "", b"{}" * (LIGHT_MESSAGES + 1)), LIGHT_MESSAGES + 1),
        (PublishBody(JSON, "", b'{"a":[' + b"[]," * LIGHT_MESSAGES + b"[]]}"), 1),
        (PublishBody(CAMBRIA, "", b"0.0." * (LIGHT_MESSAGES + 1)), LIGHT_MESSAGES + 1),
        (PublishBody(f"{CAMBRIA}-zip", "", gzip.compress(b"0.0." * 5_000)), 5_000),
        (PublishBody(TEXT, "", bytes(LIGHT_BYTES + 1)), 1),
        (PublishBody(TEXT, "gzip", gzip.compress(DULL)), 1),
        (PublishBody("application/octet-stream", "gzip", gzip.compress(DULL)), 1),
    ],
)
def test_body_is_read_elsewhere_when_it_is_heavy_without_compression(
    body: PublishBody, count: int
) -> None:
    bench = Bench()
    assert len(bench.read(body)) == count
    assert bench.offloaded.calls == 1
    assert bench.budget.used() == 0


@pytest.mark.parametrize(
    "body",
    [
        PublishBody(TEXT, "", b"x\n" * 1_000),
        PublishBody(TEXT, "gzip", gzip.compress(b"x\n" * 1_000)),
        PublishBody(JSON, "", b'{"a":"' + bytes(b"x" * 200_000) + b'"}'),
        PublishBody("application/octet-stream", "", bytes(900_000)),
        PublishBody(TEXT, "", b""),
    ],
)
def test_body_is_read_at_once_when_it_is_light(body: PublishBody) -> None:
    bench = Bench()
    bench.read(body)
    assert bench.offloaded.calls == 0


def test_body_of_few_bytes_reserves_what_it_grows_to() -> None:
    bench = Bench(limit=1 << 30)
    body = PublishBody(TEXT, "gzip", gzip.compress(LINES, 9))
    assert len(body.data) < 300
    _, reserved = run_blocking(bench.reader.messages(body))
    assert bench.budget.used() == len(LINES) + 100_000 * MESSAGE_BYTES
    reserved.release()


@pytest.mark.parametrize("kind", [TEXT, JSON, CAMBRIA])
def test_large_body_of_few_messages_reserves_little_more_than_its_size(kind: str) -> None:
    body = PublishBody(kind, "", b"x" * 900_000)
    assert Bench().reader.max_size(body, 1_500) < 902_000


def test_arrays_count_as_messages_do_before_they_are_parsed() -> None:
    body = PublishBody(JSON, "", b"[" * 1_000 + b"x" * LIGHT_BYTES)
    assert Bench().reader.max_size(body, 1_500) >= 1_500_000


def test_body_that_is_compressed_twice_reserves_what_it_grows_to_twice() -> None:
    once = gzip.compress(b"0.9.123456789" * 50_000)
    twice = gzip.compress(once)
    body = PublishBody(f"{CAMBRIA}-zip", "gzip", twice)
    assert Bench().reader.max_size(body, 0) >= 13 * 50_000


def test_heavy_body_is_not_read_before_there_is_room() -> None:
    bench = Bench(limit=10_000)
    held = run_blocking(bench.budget.reserve(1, 0, 0))
    with pytest.raises(OverloadedError):
        bench.read(PublishBody(TEXT, "gzip", gzip.compress(LINES, 9)))
    assert bench.offloaded.calls == 0
    held.release()
    assert bench.budget.used() == 0


@pytest.mark.slow
def test_body_that_is_refused_holds_nothing() -> None:
    bench = Bench()
    with pytest.raises(BatchTooLargeError):
        bench.read(PublishBody(TEXT, "", b"x\n" * 100_001))
    assert bench.budget.used() == 0


@pytest.mark.slow
@pytest.mark.parametrize(
    ("kind", "data"),
    [
        (TEXT, b"\n" * (32 << 20)),
        (CAMBRIA, b"\n" * (32 << 20)),
        (JSON, b"\n" * (32 << 20)),
        (JSON, b"[" + b" " * (16 << 20) + b"{}" + b" " * (16 << 20) + b"]"),
    ],
    ids=["lines", "cambria", "json", "array"],
)
def test_other_threads_run_while_blank_bodies_are_read(kind: str, data: bytes) -> None:
    """A call that held the interpreter's lock for all of it would let nothing else run."""
    bench = Bench()
    reading = threading.Thread(target=bench.read, args=(PublishBody(kind, "", data),))
    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-4)
    try:
        reading.start()
        turns = sum(1 for _ in itertools.takewhile(lambda _: reading.is_alive(), _sleeps()))
    finally:
        sys.setswitchinterval(interval)
        reading.join()
    # Decoding, and the searches that the C library makes in one go, are the few long calls.
    assert turns > 20


def _sleeps() -> Any:
    while True:
        time.sleep(0.0005)
        yield None
