"""The official Pulsar client against our broker, with sync-to-disk on."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager

import pulsar

from bench.servers import router

PAYLOAD = b"x" * 1024
UNDER_WAY = 20_000


@contextmanager
def connected(url: str) -> Iterator[pulsar.Client]:
    """Connect a client that says little."""
    logger = pulsar.ConsoleLogger(pulsar.LoggerLevel.Error)
    client = pulsar.Client(url, logger=logger)
    try:
        yield client
    finally:
        client.close()


def batched(client: pulsar.Client, topic: str, count: int) -> tuple[float, int]:
    """Send asynchronously and in batches; return the messages a second, and how many there were."""
    producer = client.create_producer(
        topic,
        batching_enabled=True,
        batching_max_messages=1000,
        batching_max_publish_delay_ms=2,
        max_pending_messages=UNDER_WAY,
        block_if_queue_full=True,
    )
    failures = []
    room = threading.Semaphore(UNDER_WAY)

    def sent(result: object, _: object) -> None:
        if result != pulsar.Result.Ok:
            failures.append(result)
        room.release()

    began = time.perf_counter()
    for _ in range(count):
        room.acquire()
        producer.send_async(PAYLOAD, sent)
    producer.flush()
    took = time.perf_counter() - began
    producer.close()
    assert not failures, failures[0]
    return count / took, count


def one_by_one(client: pulsar.Client, topic: str, seconds: float) -> list[float]:
    """Send one message after the other; return the milliseconds that each took."""
    producer = client.create_producer(topic, batching_enabled=False)
    latencies = []
    until = time.perf_counter() + seconds
    while time.perf_counter() < until:
        began = time.perf_counter()
        producer.send(PAYLOAD)
        latencies.append((time.perf_counter() - began) * 1000)
    producer.close()
    return latencies


def official(seconds: float) -> None:
    """Asynchronous batched sends, then synchronous ones, of 1 KiB."""
    with router() as server, connected(f"pulsar://127.0.0.1:{server.pulsar}") as client:
        batched(client, "bench-async", UNDER_WAY)
        rate, _ = batched(client, "bench-async", int(25_000 * seconds))
        print(f"async batched: {rate:.0f} msg/s")
        ranked = sorted(one_by_one(client, "bench-sync", seconds))
        print(
            f"sync: {len(ranked) / seconds:.0f} msg/s, p50 {ranked[len(ranked) // 2]:.2f} ms, "
            f"p99 {ranked[int(len(ranked) * 0.99)]:.2f} ms"
        )
