"""Topics that are deleted in Kafka behind the router come back as they were, groups included."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
from structlog.testing import capture_logs

from router.backends import Batch, Start
from router.backends.kafka import open_backend
from router.model import Grant, Message, Subscription, TopicInfo, TopicName
from router.model.policies import Policies
from tests.contract.conftest import WAIT, Bell, Opened, Trusting, settings_for
from tests.contract.on_kafka import BYTES, MANY, eventually, publish
from tests.servers.kafka import Kafka

pytestmark = [pytest.mark.contract, pytest.mark.java, pytest.mark.timeout(120)]
GROUP = "reader"

Workers = Callable[[], Opened]


@pytest.fixture
def workers(kafka: Kafka, tmp_path: Path) -> Iterator[Workers]:
    """Open backends of several workers of one node."""
    settings, node = settings_for(tmp_path), Trusting()
    with ExitStack() as stack:
        stack.callback(node.close)

        def opened() -> Opened:
            backend = open_backend(f"kafka://{kafka.address}", settings, node)
            stack.callback(backend.close)
            return Opened("kafka", backend, node, settings)

        yield opened


def delete(opened: Opened, admin: Any, topic: TopicName) -> None:
    admin.delete_topics([topic.local])
    eventually(lambda: not opened.is_there(topic))


def fill(opened: Opened, topic: TopicName, label: str, each: int = 2) -> list[bytes]:
    """Publish to all three partitions."""
    found = [f"{label}-{number}-{n}".encode() for number in range(3) for n in range(each)]
    for number in range(3):
        values = found[number * each : (number + 1) * each]
        opened.backend.publish(Batch(topic, number, [Message(v) for v in values]), WAIT)
    return found


def poll(opened: Opened, topic: TopicName, group: str = GROUP) -> list[bytes]:
    """Read and acknowledge what is there on three partitions, as a group that begins at the end."""
    opened.backend.subscribe(Subscription(topic, group), Start.LATEST, WAIT)
    return drain(opened, topic, group)


def drain(opened: Opened, topic: TopicName, group: str = GROUP) -> list[bytes]:
    """Read and acknowledge as `poll` does, without asking whether the group is there."""
    found = []
    for number in range(3):
        consumer = opened.backend.consume(
            Grant(Subscription(topic, group), number, 1), Bell(), WAIT
        )
        some = consumer.receive(MANY, BYTES, WAIT)
        if some:
            consumer.acknowledge(some[-1].position, WAIT)
        consumer.close()
        found += [stored.message.value for stored in some]
    return found


@pytest.mark.parametrize("by_router", [True, False])
def test_a_topic_deleted_in_kafka_comes_back_as_it_was_and_its_group_gets_all(
    workers: Workers, admin: Any, by_router: bool
) -> None:
    first, second = workers(), workers()
    topic = first.new_name()
    if by_router:
        first.backend.create_topic(TopicInfo(topic, 3, Policies(), {"owner": "me"}), WAIT)
    else:
        admin.create_topics({topic.local: {"num_partitions": 3}})
        eventually(lambda: first.is_there(topic))
    assert poll(first, topic) == []
    before = fill(first, topic, "before")
    assert poll(first, topic) == before
    delete(first, admin, topic)
    with capture_logs() as lines:
        assert second.backend.create_on_demand(topic, 0, WAIT) is False
        after = fill(second, topic, "after", 10)
        # Neither of the workers that read the topic before, nor another, begins at the end.
        assert poll(second, topic, "new") == []
        assert drain(first, topic) == after
        assert poll(first, topic) == poll(second, topic) == []
    warnings = [line["event"] for line in lines if line["log_level"] == "warning"]
    assert warnings == ["topic-deleted-in-kafka"]
    info = second.backend.describe_topic(topic, WAIT).info
    assert info.partitions == 3
    assert dict(info.properties) == ({"owner": "me"} if by_router else {})


def test_a_publish_that_meets_the_deletion_creates_the_topic_as_it_was(
    workers: Workers, admin: Any
) -> None:
    opened = workers()
    topic = opened.new_topic(3)
    assert poll(opened, topic) == []
    delete(opened, admin, topic)
    after = fill(opened, topic, "after")
    assert opened.backend.partitions(topic, WAIT) == 3
    assert poll(opened, topic) == after


def test_a_group_of_a_topic_that_was_replaced_in_kafka_begins_at_its_first_message(
    workers: Workers, admin: Any
) -> None:
    first, second = workers(), workers()
    topic = first.new_topic(3)
    assert poll(first, topic) == []
    fill(first, topic, "before", 1)
    assert len(poll(first, topic)) == 3
    delete(first, admin, topic)
    admin.create_topics({topic.local: {"num_partitions": 3}})
    eventually(lambda: first.is_there(topic) and second.is_there(topic))
    after = fill(second, topic, "after", 4)
    with capture_logs() as lines:
        assert poll(second, topic) == after
        assert poll(first, topic) == []
    assert [line["event"] for line in lines].count("group-begins-on-replaced-topic") == 1


def test_a_group_of_a_topic_that_the_router_deleted_is_a_new_one(workers: Workers) -> None:
    opened = workers()
    topic = opened.new_topic(3)
    assert poll(opened, topic) == []
    opened.backend.delete_topic(topic, WAIT)
    assert opened.backend.create_on_demand(topic, 0, WAIT) is True
    assert opened.backend.partitions(topic, WAIT) == 0
    publish(opened, topic, b"1")
    opened.backend.subscribe(Subscription(topic, GROUP), Start.LATEST, WAIT)
    consumer = opened.backend.consume(Grant(Subscription(topic, GROUP), -1, 1), Bell(), WAIT)
    assert consumer.receive(MANY, BYTES, WAIT) == []
