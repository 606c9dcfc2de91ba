"""One broker process, and applications whose administration is of it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from uuid import uuid4

import pulsar
import pytest
from flask import Flask
from flask.testing import FlaskClient

from router.app import create_app
from router.settings import load
from tests.ports import free_port
from tests.processes import BrokerProcess

Site = Callable[..., FlaskClient]


@pytest.fixture(scope="package")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrokerProcess]:
    process = BrokerProcess(tmp_path_factory.mktemp("administered") / "data", free_port())
    process.start()
    yield process
    process.stop()


@pytest.fixture(scope="package")
def sites(broker: BrokerProcess) -> Iterator[Site]:
    """Makes applications with settings of the test's own."""
    made: list[Flask] = []

    def make(*, only_admin: bool = True, **given: str) -> FlaskClient:
        settings = {
            "data.dir": str(broker.folder),
            "broker.spawn": "false",
            "broker.pulsar": broker.url.removeprefix("pulsar://"),
        } | {name.replace("__", "."): text for name, text in given.items()}
        made.append(create_app(load(None, {}, settings), only_admin=only_admin))
        return made[-1].test_client()

    yield make
    for app in made:
        app.extensions["router.close"]()


@pytest.fixture(scope="package")
def site(sites: Site) -> FlaskClient:
    """An application with the default settings."""
    return sites()


@pytest.fixture
def namespace(site: FlaskClient) -> str:
    """A namespace of the test's own."""
    name = f"public/n{uuid4().hex}"
    assert site.put(f"/admin/v2/namespaces/{name}").status_code == 204
    return name


@pytest.fixture
def topic(site: FlaskClient, namespace: str) -> str:
    """The path of an empty topic, below /admin/v2."""
    path = f"persistent/{namespace}/t"
    assert site.put(f"/admin/v2/{path}").status_code == 204
    return path


@pytest.fixture(scope="package")
def client(broker: BrokerProcess) -> Iterator[pulsar.Client]:
    logger = pulsar.ConsoleLogger(pulsar.LoggerLevel.Error)
    made = pulsar.Client(broker.url, operation_timeout_seconds=10, logger=logger)
    yield made
    made.close()
