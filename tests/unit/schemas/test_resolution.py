"""Values of one version as another reads them, with fastavro as the oracle."""

from __future__ import annotations

import io
import json
from typing import Any

import fastavro
import pytest
from hypothesis import given
from hypothesis import strategies as st

from router.errors import PayloadMismatchError
from router.model import Schema, SchemaType
from router.schemas import decode, encode, resolver
from router.schemas.definitions import DefinitionNode
from router.schemas.kinds import definition_of
from tests.unit.schemas.generated import plain


def record(*fields: dict[str, Any], name: str = "r") -> dict[str, Any]:
    return {"type": "record", "name": name, "fields": list(fields)}


def of(kind: Any, **more: Any) -> dict[str, Any]:
    return record({"name": "x", "type": kind, **more})


def enum(*symbols: str, **more: str) -> dict[str, Any]:
    return {"type": "enum", "name": "e", "symbols": list(symbols), **more}


def decimal(scale: int, precision: int = 9) -> dict[str, Any]:
    kept = {"precision": precision, "scale": scale} if scale else {"precision": precision}
    return {"type": "bytes", "logicalType": "decimal", **kept}


NESTED = {"type": "array", "items": record({"name": "y", "type": "int"}, name="s")}
WIDER = {
    "type": "array",
    "items": record(
        {"name": "y", "type": "double"}, {"name": "z", "type": "int", "default": 3}, name="s"
    ),
}
# writer, reader, values of the writer in Avro's JSON encoding
FITTING: list[tuple[Any, Any, list[Any]]] = [
    (of("int"), of("long"), [{"x": -5}]),
    (of("long"), of("double"), [{"x": 1 << 40}]),
    (of("float"), of("double"), [{"x": 1.5}]),
    (of("string"), of("bytes"), [{"x": "\u00e9"}]),
    (of("bytes"), of("string"), [{"x": "\u00c3\u00a9"}]),
    (of("int"), of(["null", "long"]), [{"x": 1}]),
    (of(["null", "int", "string"]), of(["string", "long", "null"]),
     [{"x": None}, {"x": {"int": 1}}, {"x": {"string": "a"}}]),
    (of(["null", "int"]), of("long"), [{"x": {"int": 1}}]),
    (of(NESTED), of(WIDER), [{"x": [{"y": 1}, {"y": 2}]}, {"x": []}]),
    (of({"type": "map", "values": "int"}), of({"type": "map", "values": "long"}),
     [{"x": {"a": 1}}]),
    (of(enum("A", "B")), of(enum("B", "A")), [{"x": "A"}]),
    (record({"name": "a", "type": "int"}, {"name": "b", "type": "string"}),
     record({"name": "b", "type": "string"},
            {"name": "c", "type": ["null", "int"], "default": None}),
     [{"a": 1, "b": "kept"}]),
    (of("int"), record({"name": "renamed", "type": "int", "aliases": ["x"]}), [{"x": 3}]),
    (record({"name": "v", "type": "int"}, {"name": "next", "type": ["null", "r"]}),
     record({"name": "v", "type": "long"}, {"name": "next", "type": ["null", "r"]}),
     [{"v": 1, "next": {"r": {"v": 2, "next": None}}}]),
]  # fmt: skip


def schema(definition: Any) -> Schema:
    return Schema(SchemaType.AVRO, json.dumps(definition).encode())


def node(definition: Any) -> DefinitionNode:
    found = definition_of(schema(definition))
    assert found is not None
    assert found.node is not None
    return found.node


def resolved(writer: Any, reader: Any, value: Any) -> Any:
    data = encode(schema(writer), value)
    return resolver(node(writer), node(reader))(decode(schema(writer), data))


@pytest.mark.parametrize(("writer", "reader", "values"), FITTING)
def test_fastavro_resolves_to_the_same(writer: Any, reader: Any, values: list[Any]) -> None:
    for value in values:
        data = encode(schema(writer), value)
        theirs = fastavro.schemaless_reader(io.BytesIO(data), writer, reader)
        assert plain(reader, resolved(writer, reader, value)) == theirs


@given(st.integers(0, 3), st.sampled_from(["A", "B", "C"]))
def test_symbol_of_another_version_is_the_default(number: int, symbol: str) -> None:
    writer, reader = of(enum("A", "B", "C")), of(enum("A", "D", default="D"))
    assert resolved(writer, reader, {"x": symbol}) == {"x": "A" if symbol == "A" else "D"}


@pytest.mark.parametrize(
    ("writer", "reader", "value", "words"),
    [
        (of("long"), of("int"), {"x": 1}, "x: long cannot be read as int"),
        (of("bytes"), of("string"), {"x": "\u00ff"}, "x: bytes that are not UTF-8"),
        (of(["null", "int"]), of("int"), {"x": None}, "x: null cannot be read as int"),
        (of("string"), of(["null", "int"]), {"x": "a"}, "x: string is no branch of null, int"),
        (of(enum("A", "B")), of(enum("A")), {"x": "B"}, "is no symbol of e"),
        (of("int"), record({"name": "y", "type": "int"}), {"x": 1}, "field y has no default"),
        (
            of(decimal(2)),
            of(decimal(4)),
            {"x": "\x01"},
            "x: a decimal of scale 2, expected scale 4",
        ),
        (of(decimal(2)), of(["null", decimal(0)]), {"x": "\x01"}, "scale 2, expected scale 0"),
        (of(decimal(2)), of(decimal(2, precision=20)), {"x": "\x01"}, ""),
        (of(decimal(2)), of("bytes"), {"x": "\x01"}, ""),
        (of(NESTED), of({"type": "array", "items": record(name="s")}), {"x": []}, ""),
    ],
)
def test_value_that_the_reader_cannot_have_is_refused(
    writer: Any, reader: Any, value: Any, words: str
) -> None:
    if not words:
        assert resolved(writer, reader, value) == value
        return
    with pytest.raises(PayloadMismatchError, match=words):
        resolved(writer, reader, value)


def test_branch_that_does_not_fit_harms_only_values_that_take_it() -> None:
    writer, reader = of(["int", "string"]), of("long")
    assert resolved(writer, reader, {"x": {"int": 4}}) == {"x": 4}
    with pytest.raises(PayloadMismatchError, match="string cannot be read as long"):
        resolved(writer, reader, {"x": {"string": "a"}})


@pytest.mark.parametrize("reader", [["x.cat", "x.dog"], ["x.dog", "x.cat"]])
def test_branch_of_another_namespace_is_the_one_of_the_same_name(reader: list[str]) -> None:
    text = {"name": "t", "type": "string"}
    readers = of([record(text, name=name) for name in reader])
    writer = of([record(text, name="cat"), record(text, name="dog")])
    assert resolved(writer, readers, {"x": {"dog": {"t": "rex"}}}) == {"x": {"x.dog": {"t": "rex"}}}
    alone = of(record(text, name="dog"))
    assert resolved(alone, readers, {"x": {"t": "rex"}}) == {"x": {"x.dog": {"t": "rex"}}}
