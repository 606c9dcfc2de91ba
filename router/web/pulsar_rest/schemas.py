"""The schema of a request: from what it says to a schema of the topic and a version of it.

A schema is identified by its version, by a type alone where the type says it all (STRING, INT32
and the like), or by *schema information*: an object, or its JSON text, with `type`, `schema` (the
definition: base64 as Apache Pulsar writes it, the JSON itself, or its text), `properties` and
`name`. With `schema_type`, `value_schema` may be the bare definition.
"""

from __future__ import annotations

import base64
from binascii import Error as Base64Error
from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, Final

import orjson

from router.errors import BadReadOptionError, InvalidSchemaError, RouterError, SchemaNotFoundError
from router.errors.quoting import failure_text
from router.model import Schema, SchemaType, TopicName
from router.schemas import check, pair_schema, type_of
from router.services.topic_schemas import TopicSchemas
from router.web.pulsar_rest.dialects import RequestedSchema, RestDialect
from router.web.pulsar_rest.errors import (
    BAD_KEY_SCHEMA,
    BAD_VALUE_SCHEMA,
    PAIR_INCOMPLETE,
    SCHEMA_MISSING,
    RestRefusedError,
)

TEXT: Final = Schema(SchemaType.STRING)
NAME: Final = "RestProducer"
_DEFINED: Final = frozenset(
    {SchemaType.JSON, SchemaType.AVRO, SchemaType.PROTOBUF, SchemaType.PROTOBUF_NATIVE}
)
_WORDS: Final = {"KEYVALUE": SchemaType.KEY_VALUE}
VERSION_BYTES: Final = 8
MAX_CACHED_TYPES: Final = 64


@dataclass(eq=False, slots=True)
class PublishSchema:
    """What a request's messages are written by; `schema` None: by none, values are texts."""

    schema: Schema | None
    version: bytes = b""

    def number(self) -> int | None:
        """Return the version as requests and answers have it, None: there is none."""
        return number_of_version(self.version)


def choose(
    schemas: TopicSchemas, topic: TopicName, requested: RequestedSchema, dialect: RestDialect
) -> PublishSchema:
    """Return what a request's messages are written by, and register a schema that is new.

    Raises RefusedError, TopicNotFoundError, and what the store raises.
    """
    if requested.version is not None:
        return _known(schemas, topic, requested)
    if not requested.given() and dialect is RestDialect.PIP:
        return _of_topic(schemas.newest(topic))
    schema = described(requested)
    if schema is None:
        return PublishSchema(None)
    if schema.type is SchemaType.NONE:
        return PublishSchema(schema)
    try:
        return PublishSchema(schema, schemas.put(topic, schema))
    except InvalidSchemaError as error:
        raise RestRefusedError(BAD_VALUE_SCHEMA, str(error)) from error


def _of_topic(newest: Schema | None) -> PublishSchema:
    """Return what a request that names no schema is written by: what its topic has, else texts."""
    if newest is None or newest.type is SchemaType.NONE:
        return PublishSchema(None)
    return PublishSchema(newest, newest.version)


def described(requested: RequestedSchema) -> Schema | None:
    """Return the schema that a request describes, texts if it describes none.

    Raises RefusedError.
    """
    if not requested.given():
        return TEXT
    if requested.key is None and requested.value is None and requested.type is not None:
        return _of_type(requested.type)
    return read(requested)


@lru_cache(maxsize=MAX_CACHED_TYPES)
def _of_type(kind: str) -> Schema | None:
    return read(RequestedSchema(type=kind))


def read(requested: RequestedSchema) -> Schema | None:
    """Return the schema that a request describes, None: it says that there is none.

    Raises RefusedError.
    """
    kind = _kind(requested.type)
    if kind is SchemaType.KEY_VALUE or (kind is None and requested.key is not None):
        return _pair(requested)
    if requested.key is not None:
        raise RestRefusedError(
            BAD_KEY_SCHEMA, f"a schema for keys needs the type KEY_VALUE, not {requested.type}"
        )
    if kind is SchemaType.NONE and requested.value is None:
        return None if (requested.type or "").upper() == "NONE" else Schema(SchemaType.NONE)
    if requested.value is None:
        if kind is None or kind in _DEFINED:
            raise RestRefusedError(
                SCHEMA_MISSING, f"value_schema is missing; {requested.type} needs it"
            )
        return _checked(Schema(kind, name=NAME), BAD_VALUE_SCHEMA)
    return _checked(_information(requested.value, kind, BAD_VALUE_SCHEMA), BAD_VALUE_SCHEMA)


def named(text: str) -> Schema | None:
    """Return the schema that a query names by its type alone; nothing is registered.

    NONE stands for bytes, None for no schema. Raises BadReadOptionError.
    """
    try:
        return read(RequestedSchema(type=text))
    except RestRefusedError as error:
        raise BadReadOptionError(
            f"schema_type: expected bytes, or a type that needs no definition ({error})."
        ) from error


def number_of_version(version: bytes) -> int | None:
    """Return a version as a number, None: there is none, or none that a topic's schema has."""
    return int.from_bytes(version) if len(version) == VERSION_BYTES else None


def version_of(number: int) -> bytes:
    """Return the version that a number stands for, as stores have it."""
    return number.to_bytes(VERSION_BYTES)


