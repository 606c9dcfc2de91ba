"""Messages that Spark cannot take apart itself: cambria's framing and Avro, as plain Python.

A decoder takes a value and gives a sentence that says what is wrong with it, or rows. It is called
in Spark's Python workers, so it holds texts alone and makes what it needs where it is used. Avro is
read by the router's own reader, which is strict about hostile bytes; Spark's own `from_avro` is a
package of its own, and says of a bad record only that it is null.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any, Final

import orjson

from router.errors import (
    BadFramingError,
    InvalidSchemaError,
    PayloadMismatchError,
    SchemaNotFoundError,
)
from router.model import Schema, SchemaType
from router.schemas import check, decode, equal, resolver
from router.schemas.definitions import DefinitionNode
from router.schemas.kinds import definition_of
from router.wire import cambria

MAX_DEPTH: Final = 30
MAX_TYPES: Final = 10_000
"""Types in the columns of a definition, which may name one record at many places."""
MAX_SENTENCE_CHARACTERS: Final = 500
NO_VALUE: Final = "the message has no value"
NO_TEXT: Final = "the value is not UTF-8"

Row = tuple[Any, ...]
Decoded = tuple[str | None, list[Row] | None]

_SIMPLE: Final = {
    "boolean": "BOOLEAN",
    "int": "INT",
    "long": "BIGINT",
    "float": "FLOAT",
    "double": "DOUBLE",
    "bytes": "BINARY",
    "fixed": "BINARY",
    "string": "STRING",
    "enum": "STRING",
    "null": "STRING",
}
_WORDS: Final = {"NaN": float("nan"), "Infinity": float("inf"), "-Infinity": float("-inf")}


def decode_cambria(value: bytes | None) -> Decoded:
    """Return the records of a value, each a key and a text; all of them, or what is wrong."""
    if value is None:
        return NO_VALUE, None
    try:
        rows = [(_text(m.key), m.value.decode()) for m in cambria.records(bytes(value))]
    except BadFramingError as error:
        return bounded_sentence(error), None
    except UnicodeDecodeError:
        return NO_TEXT, None
    return None, rows


@dataclass(frozen=True, slots=True)
class _WriterSchema:
    """The schema that values were written with, and what makes those of the reader's of them."""

    schema: Schema
    resolve: Callable[[Any], Any] | None = None


@dataclass(frozen=True, slots=True)
class AvroDecoder:
    """Reads Avro values into the columns of a definition, given as its JSON text.

    `lookup` returns the schema of a topic and a version; without it all values are written with
    the definition. It raises SchemaNotFoundError.
    """

    definition: str
    lookup: Callable[[str, int], Schema] | None = None
    _writers: dict[tuple[str, int], _WriterSchema | str] = field(default_factory=dict)

    def __call__(self, value: bytes | None, topic: str = "", version: int | None = None) -> Decoded:
        """Return the record of a value that was written with a version, or what is wrong.

        None: the version is not known; the value is one of the definition.
        """
        if value is None:
            return NO_VALUE, None
        writer = self._writer(topic, version)
        if isinstance(writer, str):
            return writer, None
        try:
            record = decode(writer.schema, bytes(value))
            if writer.resolve is not None:
                record = writer.resolve(record)
        except PayloadMismatchError as error:
            return bounded_sentence(error), None
        return None, [_plain(record_of(self.definition), record)]

    def _writer(self, topic: str, version: int | None) -> _WriterSchema | str:
        """Return what a version's values are read with, or why they cannot be read."""
        reader = Schema(SchemaType.AVRO, self.definition.encode())
        if version is None or self.lookup is None:
            return _WriterSchema(reader)
        found = self._writers.get((topic, version))
        if found is None:
            found = self._writers[topic, version] = self._looked_up(reader, topic, version)
        return found

    def _looked_up(self, reader: Schema, topic: str, version: int) -> _WriterSchema | str:
        assert self.lookup is not None, "the caller looked"
        try:
            schema = self.lookup(topic, version)
        except SchemaNotFoundError:
            return f"{topic} has no version {version} of its schema, which the value names"
        if schema.type is not SchemaType.AVRO:
            return f"version {version} of the schema of {topic} is {schema.type.name}, not AVRO"
        try:
            if equal(schema, reader):
                return _WriterSchema(reader)
            written = record_of(schema.data.decode())
        except (InvalidSchemaError, UnicodeDecodeError) as error:
            return bounded_sentence(f"version {version} of the schema of {topic}: {error}")
        return _WriterSchema(schema, resolver(written, record_of(self.definition)))


