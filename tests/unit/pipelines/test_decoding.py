"""What Python workers make of messages: cambria and Avro."""

from __future__ import annotations

import json
import math
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from router.errors import InvalidSchemaError, SchemaNotFoundError
from router.model import Message, Schema, SchemaType
from router.pipelines.decoding import (
    AvroDecoder,
    avro_columns,
    decode_cambria,
)
from router.pipelines.versioned import MAX_SENTENCE_CHARACTERS
from router.schemas import encode
from router.wire.cambria import framed

DEFINITION = json.dumps(
    {
        "type": "record",
        "name": "r",
        "fields": [
            {"name": "a", "type": "long"},
            {"name": "b", "type": ["null", "string"]},
            {"name": "c", "type": {"type": "array", "items": "bytes"}},
            {"name": "d", "type": {"type": "map", "values": "double"}},
            {"name": "u", "type": ["int", "string"]},
            {
                "name": "in",
                "type": {"type": "record", "name": "s", "fields": [{"name": "x", "type": "int"}]},
            },
        ],
    }
)


def avro(value: dict[str, Any]) -> bytes:
    return encode(Schema(SchemaType.AVRO, DEFINITION.encode()), value)


records = st.fixed_dictionaries(
    {
        "a": st.integers(-(2**63), 2**63 - 1),
        "b": st.none() | st.text(max_size=5).map(lambda text: {"string": text}),
        "c": st.lists(st.binary(max_size=4).map(lambda raw: raw.decode("latin-1")), max_size=3),
        "d": st.dictionaries(st.text(max_size=3), st.floats(allow_nan=False, width=32)),
        "u": st.integers(-5, 5).map(lambda n: {"int": n}),
        "in": st.fixed_dictionaries({"x": st.integers(-5, 5)}),
    }
)


@given(records)
def test_record_of_avro_comes_back(value: dict[str, Any]) -> None:
    given_text = None if value["b"] is None else value["b"]["string"]
    raw = [text.encode("latin-1") for text in value["c"]]
    numbers = {k: float(v) if math.isfinite(v) else v for k, v in value["d"].items()}
    row = (value["a"], given_text, raw, numbers, json.dumps(value["u"]).replace(" ", ""))
    document = {**value, "d": {k: _json(v) for k, v in value["d"].items()}}
    assert AvroDecoder(DEFINITION)(avro(document)) == (None, [(*row, (value["in"]["x"],))])


def _json(number: float) -> float | str:
    if math.isinf(number):
        return "Infinity" if number > 0 else "-Infinity"
    return number


@given(records.map(lambda v: {**v, "d": {}}), st.data())
def test_record_of_avro_that_is_cut_is_bad(value: dict[str, Any], data: st.DataObject) -> None:
    whole = avro(value)
    cut = whole[: data.draw(st.integers(0, len(whole) - 1))]
    error, rows = AvroDecoder(DEFINITION)(cut)
    assert error
    assert rows is None
    assert AvroDecoder(DEFINITION)(whole + b"x")[0] == "1 bytes behind the value"


@given(st.binary(max_size=60))
def test_any_bytes_are_rows_or_a_bounded_sentence(value: bytes) -> None:
    for decoder in (decode_cambria, AvroDecoder(DEFINITION)):
        error, rows = decoder(value)
        assert (error is None) != (rows is None)
        assert len(error or "") <= MAX_SENTENCE_CHARACTERS + 3


@given(st.lists(st.tuples(st.none() | st.text(min_size=1, max_size=9), st.text(max_size=9))))
def test_records_of_cambria_come_back(given_rows: list[tuple[str | None, str]]) -> None:
    body = framed(Message(v.encode(), None if k is None else k.encode()) for k, v in given_rows)
    assert decode_cambria(body) == (None, given_rows)


def test_message_without_a_value_is_bad() -> None:
    assert decode_cambria(None)[0] == AvroDecoder(DEFINITION)(None)[0] == "the message has no value"


def test_types_of_columns_are_sparks() -> None:
    assert avro_columns(DEFINITION) == {
        "a": "BIGINT",
        "b": "STRING",
        "c": "ARRAY<BINARY>",
        "d": "MAP<STRING, DOUBLE>",
        "u": "STRING",
        "in": "STRUCT<`x`: INT>",
    }


def test_definition_without_columns_is_refused() -> None:
    endless = {"type": "record", "name": "r", "fields": [{"name": "n", "type": ["null", "r"]}]}
    for wrong in ('"string"', json.dumps(endless), "{"):
        with pytest.raises(InvalidSchemaError):
            avro_columns(wrong)


VERSIONS = [
    {"type": "record", "name": "old", "fields": [{"name": "n", "type": "int"}]},
    {
        "type": "record",
        "name": "new",
        "fields": [
            {"name": "id", "type": "long", "aliases": ["n"]},
            {"name": "who", "type": ["null", "string"], "default": None},
        ],
    },
]


def versioned(topic: str, version: int) -> Schema:
    """Return a version of a topic's schema."""
    assert topic == "orders"
    if version == 7:
        return Schema(SchemaType.JSON, json.dumps(VERSIONS[0]).encode())
    if version >= len(VERSIONS):
        raise SchemaNotFoundError("no such version")
    return Schema(SchemaType.AVRO, json.dumps(VERSIONS[version]).encode())


def test_record_is_read_by_the_version_that_it_was_written_with() -> None:
    old, new = versioned("orders", 0), versioned("orders", 1)
    values = [encode(old, {"n": 5}), encode(new, {"id": 6, "who": {"string": "anna"}})]
    decoder = AvroDecoder(json.dumps(VERSIONS[1]), versioned)
    assert decoder(values[0], "orders", 0) == (None, [(5, None)])
    assert decoder(values[1], "orders", 1) == (None, [(6, "anna")])
    # Without a version it is taken for one of the declared columns.
    assert decoder(values[1]) == (None, [(6, "anna")])
    assert decoder(values[0])[1] is None


def test_record_of_a_version_that_does_not_fit_is_bad() -> None:
    value = encode(versioned("orders", 1), {"id": 6, "who": None})
    decoder = AvroDecoder(json.dumps(VERSIONS[0]), versioned)
    error = "the field n has no default, and was not written"
    assert decoder(value, "orders", 1) == (error, None)
    assert "orders has no version 9 of its schema" in (decoder(value, "orders", 9)[0] or "")
    assert "is JSON, not AVRO" in (decoder(value, "orders", 7)[0] or "")


@pytest.mark.parametrize("definition", [b'"string"', b'{"type": "oops"}', b"\xff"])
def test_record_of_a_version_that_is_no_record_s_definition_is_bad(definition: bytes) -> None:
    decoder = AvroDecoder(
        json.dumps(VERSIONS[0]), lambda _topic, _version: Schema(SchemaType.AVRO, definition)
    )
    error, rows = decoder(b"\x02", "orders", 3)
    assert rows is None
    assert "version 3 of the schema of orders: " in (error or "")


def test_columns_of_a_record_that_is_named_again_and_again_are_bounded() -> None:
    kind: Any = "int"
    for number in range(25):
        again = kind if number == 0 else f"r{number - 1}"
        fields = [{"name": "a", "type": kind}, {"name": "b", "type": again}]
        kind = {"type": "record", "name": f"r{number}", "fields": fields}
    with pytest.raises(InvalidSchemaError, match="at most 10000"):
        avro_columns(json.dumps(kind))
