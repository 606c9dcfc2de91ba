"""PIP 64's produce: to a topic, and to one partition of it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Final
from wsgiref.types import WSGIEnvironment

import orjson
from flask import Response, request

from router.clocks.steps import Offload, Steps, run_blocking
from router.errors import BackendTimeoutError, BadRequestError, BatchTooLargeError
from router.errors.quoting import json_failure
from router.model import Principal, Subscription, TopicName
from router.services.memory_budget import MemoryBudget
from router.services.producing import MessageProducer, Outgoing, Sender
from router.services.topic_schemas import TopicSchemas
from router.web import bodies, requests, tracing
from router.web.access import RequestAuthorizer, Right
from router.web.front import DirectAnswer
from router.web.openapi import description as api
from router.web.pulsar_rest import dialects, paths, schemas, shapes, values
from router.web.pulsar_rest.errors import DIALECT, PULSAR, TOPIC_NOT_FOUND, RestRefusedError, bad
from router.web.requests import consumer_name, number
from router.web.tracing import TRACE_HEADER

if TYPE_CHECKING:
    # Imports OpenTelemetry, which is there where traces are recorded.
    from router.web.spans import RecordedSpan, Spans

MESSAGE_BYTES: Final = 1_500
"""What a message takes beside its value: as it was parsed, as it is stored, and in the answer."""
MAX_NESTED_PER_MESSAGE: Final = 20
"""Empty arrays take 30 times their text: a body has so many arrays and objects for each message."""


@dataclass(frozen=True, slots=True)
class RestContext:
    """What the views of PIP 64 share."""

    access: RequestAuthorizer
    schemas: TopicSchemas
    reader: bodies.BodyReader
    unsent: MemoryBudget
    wall_ms: Callable[[], int]
    spans: Spans | None

    def check_readable(self, environ: WSGIEnvironment, topic: TopicName) -> None:
        """Raise UnauthenticatedError, ForbiddenError if the client may not read a topic."""
        self.access.authorize(self.access.principal(environ), topic, Right.SUBSCRIBE)

    def readable(self, path: Mapping[str, str]) -> TopicName:
        """Return the topic that a path names; raise BadNameError, and as `check_readable` does."""
        topic = paths.topic_name(**path)
        self.check_readable(request.environ, topic)
        return topic

    def group(self, path: Mapping[str, str], subscription: str) -> Subscription:
        """Return a subscription of a topic that the client may read; raise as `readable` does."""
        return Subscription(self.readable(path), consumer_name(subscription, "subscription"))

    def publishing(
        self, environ: WSGIEnvironment, topic: TopicName
    ) -> AbstractContextManager[RecordedSpan | None]:
        """Record a publish, if traces are recorded; its context replaces that of the request."""
        return nullcontext() if self.spans is None else self.spans.publishing(environ, topic.local)

    def receiving(
        self, environ: WSGIEnvironment, group: Subscription
    ) -> AbstractContextManager[RecordedSpan | None]:
        """Record a poll of a group, or a reading where its name is empty, until it has messages."""
        if self.spans is None:
            return nullcontext()
        return self.spans.receiving(environ, group.topic.local, group.name)


class ProduceViews:
    """The views that store messages."""

    def __init__(self, context: RestContext, producer: MessageProducer) -> None:
        self._context = context
        self._producer = producer

    @api.operation(
        "POST <topic>",
        *shapes.SENDING,
        body=shapes.PRODUCED,
        answers=api.answers_json(shapes.STORED, "Which messages are stored, and which are not."),
        fails=shapes.PRODUCE_FAILS,
        refuses=shapes.NUMBERED,
    )
    def produce(self, **path: str) -> Response:
        """Store messages; each where it says, or by its key, or in turn."""
        return run_blocking(self.produced(request.environ, **path)).response()

    def produced(
        self, environ: WSGIEnvironment, domain: str, tenant: str, namespace: str, topic: str
    ) -> Steps[DirectAnswer]:
        """Store messages as `produce` does."""
        return self._produce(environ, paths.topic_name(domain, tenant, namespace, topic), None)

    @api.operation(
        "POST <topic>/partitions/<partition>",
        *shapes.SENDING,
        body=shapes.PRODUCED,
        answers=api.answers_json(shapes.STORED, "Which messages are stored, and which are not."),
        fails=shapes.PRODUCE_FAILS,
        refuses=shapes.NUMBERED,
    )
    def produce_to_partition(self, partition: str, **path: str) -> Response:
        """Store messages in one partition."""
        name, chosen = paths.topic_name(**path), number("partition", partition)
        return run_blocking(self._produce(request.environ, name, chosen)).response()

    def _produce(
        self, environ: WSGIEnvironment, topic: TopicName, partition: int | None
    ) -> Steps[DirectAnswer]:
        context = self._context
        try:
            principal = context.access.principal(environ)
            context.access.authorize(principal, topic, Right.PUBLISH)
            key = requests.idempotency_key(environ)
            body = _body(environ, context.reader)
            reserved, offload = yield from context.reader.reserve(body, MESSAGE_BYTES)
            with reserved:
                document, limit = offload(_loaded, body, context.reader.bounds)
                del body
                reserved.shrink(limit)
                dialect = offload(dialects.dialect_of, document)
                if dialect is dialects.RestDialect.PULSAR:
                    environ[DIALECT] = PULSAR
                sent = offload(dialects.read, document, dialect, context.reader.bounds.messages)
                del document
                source = requests.source_of(environ, principal.name)
                sender = Sender(sent.producer, _identity(principal, topic, key), source)
                with context.publishing(environ, topic) as operation:
                    if operation is not None:
                        operation.stored(len(sent.messages))
                    return self._store(environ, sent, topic, partition, sender, offload)
        except BackendTimeoutError as error:
            raise error.of_publish() from error

    def _store(
        self,
        environ: WSGIEnvironment,
        sent: dialects.ProduceRequest,
        topic: TopicName,
        partition: int | None,
        sender: Sender,
        offload: Offload,
    ) -> DirectAnswer:
        """Store the messages of a request; return its answer."""
        context = self._context
        count = self._producer.partitions(topic)
        if partition is not None and partition >= max(count, 1):
            raise RestRefusedError(
                TOPIC_NOT_FOUND, f"Topic not found: it has no partition {partition}, but {count}."
            )
        chosen = schemas.choose(context.schemas, topic, sent.schema, sent.dialect)
        messages = offload(values.outgoing, sent, chosen, partition, context.wall_ms)
        if TRACE_HEADER in environ and (trace := tracing.of_request(environ)):
            longest = context.reader.bounds.message
            messages = offload(_traced, messages, trace, longest)
        try:
            results = self._producer.produce(topic, messages, sender)
        except BadRequestError as error:
            raise bad(str(error)) from error
        fields = offload(dialects.answer, sent.dialect, results, chosen.number())
        return DirectAnswer.whole(offload(orjson.dumps, fields), bodies.JSON)


def json_body(environ: WSGIEnvironment, reader: bodies.BodyReader) -> Steps[Any]:
    """Return the JSON of a body, None: there is none; raise RefusedError for what is no JSON."""
    body = _body(environ, reader)
    reserved, offload = yield from reader.reserve(body, MESSAGE_BYTES)
    with reserved:
        return offload(_loaded, body, reader.bounds)[0]


def _body(environ: WSGIEnvironment, reader: bodies.BodyReader) -> bodies.PublishBody:
    encoding = environ.get("HTTP_CONTENT_ENCODING", "")
    return bodies.PublishBody(bodies.JSON, encoding, requests.body(environ, reader.bounds.batch))


def _traced(messages: list[Outgoing], context: Mapping[str, str], longest: int) -> list[Outgoing]:
    """Return messages that carry the context of their request's trace."""
    traced = tracing.add([outgoing.message for outgoing in messages], context, longest)
    return [replace(old, message=new) for old, new in zip(messages, traced, strict=True)]


def _loaded(body: bodies.PublishBody, bounds: bodies.PublishBounds) -> tuple[Any, int]:
    """Return the JSON of a body, and how much memory it and its messages can take."""
    if not body.data:
        return None, 0
    data = bodies.inflate(body.encoding, body.data, bounds) if body.encoding else body.data
    limit = MAX_NESTED_PER_MESSAGE * bounds.messages
    nested = data.count(b"[") + data.count(b"{")
    if nested > limit:
        raise BatchTooLargeError(f"The limit is {limit} arrays and objects.")
    try:
        return orjson.loads(data), len(data) + MESSAGE_BYTES * nested
    except orjson.JSONDecodeError as error:
        raise bad(f"The body is no JSON: {json_failure(data, error)}") from error


def _identity(principal: Principal, topic: TopicName, key: str | None) -> tuple[str, ...] | None:
    return None if key is None else ("pip64", principal.name, str(topic), key)
