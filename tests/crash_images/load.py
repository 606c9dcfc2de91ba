"""The load of a recording: topics and streams, and clients of all protocols that work on them.

What a client has on its way when the broker is killed may have happened or not; it goes on with the
next step on a new connection.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from functools import partial
from typing import Final

from tests.crash_images.connections import FAILURES, Http, Kafka, Nats, Ports
from tests.crash_images.facts import Facts
from tests.crash_images.workers import (
    HttpGroup,
    HttpPublisher,
    KafkaGroup,
    KafkaProducer,
    KeyedProducer,
    NatsConsumer,
    NatsPublisher,
    PulsarConsumer,
    PulsarProducer,
    Topics,
    Worker,
    expect,
)

STEPS: Final = 24
RETRY_SECONDS: Final = 0.02
LOAD_SECONDS: Final = 60.0
KEPT_OF_LIMITED: Final = 6
"""Messages that the stream with a limit keeps."""
RETENTION_MS: Final = 300
COMPACTED: Final = "compacted"


def make_workers(ports: Ports, facts: Facts, seed: str) -> list[Worker]:
    """Make topics and streams, and return the clients that work on them."""
    given = (ports, facts)
    setup = Setup(*given, "setup", seed)
    for topic in ("klog", "cut", "plog"):
        setup.create_topic(topic)
    setup.create_topic("short", retention_ms=str(RETENTION_MS))
    setup.create_topic(COMPACTED, cleanup_policy="compact", min_cleanable_dirty_ratio="0")
    setup.create_partitioned("hlog", 2)
    setup.create_stream("slog")
    setup.create_stream("limited", max_msgs=KEPT_OF_LIMITED)
    setup.close()
    return [
        *(KafkaProducer(*given, f"k{n}", seed, "klog") for n in range(2)),
        KafkaProducer(*given, "kcut", seed, "cut", deletes=True),
        KafkaProducer(*given, "kshort", seed, "short"),
        *(KeyedProducer(*given, f"c{n}", seed, COMPACTED) for n in range(2)),
        KafkaGroup(*given, "kgroup", seed, "klog"),
        *(HttpPublisher(*given, f"h{n}", seed, "hlog") for n in range(2)),
        HttpGroup(*given, "hgroup", seed, "hlog"),
        Topics(*given, "t0x", seed),
        Topics(*given, "t1x", seed),
        *(NatsPublisher(*given, f"n{n}", seed, "slog", deletes=bool(n)) for n in range(2)),
        NatsPublisher(*given, "nlim", seed, "limited"),
        NatsConsumer(*given, "ngroup", seed, "slog"),
        PulsarProducer(*given, "p0", seed, "plog-partition-0"),
        PulsarConsumer(*given, "pgroup", seed, "plog-partition-0"),
    ]


class Setup(Worker):
    """Makes what the others work on."""

    def __init__(self, ports: Ports, facts: Facts, label: str, seed: str) -> None:
        super().__init__(ports, facts, label, seed)
        self.kafka, self.http, self.nats = Kafka(ports.kafka), Http(ports.http), Nats(ports.nats)

    def step(self) -> None:
        """Do nothing: each thing is made once."""

    def create_topic(self, topic: str, **configs: str) -> None:
        """Make a topic of one partition."""
        create = partial(self.kafka.create, topic, **configs)
        self.note(self.kafka, "create-topic", create, topic=topic)

    def create_partitioned(self, topic: str, partitions: int) -> None:
        """Make a topic of several partitions."""
        body = {"topicName": topic, "partitionCount": partitions}
        create = partial(self.http.ask, "POST", "/topics/create", body)
        expect(self.note(self.http, "create-topic", create, topic=topic).status)

    def create_stream(self, stream: str, **config: int) -> None:
        """Make a stream of the subjects below its name."""
        body = {"name": stream, "subjects": [f"{stream}.>"], **config}
        create = partial(self.nats.call, f"STREAM.CREATE.{stream}", body)
        answer = self.note(self.nats, "create-stream", create, topic=stream)
        assert "error" not in answer, answer

    def close(self) -> None:
        for connection in (self.kafka, self.http, self.nats):
            connection.close()


def run(workers: list[Worker], steps: int, between: Callable[[], None]) -> None:
    """Run so many steps of each client, all at once; call `between` when half of them are done.

    Raises AssertionError if they do not end in time.
    """
    until = time.monotonic() + LOAD_SECONDS
    half = threading.Semaphore(0)
    threads = [
        threading.Thread(target=_work, args=(w, steps, until, half), daemon=True) for w in workers
    ]
    for thread in threads:
        thread.start()
    for _ in range(len(workers) * steps // 2):
        assert half.acquire(timeout=LOAD_SECONDS), "the load stands still"
    between()
    for thread in threads:
        thread.join(max(0.0, until + LOAD_SECONDS - time.monotonic()))
        assert not thread.is_alive(), "a call was never answered"


def _work(worker: Worker, steps: int, until: float, count: threading.Semaphore) -> None:
    for _ in range(steps):
        while time.monotonic() < until:
            try:
                worker.step()
            except FAILURES:
                worker.close()
                time.sleep(RETRY_SECONDS)
                continue
            break
        count.release()
    worker.close()
