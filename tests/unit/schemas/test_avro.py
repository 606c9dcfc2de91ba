"""AVRO values: one law for what is written and read, with fastavro as the oracle."""

from __future__ import annotations

import io
import json
from typing import Any

import fastavro
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from router.errors import PayloadMismatchError
from router.model import Schema, SchemaType
from router.schemas import decode, encode
from tests.unit.schemas.generated import definitions, plain, values

NODE = {
    "type": "record",
    "name": "Node",
    "fields": [{"name": "v", "type": "int"}, {"name": "next", "type": ["null", "Node"]}],
}


def avro(definition: Any) -> Schema:
    return Schema(SchemaType.AVRO, json.dumps(definition).encode())


def written(definition: Any, value: Any) -> bytes:
    out = io.BytesIO()
    fastavro.schemaless_writer(out, definition, value)
    return out.getvalue()


@st.composite
def pairs(draw: st.DrawFn) -> tuple[Any, Any]:
    definition = draw(definitions.filter(lambda found: not isinstance(found, list)))
    return definition, draw(values(definition))


@pytest.mark.slow
@given(pairs())
def test_value_comes_back_as_it_was(pair: tuple[Any, Any]) -> None:
    schema, value = avro(pair[0]), pair[1]
    assert decode(schema, encode(schema, value)) == value


@given(pairs())
def test_fastavro_reads_what_is_written(pair: tuple[Any, Any]) -> None:
    definition, value = pair
    read = fastavro.schemaless_reader(io.BytesIO(encode(avro(definition), value)), definition, None)
    assert read == plain(definition, value)


@given(pairs())
def test_what_fastavro_writes_is_read(pair: tuple[Any, Any]) -> None:
    definition, value = pair
    theirs = plain(definition, value)
    data = written(definition, theirs)
    # fastavro writes empty bytes as an empty array, where a union has both and the array is first.
    assume(fastavro.schemaless_reader(io.BytesIO(data), definition, None) == theirs)
    assert plain(definition, decode(avro(definition), data)) == theirs


@pytest.mark.slow
@given(pairs(), st.data())
def test_payload_that_is_cut_off_is_refused(pair: tuple[Any, Any], data: st.DataObject) -> None:
    schema = avro(pair[0])
    payload = encode(schema, pair[1])
    assume(payload)
    with pytest.raises(PayloadMismatchError):
        decode(schema, payload[: data.draw(st.integers(0, len(payload) - 1))])
    with pytest.raises(PayloadMismatchError):
        decode(schema, payload + b"\0")


@settings(max_examples=150)
@given(definitions.filter(lambda found: not isinstance(found, list)), st.binary(max_size=60))
def test_any_bytes_are_read_or_refused(definition: Any, payload: bytes) -> None:
    schema = avro(definition)
    try:
        value = decode(schema, payload)
    except PayloadMismatchError:
        return
    again = decode(schema, encode(schema, value))
    assert repr(again) == repr(value)  # NaN is not equal to itself, and -0.0 is to 0.0


@pytest.mark.parametrize(
    ("definition", "value", "sentence"),
    [
        ("int", 2**31, "2147483648 is no int"),
        ("int", True, "true is no int"),
        ("int", 1.0, "1.0 is no int"),
        ("float", 1e39, "1e+39 is no float"),
        ("boolean", 1, "1 is no boolean"),
        ("bytes", "\u0100", "bytes are written"),
        ("string", "\ud800", "half a character"),
        (NODE, {"v": 1, "next": {"Node": {"v": "x"}}}, "fits no branch of null, Node"),
        (NODE, {"v": 1, "nex": None}, 'Node has no field "nex"'),
        (NODE, {"next": None}, "v: missing"),
        ({"type": "array", "items": "int"}, [1, "x"], '1: "x" is no int'),
        ({"type": "map", "values": "int"}, {"k": None}, "k: null is no int"),
        ({"type": "enum", "name": "E", "symbols": ["A"]}, "B", '"B" is no symbol of E'),
        ({"type": "fixed", "name": "F", "size": 2}, "abc", "3 bytes, expected 2 of F"),
        ("string", {"a": "x" * 100}, "a JSON object is no string"),
        ("int", "x" * 100, '..." is no int'),
        ("int", 10**1_000, "a JSON number is no int"),
    ],
)
def test_value_that_does_not_fit_is_refused(definition: Any, value: Any, sentence: str) -> None:
    with pytest.raises(PayloadMismatchError) as refused:
        encode(avro(definition), value)
    assert sentence in str(refused.value)


