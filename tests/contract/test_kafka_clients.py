"""The Kafka backend beside other people's clients and tools: on the same topics, groups, names."""

from __future__ import annotations

import json
import time
from base64 import b64encode
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from typing import Any

import pytest
from cloudevents.core.bindings import kafka as binding
from cloudevents.core.v1.event import CloudEvent
from flask.testing import FlaskClient
from kafka import KafkaConsumer, KafkaProducer, TopicPartition

from router.app import create_app
from router.backends import Batch, Start
from router.errors import (
    BackendUnavailableError,
    TopicNotFoundError,
)
from router.model import NOT_PARTITIONED, Grant, Message, Subscription, TopicInfo, TopicName
from router.model.policies import Policies
from router.wire.kafka.record_messages import ALL_HEADERS
from router.wire.kafka.records import write_headers
from tests.contract.conftest import WAIT, Bell, Opened
from tests.contract.on_kafka import BYTES, MANY, eventually, publish, values
from tests.servers.kafka import Kafka

pytestmark = [pytest.mark.contract, pytest.mark.java, pytest.mark.timeout(120)]


@pytest.fixture(scope="module")
def opened(on_kafka: Opened) -> Opened:
    return on_kafka


@pytest.fixture
def client(opened: Opened) -> Iterator[FlaskClient]:
    app = create_app(opened.settings, opened.backend, opened.node)
    yield app.test_client()
    app.extensions["router.close"]()


@pytest.mark.parametrize("compression", [None, "gzip", "lz4", "zstd"])
def test_messages_of_other_peoples_producers_come_as_they_can(
    opened: Opened, kafka: Kafka, compression: str | None
) -> None:
    topic = opened.new_topic()
    stamp = time.time_ns() // 1_000_000 - 3_600_000
    with KafkaProducer(
        bootstrap_servers=kafka.address, compression_type=compression, linger_ms=50
    ) as producer:
        headers = [("text", "ä".encode()), ("binary", b"\xff\x00")]
        producer.send(topic.local, b"v" * 100, key=b"\xfe", headers=headers, timestamp_ms=stamp)
        producer.send(topic.local, None, key=b"tombstone")
        producer.flush(WAIT)
    consumer = opened.consumer(topic)
    first, second = consumer.receive(MANY, BYTES, WAIT)
    consumer.close()
    assert first.publish_time == stamp
    kept = {ALL_HEADERS: b64encode(write_headers([(n.encode(), v) for n, v in headers])).decode()}
    properties = {"text": "ä", "binary": "\ufffd\x00"} | kept
    assert first.message == Message(b"v" * 100, b"\xfe", properties)
    assert second.message == Message(b"", b"tombstone", null=True)


def test_other_peoples_consumers_read_what_was_published(opened: Opened, kafka: Kafka) -> None:
    topic = opened.new_topic()
    message = Message(b"value", b"key", {"name": "ä"}, event_time=1)
    opened.backend.publish(Batch(topic, NOT_PARTITIONED, [message, Message(b"2")]), WAIT)
    with KafkaConsumer(
        bootstrap_servers=kafka.address, auto_offset_reset="earliest", group_id=None
    ) as consumer:
        consumer.assign([TopicPartition(topic.local, 0)])
        first, second = next(consumer), next(consumer)
    assert (first.value, first.key, dict(first.headers)["name"]) == (b"value", b"key", b"\xc3\xa4")
    assert abs(first.timestamp / 1000 - time.time_ns() / 1e9) < 60
    assert dict(first.headers)["router-event-time"] == b"1"
    assert (second.value, second.key, second.headers) == (b"2", None, [])


