"""Schemas, as the official Pulsar client brings them, against a real broker process."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pulsar
import pytest
from pulsar.schema import AvroSchema, Integer, JsonSchema, Record, String, StringSchema

from tests.broker.conftest import official_client
from tests.ports import free_port
from tests.processes import BrokerProcess

SOON = 5_000
EARLIEST = {"initial_position": pulsar.InitialPosition.Earliest}


class Order(Record):  # type: ignore[misc]
    name = String()
    amount = Integer()


class Other(Record):  # type: ignore[misc]
    name = Integer()
    amount = String()


def order(*more: dict[str, Any]) -> dict[str, Any]:
    """The definition of an order with more fields, as a program's next release has it."""
    plain: dict[str, Any] = Order.schema()
    return {**plain, "fields": [*plain["fields"], *more]}


OTHER = {**Other.schema(), "name": "Order"}
WIDER = order({"name": "note", "type": "string", "default": "none"})


def version(message: pulsar.Message) -> int:
    """The number of the schema that a message was written by, -1: none."""
    number: int = message._message.int_schema_version()
    return number


def definition(client: pulsar.Client, topic: str, number: int) -> Any:
    return json.loads(client._client.get_schema_info(topic, number).schema())


def values(consumer: pulsar.Consumer, count: int) -> list[Any]:
    return [consumer.receive(SOON).value() for _ in range(count)]


@pytest.mark.parametrize("kind", [JsonSchema, AvroSchema])
def test_records_travel_with_their_schema(client: pulsar.Client, topic: str, kind: Any) -> None:
    consumer = client.subscribe(topic, "s", schema=kind(Order))
    producer = client.create_producer(topic, schema=kind(Order))
    producer.send(Order(name="bolt", amount=7))
    message = consumer.receive(SOON)
    assert (message.value().name, message.value().amount) == ("bolt", 7)
    assert version(message) == 0
    assert definition(client, topic, 0) == Order.schema()


def test_texts_travel_with_their_schema(client: pulsar.Client, topic: str) -> None:
    consumer = client.subscribe(topic, "s", schema=StringSchema())
    client.create_producer(topic, schema=StringSchema()).send("text")
    assert values(consumer, 1) == ["text"]


def test_next_release_reads_what_the_last_one_wrote(client: pulsar.Client, topic: str) -> None:
    client.create_producer(topic, schema=AvroSchema(Order)).send(Order(name="bolt", amount=7))
    wider = AvroSchema(None, WIDER)
    client.create_producer(topic, schema=wider).send({"name": "nut", "amount": 8, "note": "x"})
    consumer = client.subscribe(topic, "s", schema=wider, **EARLIEST)
    assert values(consumer, 2) == [
        {"name": "bolt", "amount": 7, "note": "none"},
        {"name": "nut", "amount": 8, "note": "x"},
    ]
    assert definition(client, topic, 0) == Order.schema()
    assert definition(client, topic, 1) == WIDER


@pytest.mark.parametrize(
    "schema",
    [
        pytest.param(AvroSchema(None, OTHER), id="other-fields"),
        pytest.param(JsonSchema(Order), id="other-type"),
        pytest.param(StringSchema(), id="text"),
    ],
)
def test_producer_is_refused_with_another_schema(
    client: pulsar.Client, topic: str, schema: Any
) -> None:
    client.create_producer(topic, schema=AvroSchema(Order))
    with pytest.raises(pulsar.IncompatibleSchema):
        client.create_producer(topic, schema=schema)
    with pytest.raises(pulsar.IncompatibleSchema):
        client.subscribe(topic, "s", schema=schema)


def test_producer_without_a_schema_is_taken(client: pulsar.Client, topic: str) -> None:
    consumer = client.subscribe(topic, "s", schema=StringSchema())
    client.create_producer(topic).send(b"bytes")
    message = consumer.receive(SOON)
    assert message.data() == b"bytes"
    assert version(message) == -1


@pytest.fixture
def restartable(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrokerProcess]:
    folder = tmp_path_factory.mktemp("schemas") / "data"
    process = BrokerProcess(folder, free_port(), topics_auto_partitions="3")
    process.start()
    yield process
    process.stop()


def test_partitions_have_one_schema_and_keep_it_when_the_broker_is_killed(
    restartable: BrokerProcess, topic: str
) -> None:
    client = official_client(restartable.url)
    client.create_producer(topic, schema=AvroSchema(Order))
    wider = AvroSchema(None, WIDER)
    producer = client.create_producer(topic, schema=wider)
    restartable.kill()
    restartable.start()
    producer.send({"name": "nut", "amount": 8, "note": "x"})
    consumer = client.subscribe(topic, "s", schema=wider, **EARLIEST)
    assert version(consumer.receive(SOON)) == 1
    for name in (topic, f"{topic}-partition-2"):
        assert definition(client, name, 0) == Order.schema()
        assert definition(client, name, 1) == WIDER
    client.close()