def test_fields_may_be_left_out_and_branches_unnamed() -> None:
    more = [
        {"name": "a", "type": "int", "default": 5},
        {"name": "b", "type": ["null", "string", "int"]},
        {"name": "c", "type": NODE, "default": {"v": 1, "next": None}},
        {"name": "d", "type": ["string", "null"], "default": "x"},
    ]
    schema = avro({"type": "record", "name": "R", "fields": more})
    found = decode(schema, encode(schema, {"b": 3}))
    node = {"v": 1, "next": None}
    assert found == {"a": 5, "b": {"int": 3}, "c": node, "d": {"string": "x"}}


def test_name_of_a_branch_goes_before_what_looks_like_it() -> None:
    schema = avro({"type": "array", "items": ["null", {"type": "map", "values": "string"}]})
    named, unnamed = {"map": {"k": "v"}}, {"map": "v"}
    assert decode(schema, encode(schema, [named, unnamed])) == [named, {"map": unnamed}]


def test_branches_of_the_same_json_are_told_apart() -> None:
    schema = avro({"type": "array", "items": ["int", "long"]})
    numbers = [{"long": 5}, {"int": 5}]
    assert decode(schema, encode(schema, numbers)) == numbers


@pytest.mark.parametrize(
    ("definition", "payload"),
    [
        # 2^31 nulls in five bytes
        ({"type": "array", "items": "null"}, b"\xfe\xff\xff\xff\x1f\0"),
        (NODE, b"\x02\x02" * 1_000_000),
        ("bytes", b"\x01"),
        ("bytes", b"\xff" * 9 + b"\x01"),
        ("int", b"\xff" * 100),
        ("int", b"\x80\x80\x80\x80\x80\x01"),
        ("boolean", b"\x02"),
        ({"type": "enum", "name": "E", "symbols": ["A"]}, b"\x02"),
        (NODE, b"\x02\x01"),
        ("string", b"\x02\xff"),
    ],
)
def test_hostile_payload_is_refused_soon(definition: Any, payload: bytes) -> None:
    with pytest.raises(PayloadMismatchError):
        decode(avro(definition), payload)


def test_arrays_come_in_any_blocks() -> None:
    # One value; two, with the size of the block; none any more.
    assert decode(avro({"type": "array", "items": "int"}), b"\x02\x02\x03\x04\x04\x06\0") == [
        1,
        2,
        3,
    ]


def test_zero_byte_values_do_not_multiply() -> None:
    part: Any = {"type": "record", "name": "R0", "fields": [{"name": "n", "type": "null"}]}
    for level in range(1, 30):
        fields = [{"name": "a", "type": part}, {"name": "b", "type": f"R{level - 1}"}]
        part = {"type": "record", "name": f"R{level}", "fields": fields}
    with pytest.raises(PayloadMismatchError):
        decode(avro(part), b"")
    with pytest.raises(PayloadMismatchError):
        encode(avro({"type": "array", "items": part}), [{}])


def test_value_of_many_possibilities_is_refused_soon() -> None:
    twin = {"type": "record", "name": "B", "fields": [{"name": "x", "type": ["int", "A", "B"]}]}
    schema = avro({"type": "record", "name": "A", "fields": [{"name": "x", "type": ["A", twin]}]})
    value: Any = {"x": "no number"}
    for _ in range(90):
        value = {"x": value}
    with pytest.raises(PayloadMismatchError, match="too many branches of its unions"):
        encode(schema, value)


def test_value_that_is_too_deep_is_refused() -> None:
    value: Any = None
    for _ in range(60):
        value = {"v": 1, "next": value}
    assert decode(avro(NODE), encode(avro(NODE), value))["v"] == 1
    for _ in range(10_000):
        value = {"v": 1, "next": value}
    with pytest.raises(PayloadMismatchError, match="levels"):
        encode(avro(NODE), value)
