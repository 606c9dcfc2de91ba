"""Values of the schemas that are not AVRO: JSON, primitives, pairs."""

from __future__ import annotations

import base64
import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from router.errors import InvalidSchemaError, PayloadMismatchError
from router.model import Schema, SchemaType
from router.schemas import decode, decode_pair, encode, encode_pair, halves, pair_schema
from tests.unit.schemas.generated import DOUBLE, SINGLE, TEXT, definitions, kind, label, values

DAY = st.dates().map(lambda day: day.isoformat())
TIME = st.builds(
    lambda h, m, s, f: f"{h:02}:{m:02}:{s:02}" + (f".{f:09}".rstrip("0") if f else ""),
    st.integers(0, 23),
    st.integers(0, 59),
    st.integers(0, 59),
    st.integers(0, 999_999_999),
)
MOMENT = st.builds(lambda day, time: f"{day}T{time}", DAY, TIME)


def whole(bits: int) -> st.SearchStrategy[int]:
    return st.integers(-(1 << (bits - 1)), (1 << (bits - 1)) - 1)


VALUES: dict[SchemaType, st.SearchStrategy[Any]] = {
    SchemaType.NONE: st.binary(max_size=20).map(lambda raw: base64.b64encode(raw).decode()),
    SchemaType.PROTOBUF: st.binary(max_size=20).map(lambda raw: base64.b64encode(raw).decode()),
    SchemaType.STRING: TEXT,
    SchemaType.BOOLEAN: st.booleans(),
    SchemaType.INT8: whole(8),
    SchemaType.INT16: whole(16),
    SchemaType.INT32: whole(32),
    SchemaType.INT64: whole(64),
    SchemaType.FLOAT: SINGLE.filter(lambda number: abs(number) != float("inf")),
    SchemaType.DOUBLE: DOUBLE.filter(lambda number: abs(number) != float("inf")),
    SchemaType.DATE: whole(64),
    SchemaType.TIME: whole(64),
    SchemaType.TIMESTAMP: whole(64),
    SchemaType.INSTANT: MOMENT.map(lambda moment: f"{moment}Z"),
    SchemaType.LOCAL_DATE: DAY,
    SchemaType.LOCAL_TIME: TIME,
    SchemaType.LOCAL_DATE_TIME: MOMENT,
}
simple = st.sampled_from(list(VALUES)).flatmap(
    lambda kind: st.tuples(st.just(Schema(kind)), VALUES[kind])
)


@given(simple)
def test_value_comes_back_as_it_was(pair: tuple[Schema, Any]) -> None:
    schema, value = pair
    assert decode(schema, encode(schema, value)) == value


@given(st.sampled_from(list(VALUES)), st.binary(max_size=20))
def test_any_bytes_are_read_or_refused(kind: SchemaType, payload: bytes) -> None:
    schema = Schema(kind)
    try:
        value = decode(schema, payload)
    except PayloadMismatchError:
        return
    assert repr(decode(schema, encode(schema, value))) == repr(value)


# By Apache Pulsar's Java client: big-endian, days and nanoseconds in eight bytes each.
@pytest.mark.parametrize(
    ("schema_type", "value", "payload"),
    [
        (SchemaType.INT8, -1, "ff"),
        (SchemaType.INT16, 1, "0001"),
        (SchemaType.INT32, -2, "fffffffe"),
        (SchemaType.INT64, 258, "0000000000000102"),
        (SchemaType.FLOAT, 1.0, "3f800000"),
        (SchemaType.DOUBLE, 1.0, "3ff0000000000000"),
        (SchemaType.BOOLEAN, True, "01"),
        (SchemaType.DATE, 1, "0000000000000001"),
        (SchemaType.INSTANT, "1970-01-01T00:00:01.000000002Z", "000000000000000100000002"),
        (SchemaType.INSTANT, "1969-12-31T23:59:59Z", "ffffffffffffffff00000000"),
        (SchemaType.LOCAL_DATE, "1970-01-02", "0000000000000001"),
        (SchemaType.LOCAL_TIME, "00:00:00.000000003", "0000000000000003"),
        (SchemaType.LOCAL_DATE_TIME, "1970-01-02T00:00:00.5", "0000000000000001000000001dcd6500"),
    ],
)
def test_layout_is_that_of_pulsar(schema_type: SchemaType, value: Any, payload: str) -> None:
    assert encode(Schema(schema_type), value).hex() == payload
    assert decode(Schema(schema_type), bytes.fromhex(payload)) == value


@pytest.mark.parametrize(
    ("schema_type", "value"),
    [
        (SchemaType.INT8, 128),
        (SchemaType.INT64, 1.0),
        (SchemaType.INT32, True),
        (SchemaType.INT32, "1"),
        (SchemaType.FLOAT, 1e39),
        (SchemaType.DOUBLE, None),
        (SchemaType.DOUBLE, 10**400),
        (SchemaType.BOOLEAN, 1),
        (SchemaType.STRING, 1),
        (SchemaType.STRING, "\ud800"),
        (SchemaType.NONE, "no base64!"),
        (SchemaType.NONE, "\u00e9"),
        (SchemaType.INSTANT, "1970-01-01T00:00:00"),
        (SchemaType.LOCAL_DATE, "1970-02-30"),
        (SchemaType.LOCAL_TIME, "24:00:00"),
        (SchemaType.LOCAL_TIME, "noon"),
    ],
)
def test_value_that_does_not_fit_is_refused(schema_type: SchemaType, value: Any) -> None:
    with pytest.raises(PayloadMismatchError):
        encode(Schema(schema_type), value)


def test_numbers_that_are_not_finite_are_words() -> None:
    for word in ("NaN", "Infinity", "-Infinity"):
        assert decode(Schema(SchemaType.FLOAT), encode(Schema(SchemaType.FLOAT), word)) == word


