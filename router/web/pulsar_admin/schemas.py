"""`/admin/v2/schemas`: the schemas of topics, all versions since they were deleted last."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from struct import Struct
from typing import Any, Final

import orjson
import structlog
from flask import Response

from router import schemas
from router.errors import (
    IncompatibleSchemaError,
    InvalidSchemaError,
    NamespaceNotFoundError,
    RouterError,
    SchemaNotFoundError,
    TopicNotFoundError,
)
from router.model import PERSISTENT, Schema, SchemaType, TopicName
from router.model.administration import SchemaVersion
from router.web.access import Right
from router.web.forms import answer
from router.web.openapi import description as api
from router.web.pulsar_admin import shapes
from router.web.pulsar_admin.context import ResourceViews
from router.web.pulsar_admin.shapes import reads
from router.web.pulsar_admin.views import SCHEMA, body_object, texts
from router.web.requests import number

_SIZE: Final = Struct(">i")
_FAILS: Final = (*shapes.READ_FAILS, "schema-not-found", "invalid-schema")
_STRUCTURED: Final = {
    SchemaType.JSON,
    SchemaType.AVRO,
    SchemaType.PROTOBUF,
    SchemaType.PROTOBUF_NATIVE,
    SchemaType.KEY_VALUE,
}

_log = structlog.get_logger(__name__)


class SchemaViews(ResourceViews):
    """The views of schemas."""

    @reads(f"{SCHEMA}/schema", shapes.SCHEMA, "The schema.", fails=_FAILS)
    def newest_schema(self, **path: str) -> Response:
        """Answer the newest version."""
        found = self._versions(self._schema_topic(Right.VIEW, path))
        if not found:
            raise SchemaNotFoundError("Schema not found")
        return answer(_version_json(found[-1]))

    @reads(f"{SCHEMA}/schema/<version>", shapes.SCHEMA, "The schema.", fails=_FAILS)
    def schema(self, version: str, **path: str) -> Response:
        """Answer one version."""
        first = number("version", version)
        for found in self._versions(self._schema_topic(Right.VIEW, path), first)[:1]:
            if found.version == first:
                return answer(_version_json(found))
        raise SchemaNotFoundError("Schema not found")

    @reads(
        f"{SCHEMA}/schemas",
        api.shape({"getSchemaResponses": [shapes.SCHEMA]}),
        "The schemas.",
        fails=_FAILS,
    )
    def all_schemas(self, **path: str) -> Response:
        """Answer all versions."""
        found = self._versions(self._schema_topic(Right.VIEW, path))
        return answer({"getSchemaResponses": list(map(_version_json, found))})

    @api.operation(
        f"POST {SCHEMA}/schema",
        body=shapes.NEW_SCHEMA,
        answers=api.answers_json(
            api.shape({"version": api.shape({"version": int})}), "The version."
        ),
        fails=(*_FAILS, "incompatible-schema"),
    )
    def post_schema(self, **path: str) -> Response:
        """Give a topic a schema, unless it has it already; answer its version."""
        name = self._schema_topic(Right.MANAGE, path)
        version = self._administration.put_schema(name, _schema(name, body_object()))
        _log.info("schema-posted", topic=str(name), version=version)
        return answer({"version": {"version": version}})

    @api.operation(
        f"DELETE {SCHEMA}/schema",
        answers=api.answers_json(api.shape({"version": int}), "The version."),
        fails=_FAILS,
    )
    def delete_schema(self, **path: str) -> Response:
        """Let a topic have no schema from now on; answer the version that says so."""
        name = self._schema_topic(Right.MANAGE, path)
        version = self._administration.delete_schema(name)
        _log.info("schemas-deleted", topic=str(name), version=version)
        return answer({"version": version})

    @api.operation(
        f"POST {SCHEMA}/compatibility",
        body=shapes.NEW_SCHEMA,
        answers={202: api.ReplyDescription("Whether it could.", {api.JSON: dict})},
        fails=_FAILS,
    )
    def compatibility(self, **path: str) -> Response:
        """Answer whether a topic could have a schema."""
        name = self._schema_topic(Right.VIEW, path)
        compatible = True
        try:
            self._administration.put_schema(name, _schema(name, body_object()), try_only=True)
        except IncompatibleSchemaError:
            compatible = False
        namespace = self._administration.namespace(f"{name.tenant}/{name.namespace}")
        own = namespace.policies.schema_compatibility
        fields = {
            "compatibility": compatible,
            "schemaCompatibilityStrategy": own or self._context.defaults.strategy,
        }
        return answer(fields, 202)

    @api.operation(
        f"POST {SCHEMA}/version",
        body=shapes.NEW_SCHEMA,
        answers=api.answers_json(api.shape({"version": {"type": "integer"}}), "The version."),
        fails=_FAILS,
    )
    def version_of(self, **path: str) -> Response:
        """Answer the version of an equal schema, -1: there is none."""
        name = self._schema_topic(Right.VIEW, path)
        equal = _schema(name, body_object())
        for found in self._versions(name):
            if replace(found.schema, name=equal.name) == equal:
                return answer({"version": found.version})
        return answer({"version": -1})

    def _schema_topic(self, right: Right, path: Mapping[str, str]) -> TopicName:
        return self._topic(right, {"domain": PERSISTENT, **path})

    def _versions(self, topic: TopicName, first: int = 0) -> list[SchemaVersion]:
        try:
            return list(self._administration.schemas(topic, first))
        except NamespaceNotFoundError:
            raise
        except TopicNotFoundError:
            raise SchemaNotFoundError("Schema not found") from None


def _schema(topic: TopicName, body: Mapping[str, Any]) -> Schema:
    """Return the schema of a PostSchemaPayload; raise InvalidSchemaError, BadRequestError."""
    kind, text = body.get("type"), body.get("schema") or ""
    if not isinstance(kind, str) or not isinstance(text, str):
        raise InvalidSchemaError("a schema needs a type and its definition, as texts")
    of = schemas.type_of(kind)
    data = _pair_data(text) if of is SchemaType.KEY_VALUE else text.encode()
    return Schema(of, data, texts(body.get("properties") or {}, "properties"), topic.local)


def _version_json(found: SchemaVersion) -> dict[str, Any]:
    """Return a GetSchemaResponse."""
    schema = found.schema
    pair = schema.type is SchemaType.KEY_VALUE
    return {
        "version": found.version,
        "type": schema.type.name,
        "timestamp": found.created_ms,
        "data": _pair_text(schema) if pair else schema.data.decode(errors="replace"),
        "properties": schema.properties,
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


def _pair_text(schema: Schema) -> str:
    """Return the JSON of a pair's definition: a half without one is an empty text."""
    whole = schemas.halves(schema)
    fields: dict[str, Any] = {}
    for name, half in (("key", whole.key), ("value", whole.value)):
        fields[name] = ""
        if half.type in _STRUCTURED:
            try:
                fields[name] = orjson.loads(half.data)
            except orjson.JSONDecodeError as error:
                raise RouterError(f"the definition of the {name} is no JSON") from error
    return orjson.dumps(fields).decode()
