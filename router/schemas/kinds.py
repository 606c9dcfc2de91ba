"""What may be a schema, and which schemas are the same."""

from __future__ import annotations

from typing import Final

from router.errors import InvalidSchemaError
from router.model import Schema, SchemaType
from router.schemas.definitions import MAX_DEFINITION, SchemaDefinition, parse, parse_json
from router.schemas.pairs import Pair, halves

MAX_PROPERTIES: Final = 3_000
"""Bytes of a schema's name and properties, in which a KEY_VALUE one describes its parts."""
EACH: Final = 8
"""What a property costs besides its own bytes."""

STORED: Final = frozenset({SchemaType.PROTOBUF, SchemaType.PROTOBUF_NATIVE, SchemaType.EXTERNAL})
"""Types whose definitions are kept and not looked into."""

_CLIENTS: Final = frozenset({SchemaType.AUTO_CONSUME})
# What Python's client sends for "no definition".
_EMPTY: Final = (b"", b"null")


def check(schema: Schema) -> None:
    """Raise InvalidSchemaError unless this may be a topic's schema.

    JSON and AVRO need an Avro definition; a JSON schema may be a JSON-Schema document, which
    clients before Pulsar 2.1 sent. KEY_VALUE needs two schemas that may be one. The others have no
    definition, or one that is not looked into.
    """
    size = _size(schema)
    if size > MAX_PROPERTIES:
        raise InvalidSchemaError(f"name and properties have {size} bytes, allowed {MAX_PROPERTIES}")
    if len(schema.data) > MAX_DEFINITION:
        raise InvalidSchemaError(f"a definition has at most {MAX_DEFINITION} bytes")
    if schema.type is SchemaType.KEY_VALUE:
        pair = halves(schema)
        _check(pair.key)
        _check(pair.value)
    else:
        _check(schema)


def equal(one: Schema, other: Schema) -> bool:
    """Tell whether two schemas that passed `check` say the same.

    Spacing, the order of members and `doc` do not count; names and properties neither, but for
    where a KEY_VALUE schema has its keys.
    """
    return identity(one) == identity(other)


def identity(schema: Schema) -> tuple[object, ...]:
    """Return what is equal for schemas that are `equal`."""
    if schema.type is SchemaType.KEY_VALUE:
        pair: Pair = halves(schema)
        return schema.type, identity(pair.key), identity(pair.value), pair.separated
    if (definition := definition_of(schema)) is not None:
        return schema.type, definition.canonical
    return schema.type, schema.data if schema.type in STORED else b""


def definition_of(schema: Schema) -> SchemaDefinition | None:
    """Return the Avro definition of a schema that has one; raise InvalidSchemaError."""
    if schema.type is SchemaType.AVRO:
        return parse(schema.data)
    return parse_json(schema.data) if schema.type is SchemaType.JSON else None


def _check(schema: Schema) -> None:
    definition = definition_of(schema)
    if definition is not None:
        node = definition.node
        if schema.type is SchemaType.AVRO and node is not None and node.kind == "union":
            raise InvalidSchemaError("an AVRO schema is no union")
    elif schema.type in _CLIENTS:
        raise InvalidSchemaError(f"{schema.type.name} is for clients, not for topics")
    elif schema.type not in STORED and schema.data not in _EMPTY:
        raise InvalidSchemaError(f"{schema.type.name} has no definition")


def _size(schema: Schema) -> int:
    texts = (schema.name, *schema.properties.keys(), *schema.properties.values())
    try:
        return sum(len(text.encode()) for text in texts) + EACH * len(schema.properties)
    except UnicodeEncodeError as error:
        raise InvalidSchemaError("a name or property with half a character") from error