def _known(schemas: TopicSchemas, topic: TopicName, requested: RequestedSchema) -> PublishSchema:
    version = version_of(requested.version or 0)
    try:
        schema = schemas.get(topic, version)
    except SchemaNotFoundError as error:
        raise RestRefusedError(
            BAD_VALUE_SCHEMA, f"the topic has no schema of version {requested.version}"
        ) from error
    kind = _kind(requested.type)
    if kind is not None and kind is not schema.type:
        raise RestRefusedError(
            BAD_VALUE_SCHEMA,
            f"version {requested.version} is a {schema.type.name} schema, not {requested.type}",
        )
    return PublishSchema(schema, version)


def _kind(name: str | None) -> SchemaType | None:
    return None if name is None else _type(name, BAD_VALUE_SCHEMA, "schema_type: ")


def _pair(requested: RequestedSchema) -> Schema:
    for name, found in (("key_schema", requested.key), ("value_schema", requested.value)):
        if found is None:
            raise RestRefusedError(PAIR_INCOMPLETE, f"a KEY_VALUE schema needs {name}")
    key = _checked(_information(requested.key, None, BAD_KEY_SCHEMA), BAD_KEY_SCHEMA)
    value = _checked(_information(requested.value, None, BAD_VALUE_SCHEMA), BAD_VALUE_SCHEMA)
    # Separated, as Apache Pulsar's own REST calls have it: the key is the message's, and routes it.
    return _checked(pair_schema(key, value, separated=True), BAD_VALUE_SCHEMA)


def _checked(schema: Schema, number: int) -> Schema:
    try:
        check(schema)
    except RouterError as error:
        raise RestRefusedError(number, str(error)) from error
    return schema


def _information(given: object, kind: SchemaType | None, number: int) -> Schema:
    """Read schema information, or the bare definition of a schema of this type."""
    if isinstance(given, str):
        given = _loaded(given, number)
    if isinstance(given, str):
        return _named(given, kind, number)
    if isinstance(given, dict) and ("schema" in given or kind is None or _names_type(given, kind)):
        return _described(given, kind, number)
    if kind is not None and isinstance(given, dict | list):
        return Schema(kind, _dumped(given, number), name=NAME)
    raise RestRefusedError(
        number, "a schema is an object with type and schema, or the JSON text of one"
    )


def _dumped(given: object, number: int) -> bytes:
    try:
        return orjson.dumps(given)
    except orjson.JSONEncodeError as error:
        raise RestRefusedError(number, f"a schema that is too deep: {error}") from error


def _loaded(text: str, number: int) -> object:
    """Return what a text holds: JSON, or the name of a type."""
    if text.isidentifier():
        return text
    try:
        found: object = orjson.loads(text)
    except orjson.JSONDecodeError as error:
        raise RestRefusedError(number, f"a schema that is no JSON: {error}") from error
    return found


def _named(name: str, kind: SchemaType | None, number: int) -> Schema:
    found = _type(name, number)
    if kind in {None, found} and found not in _DEFINED:
        return Schema(found, name=NAME)
    # A definition may be the name of one of Avro's types.
    if kind in _DEFINED:
        return Schema(kind, _dumped(name, number), name=NAME)
    raise RestRefusedError(number, f"{name} is not all that is to be said of a schema")


def _names_type(given: Mapping[str, Any], kind: SchemaType) -> bool:
    """Return whether the type that an object names is this one, rather than one of Avro's."""
    named = given.get("type")
    return isinstance(named, str) and named.upper() == kind.name


def _described(given: Mapping[str, Any], kind: SchemaType | None, number: int) -> Schema:
    name, properties = given.get("name"), given.get("properties") or {}
    named = given.get("type")
    found = kind if named is None and kind is not None else _type(named, number)
    if kind is not None and found is not kind:
        raise RestRefusedError(
            number, f"schema_type is {kind.name}, and the schema's type {found.name}"
        )
    if not isinstance(properties, dict) or not all(isinstance(v, str) for v in properties.values()):
        raise RestRefusedError(number, "properties of a schema: expected an object of texts")
    if name is not None and not isinstance(name, str):
        raise RestRefusedError(number, "name of a schema: expected a text")
    has_definition = found in _DEFINED or found is SchemaType.KEY_VALUE
    data = _definition(given.get("schema"), number) if has_definition else b""
    return Schema(found, data, properties, name or NAME)


def _type(name: object, number: int, what: str = "") -> SchemaType:
    if not isinstance(name, str):
        raise RestRefusedError(number, "type of a schema: expected a text")
    upper = name.upper()
    try:
        return _WORDS.get(upper) or type_of(upper)
    except InvalidSchemaError as error:
        raise RestRefusedError(number, f"{what}{error}") from error


def _definition(given: object, number: int) -> bytes:
    """Return a definition: JSON as it is, its text, or base64 of either."""
    if given is None:
        return b""
    if isinstance(given, dict | list):
        return _dumped(given, number)
    if not isinstance(given, str):
        raise RestRefusedError(number, "schema of a schema: expected base64, JSON or its text")
    if given.lstrip()[:1] in {"{", "[", '"'}:
        return given.encode()
    try:
        return base64.b64decode(given, validate=True)
    except (Base64Error, ValueError) as error:
        raise RestRefusedError(
            number, f"schema of a schema: neither JSON nor base64: {failure_text(error)}"
        ) from error
