"""One installation grows by the commands of docs/growing.md: embedded, Kafka, several nodes, back.

Publishers and long polls go through nginx all the time, and a Kafka client reads beside them.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from pathlib import Path
from uuid import uuid4

import pytest

from tests.servers.kafka import Kafka
from tests.servers.zookeeper import Zookeeper
from tests.system.growing import TOPIC, KafkaMember, Town, expect_promised
from tests.system.nodes import read_kafka

pytestmark = [
    pytest.mark.system,
    pytest.mark.slow,
    pytest.mark.java,
    pytest.mark.timeout(1200),
]


@pytest.fixture(scope="module")
def target(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Kafka]:
    """A Kafka without any topic."""
    server = Kafka(tmp_path_factory.mktemp("kafka"))
    try:
        server.start()
        yield server
    finally:
        server.close()


@pytest.fixture
def town(tmp_path: Path) -> Iterator[Town]:
    """The page's first router behind nginx, with traffic."""
    with Town(tmp_path) as found:
        yield found


def test_installation_moves_to_kafka_to_several_nodes_and_back_under_traffic(
    town: Town, target: Kafka, zookeeper: Zookeeper
) -> None:
    town.places["kafka1:9092"] = target.address
    town.places["zookeeper1:2181/dragoman"] = f"{zookeeper.address}/growing-{uuid4().hex}"
    traffic = town.traffic
    town.follow("Before you begin")
    traffic.start()
    first = traffic.join_kafka(town.places["127.0.0.1:9095"])
    traffic.phase("to Kafka")
    town.follow("To Apache Kafka", partial(ends_before, "sed -i 's/# include", first))
    second = traffic.join_kafka(target.address)
    traffic.flow(60)
    traffic.phase("to nodes")
    town.follow("To several nodes")
    traffic.flow(60)
    traffic.phase("back")
    town.follow("Back to one machine", partial(ends_before, "sed -i 's/# include", second))
    back = town.places["127.0.0.1:9096"]
    traffic.join_kafka(back)
    traffic.phase("at home")
    traffic.flow(60)
    report = traffic.end(partial(read_kafka, back, TOPIC))
    print(report, traffic.failures())  # noqa: T201 # figures of the page
    expect_promised(traffic.audit, report, [])  # each switch pauses


def ends_before(prefix: str, member: KafkaMember, command: str) -> bool:
    """Stop a Kafka client before a command that begins so; leave no command out."""
    if command.startswith(prefix):
        member.end()
    return False