def test_official_sdk_reads_events_published_over_http_and_has_its_own_read(
    opened: Opened, kafka: Kafka, client: FlaskClient
) -> None:
    topic, time = opened.new_topic(), datetime(2026, 1, 2, tzinfo=UTC)
    event: dict[str, Any] = {"specversion": "1.0", "id": "é", "source": "/s", "type": "t"}
    event |= {"partitionkey": "k", "datacontenttype": "application/json"}
    event["time"] = "2026-01-02T00:00:00Z"
    trace = {"traceparent": "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"}
    answer = client.post(
        f"/events/{topic.local}",
        data=json.dumps({**event, "data": {"a": 1}}),
        content_type="application/cloudevents+json",
        headers=trace,
    )
    assert answer.status_code == 200, answer.text
    sent = CloudEvent(event | {"time": time}, {"a": 2})
    with KafkaProducer(bootstrap_servers=kafka.address) as producer:
        for found in (binding.to_binary_event(sent), binding.to_structured_event(sent)):
            headers = list(found.headers.items())
            key = found.key.encode() if isinstance(found.key, str) else found.key
            producer.send(topic.local, found.value, key=key, headers=headers)
        producer.flush(WAIT)
    with KafkaConsumer(
        bootstrap_servers=kafka.address, auto_offset_reset="earliest", group_id=None
    ) as consumer:
        consumer.assign([TopicPartition(topic.local, 0)])
        record = next(consumer)
    carried = dict(record.headers)
    assert carried["traceparent"].decode() == trace["traceparent"]
    read = binding.from_binary_event(binding.KafkaMessage(carried, record.key, record.value))
    assert (read.get_attributes(), read.get_data()) == (event | {"time": time}, {"a": 1})
    path = f"/events/{topic.local}/g/c?from=earliest&timeout={WAIT * 1000:.0f}&limit=3"
    accept = {"Accept": "application/cloudevents-batch+json"}
    events: list[dict[str, Any]] = []
    while len(events) < 3:
        events += client.get(path, headers=accept, buffered=True).get_json()
    assert events == [{**event, "data": {"a": number}} for number in (1, 2, 2)]


def test_messages_of_aborted_transactions_are_not_delivered(opened: Opened, kafka: Kafka) -> None:
    topic = opened.new_topic()
    with KafkaProducer(bootstrap_servers=kafka.address, transactional_id=topic.local) as producer:
        producer.init_transactions()
        for end in ("abort", "commit", "abort"):
            producer.begin_transaction()
            producer.send(topic.local, end.encode())
            producer.flush(WAIT)
            getattr(producer, f"{end}_transaction")()
    publish(opened, topic, b"last")
    consumer = opened.consumer(topic)
    found = consumer.receive(MANY, BYTES, WAIT)
    assert [stored.message.value for stored in found] == [b"commit", b"last"]
    consumer.acknowledge(found[-1].position, WAIT)
    assert consumer.receive(MANY, BYTES, WAIT) == []
    consumer.close()


def test_kafkas_own_tool_shows_the_lag_of_a_group(opened: Opened, kafka: Kafka) -> None:
    topic = opened.new_topic()
    publish(opened, topic, b"1", b"2", b"3")
    consumer = opened.consumer(topic, group="lag-group")
    consumer.acknowledge(consumer.receive(1, BYTES, WAIT)[0].position, WAIT)
    consumer.close()
    shown = kafka.run(
        "org.apache.kafka.tools.consumer.group.ConsumerGroupCommand",
        *("--bootstrap-server", kafka.address, "--describe", "--group", "lag-group"),
    )
    (line,) = [line.split() for line in shown.splitlines() if topic.local in line.split()]
    assert line[:6] == ["lag-group", topic.local, "0", "1", "3", "2"]


def test_offsets_of_the_originals_group_ids_go_on(
    opened: Opened, another: Callable[..., Opened], admin: Any
) -> None:
    topic = opened.new_topic()
    publish(opened, topic, b"1", b"2", b"3")
    partition = TopicPartition(topic.local, 0)
    admin.alter_group_offsets(f"g--{topic.local}", {partition: _offset(2)})
    original = another(kafka__group="{group}--{topic}")
    assert values(original, topic, "g") == [b"3"]
    (stats,) = original.backend.describe_topic(topic, WAIT).subscriptions
    assert (stats.name, stats.backlog) == ("g", 1)


def _offset(offset: int) -> Any:
    from kafka import OffsetAndMetadata  # noqa: PLC0415

    return OffsetAndMetadata(offset, "", -1)


