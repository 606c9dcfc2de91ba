"""KEY_VALUE schemas: two schemas in one, and two values in one payload.

Both are laid out alike: the length of the key's part in four bytes, big-endian, the key's part, and
the same for the value; -1 stands for nothing. What the parts are stands in the schema's properties.
"""

from __future__ import annotations

from collections.abc import Mapping
from struct import Struct
from typing import Final, NamedTuple

import orjson

from router.errors import InvalidSchemaError
from router.errors.quoting import quoted
from router.model import NO_PROPERTIES, Schema, SchemaType

ENCODING: Final = "kv.encoding.type"
SEPARATED: Final = "SEPARATED"
INLINE: Final = "INLINE"

_LENGTH: Final = Struct(">i")
_JAVA: Final = {"BYTES": SchemaType.NONE, "AUTO": SchemaType.AUTO_CONSUME}


class Pair(NamedTuple):
    """The schemas of key and value; `separated`: the key's bytes are the key of the message."""

    key: Schema
    value: Schema
    separated: bool


def type_of(name: str) -> SchemaType:
    """Return the type of this name, as Java's clients write it; raise InvalidSchemaError."""
    upper = name.upper()
    found = _JAVA.get(upper, SchemaType.__members__.get(upper))
    if found is None:
        raise InvalidSchemaError(f"there is no schema type {quoted(name, 40)}")
    return found


def halves(schema: Schema) -> Pair:
    """Return the two schemas of a KEY_VALUE schema; raise InvalidSchemaError."""
    encoding = schema.properties.get(ENCODING) or INLINE
    if encoding not in (INLINE, SEPARATED):
        raise InvalidSchemaError(
            f"{ENCODING} is {INLINE} or {SEPARATED}, not {quoted(encoding, 40)}"
        )
    try:
        parts = split(schema.data)
    except ValueError as error:
        raise InvalidSchemaError(f"a KEY_VALUE schema: {error}") from error
    key, value = (
        Schema(
            type_of(schema.properties.get(f"{half}.schema.type") or "BYTES"),
            data or b"",
            _inner(schema.properties.get(f"{half}.schema.properties"), half),
            schema.properties.get(f"{half}.schema.name") or "",
        )
        for half, data in zip(("key", "value"), parts, strict=True)
    )
    if SchemaType.KEY_VALUE in (key.type, value.type):
        raise InvalidSchemaError("a KEY_VALUE schema in a KEY_VALUE schema")
    return Pair(key, value, encoding == SEPARATED)


def pair_schema(key: Schema, value: Schema, *, separated: bool) -> Schema:
    """Return the KEY_VALUE schema of two schemas."""
    properties = {ENCODING: SEPARATED if separated else INLINE}
    for half, schema in (("key", key), ("value", value)):
        kind = "BYTES" if schema.type is SchemaType.NONE else schema.type.name
        properties[f"{half}.schema.name"] = schema.name
        properties[f"{half}.schema.type"] = kind
        properties[f"{half}.schema.properties"] = orjson.dumps(dict(schema.properties)).decode()
    return Schema(SchemaType.KEY_VALUE, join(key.data, value.data), properties, "KeyValue")


def join(key: bytes | None, value: bytes | None) -> bytes:
    """Return two parts in one."""
    return b"".join(
        _LENGTH.pack(-1 if part is None else len(part)) + (part or b"") for part in (key, value)
    )


def split(data: bytes) -> tuple[bytes | None, bytes | None]:
    """Return the two parts; raise ValueError."""
    key, at = _part(data, 0)
    value, at = _part(data, at)
    # The C++ client leaves room for bytes that it does not write where a part is empty.
    if any(data[at:]):
        raise ValueError(f"{len(data) - at} bytes behind the parts")
    return key, value


def _part(data: bytes, at: int) -> tuple[bytes | None, int]:
    if at + _LENGTH.size > len(data):
        raise ValueError("there are not two parts")
    (length,) = _LENGTH.unpack_from(data, at)
    at += _LENGTH.size
    if length < 0:
        return None, at
    if at + length > len(data):
        raise ValueError(f"a part of {length} bytes, of which {len(data) - at} are there")
    return data[at : at + length], at + length


def _inner(text: str | None, half: str) -> Mapping[str, str]:
    if not text:
        return NO_PROPERTIES
    try:
        found = orjson.loads(text)
    except orjson.JSONDecodeError as error:
        raise InvalidSchemaError(f"{half}.schema.properties is not JSON") from error
    if found is None:
        return NO_PROPERTIES
    if not isinstance(found, dict) or not all(isinstance(v, str) for v in found.values()):
        raise InvalidSchemaError(f"{half}.schema.properties is not an object of texts")
    return found
