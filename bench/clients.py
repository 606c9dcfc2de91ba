"""The official Pulsar client against our broker, with sync-to-disk on."""

from __future__ import annotations

import threading
import time

import pulsar

from bench.servers import router


def official(seconds: float) -> None:
    """Asynchronous batched sends, then synchronous ones, of 1 KiB."""
    payload = b"x" * 1024
    with router() as server:
        client = pulsar.Client(
            f"pulsar://127.0.0.1:{server.pulsar}",
            logger=pulsar.ConsoleLogger(pulsar.LoggerLevel.Error),
        )
        producer = client.create_producer(
            "bench-async",
            batching_enabled=True,
            batching_max_messages=1000,
            batching_max_publish_delay_ms=2,
            max_pending_messages=20000,
            block_if_queue_full=True,
        )
        failures = []
        room = threading.Semaphore(20000)

        def sent(result: object, _: object) -> None:
            if result != pulsar.Result.Ok:
                failures.append(result)
            room.release()

        for asked in (20_000, int(25_000 * seconds)):
            began = time.perf_counter()
            for _ in range(asked):
                room.acquire()
                producer.send_async(payload, sent)
            producer.flush()
            took = time.perf_counter() - began
        print(f"async batched: {asked / took:.0f} msg/s, failures {len(failures)}")
        single = client.create_producer("bench-sync", batching_enabled=False)
        latencies = []
        until = time.perf_counter() + seconds
        while time.perf_counter() < until:
            began = time.perf_counter()
            single.send(payload)
            latencies.append((time.perf_counter() - began) * 1000)
        ranked = sorted(latencies)
        print(
            f"sync: {len(ranked) / seconds:.0f} msg/s, p50 {ranked[len(ranked) // 2]:.2f} ms, "
            f"p99 {ranked[int(len(ranked) * 0.99)]:.2f} ms"
        )
        client.close()
