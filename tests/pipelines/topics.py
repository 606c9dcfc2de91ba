"""What is in topics, and how tests put it there: whole partitions, as their readers get them."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from router.backends import Backend, Batch, NullMailbox, Start
from router.model import NOT_PARTITIONED, Message, Stored, TopicInfo, TopicName

WAIT = 60.0
_BYTES = 1 << 24


def create(backend: Backend, name: str, partitions: int = 0) -> TopicName:
    """Make a topic."""
    topic = TopicName.parse(name)
    backend.create_topic(TopicInfo(topic, partitions), WAIT)
    return topic


def publish(
    backend: Backend, topic: TopicName, messages: Iterable[Message], size: int = 1_000
) -> None:
    """Publish messages by turns to the partitions of a topic, so many together."""
    count = backend.partitions(topic, WAIT)
    together: list[list[Message]] = [[] for _ in range(max(1, count))]
    for number, message in enumerate(messages):
        batch = together[number % len(together)]
        batch.append(message)
        if len(batch) == size:
            _send(backend, topic, number % len(together) if count else NOT_PARTITIONED, batch)
            batch.clear()
    for number, batch in enumerate(together):
        if batch:
            _send(backend, topic, number if count else NOT_PARTITIONED, batch)


def _send(backend: Backend, topic: TopicName, partition: int, batch: Sequence[Message]) -> None:
    backend.publish(Batch(topic, partition, list(batch)), WAIT)


def read(backend: Backend, topic: TopicName | str) -> list[list[Stored]]:
    """Return all messages of a topic, those of each partition in their order."""
    name = TopicName.parse(topic) if isinstance(topic, str) else topic
    count = backend.partitions(name, WAIT)
    return [_partition(backend, name, p) for p in (range(count) if count else [NOT_PARTITIONED])]


def _partition(backend: Backend, topic: TopicName, partition: int) -> list[Stored]:
    reader = backend.read(topic, partition, Start.EARLIEST, NullMailbox(), WAIT)
    try:
        found: list[Stored] = []
        while batch := reader.receive(5_000, _BYTES, WAIT):
            found += batch
        return found
    finally:
        reader.close()
