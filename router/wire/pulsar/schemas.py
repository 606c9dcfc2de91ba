"""Schemas of the Pulsar protocol, and those of the model."""

from __future__ import annotations

from router.model import Schema, SchemaType
from router.wire.pulsar import pulsar_pb2 as pb


def from_wire(found: pb.Schema) -> Schema:
    """Return the schema that a message of the protocol describes."""
    return Schema(
        SchemaType(found.type),
        found.schema_data,
        {pair.key: pair.value for pair in found.properties},
        found.name,
    )


def to_wire(schema: Schema) -> pb.Schema:
    """Return the message of the protocol that describes a schema."""
    return pb.Schema(
        name=schema.name,
        schema_data=schema.data,
        type=pb.Schema.Type.Name(schema.type.value),
        properties=[pb.KeyValue(key=k, value=v) for k, v in schema.properties.items()],
    )
