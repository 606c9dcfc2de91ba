"""Messages that Spark cannot take apart itself: cambria's framing and Avro, as plain Python.

A decoder takes a value and gives a sentence that says what is wrong with it, or rows. It is called
in Spark's Python workers, so it holds texts alone and makes what it needs where it is used. Avro is
read by the router's own reader, which is strict about hostile bytes; Spark's own `from_avro` is a
package of its own, and says of a bad record only that it is null.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from typing import Any, Final

import orjson

from router.errors import BadFramingError, InvalidSchemaError
from router.model import Schema, SchemaType
from router.pipelines.versioned import (
    MAX_DEPTH,
    MAX_TYPES,
    NO_VALUE,
    Decoded,
    ReadRow,
    Row,
    VersionedDecoder,
    bounded_sentence,
)
from router.schemas import check, decode, equal, resolver
from router.schemas.definitions import DefinitionNode
from router.schemas.kinds import definition_of
from router.wire import cambria

NO_TEXT: Final = "the value is not UTF-8"

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


class AvroDecoder(VersionedDecoder):
    """Reads Avro values into the columns of a definition, given as its JSON text."""

    type = SchemaType.AVRO

    def reader(self, written: Schema) -> ReadRow:
        """Return what makes a row of a value; see VersionedDecoder."""
        columns = record_of(self.definition)
        resolve: Callable[[Any], Any] | None = None
        if not equal(written, Schema(self.type, self.definition.encode())):
            resolve = resolver(record_of(written.data.decode()), columns)

        def read(value: bytes) -> Row:
            record = decode(written, value)
            return _record(columns, record if resolve is None else resolve(record))

        return read


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
