"""Records of several versions of a topic's schema, in the columns of one of them."""

from __future__ import annotations

import json
from collections.abc import Iterator
from decimal import Decimal
from pathlib import Path

import pulsar
import pytest
from pulsar.schema import ProtobufNativeSchema

from router.model import Message, Schema, SchemaType
from router.schemas import encode
from tests.contract.conftest import serving_pulsar
from tests.pipelines.protobuf_types import compiled
from tests.pipelines.running import STORES, WAIT, Site, site
from tests.pipelines.topics import create, publish, read

pytestmark = [pytest.mark.timeout(600), pytest.mark.java, pytest.mark.slow]
DECLARED = """
bad_records = "dlq"
[source]
topics = ["{topic}"]
format = "avro"
[[step]]
name = "orders"
sql = "SELECT id, who, _schema_version AS version FROM records"
[[sink]]
kind = "parquet"
path = "out"
"""
ID = {"name": "id", "type": "long"}
WHO = {"name": "who", "type": ["null", "string"], "default": None}


@pytest.fixture(params=STORES)
def place(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Site]:
    with site(request.param, request, tmp_path) as found:
        yield found


def avro(*fields: object) -> Schema:
    definition = {"type": "record", "name": "order", "fields": fields}
    return Schema(SchemaType.AVRO, json.dumps(definition).encode())


def test_record_is_read_by_the_version_that_it_was_written_with(place: Site) -> None:
    topic = create(place.backend, place.opened.new_name().local)
    schemas = [avro(ID), avro(ID, WHO)]
    versions = [place.backend.schemas.put(topic, one, WAIT) for one in schemas]
    old, new = (
        Message(encode(one, value), b"k", schema_version=version)
        for one, value, version in zip(
            schemas, [{"id": 1}, {"id": 2, "who": {"string": "anna"}}], versions, strict=True
        )
    )
    text = DECLARED.format(topic=topic.local)
    publish(place.backend, topic, [old], 1)
    publish(place.backend, topic, [new, Message(b"no avro", schema_version=versions[1])], 2)
    place.run(text)
    # A version that comes later is read as well, in the columns of the first run.
    later = avro(ID, WHO, {"name": "more", "type": "int", "default": 0})
    version = place.backend.schemas.put(topic, later, WAIT)
    value = encode(later, {"id": 3, "who": None, "more": 7})
    publish(place.backend, topic, [Message(value, schema_version=version)], 1)
    place.run(text)
    rows = place.spark.read.parquet(str(place.folder / "out")).orderBy("id").collect()
    numbers = [int.from_bytes(one) for one in (*versions, version)]
    assert [tuple(row) for row in rows] == [
        (1, None, numbers[0]),
        (2, "anna", numbers[1]),
        (3, None, numbers[2]),
    ]
    dead = [one.message.value for part in read(place.backend, f"{topic.local}.dlq") for one in part]
    assert dead == [b"no avro"]


def test_protobuf_of_the_official_client_is_read_by_its_versions(
    request: pytest.FixtureRequest, tmp_path: Path
) -> None:
    old = compiled("message Order { int32 number = 1; }")
    new = compiled(
        """
        enum State { NEW = 0; PAID = 1; }
        message Item { string name = 1; uint64 cents = 2; }
        message Order { int64 id = 1; State state = 2; repeated Item items = 3;
          map<string, double> rates = 4; }
        """
    )
    with serving_pulsar(tmp_path / "data") as url, site("embedded", request, tmp_path) as place:
        topic = place.opened.new_name()
        client = pulsar.Client(url, operation_timeout_seconds=30)
        try:
            for one, value in (
                (old, old.make(number=1)),
                (
                    new,
                    new.make(id=2, state=1, items=[{"name": "tea", "cents": 5}], rates={"a": 0.5}),
                ),
            ):
                producer = client.create_producer(
                    topic.local, schema=ProtobufNativeSchema(one.make)
                )
                producer.send(value)
                producer.close()
        finally:
            client.close()
        version = place.backend.schemas.get(topic, None, WAIT).version
        bad = Message(b"\x08\x02\x12\x01x", schema_version=version)
        publish(place.backend, topic, [bad], 1)
        text = DECLARED.replace("avro", "protobuf").replace("id, who,", "id, state, items, rates,")
        place.run(text.format(topic=topic.local))
        rows = place.spark.read.parquet(str(place.folder / "out")).orderBy("id").collect()
        assert [tuple(row) for row in rows] == [
            (1, "NEW", [], {}, 0),
            (2, "PAID", [("tea", Decimal(5))], {"a": 0.5}, 1),
        ]
        dead_letters = read(place.backend, f"{topic.local}.dlq")
        (dead,) = [one.message for part in dead_letters for one in part]
        assert dead.properties["router-error"] == "the field state does not fit shop.State"
