"""Schemas in single commands: what is registered, what is found, and what is refused."""

from __future__ import annotations

import json
from typing import Any

import pytest

from router.model import Schema, SchemaType
from router.schemas import pair_schema
from router.wire.node import node_pb2 as npb
from router.wire.pulsar import pulsar_pb2 as pb
from tests.broker.raw import RawClient
from tests.broker.test_extension import admin

INT = {"name": "n", "type": "int"}
TEXT = {"name": "t", "type": "string", "default": ""}
EIGHT = 8


def record(*fields: dict[str, Any]) -> pb.Schema:
    definition = json.dumps({"type": "record", "name": "R", "fields": fields})
    return pb.Schema(name="R", schema_data=definition.encode(), type=pb.Schema.Avro)


def version(number: int) -> bytes:
    return number.to_bytes(EIGHT)


def put(raw: RawClient, topic: str, schema: pb.Schema) -> Any:
    return raw.ask(
        "GET_OR_CREATE_SCHEMA", "GET_OR_CREATE_SCHEMA_RESPONSE", topic=topic, schema=schema
    )


def get(raw: RawClient, topic: str, **fields: Any) -> Any:
    return raw.ask("GET_SCHEMA", "GET_SCHEMA_RESPONSE", topic=topic, **fields)


@pytest.fixture
def made(raw: RawClient, topic: str) -> str:
    admin(raw, create_topic=npb.CreateTopic(topic=topic))
    return topic


def test_schema_is_stored_once_and_found_by_its_version(raw: RawClient, made: str) -> None:
    first, second = record(INT), record(INT, TEXT)
    spaced = pb.Schema(name="x", type=first.type, schema_data=first.schema_data + b"\n")
    assert put(raw, made, first).schema_version == version(0)
    assert put(raw, made, second).schema_version == version(1)
    assert put(raw, made, spaced).schema_version == version(0)
    found = get(raw, made, schema_version=version(0))
    assert found.schema.name == made.removeprefix("persistent://")
    assert found.schema.schema_data == first.schema_data
    newest = get(raw, made)
    assert (newest.schema.schema_data, newest.schema_version) == (second.schema_data, version(1))


@pytest.mark.parametrize("number", [b"", version(1), b"\0", b"\xff" * EIGHT])
def test_schema_of_another_version_is_not_found(raw: RawClient, made: str, number: bytes) -> None:
    put(raw, made, record(INT))
    assert get(raw, made, schema_version=number).error_code == pb.TopicNotFound


def test_topic_that_is_not_persistent_has_no_schema(raw: RawClient, topic: str) -> None:
    non_persistent = f"non-{topic}"
    raw.producer(non_persistent, schema=record(INT))
    assert get(raw, non_persistent).error_code == pb.TopicNotFound
    assert put(raw, non_persistent, record(INT)).error_code == pb.TopicNotFound


def test_topic_that_is_missing_gets_no_schema(raw: RawClient, topic: str) -> None:
    assert put(raw, topic, record(INT)).error_code == pb.TopicNotFound
    assert get(raw, topic).error_code == pb.TopicNotFound


@pytest.mark.parametrize(
    "schema",
    [
        pb.Schema(name="R", schema_data=b"{", type=pb.Schema.Avro),
        pb.Schema(name="R", schema_data=b"[" * 50_000, type=pb.Schema.Json),
        pb.Schema(name="R", schema_data=b'"' + b"x" * 70_000 + b'"', type=pb.Schema.Json),
        pb.Schema(name="R", schema_data=b"x", type=pb.Schema.Int32),
        pb.Schema(name="R", schema_data=b"x", type=pb.Schema.KeyValueSchema),
        pb.Schema(name="R", schema_data=b"", type=pb.Schema.AutoConsume),
        pb.Schema(name="n" * 10_000, schema_data=b"", type=pb.Schema.String),
    ],
)
def test_schema_that_is_none_is_refused(raw: RawClient, made: str, schema: pb.Schema) -> None:
    assert put(raw, made, schema).error_code == pb.IncompatibleSchema
    refused = raw.ask("PRODUCER", "ERROR", topic=made, producer_id=0, schema=schema)
    assert refused.error == pb.IncompatibleSchema
    assert get(raw, made).error_code == pb.TopicNotFound


def test_partitions_opened_at_once_share_a_version(
    raw: RawClient, other: RawClient, topic: str
) -> None:
    admin(raw, create_topic=npb.CreateTopic(topic=topic, partitions=EIGHT))
    for number in range(EIGHT):
        asked: dict[str, Any] = {"topic": f"{topic}-partition-{number}", "producer_id": number}
        for client in (raw, other):
            client.send("PRODUCER", request_id=number, schema=record(INT), **asked)
    opened = [client.expect("PRODUCER_SUCCESS") for client in (raw, other) for _ in range(EIGHT)]
    assert {success.schema_version for success in opened} == {version(0)}
    assert get(raw, topic).schema_version == version(0)


@pytest.mark.parametrize("kind", [pb.Schema.NoSchema, pb.Schema.AutoConsume])
def test_consumer_that_takes_anything_brings_no_schema(
    raw: RawClient, made: str, kind: pb.Schema.Type
) -> None:
    anything = pb.Schema(name="", schema_data=b"", type=kind)
    raw.subscribe(made, schema=anything)
    assert get(raw, made).error_code == pb.TopicNotFound
    put(raw, made, record(INT))
    raw.subscribe(made, consumer_id=1, subscription="t", schema=anything)


