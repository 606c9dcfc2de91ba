"""Members of groups while the broker is killed and comes back: they learn nothing of it."""

from __future__ import annotations

import os
import signal
import urllib.request
import uuid
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.kafka.clients import SECONDS
from tests.kafka.clients.confluent import Confluent
from tests.kafka.clients.kafka_python import KafkaPython
from tests.kafka.clients.program import Program, java
from tests.kafka.conftest import KafkaStack
from tests.kafka.scenarios import POLL_SECONDS, numbered
from tests.processes import wait_until
from tests.servers.kafka import Kafka

pytestmark = [pytest.mark.java, pytest.mark.system, pytest.mark.slow]

PARTITIONS = 4
EACH = 10
SESSION_MS = 120_000
"""Longer than any start of a broker."""
RESTART_SECONDS = 90.0
Client = KafkaPython | Confluent | Program
CLIENTS: dict[str, Callable[[str, Path], Client]] = {
    "kafka-python": lambda bootstrap, _: KafkaPython(bootstrap),
    "confluent-kafka": lambda bootstrap, _: Confluent(bootstrap),
    "java-4.4.0": lambda bootstrap, folder: java("java-4.4.0", folder, bootstrap),
}
KINDS = {"eager": False, "cooperative": False, "static": True}
SERVER = "server"
"""The kind of groups whose partitions the broker assigns (KIP-848), of clients that know it."""


@dataclass
class Broker:
    """A broker that a test kills: where it listens, and how it comes back."""

    address: str
    restart: Callable[[], None]
    served: Callable[[], str]
    """Returns the metrics of the router's broker, "" of Apache Kafka."""


@pytest.fixture(params=["router", "apache-kafka"])
def broker(request: pytest.FixtureRequest, folder: Path) -> Iterator[Broker]:
    if request.param == "router":
        stack = KafkaStack(folder)
        stack.start()

        def kill() -> None:
            before = stack.broker()
            os.kill(before, signal.SIGKILL)
            wait_until(lambda: stack.broker() != before, RESTART_SECONDS)
            stack.wait_ready()

        def metrics() -> str:
            with urllib.request.urlopen(f"{stack.url}/metrics", timeout=SECONDS) as answer:
                return str(answer.read(), "utf-8")

        yield Broker(stack.kafka, kill, metrics)
        assert stack.stop() == 0
    else:
        server = Kafka(folder / "kafka")
        with closing(server):
            server.start()

            def restart() -> None:
                server.kill()
                server.start()

            yield Broker(server.address, restart, str)


class Group:
    """Two members of one group, by one client library, and what they received."""

    def __init__(self, client: Client, kind: str, topic: str) -> None:
        self.client, self.topic = client, topic
        self.id = f"g-{client.name}-{kind}-{uuid.uuid4()}"
        self.members = [f"{self.id}-{number}" for number in range(2)]
        self.received: list[tuple[int, int]] = []
        assignor = kind if kind in {"cooperative", SERVER} else "eager"
        for member in self.members:
            instance = member if KINDS.get(kind) else None
            client.join(member, self.id, topic, assignor, instance=instance, session_ms=SESSION_MS)

    def poll(self) -> None:
        for member in self.members:
            self.received += self.client.poll(member, POLL_SECONDS)

    def settled(self) -> bool:
        """Return whether both members have their partitions, of one generation."""
        self.poll()
        client = self.client
        if len({client.membership(member).split()[0] for member in self.members}) > 1:
            return False
        return [len(client.assignment(member)) for member in self.members] == [2, 2]

    def receive(self, each: int, seconds: float) -> None:
        """Poll until the group has so many messages of each partition."""

        def complete() -> bool:
            self.poll()
            return len(self.received) >= PARTITIONS * each

        wait_until(complete, seconds)

    def commit(self) -> None:
        for member in self.members:
            self.client.commit(member)

    def seen(self) -> list[tuple[object, ...]]:
        """Return what the members know of their membership."""
        client = self.client
        return [
            (client.assignment(member), client.membership(member), client.events(member))
            for member in self.members
        ]

    def leave(self) -> None:
        for member in self.members:
            self.client.leave(member)


@pytest.fixture
def groups(broker: Broker, folder: Path) -> Iterator[list[Group]]:
    """Groups of all kinds by all clients, whose members have their partitions."""
    with ExitStack() as owned:
        clients = [make(broker.address, folder / "classes") for make in CLIENTS.values()]
        for client in clients:
            owned.callback(client.close)
        topic = f"t-{uuid.uuid4()}"
        with closing(Confluent(broker.address)) as admin:
            admin.create(topic, PARTITIONS)
        made = [Group(client, kind, topic) for client in clients for kind in KINDS]
        made += [
            Group(client, SERVER, topic)
            for client in clients
            if not isinstance(client, KafkaPython)
        ]
        for group in made:
            wait_until(group.settled, SECONDS)
        for client in clients:
            if isinstance(client, KafkaPython):
                client.shorten_polls(POLL_SECONDS)
        yield made
        for group in made:
            group.leave()


@pytest.mark.timeout(400)
def test_members_of_a_group_see_nothing_of_a_restart(broker: Broker, groups: list[Group]) -> None:
    publish(broker, groups[0].topic, 0)
    for group in groups:
        group.receive(EACH, SECONDS)
        group.commit()
    publish(broker, groups[0].topic, EACH)
    for group in groups:
        # What is received, but not committed before the end of the broker.
        group.receive(2 * EACH, SECONDS)
    before = [group.seen() for group in groups]
    described = describe(broker, groups)

    broker.restart()

    publish(broker, groups[0].topic, 2 * EACH)
    for group in groups:
        group.receive(3 * EACH, RESTART_SECONDS)
        # The generation before the restart is accepted.
        group.commit()
    everything = [(p, n) for p in range(PARTITIONS) for n in range(3 * EACH)]
    assert [sorted(group.received) for group in groups] == [everything] * len(groups)
    assert [group.seen() for group in groups] == before
    assert describe(broker, groups) == described
    metrics = broker.served()
    assert 'router_kafka_requests_total{api="JoinGroup"}' not in metrics
    assert not metrics or 'router_kafka_requests_total{api="Heartbeat"}' in metrics


def publish(broker: Broker, topic: str, first: int) -> None:
    """Publish EACH messages to each partition, the numbers from `first` on."""
    with closing(Confluent(broker.address)) as client:
        for partition in range(PARTITIONS):
            client.produce(topic, numbered(EACH, first), partition=partition)


def describe(broker: Broker, groups: list[Group]) -> list[object]:
    """Return states and members of groups, as a client that connects now sees them."""
    found: list[object] = []
    with closing(Confluent(broker.address)) as client:
        ids = [group.id for group in groups]
        futures = client.admin.describe_consumer_groups(ids).values()
        described = [future.result(SECONDS) for future in futures]
    for group in described:
        members = [
            (
                one.member_id,
                one.client_id,
                one.host,
                one.group_instance_id,
                str(one.assignment.topic_partitions),
            )
            for one in group.members
        ]
        found.append((group.group_id, group.state, group.partition_assignor, sorted(members)))
    return found
