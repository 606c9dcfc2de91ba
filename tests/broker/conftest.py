"""A real broker process that all tests of a module share, and clients of both kinds to it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from uuid import uuid4

import pulsar
import pytest
from flask import Flask

from router import settings
from router.app import create_app
from tests.broker.raw import RawClient
from tests.ports import free_port
from tests.processes import BrokerProcess

Connect = Callable[[BrokerProcess], RawClient]


@pytest.fixture(scope="module")
def shared_broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrokerProcess]:
    process = BrokerProcess(tmp_path_factory.mktemp("broker") / "data", free_port())
    process.start()
    yield process
    process.stop()


@pytest.fixture
def client(shared_broker: BrokerProcess) -> Iterator[pulsar.Client]:
    made = official_client(shared_broker.url)
    yield made
    made.close()


@pytest.fixture(scope="module")
def app(shared_broker: BrokerProcess) -> Iterator[Flask]:
    flags = {"data.dir": str(shared_broker.folder), "consume.from": "earliest"}
    made = create_app(settings.load(None, {}, flags))
    yield made
    made.extensions["router.close"]()


@pytest.fixture
def connect() -> Iterator[Callable[[BrokerProcess], RawClient]]:
    """Connects raw clients, which are closed after the test."""
    made: list[RawClient] = []

    def connect_to(process: BrokerProcess) -> RawClient:
        made.append(RawClient(process.url))
        return made[-1]

    yield connect_to
    for client in made:
        client.close()


@pytest.fixture
def raw(shared_broker: BrokerProcess, connect: Connect) -> RawClient:
    """A raw client past its handshake."""
    return greeted(connect(shared_broker))


@pytest.fixture
def other(shared_broker: BrokerProcess, connect: Connect) -> RawClient:
    """Another one."""
    return greeted(connect(shared_broker))


def greeted(client: RawClient) -> RawClient:
    client.shake_hands()
    return client


@pytest.fixture
def topic() -> str:
    return f"persistent://public/default/t-{uuid4().hex}"


def official_client(url: str) -> pulsar.Client:
    logger = pulsar.ConsoleLogger(pulsar.LoggerLevel.Error)
    return pulsar.Client(url, operation_timeout_seconds=10, logger=logger)
