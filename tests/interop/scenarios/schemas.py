"""Schemas: what they carry, which go together, and what clients see of them."""

from __future__ import annotations

from typing import Any

from pulsar.schema import (
    AvroSchema,
    BytesSchema,
    Integer,
    JsonSchema,
    Record,
    String,
    StringSchema,
)

from tests.interop.world import SOON, World, receive, refused


# The client says nothing about its types.
class Point(Record):  # type: ignore[misc]
    x = Integer()
    y = Integer()


class Wider(Record):  # type: ignore[misc]
    x = Integer()
    y = Integer()
    z = Integer(required_default=True)


class Other(Record):  # type: ignore[misc]
    x = String(required=True)


def strings(world: World) -> object:
    topic = world.topic()
    consumer = world.consumer(topic, schema=StringSchema())
    world.producer(topic, schema=StringSchema()).send("größe")
    got = consumer.receive(SOON)
    return got.value(), _version(got)


def json_records(world: World) -> object:
    return _records(world, JsonSchema)


def avro_records(world: World) -> object:
    return _records(world, AvroSchema)


def raw_consumer_of_records(world: World) -> object:
    topic = world.topic()
    consumer = world.consumer(topic)
    world.producer(topic, schema=JsonSchema(Point)).send(Point(x=1, y=2))
    got = consumer.receive(SOON)
    return got.data().decode(), _version(got)


def raw_producer_to_a_topic_of_records(world: World) -> object:
    topic = world.topic()
    consumer = world.consumer(topic)
    world.producer(topic, schema=JsonSchema(Point)).send(Point(x=1, y=2))
    plain = refused(lambda: world.producer(topic).send(b"anything"))
    named = refused(lambda: world.producer(topic, schema=BytesSchema()))
    return plain, named, len(receive(consumer, 1))


def kinds_that_do_not_go_together(world: World) -> object:
    topic = world.topic()
    world.producer(topic, schema=JsonSchema(Point))
    return {
        "string producer": refused(lambda: world.producer(topic, schema=StringSchema())),
        "avro producer": refused(lambda: world.producer(topic, schema=AvroSchema(Point))),
        "string consumer": refused(lambda: world.consumer(topic, schema=StringSchema())),
        "other json producer": refused(lambda: world.producer(topic, schema=JsonSchema(Other))),
        "other json consumer": refused(lambda: world.consumer(topic, schema=JsonSchema(Other))),
    }


def avro_grows(world: World) -> object:
    topic = world.topic()
    consumer = world.consumer(topic, schema=AvroSchema(Point))
    world.producer(topic, schema=AvroSchema(Point)).send(Point(x=1, y=2))
    grown = refused(lambda: world.producer(topic, schema=AvroSchema(Wider)).send(Wider(x=3, y=4)))
    got = [consumer.receive(SOON) for _ in range(2)]
    other = refused(lambda: world.producer(topic, schema=AvroSchema(Other)))
    again = world.producer(topic, schema=AvroSchema(Point))
    again.send(Point(x=5, y=6))
    got.append(consumer.receive(SOON))
    return grown, [(one.value().x, one.value().y, _version(one)) for one in got], other


def schema_of_the_consumer_alone(world: World) -> object:
    topic = world.topic()
    world.consumer(topic, schema=JsonSchema(Point))
    return refused(lambda: world.producer(topic, schema=StringSchema()))


def _records(world: World, kind: Any) -> object:
    topic = world.topic()
    consumer = world.consumer(topic, schema=kind(Point))
    producer = world.producer(topic, schema=kind(Point))
    producer.send(Point(x=1, y=-2))
    got = consumer.receive(SOON)
    value = got.value()
    return value.x, value.y, _version(got)


def _version(message: Any) -> str:
    found = message.schema_version()
    return found.hex() if isinstance(found, bytes) else str(found)