def test_consumer_gives_an_idle_topic_its_schema(raw: RawClient, made: str) -> None:
    any_schema = pb.Schema(name="", schema_data=b"", type=pb.Schema.AutoConsume)
    raw.subscribe(made, schema=any_schema)
    raw.subscribe(made, consumer_id=1, subscription="t", schema=record(INT))
    assert get(raw, made).schema_version == version(0)


@pytest.mark.parametrize("use", ["producer", "consumer", "message"])
def test_consumer_gives_a_topic_in_use_no_schema(raw: RawClient, made: str, use: str) -> None:
    if use == "consumer":
        raw.subscribe(made, consumer_id=1, subscription="t")
    else:
        raw.producer(made)
    if use == "message":
        raw.publish(b"v")
        raw.ask("CLOSE_PRODUCER", "SUCCESS", producer_id=0)
    wanted = {"subscription": "s", "subType": 0, "schema": record(INT)}
    refused = raw.ask("SUBSCRIBE", "ERROR", topic=made, consumer_id=0, **wanted)
    assert refused.error == pb.IncompatibleSchema


def test_consumer_must_be_able_to_read_the_newest(raw: RawClient, made: str) -> None:
    put(raw, made, record(INT))
    put(raw, made, record(INT, TEXT))
    raw.subscribe(made, schema=record(INT))
    needs = record(INT, {"name": "more", "type": "int"})
    wanted = {"subscription": "t", "subType": 0, "schema": needs}
    refused = raw.ask("SUBSCRIBE", "ERROR", topic=made, consumer_id=1, **wanted)
    assert refused.error == pb.IncompatibleSchema
    assert get(raw, made).schema_version == version(1)


def test_pairs_are_compared_in_both_parts(raw: RawClient, made: str) -> None:
    text = Schema(SchemaType.STRING)

    def pair(*fields: dict[str, Any]) -> pb.Schema:
        value = Schema(SchemaType.AVRO, record(*fields).schema_data)
        made = pair_schema(text, value, separated=True)
        properties = [pb.KeyValue(key=k, value=v) for k, v in made.properties.items()]
        return pb.Schema(
            name="", schema_data=made.data, type=pb.Schema.KeyValueSchema, properties=properties
        )

    assert put(raw, made, pair(INT)).schema_version == version(0)
    assert put(raw, made, pair(INT, TEXT)).schema_version == version(1)
    assert put(raw, made, pair({"name": "n", "type": "string"})).error_code == pb.IncompatibleSchema
    assert get(raw, made).schema.properties == pair(INT, TEXT).properties


def test_namespace_says_which_schemas_go_together(raw: RawClient, topic: str) -> None:
    local = topic.rpartition("/")[2]
    namespace = f"public/{local}"
    inside = f"persistent://{namespace}/x"

    def change(**policies: Any) -> None:
        changed = npb.ChangePolicies(namespace=namespace, policies=npb.Policies(**policies))
        assert not admin(raw, change_policies=changed).HasField("code")

    never = npb.Policies(schema_compatibility="ALWAYS_INCOMPATIBLE")
    admin(raw, create_namespace=npb.CreateNamespace(namespace=namespace, policies=never))
    admin(raw, create_topic=npb.CreateTopic(topic=inside))
    assert put(raw, inside, record(INT)).schema_version == version(0)
    assert put(raw, inside, record(INT, TEXT)).error_code == pb.IncompatibleSchema
    change(schema_compatibility="ALWAYS_COMPATIBLE")
    assert put(raw, inside, record(TEXT)).schema_version == version(1)
    change(schema_auto_update=False)
    assert put(raw, inside, record()).error_code == pb.IncompatibleSchema
    assert put(raw, inside, record(INT)).schema_version == version(0)
    raw.producer(inside, producer_id=1)
    change(schema_validation_enforced=True)
    refused = raw.ask("PRODUCER", "ERROR", topic=inside, producer_id=2)
    assert refused.error == pb.IncompatibleSchema
    raw.producer(inside, producer_id=2, schema=record(INT))


def test_new_topic_of_an_old_name_has_no_schema(raw: RawClient, made: str) -> None:
    put(raw, made, record(INT))
    admin(raw, delete_topic=npb.TopicRef(topic=made))
    admin(raw, create_topic=npb.CreateTopic(topic=made))
    assert get(raw, made).error_code == pb.TopicNotFound
    text = pb.Schema(name="", schema_data=b"null", type=pb.Schema.String)
    assert put(raw, made, text).schema_version == version(0)


def test_open_producer_answers_again_with_its_version(raw: RawClient, made: str) -> None:
    put(raw, made, record())
    assert raw.producer(made, schema=record(TEXT)).schema_version == version(1)
    assert raw.producer(made, schema=record(TEXT)).schema_version == version(1)


def test_schema_that_is_far_too_large_is_refused(raw: RawClient, made: str) -> None:
    large = pb.Schema(name="R", schema_data=b" " * (1 << 20), type=pb.Schema.Avro)
    assert put(raw, made, large).error_code == pb.IncompatibleSchema
    refused = raw.ask("PRODUCER", "ERROR", topic=made, producer_id=0, schema=large)
    assert refused.error == pb.IncompatibleSchema
