"""`/admin/v2/schemas`: the schemas of topics, all versions since they were deleted last."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from struct import Struct
from typing import Any, Final

import orjson
import structlog
from flask import Blueprint, Response

from router import schemas
from router.backends.embedded.administration import Administration
from router.errors import (
    IncompatibleSchemaError,
    InvalidSchemaError,
    NamespaceNotFoundError,
    RouterError,
    SchemaNotFoundError,
    TopicNotFoundError,
)
from router.model import Schema, SchemaType, TopicName
from router.web.access import Right
from router.web.openapi.description import (
    JSON,
    OBJECT,
    WHOLE,
    Reply,
    answers_json,
    array,
    operation,
    shape,
)
from router.web.parameters import number
from router.web.pulsar_admin import shapes
from router.web.pulsar_admin.door import Door
from router.web.pulsar_admin.paths import SCHEMA, answer, given_object, texts
from router.web.pulsar_admin.policies import Defaults, tell_strategy
from router.wire.pulsar import pulsar_pb2 as pb

_SIZE: Final = Struct(">i")
_STRUCTURED: Final = {
    SchemaType.JSON,
    SchemaType.AVRO,
    SchemaType.PROTOBUF,
    SchemaType.PROTOBUF_NATIVE,
    SchemaType.KEY_VALUE,
}

_log = structlog.get_logger(__name__)


class SchemaViews:
    """The views of schemas."""

    def __init__(self, door: Door, administration: Administration, defaults: Defaults) -> None:
        self._door = door
        self._administration = administration
        self._defaults = defaults

    def add(self, routes: Blueprint) -> None:
        """Add the routes."""
        routes.get(f"{SCHEMA}/schema")(self.newest_schema)
        routes.get(f"{SCHEMA}/schema/<version>")(self.schema)
        routes.get(f"{SCHEMA}/schemas")(self.all_schemas)
        routes.post(f"{SCHEMA}/schema")(self.post_schema)
        routes.delete(f"{SCHEMA}/schema")(self.delete_schema)
        routes.post(f"{SCHEMA}/compatibility")(self.compatibility)
        routes.post(f"{SCHEMA}/version")(self.version_of)

    @operation(
        answers=answers_json(shapes.SCHEMA, "The schema."),
        fails=(*shapes.LOOKING, "schema-not-found", "invalid-schema"),
    )
    def newest_schema(self, **path: str) -> Response:
        """Answer the newest version."""
        found = list(self._versions(self._enter(Right.VIEW, path)))
        if not found:
            raise SchemaNotFoundError("Schema not found")
        return answer(_told(found[-1]))

    @operation(
        answers=answers_json(shapes.SCHEMA, "The schema."),
        fails=(*shapes.LOOKING, "schema-not-found", "invalid-schema"),
    )
    def schema(self, version: str, **path: str) -> Response:
        """Answer one version."""
        wanted = number("version", version)
        for found in self._versions(self._enter(Right.VIEW, path), wanted):
            if found.version == wanted:
                return answer(_told(found))
        raise SchemaNotFoundError("Schema not found")

    @operation(
        answers=answers_json(shape({"getSchemaResponses": array(shapes.SCHEMA)}), "The schemas."),
        fails=(*shapes.LOOKING, "schema-not-found", "invalid-schema"),
    )
    def all_schemas(self, **path: str) -> Response:
        """Answer all versions."""
        name = self._enter(Right.VIEW, path)
        return answer({"getSchemaResponses": [_told(found) for found in self._versions(name)]})

    @operation(
        body=shapes.NEW_SCHEMA,
        answers=answers_json(shape({"version": shape({"version": WHOLE})}), "The version."),
        fails=(*(*shapes.LOOKING, "schema-not-found", "invalid-schema"), "incompatible-schema"),
    )
    def post_schema(self, **path: str) -> Response:
        """Give a topic a schema, unless it has it already; answer its version."""
        name = self._enter(Right.MANAGE, path)
        put = pb.PutSchema(topic=str(name), schema=_schema(name, given_object()))
        version = self._administration.ask(pb.CommandAdmin(put_schema=put)).schemas[0].version
        _log.info("schema-posted", topic=str(name), version=version)
        return answer({"version": {"version": version}})

    @operation(
        answers=answers_json(shape({"version": WHOLE}), "The version."),
        fails=(*shapes.LOOKING, "schema-not-found", "invalid-schema"),
    )
    def delete_schema(self, **path: str) -> Response:
        """Let a topic have no schema from now on; answer the version that says so."""
        name = self._enter(Right.MANAGE, path)
        command = pb.CommandAdmin(delete_schema=pb.TopicRef(topic=str(name)))
        version = self._administration.ask(command, again=False).schemas[0].version
        _log.info("schemas-deleted", topic=str(name), version=version)
        return answer({"version": version})

    @operation(
        body=shapes.NEW_SCHEMA,
        answers={202: Reply("Whether it could.", {JSON: OBJECT})},
        fails=(*shapes.LOOKING, "schema-not-found", "invalid-schema"),
    )
    def compatibility(self, **path: str) -> Response:
        """Answer whether a topic could have a schema."""
        name = self._enter(Right.VIEW, path)
        asked = _schema(name, given_object())
        put = pb.PutSchema(topic=str(name), schema=asked, try_only=True)
        compatible = True
        try:
            self._administration.ask(pb.CommandAdmin(put_schema=put))
        except IncompatibleSchemaError:
            compatible = False
        command = pb.CommandAdmin(get_namespace=f"{name.tenant}/{name.namespace}")
        own = tell_strategy(self._administration.ask(command).namespaces[0].policies)
        strategy = self._defaults.strategy if own == "UNDEFINED" else own
        told = {"compatibility": compatible, "schemaCompatibilityStrategy": strategy}
        return answer(told, 202)

    @operation(
        body=shapes.NEW_SCHEMA,
        answers=answers_json(shape({"version": {"type": "integer"}}), "The version."),
        fails=(*shapes.LOOKING, "schema-not-found", "invalid-schema"),
    )
    def version_of(self, **path: str) -> Response:
        """Answer the version of an equal schema, -1: there is none."""
        name = self._enter(Right.VIEW, path)
        asked = _schema(name, given_object())
        for found in self._versions(name):
            if _essence(found.schema) == _essence(asked):
                return answer({"version": found.version})
        return answer({"version": -1})

    def _enter(self, right: Right, path: Mapping[str, str]) -> TopicName:
        return self._door.topic(right, {"domain": "persistent", **path}).topic

    def _versions(self, topic: TopicName, first: int = 0) -> Iterator[Any]:
        asked, more = pb.ListSchemas(topic=str(topic), first=first), True
        while more:
            try:
                page = self._administration.ask(pb.CommandAdmin(list_schemas=asked))
            except NamespaceNotFoundError:
                raise
            except TopicNotFoundError:
                raise SchemaNotFoundError("Schema not found") from None
            yield from page.schemas
            if more := page.more:
                asked.first = page.schemas[-1].version + 1


def _essence(schema: Any) -> tuple[int, bytes, dict[str, str]]:
    properties = {pair.key: pair.value for pair in schema.properties}
    return schema.type, schema.schema_data, properties


def _schema(topic: TopicName, body: Mapping[str, Any]) -> pb.Schema:
    """Return the schema of a PostSchemaPayload; raise InvalidSchemaError, BadRequestError."""
    kind, text = body.get("type"), body.get("schema") or ""
    if not isinstance(kind, str) or not isinstance(text, str):
        raise InvalidSchemaError("a schema needs a type and its definition, as texts")
    of = schemas.type_of(kind)
    data = _pair_data(text) if of is SchemaType.KEY_VALUE else text.encode()
    properties = texts(body.get("properties") or {}, "properties")
    return pb.Schema(
        name=topic.local,
        schema_data=data,
        type=pb.Schema.Type.Name(of.value),
        properties=[pb.KeyValue(key=key, value=value) for key, value in properties.items()],
    )


def _told(found: Any) -> dict[str, Any]:
    """Return a GetSchemaResponse."""
    schema, kind = found.schema, SchemaType(found.schema.type)
    data = schema.schema_data
    return {
        "version": found.version,
        "type": kind.name,
        "timestamp": found.created_ms,
        "data": _pair_text(schema)
        if kind is SchemaType.KEY_VALUE
        else data.decode(errors="replace"),
        "properties": {pair.key: pair.value for pair in schema.properties},
    }


def _pair_data(text: str) -> bytes:
    """Return the definition of a pair as Pulsar lays it out, from its JSON."""
    try:
        pair = orjson.loads(text)
        halves = [pair["key"], pair["value"]]
    except (orjson.JSONDecodeError, KeyError, TypeError) as error:
        raise InvalidSchemaError("a KEY_VALUE schema is an object with key and value") from error
    parts = [half.encode() if isinstance(half, str) else orjson.dumps(half) for half in halves]
    return b"".join(_SIZE.pack(len(part)) + part for part in parts)


def _pair_text(schema: Any) -> str:
    """Return the JSON of a pair's definition: a half without one is an empty text."""
    properties = {pair.key: pair.value for pair in schema.properties}
    whole = schemas.halves(Schema(SchemaType.KEY_VALUE, schema.schema_data, properties))
    told: dict[str, Any] = {}
    for name, half in (("key", whole.key), ("value", whole.value)):
        told[name] = ""
        if half.type in _STRUCTURED:
            try:
                told[name] = orjson.loads(half.data)
            except orjson.JSONDecodeError as error:
                raise RouterError(f"the definition of the {name} is no JSON") from error
    return orjson.dumps(told).decode()