# JSON


def json_schema(definition: Any) -> Schema:
    return Schema(SchemaType.JSON, json.dumps(definition).encode())


def unnamed(definition: Any, value: Any) -> Any:
    """A value in Avro's JSON encoding as JSON schemas have it: without the names of branches."""
    match kind(definition):
        case "union":
            if value is None:
                return None
            ((name, inner),) = value.items()
            return unnamed(next(part for part in definition if label(part) == name), inner)
        case "array":
            return [unnamed(definition["items"], part) for part in value]
        case "map":
            return {key: unnamed(definition["values"], part) for key, part in value.items()}
        case "record":
            return {f["name"]: unnamed(f["type"], value[f["name"]]) for f in definition["fields"]}
    return value


@given(st.data())
def test_json_comes_back_as_it_was(data: st.DataObject) -> None:
    definition = data.draw(definitions)
    value = unnamed(definition, data.draw(values(definition)))
    schema = json_schema(definition)
    assert decode(schema, encode(schema, value)) == value


ORDER = {
    "type": "record",
    "name": "Order",
    "fields": [
        {"name": "n", "type": "int"},
        {"name": "t", "type": ["null", "string"]},
        {
            "name": "d",
            "type": {"type": "bytes", "logicalType": "decimal", "precision": 4},
            "default": "",
        },
    ],
}


@pytest.mark.parametrize(
    "value", [{"n": 1}, {"n": 1, "t": "x", "d": 3.5}, {"n": 1, "t": None, "d": [1, 2]}]
)
def test_json_that_fits_is_taken(value: Any) -> None:
    assert json.loads(encode(json_schema(ORDER), value)) == value


@pytest.mark.parametrize(
    ("value", "sentence"),
    [
        ({}, "lacks n"),
        ({"n": "x"}, 'n: "x" is no int'),
        ({"n": 1, "t": 5}, "t: 5 fits no branch"),
        ({"n": 1, "t": {"string": "x"}}, "fits no branch"),
        ({"n": 1, "x": 2}, 'no field "x"'),
        ({"n": 1, "d": float("nan")}, "not finite"),
        ({"n": 1, "d": {1: 2}}, "no JSON"),
        ([], "is no Order"),
    ],
)
def test_json_that_does_not_fit_is_refused(value: Any, sentence: str) -> None:
    with pytest.raises(PayloadMismatchError) as refused:
        encode(json_schema(ORDER), value)
    assert sentence in str(refused.value)


def test_json_of_an_old_client_is_not_looked_into() -> None:
    schema = json_schema({"type": "object", "id": "urn:jsonschema:Order", "properties": {}})
    assert decode(schema, encode(schema, {"any": ["thing"]})) == {"any": ["thing"]}
    with pytest.raises(PayloadMismatchError):
        encode(schema, object())


@pytest.mark.parametrize("payload", [b"", b"{", b"\xff", b"[" * 500 + b"]" * 500, b"[" * 5_000])
def test_payload_that_is_no_json_is_refused(payload: bytes) -> None:
    with pytest.raises(PayloadMismatchError):
        decode(json_schema(ORDER), payload)


# KEY_VALUE

NUMBER, STRING = Schema(SchemaType.INT32), Schema(SchemaType.STRING)


@given(st.none() | whole(32), st.none() | TEXT)
def test_pair_in_the_payload_comes_back(key: int | None, value: str | None) -> None:
    schema = pair_schema(NUMBER, STRING, separated=False)
    none, payload = encode_pair(schema, key, value)
    assert none is None
    assert decode_pair(schema, None, payload) == (key, value)
    assert decode(schema, payload) == {"key": key, "value": value}
    assert encode(schema, {"key": key, "value": value}) == payload


@given(st.none() | whole(32), TEXT)
def test_pair_with_its_key_apart_comes_back(key: int | None, value: str) -> None:
    schema = pair_schema(NUMBER, STRING, separated=True)
    apart, payload = encode_pair(schema, key, value)
    assert payload == value.encode()
    assert decode_pair(schema, apart, payload) == (key, value)


def test_pair_is_laid_out_as_in_pulsar() -> None:
    schema = pair_schema(NUMBER, STRING, separated=False)
    assert encode_pair(schema, 1, "ab")[1].hex() == "0000000400000001000000026162"
    assert encode_pair(schema, None, None)[1].hex() == "ffffffffffffffff"


@pytest.mark.parametrize("payload", [b"", b"\0" * 7, b"\0\0\0\x09abcd\0\0\0\0", b"\0" * 8 + b"x"])
def test_payload_that_is_no_pair_is_refused(payload: bytes) -> None:
    with pytest.raises(PayloadMismatchError):
        decode(pair_schema(STRING, STRING, separated=False), payload)


@pytest.mark.parametrize("value", ["x", {"key": 1, "other": 2}])
def test_value_that_is_no_pair_is_refused(value: Any) -> None:
    with pytest.raises(PayloadMismatchError):
        encode(pair_schema(NUMBER, STRING, separated=False), value)


def test_key_apart_has_no_place_in_a_payload() -> None:
    with pytest.raises(InvalidSchemaError):
        encode(pair_schema(NUMBER, STRING, separated=True), {"key": 1, "value": "x"})


@given(st.booleans(), st.dictionaries(TEXT, TEXT, max_size=3), TEXT)
def test_parts_of_a_pair_come_back(separated: bool, properties: dict[str, str], name: str) -> None:
    key = Schema(SchemaType.AVRO, b'"int"', properties, name)
    value = Schema(SchemaType.NONE, b"", {}, "BYTES")
    assert halves(pair_schema(key, value, separated=separated)) == (key, value, separated)
