"""What a scenario is given: one broker, the official client on it, and names of its own.

A scenario is a function that does what users of the official client do and returns what they saw,
as plain values: no ids, names or times of this run, so that the answers of two brokers compare.
"""

from __future__ import annotations

import itertools
import secrets
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack, suppress
from typing import Any, Protocol

import pulsar

SOON = 10_000
NOTHING = 500

Scenario = Callable[["World"], object]


class Server(Protocol):
    """A broker that scenarios run against."""

    name: str
    url: str
    namespace: str

    def create_partitioned(self, topic: str, partitions: int) -> None:
        """Create a partitioned topic, as administrators do."""
        ...

    def grow(self, topic: str, partitions: int) -> None:
        """Give a partitioned topic more partitions."""
        ...

    def terminate(self, topic: str) -> None:
        """Let nobody publish to a topic any more, as administrators do."""
        ...

    def compact(self, topic: str) -> None:
        """Compact a topic, as administrators do, and return when that is done."""
        ...

    def asked(self, method: str, path: str, body: Any = None) -> int:
        """Return the status with which the administration answers, below /admin/v2."""
        ...

    def told(self, method: str, path: str, body: Any = None) -> tuple[int, bytes]:
        """Return status and body of what the administration answers, below /admin/v2."""
        ...


class World:
    """One scenario's place on one broker; what it opens is closed after it."""

    def __init__(self, server: Server, client: pulsar.Client) -> None:
        self.server = server
        self.client = client
        self._tag = secrets.token_hex(6)
        self._names: dict[str, str] = {}
        self._numbers = itertools.count()
        self._owned = ExitStack()

    def topic(self, name: str = "t", domain: str = "persistent") -> str:
        """Return the full name of a topic that only this scenario has."""
        return f"{domain}://{self.server.namespace}/{self._tag}-{name}"

    def partitioned(self, partitions: int, name: str = "parted") -> str:
        topic = self.topic(name)
        self.server.create_partitioned(topic, partitions)
        return topic

    def another_client(self, **options: Any) -> pulsar.Client:
        made = official_client(self.server.url, **options)
        self._owned.callback(_closed, made)
        return made

    def producer(self, topic: str, **options: Any) -> pulsar.Producer:
        """Open a producer that sends one by one, unless told otherwise."""
        made = options.pop("client", self.client).create_producer(topic, **options)
        self._owned.callback(_closed, made)
        return made

    def consumer(self, topic: Any, subscription: str = "s", **options: Any) -> pulsar.Consumer:
        """Subscribe from the beginning, unless told otherwise."""
        given = {"initial_position": pulsar.InitialPosition.Earliest} | options
        made = given.pop("client", self.client).subscribe(topic, subscription, **given)
        self._owned.callback(_closed, made)
        return made

    def shared(self, topic: Any, subscription: str = "s", **options: Any) -> pulsar.Consumer:
        """Subscribe as one of several."""
        return self.consumer(
            topic, subscription, consumer_type=pulsar.ConsumerType.Shared, **options
        )

    def reader(self, topic: str, start: Any, **options: Any) -> pulsar.Reader:
        made = self.client.create_reader(topic, start, **options)
        self._owned.callback(_closed, made)
        return made

    def publish(self, topic: str, count: int, start: int = 0, **options: Any) -> list[Any]:
        """Publish m0, m1, … one by one; return their ids."""
        producer = self.client.create_producer(topic, **options)
        ids = [producer.send(b"m%d" % n) for n in range(start, start + count)]
        producer.close()
        return ids

    def publish_batch(self, topic: str, count: int, start: int = 0, **options: Any) -> list[Any]:
        """Publish m0, m1, … as one batch; return their ids."""
        producer = self.client.create_producer(
            topic, batching_enabled=True, batching_max_publish_delay_ms=30_000, **options
        )
        ids: list[Any] = []
        for n in range(start, start + count):
            producer.send_async(b"m%d" % n, lambda _, where: ids.append(where))
        producer.flush()
        producer.close()
        return ids

    def close(self) -> None:
        self._owned.close()


def official_client(url: str, **options: Any) -> pulsar.Client:
    given = {"operation_timeout_seconds": 10} | options
    return pulsar.Client(url, logger=pulsar.ConsoleLogger(pulsar.LoggerLevel.Error), **given)


def _closed(thing: Any) -> None:
    try:
        thing.close()
    except (pulsar.PulsarException, ValueError):
        pass  # the scenario closed it, or lost it; of some, the client says so with a ValueError


def outcome(action: Callable[[], object]) -> object:
    """Return what an action returns, or the name of what the client raises."""
    try:
        return action()
    except pulsar.PulsarException as error:
        return type(error).__name__


def refused(action: Callable[[], object]) -> str:
    """Return the name of what the client raises, `ok` where it raises nothing."""
    try:
        action()
    except pulsar.PulsarException as error:
        return type(error).__name__
    return "ok"


def receive(consumer: pulsar.Consumer, count: int, *, acknowledge: bool = True) -> list[str]:
    """Return the values of so many messages."""
    values = []
    for _ in range(count):
        message = consumer.receive(SOON)
        values.append(message.data().decode())
        if acknowledge:
            consumer.acknowledge(message)
    return values


def drain(consumer: pulsar.Consumer, count: int = 0, *, acknowledge: bool = True) -> list[str]:
    """Return the values of what comes until nothing comes for a while.

    So many are to come: on a busy machine that may take long.
    """
    values: list[str] = []
    while True:
        try:
            message = consumer.receive(SOON if len(values) < count else NOTHING)
        except pulsar.Timeout:
            return values
        values.append(message.data().decode())
        if acknowledge:
            consumer.acknowledge(message)


def shares(
    consumers: Sequence[pulsar.Consumer], count: int, *, acknowledge: bool = True
) -> list[list[pulsar.Message]]:
    """Return what each of several consumers gets: so many messages in all, and what follows."""
    found: list[list[pulsar.Message]] = [[] for _ in consumers]

    def take(milliseconds: int) -> None:
        for messages, consumer in zip(found, consumers, strict=True):
            with suppress(pulsar.Timeout):
                while True:
                    messages.append(consumer.receive(milliseconds))
                    if acknowledge:
                        consumer.acknowledge(messages[-1])

    def complete() -> bool:
        take(50)
        return sum(map(len, found)) >= count

    until(complete, SOON / 1_000)
    take(NOTHING)
    return found


def values_of(messages: Sequence[pulsar.Message]) -> list[str]:
    return [message.data().decode() for message in messages]


def read_all(reader: pulsar.Reader) -> list[str]:
    """Return the values up to the end, as programs read a topic."""
    values = []
    while reader.has_message_available():
        values.append(reader.read_next(SOON).data().decode())
    return values


def until(true: Callable[[], object], seconds: float = 10.0) -> bool:
    """Return whether something becomes true."""
    deadline = time.monotonic() + seconds
    while not true():
        if time.monotonic() > deadline:
            return False
        time.sleep(0.05)
    return True
