"""The two brokers, for all modules that compare them."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from tests.interop.brokers import Broker
from tests.interop.programs import outcomes
from tests.ports import free_port
from tests.processes import BrokerProcess
from tests.servers.pulsar import Pulsar


@pytest.fixture(scope="package")
def ours(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Broker]:
    """`router broker --http`, as users start it."""
    http = f"127.0.0.1:{free_port()}"
    folder = tmp_path_factory.mktemp("ours") / "data"
    process = BrokerProcess(folder, free_port(), broker_http=http)
    process.start()
    broker = Broker("ours", process.url, f"http://{http}", "public/interop")
    yield broker
    broker.close()
    process.stop()


@pytest.fixture(scope="package")
def apache(apache_pulsar: Pulsar) -> Iterator[Broker]:
    """Apache Pulsar; its namespace is not the one whose policies other tests change."""
    broker = Broker("Apache Pulsar", apache_pulsar.url, apache_pulsar.admin, "public/interop")
    yield broker
    broker.close()


@pytest.fixture(scope="module")
def seen(command: list[str], ours: Broker, apache: Broker) -> tuple[dict[str, Any], dict[str, Any]]:
    """What the program of a module saw on our broker and on Apache Pulsar, by scenario."""
    with ThreadPoolExecutor(2) as both:
        here, there = both.map(lambda broker: outcomes(command, broker), (ours, apache))
    return here, there
