"""PIP 64's produce: to a topic, and to one partition of it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import orjson
from flask import Blueprint, Response, request

from router.errors import BadRequestError
from router.model import Principal, TopicName
from router.services.produce import Producing, Sender
from router.services.topic_schemas import TopicSchemas
from router.web import bodies, forms, intake, offload
from router.web.access import Access, Right
from router.web.pulsar_rest import dialects, paths, schemas, values
from router.web.pulsar_rest.errors import (
    BAD_MESSAGES,
    DIALECT,
    PULSAR,
    TOPIC_NOT_FOUND,
    RefusedError,
)

if TYPE_CHECKING:
    from _typeshed.wsgi import WSGIEnvironment

HEAVY = 1024 * 1024


@dataclass(frozen=True, slots=True)
class Parts:
    """What the views of PIP 64 share."""

    access: Access
    schemas: TopicSchemas
    bounds: bodies.Bounds
    wall_ms: Callable[[], int]


class ProduceViews:
    """The views that store messages."""

    def __init__(self, parts: Parts, producing: Producing) -> None:
        self._parts = parts
        self._producing = producing

    def add(self, routes: Blueprint) -> None:
        """Add the routes."""
        paths.route(routes, "POST", "", self.produce)
        paths.route(routes, "POST", "/partitions/<partition>", self.produce_to_partition)

    def produce(self, domain: str, tenant: str, namespace: str, topic: str) -> Response:
        """Store messages; each where it says, or by its key, or in turn."""
        return self._produce(paths.topic_name(domain, tenant, namespace, topic), None)

    def produce_to_partition(
        self, domain: str, tenant: str, namespace: str, topic: str, partition: str
    ) -> Response:
        """Store messages in one partition."""
        name = paths.topic_name(domain, tenant, namespace, topic)
        return self._produce(name, partition_number(partition))

    def _produce(self, topic: TopicName, partition: int | None) -> Response:
        parts, environ = self._parts, request.environ
        principal = parts.access.principal(environ)
        parts.access.demand(principal, topic, Right.PUBLISH)
        key = intake.idempotency_key(environ)
        body = json_body(environ, parts.bounds)
        dialect = dialects.dialect_of(body)
        if dialect is dialects.Dialect.PULSAR:
            environ[DIALECT] = PULSAR
        wanted = dialects.read(body, dialect, parts.bounds.messages)
        count = self._producing.partitions(topic)
        if partition is not None and partition >= max(count, 1):
            raise RefusedError(
                TOPIC_NOT_FOUND, f"Topic not found: it has no partition {partition}, but {count}."
            )
        chosen = schemas.choose(parts.schemas, topic, wanted.schema, wanted.dialect)
        messages = values.outgoing(wanted, chosen, partition, parts.wall_ms())
        try:
            results = self._producing.produce(
                topic, messages, Sender(wanted.producer, _identity(principal, topic, key))
            )
        except BadRequestError as error:
            raise RefusedError(BAD_MESSAGES, str(error)) from error
        return forms.answer(dialects.answer(wanted.dialect, results, chosen.number()))


def partition_number(text: str) -> int:
    """Read the number of a partition in a path; what is none is a partition that there is not."""
    if not (text.isascii() and text.isdigit() and len(text) <= 9):
        raise RefusedError(TOPIC_NOT_FOUND, f"Topic not found: {text[:80]!r} is no partition.")
    return int(text)


def json_body(environ: WSGIEnvironment, bounds: bodies.Bounds) -> Any:
    """Return the JSON of a body, None: there is none; raise RefusedError for what is no JSON."""
    body = intake.body(environ, bounds.batch)
    encoding = environ.get("HTTP_CONTENT_ENCODING", "")
    if not body:
        return None
    if encoding or len(body) > HEAVY:
        return offload.run(_loaded, body, encoding, bounds)
    return _loaded(body, encoding, bounds)


def _loaded(body: bytes, encoding: str, bounds: bodies.Bounds) -> Any:
    try:
        return orjson.loads(bodies.inflate(encoding, body, bounds))
    except orjson.JSONDecodeError as error:
        raise RefusedError(BAD_MESSAGES, f"The body is no JSON: {error}") from error


def _identity(principal: Principal, topic: TopicName, key: str | None) -> str | None:
    return None if key is None else "\0".join((principal.name, str(topic), key))