def record_of(definition: str) -> DefinitionNode:
    """Return the record that an Avro definition describes; raise InvalidSchemaError."""
    schema = Schema(SchemaType.AVRO, definition.encode())
    check(schema)
    found = definition_of(schema)
    if found is None or found.node is None or found.node.kind != "record":
        raise InvalidSchemaError("the rows of a pipeline are records: the definition is none")
    return found.node


def avro_columns(definition: str) -> dict[str, str]:
    """Return Spark's types of a record's fields by name; raise InvalidSchemaError.

    A union of null and one other type is that type; other unions are a text of JSON. Logical types
    are the type beneath.
    """
    count = itertools.count()
    return {field.name: _type(field.node, 0, count) for field in record_of(definition).fields}


def bounded_sentence(error: object) -> str:
    """Return an error's sentence, bounded."""
    sentence = str(error)
    return (
        sentence
        if len(sentence) <= MAX_SENTENCE_CHARACTERS
        else sentence[:MAX_SENTENCE_CHARACTERS] + "..."
    )


def _text(key: bytes | None) -> str | None:
    return None if key is None else key.decode()


def _type(node: DefinitionNode, depth: int, count: Iterator[int]) -> str:
    if depth > MAX_DEPTH:
        raise InvalidSchemaError("a definition that contains itself has no columns")
    if next(count) >= MAX_TYPES:
        raise InvalidSchemaError(f"columns have at most {MAX_TYPES} fields and parts in all")
    if node.kind == "record":
        fields = ", ".join(f"`{f.name}`: {_type(f.node, depth + 1, count)}" for f in node.fields)
        return f"STRUCT<{fields}>"
    if node.kind == "array":
        return f"ARRAY<{_type(node.parts[0], depth + 1, count)}>"
    if node.kind == "map":
        return f"MAP<STRING, {_type(node.parts[0], depth + 1, count)}>"
    if node.kind == "union":
        one = _only(node)
        return "STRING" if one is None else _type(one, depth + 1, count)
    return _SIMPLE[node.kind]


def _only(union: DefinitionNode) -> DefinitionNode | None:
    """Return the one branch of a union beside null, None: there are several."""
    branches = [part for part in union.parts if part.kind != "null"]
    return branches[0] if len(branches) == 1 else None


def _plain(node: DefinitionNode, value: Any) -> Any:
    """Return a value of Avro's JSON encoding as Spark takes it; see `avro_columns`."""
    convert = _CONVERT.get(node.kind)
    return value if convert is None or value is None else convert(node, value)


def _record(node: DefinitionNode, value: dict[str, Any]) -> Row:
    return tuple(_plain(field.node, value.get(field.name)) for field in node.fields)


def _array(node: DefinitionNode, value: list[Any]) -> list[Any]:
    return [_plain(node.parts[0], one) for one in value]


def _map(node: DefinitionNode, value: dict[str, Any]) -> dict[str, Any]:
    return {name: _plain(node.parts[0], one) for name, one in value.items()}


def _union(node: DefinitionNode, value: dict[str, Any]) -> Any:
    if (one := _only(node)) is None:
        return orjson.dumps(value).decode()
    (inner,) = value.values()
    return _plain(one, inner)


def _bytes(_node: DefinitionNode, value: str) -> bytes:
    return value.encode("latin-1")


def _number(_node: DefinitionNode, value: Any) -> float:
    return _WORDS[value] if isinstance(value, str) else float(value)


_CONVERT: Final[dict[str, Callable[[DefinitionNode, Any], Any]]] = {
    "record": _record,
    "array": _array,
    "map": _map,
    "union": _union,
    "bytes": _bytes,
    "fixed": _bytes,
    "float": _number,
    "double": _number,
}
