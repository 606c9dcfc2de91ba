"""A version of a topic's schema as the registry keeps it, and as the protocol says it.

A record is the time in eight bytes, in milliseconds since 1970, and the schema as a message of the
Pulsar protocol; without one it is the mark that schemas were deleted.
"""

from __future__ import annotations

from typing import Final, NamedTuple

from router.model import Schema, SchemaType
from router.wire.pulsar import pulsar_pb2 as pb

KIND: Final = "schema"
_TIME: Final = 8


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
    return made if version.schema is None else made + to_wire(version.schema).SerializeToString()


def decoded(value: bytes) -> Version:
    """Return the version of a record."""
    made = int.from_bytes(value[:_TIME])
    if is_mark(value):
        return Version(None, made)
    return Version(from_wire(pb.Schema.FromString(value[_TIME:])), made)


def is_mark(value: bytes) -> bool:
    """Tell whether a record says that schemas were deleted."""
    return len(value) == _TIME


def from_wire(found: pb.Schema) -> Schema:
    """Return a schema of the protocol in our words."""
    return Schema(
        SchemaType(found.type),
        found.schema_data,
        {pair.key: pair.value for pair in found.properties},
        found.name,
    )


def to_wire(schema: Schema) -> pb.Schema:
    """Return a schema in the protocol's words."""
    return pb.Schema(
        name=schema.name,
        schema_data=schema.data,
        type=pb.Schema.Type.Name(schema.type.value),
        properties=[pb.KeyValue(key=k, value=v) for k, v in schema.properties.items()],
    )