def test_a_partition_that_was_added_begins_at_its_first_message(opened: Opened, admin: Any) -> None:
    topic = opened.new_topic(2)
    group = Subscription(topic, "g")
    opened.backend.subscribe(group, Start.LATEST, WAIT)
    admin.create_partitions({topic.local: 3})
    eventually(lambda: opened.backend.partitions(topic, WAIT) == 3)
    publish(opened, topic, b"new", partition=2)
    consumer = opened.backend.consume(Grant(group, 2, 1), Bell(), WAIT)
    found = consumer.receive(MANY, BYTES, WAIT)
    consumer.acknowledge(found[-1].position, WAIT)
    consumer.close()
    assert [stored.message.value for stored in found] == [b"new"]
    opened.backend.subscribe(group, Start.LATEST, WAIT)
    assert opened.backend.consume(Grant(group, 2, 1), Bell(), WAIT).receive(MANY, BYTES, WAIT) == []


def test_asking_for_a_topic_does_not_make_it(opened: Opened) -> None:
    topic = opened.new_name()
    for _ in range(2):
        assert not opened.is_there(topic)
    assert topic not in [info.topic for info in opened.backend.list_topics(WAIT)]


def test_topics_of_other_namespaces_have_longer_names_and_kafkas_own_are_hidden(
    opened: Opened, admin: Any
) -> None:
    local = opened.new_name().local
    topic = TopicName("tenant", "space", local)
    opened.backend.create_topic(TopicInfo(topic, 2), WAIT)
    publish(opened, topic, b"1", partition=1)
    assert f"tenant.space.{local}" in admin.list_topics()
    listed = [info.topic for info in opened.backend.list_topics(WAIT)]
    assert topic in listed
    assert "__consumer_offsets" in admin.list_topics()
    assert not [name for name in listed if name.local.startswith("__")]


def test_a_topic_that_somebody_made_anew_has_no_old_properties(opened: Opened, admin: Any) -> None:
    topic = opened.new_name()
    opened.backend.create_topic(TopicInfo(topic, 0, Policies(), {"owner": "me"}), WAIT)
    admin.delete_topics([topic.local])
    eventually(lambda: not opened.is_there(topic))
    admin.create_topics({topic.local: {}})
    eventually(lambda: opened.is_there(topic))
    info = opened.backend.describe_topic(topic, WAIT).info
    assert (info.properties, info.created_ms) == ({}, 0)


def test_publishing_makes_topics_while_the_registry_is_away(
    opened: Opened, monkeypatch: pytest.MonkeyPatch
) -> None:
    topic, described = opened.new_name(), opened.new_name()

    def away(*call: object) -> None:
        raise BackendUnavailableError

    with monkeypatch.context() as patched:
        patched.setattr(opened.node.registry, "put", away)
        publish(opened, topic, b"1")
        with pytest.raises(BackendUnavailableError):
            opened.backend.create_topic(TopicInfo(described, 0, Policies(), {"owner": "me"}), WAIT)
    assert values(opened, topic) == [b"1"]


def test_a_topic_that_somebody_deleted_ends_its_consumers(
    opened: Opened, admin: Any, bell: Bell
) -> None:
    topic = opened.new_topic()
    consumer = opened.consumer(topic, bell=bell)
    assert consumer.receive(MANY, BYTES, WAIT) == []
    admin.delete_topics([topic.local])
    assert bell.rang()
    with pytest.raises((BackendUnavailableError, TopicNotFoundError)):
        consumer.receive(MANY, BYTES, WAIT)
    consumer.close()


def test_messages_that_retention_took_are_passed_over(opened: Opened, admin: Any) -> None:
    topic = opened.new_topic()
    publish(opened, topic, b"1", b"2", b"3")
    opened.backend.subscribe(Subscription(topic, "g"), Start.EARLIEST, WAIT)
    admin.delete_records({TopicPartition(topic.local, 0): 2})
    assert values(opened, topic, "g") == [b"3"]


def test_a_topic_tells_its_bytes(opened: Opened) -> None:
    topic = opened.new_topic()
    publish(opened, topic, bytes(5_000))
    (partition,) = opened.backend.describe_topic(topic, WAIT).partitions
    assert 5_000 <= partition.bytes < 6_000
