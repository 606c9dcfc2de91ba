"""Entries of NATS between those of Pulsar and Kafka, read by clients of every other protocol.

The entries are written through the store, before the broker starts.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from contextlib import closing, suppress
from typing import Any

import pulsar
import pytest
from flask import Flask
from kafka import KafkaConsumer, TopicPartition

from router.broker.entries import ENTRY_FORMATS
from router.broker.storage import KAFKA_FORMAT, NATS_FORMAT, PULSAR_FORMAT
from router.model import Message
from router.wire.nats.headers import build
from router.wire.nats.message import NatsMessage
from router.wire.nats.stored import pack
from tests.broker.stored_entries import broker_on
from tests.broker.test_formats import receive, subscribe, subscribe_by_key
from tests.ports import free_port
from tests.processes import BrokerProcess, wait_until

STORED = time.time_ns() // 1_000_000  # retention removes entries that are old
TOPICS = ("exclusive", "shared", "keys", "polls", "kafka")
Written = tuple[int, bytes, list[bytes]]


def of_nats(*messages: NatsMessage) -> Written:
    return NATS_FORMAT, pack(messages), [one.payload for one in messages]


def of_others(tag: int, *messages: Message) -> Written:
    payload = ENTRY_FORMATS[tag].from_messages(messages, STORED)
    return tag, payload, [one.value for one in messages]


def message(subject: str, payload: bytes, **headers: str) -> NatsMessage:
    pairs = [(name.replace("_", "-"), value) for name, value in headers.items()]
    return NatsMessage(subject, "", build(pairs), payload)


MIXED: Sequence[Written] = (
    of_nats(message("s.a", b"n0", x="1"), message("s.b", b"n1")),
    of_others(PULSAR_FORMAT, Message(b"p2", b"a"), Message(b"p3")),
    of_nats(message("s.a", b"n4", router_key="a", router_event_time="77")),
    of_others(KAFKA_FORMAT, Message(b"k5", b"a")),
    of_nats(*(message("s.many", b"many-%d" % n) for n in range(200))),
    of_nats(NatsMessage("s.a", "", b"NATS/1.0\r\nA: 1\r\nA: 2\r\n\r\n", b"last")),
)
VALUES = [value for _, _, values in MIXED for value in values]


@pytest.fixture(scope="module")
def kafka_address() -> str:
    return f"127.0.0.1:{free_port()}"


@pytest.fixture(scope="module")
def shared_broker(
    tmp_path_factory: pytest.TempPathFactory, kafka_address: str
) -> Iterator[BrokerProcess]:
    folder = tmp_path_factory.mktemp("nats-entries") / "data"
    with broker_on(folder, TOPICS, MIXED, time_ms=STORED, kafka_address=kafka_address) as process:
        yield process


def test_a_pulsar_consumer_gets_all_in_order_with_subjects_and_headers(
    client: pulsar.Client,
) -> None:
    found = receive(subscribe(client, "exclusive", pulsar.ConsumerType.Exclusive), len(VALUES))
    assert [one.data() for one in found] == VALUES
    by_value = {one.data(): one for one in found}
    assert by_value[b"n0"].properties() == {"x": "1", "Nats-Subject": "s.a"}
    assert by_value[b"n1"].properties() == {"Nats-Subject": "s.b"}
    assert by_value[b"p2"].properties() == {}
    assert by_value[b"n4"].partition_key() == "a"
    assert by_value[b"n4"].event_timestamp() == 77
    assert by_value[b"last"].properties()["A"] == "2"
    assert by_value[b"last"].properties()["router-headers"] == '[["A","1"],["A","2"]]'
    assert len(by_value[b"last"].properties()) == 3


def test_single_messages_are_acknowledged_by_a_shared_consumer(client: pulsar.Client) -> None:
    consumer = subscribe(client, "shared", pulsar.ConsumerType.Shared)
    left = {b"n1", b"p3", b"many-7"}
    for one in receive(consumer, len(VALUES)):
        if one.data() not in left:
            consumer.acknowledge(one)
    consumer.close()
    consumer = subscribe(client, "shared", pulsar.ConsumerType.Shared)
    assert {one.data() for one in receive(consumer, len(left))} == left
    consumer.close()


def test_a_key_or_a_subject_goes_to_one_consumer(client: pulsar.Client) -> None:
    consumers = subscribe_by_key(client, "keys")
    taken: dict[bytes, str] = {}

    def take() -> bool:
        for consumer in consumers:
            with suppress(pulsar.Timeout):
                while True:
                    taken[consumer.receive(50).data()] = consumer.consumer_name()
        return len(taken) >= len(VALUES)

    wait_until(take)
    assert set(taken) == set(VALUES)
    assert taken[b"p2"] == taken[b"n4"] == taken[b"k5"]  # the key
    assert taken[b"n0"] == taken[b"last"]  # the subject
    assert len({taken[b"many-%d" % n] for n in range(200)}) == 1


def test_http_polls_are_answered_with_all(app: Flask) -> None:
    client = app.test_client()
    found: list[str] = []
    while len(found) < len(VALUES):
        answer = client.get("/events/polls/g/c?timeout=5000&limit=90")
        assert answer.status_code == 200
        assert answer.get_json(), "the poll ended early"
        found += answer.get_json()
    assert found == [value.decode() for value in VALUES]


@pytest.mark.usefixtures("shared_broker")
def test_kafka_clients_read_all_with_dense_offsets(kafka_address: str) -> None:
    found: list[Any] = []
    with closing(
        KafkaConsumer(bootstrap_servers=kafka_address, enable_auto_commit=False)
    ) as consumer:
        partition = TopicPartition("kafka", 0)
        consumer.assign([partition])
        consumer.seek_to_beginning(partition)
        while len(found) < len(VALUES):
            batches = consumer.poll(timeout_ms=5_000)
            assert batches, f"{len(found)} of {len(VALUES)} came"
            found += [one for batch in batches.values() for one in batch]
    assert [(one.offset, one.value) for one in found] == list(enumerate(VALUES))
    assert dict(found[0].headers) == {"x": b"1", "Nats-Subject": b"s.a"}
    assert (found[4].key, found[4].timestamp) == (b"a", 77)
    assert found[1].timestamp == STORED
