"""A version of a topic's schema as the registry keeps it.

A record is the time in eight bytes, in milliseconds since 1970; then, unless it is the mark that
schemas were deleted, the size of a JSON array in four bytes, this array of type, name and
properties, and the definition.
"""

from __future__ import annotations

from typing import Final, NamedTuple

import orjson

from router.model import Schema, SchemaType

KIND: Final = "schema"
_TIME: Final = 8
_SIZE: Final = 4


class Version(NamedTuple):
    """One version; `schema` is None where schemas were deleted. Milliseconds since 1970."""

    schema: Schema | None
    created_ms: int


def record_name(topic: int, number: int) -> str:
    """Return the name of a version's record, by the id of the topic."""
    return f"{topic}/{number:06}"


def encoded(version: Version) -> bytes:
    """Return the record of a version."""
    made = version.created_ms.to_bytes(_TIME)
    schema = version.schema
    if schema is None:
        return made
    head = orjson.dumps([int(schema.type), schema.name, dict(schema.properties)])
    return made + len(head).to_bytes(_SIZE) + head + schema.data


def decoded(value: bytes) -> Version:
    """Return the version of a record."""
    made = int.from_bytes(value[:_TIME])
    if is_mark(value):
        return Version(None, made)
    head = _TIME + _SIZE
    end = head + int.from_bytes(value[_TIME:head])
    kind, name, properties = orjson.loads(value[head:end])
    return Version(Schema(SchemaType(kind), value[end:], properties, name), made)


def is_mark(value: bytes) -> bool:
    """Tell whether a record says that schemas were deleted."""
    return len(value) == _TIME
