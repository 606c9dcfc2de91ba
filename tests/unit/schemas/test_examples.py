"""An example of each schema's values is one that the schema takes."""

from __future__ import annotations

import json
from typing import Any

import orjson
import pytest

from router.model import Schema, SchemaType, TopicName
from router.schemas.examples import example
from router.services.schema_values import schema_messages

T = TopicName.parse("t")
ADDRESS = {"type": "record", "name": "Address", "fields": [{"name": "city", "type": "string"}]}
NODE: dict[str, Any] = {
    "type": "record",
    "name": "Node",
    "fields": [
        {"name": "value", "type": "int"},
        {"name": "next", "type": ["null", "Node"], "default": None},
    ],
}
N = {"n": {"const": 3}}
ENDLESS = b'{"type":"record","name":"R","fields":[{"name":"r","type":"R"}]}'
DEFINITIONS = [
    {"type": "record", "name": "Empty", "fields": []},
    {
        "type": "record",
        "name": "Order",
        "namespace": "shop",
        "fields": [
            {"name": "id", "type": "long"},
            {"name": "paid", "type": "boolean"},
            {"name": "note", "type": ["null", "string"]},
            {"name": "price", "type": "double", "default": 9.5},
            {"name": "kind", "type": {"type": "enum", "name": "Kind", "symbols": ["a", "b"]}},
            {"name": "lines", "type": {"type": "array", "items": ADDRESS}},
            {"name": "tags", "type": {"type": "map", "values": "int"}},
            {"name": "to", "type": "Address"},
            {"name": "at", "type": {"type": "long", "logicalType": "timestamp-millis"}},
        ],
    },
    NODE,
]


class Schemas:
    """The schema of one topic, in place of `TopicSchemas`."""

    def __init__(self, schema: Schema) -> None:
        self._schema = schema

    def newest(self, topic: TopicName) -> Schema:
        return self._schema


@pytest.mark.parametrize("kind", [SchemaType.AVRO, SchemaType.JSON])
@pytest.mark.parametrize("definition", DEFINITIONS, ids=lambda one: one["name"])
def test_example_is_taken_by_its_schema(kind: SchemaType, definition: dict[str, Any]) -> None:
    schema = Schema(kind, json.dumps(definition).encode())
    value = example(schema)
    assert isinstance(value, dict)
    schemas: Any = Schemas(schema)
    assert len(schema_messages(schemas, T, orjson.dumps(value))) == 1


def test_example_of_json_schema_has_its_own_examples() -> None:
    definition = {
        "type": "object",
        "properties": {
            "id": {"type": "integer"},
            "name": {"type": ["string", "null"]},
            "kind": {"enum": ["a", "b"]},
            "at": {"type": "string", "examples": ["2026-11-27"]},
            "lines": {
                "type": "array",
                "items": {"type": "object", "properties": {"n": {"const": 3}}},
            },
        },
    }
    assert example(Schema(SchemaType.JSON, json.dumps(definition).encode())) == {
        "id": 0,
        "name": "text",
        "kind": "a",
        "at": "2026-11-27",
        "lines": [{"n": 3}],
    }


@pytest.mark.parametrize(
    "schema",
    [
        Schema(SchemaType.STRING, b""),
        Schema(SchemaType.AVRO, b"no json"),
        Schema(
            SchemaType.AVRO,
            b'{"type": "record", "name": "R", "fields": [{"name": "r", "type": "R"}]}',
        ),
        Schema(SchemaType.JSON, b'{"properties": {"a": {}}}'),
    ],
)
def test_what_cannot_be_shown_has_no_example(schema: Schema) -> None:
    assert example(schema) is None
