"""Groups of Kafka clients beside HTTP polls: one position, one protocol at a time, kills."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any
from uuid import uuid4

import pytest
import urllib3
from confluent_kafka import Consumer
from kafka import ConsumerRebalanceListener, KafkaConsumer, TopicPartition
from kafka.errors import InconsistentGroupProtocolError, KafkaError
from kafka.structs import OffsetAndMetadata

from tests.kafka.clients import ClientError, KafkaClient, Record
from tests.kafka.clients.confluent import Confluent
from tests.ports import free_port
from tests.processes import wait_until
from tests.system.stack import Stack

pytestmark = [pytest.mark.system, pytest.mark.timeout(180)]

SECONDS = 30


@dataclass
class Served:
    """A router that serves Kafka clients too, and topics that nothing else uses."""

    stack: Stack
    address: str

    def topic(self, messages: int = 0) -> str:
        name = f"orders-{uuid4().hex}"
        for number in range(messages):
            self.post(name, b"%d" % number)
        return name

    def post(self, topic: str, value: bytes) -> None:
        kind = {"Content-Type": "text/plain"}
        answer = urllib3.request(
            "POST", f"{self.stack.url}/events/{topic}", body=value, headers=kind
        )
        assert answer.status == 200, answer.data

    def poll(self, topic: str, group: str, limit: int = 100, timeout: int = 0) -> Any:
        """Return the messages of a poll, or its status."""
        query = f"timeout={timeout}&limit={limit}&from=earliest"
        url = f"{self.stack.url}/events/{topic}/{group}/c1?{query}"
        answer = urllib3.request("GET", url, timeout=SECONDS)
        return json.loads(answer.data) if answer.status == 200 else answer.status

    def consumer(self, group: str, **settings: Any) -> KafkaConsumer:
        return KafkaConsumer(
            bootstrap_servers=self.address,
            group_id=group,
            auto_offset_reset="earliest",
            enable_auto_commit=False,
            heartbeat_interval_ms=200,
            session_timeout_ms=10_000,
            **settings,
        )

    def committed(self, topic: str, group: str) -> int | None:
        with contextlib.closing(self.consumer(group)) as consumer:
            found = consumer.committed(TopicPartition(topic, 0))
            return None if found is None else int(found)

    def commit(self, topic: str, group: str, offset: int) -> None:
        """Commit as a client that is no member."""
        place = TopicPartition(topic, 0)
        with contextlib.closing(self.consumer(group)) as consumer:
            consumer.assign([place])
            consumer.commit({place: OffsetAndMetadata(offset, "note", -1)})

    def groups(self, *arguments: str) -> Any:
        """Return what `router groups` prints as JSON."""
        command = [sys.executable, "-m", "router", "groups", *arguments, "--json"]
        environ = os.environ | {"ROUTER_DATA_DIR": str(self.stack.folder / "data")}
        found = subprocess.run(
            command, env=environ, cwd=self.stack.folder, capture_output=True, text=True, check=False
        )
        assert found.returncode == 0, found.stderr
        return json.loads(found.stdout)


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    address = f"127.0.0.1:{free_port()}"
    stack = Stack(
        tmp_path_factory.mktemp("serve"),
        broker_kafka=address,
        broker_kafka_rebalance_delay="0s",
        consume_idle="300ms",
    )
    stack.start()
    yield Served(stack, address)
    stack.stop()


def read(consumer: KafkaConsumer, count: int) -> list[bytes]:
    """Return the values that a consumer reads next."""
    found: list[bytes] = []

    def complete() -> bool:
        with contextlib.suppress(InconsistentGroupProtocolError):  # a poll was live until just now
            # kafka-python forgets an assignment that comes when its poll ends.
            for records in consumer.poll(timeout_ms=int(SECONDS * 1000)).values():
                found.extend(record.value for record in records)
        return len(found) >= count

    wait_until(complete, SECONDS)
    return found


def test_polls_and_kafka_clients_share_one_position(served: Served) -> None:
    topic = served.topic(messages=10)
    assert served.poll(topic, "g", limit=4) == ["0", "1", "2", "3"]
    wait_until(lambda: served.committed(topic, "g") == 4, SECONDS)
    with contextlib.closing(served.consumer("g")) as consumer:
        consumer.subscribe([topic])
        assert read(consumer, 6) == [b"%d" % n for n in range(4, 10)]
        consumer.commit()
    assert served.poll(topic, "g") == []
    assert served.committed(topic, "g") == 10

    def went_back() -> bool:
        with contextlib.suppress(KafkaError):
            served.commit(topic, "g", 7)
        return served.committed(topic, "g") == 7

    wait_until(went_back, SECONDS)
    assert served.poll(topic, "g") == ["7", "8", "9"]
    served.commit(topic, "from-kafka", 8)
    assert served.poll(topic, "from-kafka") == ["8", "9"]
    wait_until(lambda: served.committed(topic, "from-kafka") == 10, SECONDS)


def test_a_group_is_read_by_one_protocol_at_a_time(served: Served) -> None:
    topic = served.topic(messages=2)
    with contextlib.closing(served.consumer("g")) as consumer:
        consumer.subscribe([topic])
        assert len(read(consumer, 2)) == 2
        assert served.poll(topic, "g") == 503
        assert served.poll(topic, "other") == ["0", "1"]
    wait_until(lambda: served.poll(topic, "g") == ["0", "1"], SECONDS)


def test_commits_outlive_a_kill_of_the_broker(served: Served) -> None:
    topic = served.topic(messages=10)
    # Sockets that kafka-python opens while no broker listens are left to the garbage collector.
    client = Confluent(served.address)
    with contextlib.closing(client):
        client.join("stays", "g", topic)
        wait_until(lambda: (0, 9) in client.poll("stays", 0.2), SECONDS)
        client.commit("stays")
        os.kill(served.stack.broker(), signal.SIGKILL)
        wait_until(lambda: offsets(client, topic, [Record(b"10")]) == [10], SECONDS)
        wait_until(lambda: (0, 10) in client.poll("stays", 0.2), SECONDS)
        client.leave("stays")
        client.join("resumes", "g", topic)
        wait_until(lambda: client.poll("resumes", 0.2) == [(0, 10)], SECONDS)
        client.leave("resumes")


def offsets(client: KafkaClient, topic: str, records: list[Record]) -> list[int]:
    """Produce, if the broker is there."""
    with contextlib.suppress(ClientError):
        return client.produce(topic, records, idempotent=True)
    return []


class Rebalances(ConsumerRebalanceListener):  # type: ignore[misc]
    """Counts the assignments of a consumer."""

    def __init__(self) -> None:
        self.count = 0

    def on_partitions_revoked(self, revoked: Any) -> None:
        """Take note of nothing."""

    def on_partitions_assigned(self, assigned: Any) -> None:
        """Count."""
        self.count += 1


def test_a_static_member_restarts_without_a_rebalance(served: Served) -> None:
    topic = served.topic(messages=3)
    with contextlib.closing(served.consumer("g", group_instance_id="stays")) as stays:
        seen = Rebalances()
        stays.subscribe([topic], listener=seen)
        read(stays, 3)
        settings = {
            "bootstrap.servers": served.address,
            "group.id": "g",
            "group.instance.id": "restarts",
            "partition.assignment.strategy": "range",
            "session.timeout.ms": 10_000,
        }
        positions = []
        for _ in range(2):
            restarts = Consumer(settings)
            assigned: list[Any] = []
            restarts.subscribe([topic], on_assign=lambda _, found, to=assigned: to.append(found))

            def settled(one: Consumer = restarts, found: list[Any] = assigned) -> bool:
                one.poll(0.1)
                stays.poll(timeout_ms=100)
                return bool(found)

            wait_until(settled, SECONDS)
            positions.append(seen.count)
            restarts.close()
        assert positions[0] == positions[1]
        members = served.groups("show", topic, "g")["members"]
        assert len(members) == 2


def test_members_are_shown_and_their_group_is_not_moved(served: Served) -> None:
    topic = served.topic(messages=5)
    with contextlib.closing(served.consumer("g", client_id="billing")) as consumer:
        consumer.subscribe([topic])
        read(consumer, 5)
        consumer.commit({TopicPartition(topic, 0): OffsetAndMetadata(2, "", -1)})
        (group,) = served.groups("list", topic)
        assert (group["group"], group["backlog"], group["consumers"]) == ("g", 3, 1)
        shown = served.groups("show", topic, "g")
        (member,) = shown["members"]
        assert member["client"] == "billing at 127.0.0.1"
        assert shown["partitions"][0]["holder"]["consumer"] == member["consumer"]
        page = urllib3.request("GET", f"{served.stack.url}/console/topics/{topic}/groups/g")
        assert b"billing at 127.0.0.1" in page.data
        metrics = urllib3.request("GET", f"{served.stack.url}/metrics").data.decode()
        assert "router_kafka_group_members 1" in metrics
        with pytest.raises(AssertionError, match="read by 1 members"):
            served.groups("reset", topic, "g", "--to", "earliest")
    served.groups("reset", topic, "g", "--to", "earliest")
    assert served.committed(topic, "g") == 0
    served.groups("delete", topic, "g")
    assert served.committed(topic, "g") is None
