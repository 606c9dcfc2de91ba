"""The two brokers that all Kafka clients run their scenarios against, and the clients."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.kafka.clients import KafkaClient
from tests.kafka.clients.aio_kafka import AioKafka
from tests.kafka.clients.confluent import Confluent
from tests.kafka.clients.kafka_python import KafkaPython
from tests.kafka.clients.program import franz_go, java, kafka_go
from tests.ports import free_port
from tests.system.stack import Stack

Opening = Callable[[str, Path], KafkaClient]
OURS = "ours"
CLIENTS: dict[str, Opening] = {
    "kafka-python": lambda bootstrap, _: KafkaPython(bootstrap),
    "confluent-kafka": lambda bootstrap, _: Confluent(bootstrap),
    "aiokafka": lambda bootstrap, _: AioKafka(bootstrap),
    "java-3.9.2": lambda bootstrap, classes: java("java-3.9.2", classes, bootstrap),
    "java-4.4.0": lambda bootstrap, classes: java("java-4.4.0", classes, bootstrap),
    "franz-go": lambda bootstrap, _: franz_go(bootstrap),
    "kafka-go": lambda bootstrap, _: kafka_go(bootstrap),
}


class KafkaStack(Stack):
    """The product with its Kafka and Pulsar listeners: their addresses are `kafka`, `pulsar`."""

    def __init__(self, folder: Path) -> None:
        self.kafka, self.pulsar = (f"127.0.0.1:{free_port()}" for _ in range(2))
        flags = ("--workers", "1", "--pulsar", self.pulsar, "--kafka", self.kafka)
        super().__init__(
            folder,
            *flags,
            broker_kafka_rebalance_delay="0s",
            broker_kafka_consumer_heartbeat="300ms",
        )


class Clients:
    """One client of each library on a bootstrap address, opened when a test wants it."""

    def __init__(self, broker: str, bootstrap: str, classes: Path) -> None:
        self.broker = broker
        self.bootstrap = bootstrap
        self._classes = classes
        self._owned = contextlib.ExitStack()
        self._open: dict[str, KafkaClient] = {}

    def __getitem__(self, name: str) -> KafkaClient:
        if name not in self._open:
            self._open[name] = CLIENTS[name](self.bootstrap, self._classes)
            self._owned.callback(self._open[name].close)
        return self._open[name]

    def close(self) -> None:
        """Close what was opened."""
        self._owned.close()


@pytest.fixture(scope="package")
def router_stack(tmp_path_factory: pytest.TempPathFactory) -> Iterator[KafkaStack]:
    """`python -m router serve --kafka …`, which serves all dialects."""
    stack = KafkaStack(tmp_path_factory.mktemp("router"))
    stack.start()
    yield stack
    assert stack.stop() == 0


@pytest.fixture(scope="package", params=["kafka", OURS])
def clients(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Clients]:
    """The clients on Apache Kafka, then on the router's broker."""
    if request.param == OURS:
        bootstrap = request.getfixturevalue("router_stack").kafka
    else:
        bootstrap = request.getfixturevalue("kafka").address
    made = Clients(request.param, bootstrap, tmp_path_factory.mktemp("classes"))
    with contextlib.closing(made):
        yield made
