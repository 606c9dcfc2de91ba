"""What tests of the Kafka backend do again and again."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

from router.backends import Batch
from router.model import Message, Position, TopicName
from tests.contract.conftest import WAIT, Opened

MANY = 100_000
BYTES = 1 << 30


def publish(opened: Opened, topic: TopicName, *values: bytes, partition: int = -1) -> Position:
    """Store these values together."""
    batch = Batch(topic, partition, [Message(value) for value in values])
    return opened.backend.publish(batch, WAIT).position


def values(opened: Opened, topic: TopicName, group: str = "reader") -> list[bytes]:
    """Return what a group has not acknowledged, and acknowledge nothing."""
    consumer = opened.consumer(topic, group=group)
    found = consumer.receive(MANY, BYTES, WAIT)
    consumer.close()
    return [stored.message.value for stored in found]


def readers(topic: TopicName) -> int:
    """Return how many threads read a topic here."""
    return sum(t.name.startswith(f"kafka-{topic.local}-") for t in threading.enumerate())


def eventually(true: Callable[[], object]) -> None:
    """Wait until something holds."""
    deadline = time.monotonic() + WAIT
    while not true():
        assert time.monotonic() < deadline, "it did not become true"
        time.sleep(0.01)
