"""Fixtures that hand out real servers: shared ones, and ones that a test may kill."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from tests.servers.kafka import Kafka
from tests.servers.nats import Nats
from tests.servers.pulsar import Pulsar
from tests.servers.zookeeper import Zookeeper


@pytest.fixture(scope="session")
def zookeeper(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Zookeeper]:
    """A ZooKeeper that all tests share: to be spoken to, never to be stopped or paused."""
    server = Zookeeper(tmp_path_factory.mktemp("zookeeper"))
    try:
        server.start()
        yield server
    finally:
        server.stop()


@pytest.fixture(scope="session")
def kafka(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Kafka]:
    """A Kafka that all tests share, secure listeners included: never to be stopped or paused."""
    server = Kafka(tmp_path_factory.mktemp("kafka"), secure=True)
    try:
        server.start()
        yield server
    finally:
        server.close()


@pytest.fixture(scope="session")
def nats_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Nats]:
    """A nats-server that all tests share: never to be stopped or paused."""
    server = Nats(tmp_path_factory.mktemp("nats"))
    try:
        server.start()
        yield server
    finally:
        server.stop()


@pytest.fixture(scope="session")
def apache_pulsar(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Pulsar]:
    """An Apache Pulsar that all tests share: never to be stopped or paused."""
    server = Pulsar(tmp_path_factory.mktemp("pulsar"))
    try:
        server.start()
        yield server
    finally:
        server.stop()


@pytest.fixture
def new_zookeeper(tmp_path: Path) -> Iterator[Callable[[], Zookeeper]]:
    """Make ZooKeepers of the test's own, not started; they end with the test."""
    with ExitStack() as owned:

        def make() -> Zookeeper:
            server = Zookeeper(_folder(tmp_path, "zookeeper"))
            owned.callback(server.stop)
            return server

        yield make


@pytest.fixture
def new_kafka(tmp_path: Path) -> Iterator[Callable[[], Kafka]]:
    """Make Kafkas of the test's own, not started; they end with the test, their proxies too."""
    with ExitStack() as owned:

        def make() -> Kafka:
            server = Kafka(_folder(tmp_path, "kafka"))
            owned.callback(server.close)
            return server

        yield make


@pytest.fixture
def new_pulsar(tmp_path: Path) -> Iterator[Callable[..., Pulsar]]:
    """Make Apache Pulsars of the test's own, not started; they end with the test."""
    with ExitStack() as owned:

        def make(**settings: object) -> Pulsar:
            secure = bool(settings.pop("secure", False))
            server = Pulsar(_folder(tmp_path, "pulsar"), secure=secure, **settings)
            owned.callback(server.stop)
            return server

        yield make


def _folder(parent: Path, name: str) -> Path:
    return parent / f"{name}-{sum(path.name.startswith(name) for path in parent.iterdir())}"
