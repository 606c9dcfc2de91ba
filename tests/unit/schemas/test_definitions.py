"""Which definitions are taken, and which are the same."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from router.errors import InvalidSchemaError
from router.model import Schema, SchemaType
from router.schemas import MAX_DEFINITION, check, equal, halves, pair_schema, type_of
from router.schemas.definitions import Recent
from router.schemas.pairs import join, split
from tests.unit.schemas.generated import definitions

RECORD = {"type": "record", "name": "R", "fields": [{"name": "f", "type": "int"}]}


def avro(definition: Any, schema_type: SchemaType = SchemaType.AVRO) -> Schema:
    return Schema(schema_type, json.dumps(definition).encode())


def nested(levels: int) -> Any:
    definition: Any = "int"
    for _ in range(levels):
        definition = {"type": "array", "items": definition}
    return definition


@pytest.mark.slow
@given(definitions)
def test_any_avro_definition_is_one_of_json(definition: Any) -> None:
    check(avro(definition, SchemaType.JSON))


@pytest.mark.parametrize(
    "definition",
    [
        RECORD,
        nested(90),
        {"type": "record", "name": "a.Outer$Inner", "fields": []},
        {"type": "long", "logicalType": "timestamp-millis"},
        {"type": "int", "logicalType": "of-somebody-else"},
        {"type": "fixed", "name": "F", "size": 16, "logicalType": "decimal", "precision": 99},
        {"type": "record", "name": "R", "fields": [{"name": "f", "type": "int", "default": "x"}]},
    ],
)
def test_definition_is_taken(definition: Any) -> None:
    check(avro(definition))


@pytest.mark.parametrize(
    "definition",
    [
        1,
        None,
        {},
        "nosuch",
        {"type": "record"},
        {"type": "record", "name": "R", "fields": [{"name": "f"}]},
        {"type": "record", "name": "R", "fields": [5]},
        {"type": "record", "name": 5, "fields": []},
        {"type": "enum", "name": "E", "symbols": ["A", "A"]},
        {"type": "fixed", "name": "F", "size": -1},
        {"type": "fixed", "name": "F", "size": 2**40},
        {"type": "error_union", "declared_errors": []},
        {"type": "array", "items": {"type": "error_union", "declared_errors": ["int"]}},
        {"type": "object", "properties": {}},
        ["null", "int"],
        ["int", "int"],
        nested(101),
        {"type": "record", "name": "R", "fields": [RECORD] * 3},
        {
            "type": "array",
            "items": [{"type": "record", "name": f"R{n}", "fields": []} for n in range(201)],
        },
        {"type": "enum", "name": "E", "symbols": [f"S{n}" for n in range(10_001)]},
        {"type": "int", "doc": "x" * MAX_DEFINITION},
    ],
)
def test_definition_is_refused(definition: Any) -> None:
    with pytest.raises(InvalidSchemaError):
        check(avro(definition))


@pytest.mark.parametrize("data", [b"", b"\xff", b"{", b"[" * 59_000, b'{"a":' * 11_000])
def test_text_that_is_no_json_is_refused(data: bytes) -> None:
    for schema_type in (SchemaType.AVRO, SchemaType.JSON):
        with pytest.raises(InvalidSchemaError):
            check(Schema(schema_type, data))


def test_documents_of_old_clients_are_json_only() -> None:
    document = {"type": "object", "id": "urn:jsonschema:Order", "properties": {"a": {}}}
    check(avro(document, SchemaType.JSON))
    for kind, other in [
        (SchemaType.AVRO, document),
        (SchemaType.JSON, {"type": "record", "name": "R"}),
        (SchemaType.JSON, {"type": "other"}),
        (SchemaType.JSON, {"type": ["object", "null"], "properties": {}}),
        (SchemaType.JSON, {"type": {"object": 1}, "properties": {}}),
        (SchemaType.JSON, [1]),
    ]:
        with pytest.raises(InvalidSchemaError):
            check(avro(other, kind))


@pytest.mark.parametrize("schema_type", [SchemaType.STRING, SchemaType.INT8, SchemaType.LOCAL_TIME])
def test_primitives_have_no_definition(schema_type: SchemaType) -> None:
    check(Schema(schema_type))
    check(Schema(schema_type, b"null"))
    with pytest.raises(InvalidSchemaError):
        check(Schema(schema_type, b"x"))


def test_stored_definitions_are_not_looked_into() -> None:
    for schema_type in (SchemaType.PROTOBUF, SchemaType.PROTOBUF_NATIVE, SchemaType.EXTERNAL):
        check(Schema(schema_type, b"\0anything"))
        with pytest.raises(InvalidSchemaError):
            check(Schema(schema_type, b"x" * (MAX_DEFINITION + 1)))


@pytest.mark.parametrize(
    "schema",
    [
        Schema(SchemaType.AUTO_CONSUME),
        Schema(SchemaType.STRING, name="n" * 3_001),
        Schema(SchemaType.STRING, name="\ud800"),
        Schema(SchemaType.STRING, properties={str(n): "" for n in range(400)}),
        Schema(SchemaType.KEY_VALUE),
        Schema(SchemaType.KEY_VALUE, join(b"", b"") + b"x"),
        Schema(SchemaType.KEY_VALUE, join(b"", b""), {"key.schema.type": "NOSUCH"}),
        Schema(SchemaType.KEY_VALUE, join(b"", b""), {"key.schema.type": "KEY_VALUE"}),
        Schema(SchemaType.KEY_VALUE, join(b"", b""), {"kv.encoding.type": "OTHER"}),
        Schema(SchemaType.KEY_VALUE, join(b"", b""), {"key.schema.properties": "{"}),
        Schema(SchemaType.KEY_VALUE, join(b"", b""), {"key.schema.properties": '{"a": 1}'}),
        Schema(SchemaType.KEY_VALUE, join(b"{", b""), {"key.schema.type": "AVRO"}),
    ],
)
def test_schema_is_refused(schema: Schema) -> None:
    with pytest.raises(InvalidSchemaError):
        check(schema)


def test_pairs_of_other_clients_are_read() -> None:
    # The C++ client writes -1 for an empty part, and leaves its bytes behind.
    schema = Schema(
        SchemaType.KEY_VALUE, join(None, b'"int"') + b"\0", {"value.schema.type": "AVRO"}
    )
    check(schema)
    pair = halves(schema)
    assert (pair.key.type, pair.key.data, pair.value.data) == (SchemaType.NONE, b"", b'"int"')


@given(st.none() | st.binary(max_size=9), st.none() | st.binary(max_size=9))
def test_joined_parts_are_split_again(key: bytes | None, value: bytes | None) -> None:
    assert split(join(key, value)) == (key, value)


def test_names_of_types_are_those_of_java() -> None:
    assert type_of("BYTES") is SchemaType.NONE
    assert type_of("key_value") is SchemaType.KEY_VALUE
    with pytest.raises(InvalidSchemaError):
        type_of("x")


def test_spacing_order_and_doc_do_not_count() -> None:
    plain = avro(RECORD)
    other = Schema(
        SchemaType.AVRO,
        b'{"name": "R", "doc": "d", "type": "record", "fields": [{"type": "int", "name": "f"}]}',
        {"p": "v"},
        "name",
    )
    assert equal(plain, other)
    assert not equal(plain, Schema(SchemaType.JSON, plain.data))
    assert not equal(plain, avro({**RECORD, "name": "S"}))
    assert equal(Schema(SchemaType.STRING), Schema(SchemaType.STRING, b"null"))
    assert not equal(Schema(SchemaType.PROTOBUF, b"a"), Schema(SchemaType.PROTOBUF, b"b"))


def test_pairs_are_equal_by_their_parts_and_where_the_key_is() -> None:
    text, number = Schema(SchemaType.STRING), Schema(SchemaType.INT8)
    pair = pair_schema(text, avro(RECORD), separated=True)
    assert equal(pair, pair_schema(text, avro({**RECORD, "doc": "d"}), separated=True))
    assert not equal(pair, pair_schema(text, avro(RECORD), separated=False))
    assert not equal(pair, pair_schema(number, avro(RECORD), separated=True))


def test_what_was_wanted_longest_ago_goes_first() -> None:
    made: list[str] = []

    def make(key: str) -> int:
        made.append(key)
        return len(key)

    recent: Recent[str, int] = Recent(6, len)
    for key in ("aaa", "bbb", "aaa", "cc", "aaa", "bbb"):
        assert recent.get(key, make) == len(key)
    assert made == ["aaa", "bbb", "cc", "bbb"]
    assert len(recent) == 2
    assert recent.get("too large", make) == 9
    assert len(recent) == 0
