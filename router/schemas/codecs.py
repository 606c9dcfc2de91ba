"""Values of JSON to payloads and back, by the schema that they were, or are to be, written by."""

from __future__ import annotations

from typing import Any

import orjson

from router.errors import InvalidSchemaError, PayloadMismatchError
from router.model import Schema, SchemaType
from router.schemas import avro_binary, plain_json, primitives
from router.schemas.definitions import SchemaDefinition
from router.schemas.kinds import definition_of
from router.schemas.pairs import halves, join, split
from router.schemas.walking import MAX_DEPTH


def encode(schema: Schema, value: Any) -> bytes:
    """Return the payload of a value; raise PayloadMismatchError, InvalidSchemaError.

    NONE, and types whose definition is only stored: base64. AVRO: Avro's JSON encoding, where a
    member of a union may also stand plainly, and fields with a default may be left out. JSON: what
    the definition describes. KEY_VALUE, inline: an object with `key` and `value`. See `primitives`
    for the others.
    """
    if schema.type is SchemaType.KEY_VALUE:
        key, payload = encode_pair(schema, *_two(value))
        if key is not None:
            raise InvalidSchemaError("the key belongs into the message's key")
        return payload
    definition = definition_of(schema)
    if definition is None:
        return primitives.write(schema.type, value)
    if schema.type is SchemaType.AVRO and definition.node is not None:
        return avro_binary.write(definition.node, value)
    return _encode_json(definition, value)


def decode(schema: Schema, payload: bytes) -> Any:
    """Return the value of a payload; raise PayloadMismatchError, InvalidSchemaError.

    What `encode` takes; of JSON it is enough that it is JSON, for clients write it in many ways.
    """
    if schema.type is SchemaType.KEY_VALUE:
        key, value = decode_pair(schema, None, payload)
        return {"key": key, "value": value}
    definition = definition_of(schema)
    if definition is None:
        return primitives.read(schema.type, payload)
    if schema.type is SchemaType.AVRO and definition.node is not None:
        return avro_binary.read(definition.node, payload)
    return _decode_json(payload)


def encode_pair(schema: Schema, key: Any, value: Any) -> tuple[bytes | None, bytes]:
    """Return the key of a message, None: it is in the payload, and the payload of a KEY_VALUE.

    None of either stands for no key, or no value. Raises as `encode` does.
    """
    pair = halves(schema)
    parts = tuple(
        None if part is None else encode(half, part)
        for half, part in ((pair.key, key), (pair.value, value))
    )
    if pair.separated:
        return parts[0], parts[1] or b""
    return None, join(*parts)


def decode_pair(schema: Schema, key: bytes | None, payload: bytes) -> tuple[Any, Any]:
    """Return key and value of a message; raise as `decode` does.

    `key`: the message's, which counts where the schema has keys separated.
    """
    pair = halves(schema)
    first: bytes | None = key
    second: bytes | None = payload
    if not pair.separated:
        try:
            first, second = split(payload)
        except ValueError as error:
            raise PayloadMismatchError(f"a KEY_VALUE payload: {error}") from error
    return (
        None if first is None else decode(pair.key, first),
        None if second is None else decode(pair.value, second),
    )


def _two(value: Any) -> tuple[Any, Any]:
    if not isinstance(value, dict) or not value.keys() <= {"key", "value"}:
        raise PayloadMismatchError("a KEY_VALUE is an object with key and value")
    return value.get("key"), value.get("value")


def _encode_json(definition: SchemaDefinition, value: Any) -> bytes:
    plain_json.check_bounded(value)
    if definition.node is not None:
        plain_json.check_fits(definition.node, value)
    try:
        return orjson.dumps(value)
    except TypeError as error:  # half a character, or a key that is no text
        raise PayloadMismatchError(f"no JSON: {error}") from error


def _decode_json(payload: bytes) -> Any:
    # Nothing can be deeper than it has brackets; only then is it worth a walk.
    deep = payload.count(b"[") + payload.count(b"{") > MAX_DEPTH
    try:
        value = orjson.loads(payload)
    except orjson.JSONDecodeError as error:
        raise PayloadMismatchError(f"not JSON: {error}") from error
    if deep:
        plain_json.check_bounded(value)
    return value
