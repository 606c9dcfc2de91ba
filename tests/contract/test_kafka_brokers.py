"""The Kafka backend on three brokers: leaders move while it publishes and reads."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack

import pytest

from router.backends import Batch, Start
from router.backends.kafka.backend import KafkaBackend
from router.clocks import deadline_in
from router.model import NOT_PARTITIONED, Message, TopicInfo
from router.model.policies import Policies
from tests.contract.conftest import WAIT, Opened, open_kafka
from tests.contract.publishing import Publishers, check, received
from tests.servers.kafka import Kafka

pytestmark = [pytest.mark.contract, pytest.mark.java, pytest.mark.timeout(240)]


class Brokers:
    """Three brokers by their numbers, and a backend that knows them all."""

    def __init__(self, servers: list[Kafka], opened: Opened) -> None:
        self.servers = dict(enumerate(servers, 1))
        self.opened = opened

    def leader(self, name: str) -> int:
        """Return the number of the broker that leads the one partition, as it is now."""
        assert isinstance(self.opened.backend, KafkaBackend)
        cluster = self.opened.backend._cluster
        cluster.forget(name)
        deadline = deadline_in(WAIT)
        return cluster.persist(lambda: cluster.leader(name, 0, deadline), deadline)


@pytest.fixture(scope="module")
def brokers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Brokers]:
    folder = tmp_path_factory.mktemp("brokers")
    with ExitStack() as stack:
        servers = Kafka.cluster(folder / "kafka")
        for server in servers:
            stack.callback(server.close)
            server.launch()
        for server in servers:
            server.wait_ready()
        addresses = ",".join(server.address for server in servers)
        yield Brokers(servers, open_kafka(addresses, folder, stack))


def test_leaders_move_and_nothing_acknowledged_is_lost_or_doubled(brokers: Brokers) -> None:
    opened = brokers.opened
    topic = opened.new_name()
    opened.backend.create_topic(TopicInfo(topic, 0, Policies(replicas=3)), WAIT)
    late = opened.consumer(topic, group="late", start=Start.LATEST)
    publishers = Publishers(opened, topic)
    publishers.more()
    for _ in range(2):
        number = brokers.leader(topic.local)
        if number == 1:  # the controller too: it hands its partitions over before it stops
            brokers.servers[1].restart()
        else:
            brokers.servers[number].kill()
            publishers.more()
            brokers.servers[number].start()
        publishers.more()
    publishers.end()
    check(publishers, received(opened, topic))
    # a consumer that was open all the while has every message, and acknowledges them
    found = late.receive(1_000_000, 1 << 30, WAIT)
    assert set(publishers.done) <= {stored.message.value for stored in found}
    late.acknowledge(found[-1].position, WAIT)
    late.close()
    opened.backend.publish(Batch(topic, NOT_PARTITIONED, [Message(b"last")]), WAIT)
    again = opened.consumer(topic, group="late")
    assert [stored.message.value for stored in again.receive(10, 1 << 20, WAIT)] == [b"last"]
    again.close()
