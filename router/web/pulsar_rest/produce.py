"""PIP 64's produce: to a topic, and to one partition of it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Final

import orjson
from flask import Blueprint, Response, request

from router.errors import BadRequestError, BatchTooLargeError
from router.model import Principal, TopicName
from router.services.memory_budget import MemoryBudget
from router.services.produce import Outgoing, Producing, Sender
from router.services.topic_schemas import TopicSchemas
from router.waiting import Offload, finish
from router.web import bodies, forms, intake, trace_context
from router.web.access import Access, Right
from router.web.openapi.description import (
    answers_json,
    operation,
)
from router.web.parameters import number
from router.web.pulsar_rest import dialects, paths, schemas, shapes, values
from router.web.pulsar_rest.errors import (
    BAD_MESSAGES,
    DIALECT,
    PULSAR,
    TOPIC_NOT_FOUND,
    RefusedError,
)
from router.web.tracing import Tracing

if TYPE_CHECKING:
    from _typeshed.wsgi import WSGIEnvironment


MESSAGE_BYTES: Final = 1_500
"""What a message takes beside its value: as it was parsed, as it is stored, and in the answer."""
MAX_NESTED_PER_MESSAGE: Final = 20
"""Empty arrays take 30 times their text: a body has so many arrays and objects for each message."""


@dataclass(frozen=True, slots=True)
class Parts:
    """What the views of PIP 64 share."""

    access: Access
    schemas: TopicSchemas
    reader: bodies.BodyReader
    unsent: MemoryBudget
    wall_ms: Callable[[], int]
    tracing: Tracing


class ProduceViews:
    """The views that store messages."""

    def __init__(self, parts: Parts, producing: Producing) -> None:
        self._parts = parts
        self._producing = producing

    def add(self, routes: Blueprint) -> None:
        """Add the routes."""
        paths.route(routes, "POST", "", self.produce)
        paths.route(routes, "POST", "/partitions/<partition>", self.produce_to_partition)

    @operation(
        *shapes.SENDING,
        body=shapes.PRODUCED,
        answers=answers_json(shapes.STORED, "Which messages are stored, and which are not."),
        fails=shapes.PRODUCE_FAILS,
        refuses={422: shapes.NUMBERED},
    )
    def produce(self, domain: str, tenant: str, namespace: str, topic: str) -> Response:
        """Store messages; each where it says, or by its key, or in turn."""
        return self._produce(paths.topic_name(domain, tenant, namespace, topic), None)

    @operation(
        *shapes.SENDING,
        body=shapes.PRODUCED,
        answers=answers_json(shapes.STORED, "Which messages are stored, and which are not."),
        fails=shapes.PRODUCE_FAILS,
        refuses={422: shapes.NUMBERED},
    )
    def produce_to_partition(
        self, domain: str, tenant: str, namespace: str, topic: str, partition: str
    ) -> Response:
        """Store messages in one partition."""
        name = paths.topic_name(domain, tenant, namespace, topic)
        return self._produce(name, number("partition", partition))

    def _produce(self, topic: TopicName, partition: int | None) -> Response:
        parts, environ = self._parts, request.environ
        principal = parts.access.principal(environ)
        parts.access.demand(principal, topic, Right.PUBLISH)
        key = intake.idempotency_key(environ)
        body = _body(environ, parts.reader)
        reserved, offload = finish(parts.reader.reserve(body, MESSAGE_BYTES))
        with reserved:
            document, most = offload(_loaded, body, parts.reader.bounds)
            del body
            reserved.shrink(most)
            dialect = offload(dialects.dialect_of, document)
            if dialect is dialects.Dialect.PULSAR:
                environ[DIALECT] = PULSAR
            wanted = offload(dialects.read, document, dialect, parts.reader.bounds.messages)
            del document
            sender = Sender(wanted.producer, _identity(principal, topic, key))
            with parts.tracing.publishing(environ, topic.local) as operation:
                operation.stored(len(wanted.messages))
                return self._stored(wanted, topic, partition, sender, offload)

    def _stored(
        self,
        wanted: dialects.Request,
        topic: TopicName,
        partition: int | None,
        sender: Sender,
        offload: Offload,
    ) -> Response:
        """Store the messages of a request; return its answer."""
        parts = self._parts
        count = self._producing.partitions(topic)
        if partition is not None and partition >= max(count, 1):
            raise RefusedError(
                TOPIC_NOT_FOUND, f"Topic not found: it has no partition {partition}, but {count}."
            )
        chosen = schemas.choose(parts.schemas, topic, wanted.schema, wanted.dialect)
        messages = offload(values.outgoing, wanted, chosen, partition, parts.wall_ms())
        if context := trace_context.of_request(request.environ):
            longest = parts.reader.bounds.message
            messages = offload(_traced, messages, context, longest)
        try:
            results = self._producing.produce(topic, messages, sender)
        except BadRequestError as error:
            raise RefusedError(BAD_MESSAGES, str(error)) from error
        answer = offload(dialects.answer, wanted.dialect, results, chosen.number())
        return offload(forms.answer, answer)


def messages_answer(unsent: MemoryBudget, told: dict[str, object]) -> Response:
    """Return an answer with messages, which counts as unsent until it is out.

    Raises OverloadedError if there is no memory for it.
    """
    answer = forms.answer(told)
    reserved = unsent.try_reserve(len(answer.get_data()))
    if reserved is None:
        raise unsent.overloaded()
    answer.call_on_close(reserved.release)
    return answer


def json_body(environ: WSGIEnvironment, reader: bodies.BodyReader) -> Any:
    """Return the JSON of a body, None: there is none; raise RefusedError for what is no JSON."""
    body = _body(environ, reader)
    reserved, offload = finish(reader.reserve(body, MESSAGE_BYTES))
    with reserved:
        return offload(_loaded, body, reader.bounds)[0]


def _body(environ: WSGIEnvironment, reader: bodies.BodyReader) -> bodies.Body:
    encoding = environ.get("HTTP_CONTENT_ENCODING", "")
    return bodies.Body(bodies.JSON, encoding, intake.body(environ, reader.bounds.batch))


def _traced(messages: list[Outgoing], context: Mapping[str, str], longest: int) -> list[Outgoing]:
    """Return messages that carry the context of their request's trace."""
    traced = trace_context.add([outgoing.message for outgoing in messages], context, longest)
    return [replace(old, message=new) for old, new in zip(messages, traced, strict=True)]


def _loaded(body: bodies.Body, bounds: bodies.Bounds) -> tuple[Any, int]:
    """Return the JSON of a body, and how much memory it and its messages can take."""
    if not body.data:
        return None, 0
    data = bodies.inflate(body.encoding, body.data, bounds)
    most = MAX_NESTED_PER_MESSAGE * bounds.messages
    nested = data.count(b"[") + data.count(b"{")
    if nested > most:
        raise BatchTooLargeError(f"The limit is {most} arrays and objects.")
    try:
        return orjson.loads(data), len(data) + MESSAGE_BYTES * nested
    except orjson.JSONDecodeError as error:
        raise RefusedError(BAD_MESSAGES, f"The body is no JSON: {error}") from error


def _identity(principal: Principal, topic: TopicName, key: str | None) -> tuple[str, ...] | None:
    return None if key is None else ("pip64", principal.name, str(topic), key)
