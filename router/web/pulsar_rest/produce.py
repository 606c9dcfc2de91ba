"""PIP 64's produce: to a topic, and to one partition of it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any, Final
from wsgiref.types import WSGIEnvironment

import orjson
from flask import Response, request

from router.clocks.steps import Offload, run_blocking
from router.errors import BadRequestError, BatchTooLargeError
from router.errors.quoting import json_failure
from router.model import Principal, Subscription, TopicName
from router.services.memory_budget import MemoryBudget
from router.services.producing import Outgoing, Sender
from router.services.publish import Publisher, timeouts_of_publish
from router.services.topic_schemas import TopicSchemas
from router.web import bodies, forms, requests, tracing
from router.web.access import Access, Right
from router.web.openapi import description as api
from router.web.pulsar_rest import dialects, paths, schemas, shapes, values
from router.web.pulsar_rest.errors import DIALECT, PULSAR, TOPIC_NOT_FOUND, RefusedError, bad
from router.web.requests import consumer_name, number
from router.web.tracing import Tracing

MESSAGE_BYTES: Final = 1_500
"""What a message takes beside its value: as it was parsed, as it is stored, and in the answer."""
MAX_NESTED_PER_MESSAGE: Final = 20
"""Empty arrays take 30 times their text: a body has so many arrays and objects for each message."""


@dataclass(frozen=True, slots=True)
class RestContext:
    """What the views of PIP 64 share."""

    access: Access
    schemas: TopicSchemas
    reader: bodies.BodyReader
    unsent: MemoryBudget
    wall_ms: Callable[[], int]
    tracing: Tracing

    def readable(self, path: Mapping[str, str]) -> TopicName:
        """Return the topic that a path names, which the client may read.

        Raises BadNameError, UnauthenticatedError, ForbiddenError.
        """
        topic = paths.topic_name(**path)
        self.access.authorize(self.access.principal(request.environ), topic, Right.SUBSCRIBE)
        return topic

    def group(self, path: Mapping[str, str], subscription: str) -> Subscription:
        """Return a subscription of a topic that the client may read; raise as `readable` does."""
        return Subscription(self.readable(path), consumer_name(subscription, "subscription"))


class ProduceViews:
    """The views that store messages."""

    def __init__(self, context: RestContext, publisher: Publisher) -> None:
        self._context = context
        self._publisher = publisher

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
        with timeouts_of_publish():
            return self._produce(paths.topic_name(**path), None)

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
        name = paths.topic_name(**path)
        with timeouts_of_publish():
            return self._produce(name, number("partition", partition))

    def _produce(self, topic: TopicName, partition: int | None) -> Response:
        context, environ = self._context, request.environ
        principal = context.access.principal(environ)
        context.access.authorize(principal, topic, Right.PUBLISH)
        key = requests.idempotency_key(environ)
        body = _body(environ, context.reader)
        reserved, offload = run_blocking(context.reader.reserve(body, MESSAGE_BYTES))
        with reserved:
            document, most = offload(_loaded, body, context.reader.bounds)
            del body
            reserved.shrink(most)
            dialect = offload(dialects.dialect_of, document)
            if dialect is dialects.Dialect.PULSAR:
                environ[DIALECT] = PULSAR
            sent = offload(dialects.read, document, dialect, context.reader.bounds.messages)
            del document
            sender = Sender(sent.producer, _identity(principal, topic, key))
            with context.tracing.publishing(environ, topic.local) as operation:
                operation.stored(len(sent.messages))
                return self._stored(sent, topic, partition, sender, offload)

    def _stored(
        self,
        sent: dialects.Request,
        topic: TopicName,
        partition: int | None,
        sender: Sender,
        offload: Offload,
    ) -> Response:
        """Store the messages of a request; return its answer."""
        context = self._context
        count = self._publisher.partitions(topic)
        if partition is not None and partition >= max(count, 1):
            raise RefusedError(
                TOPIC_NOT_FOUND, f"Topic not found: it has no partition {partition}, but {count}."
            )
        chosen = schemas.choose(context.schemas, topic, sent.schema, sent.dialect)
        messages = offload(values.outgoing, sent, chosen, partition, context.wall_ms())
        if trace := tracing.of_request(request.environ):
            longest = context.reader.bounds.message
            messages = offload(_traced, messages, trace, longest)
        try:
            results = self._publisher.produce(topic, messages, sender)
        except BadRequestError as error:
            raise bad(str(error)) from error
        answer = offload(dialects.answer, sent.dialect, results, chosen.number())
        return offload(forms.answer, answer)


def messages_answer(unsent: MemoryBudget, fields: dict[str, object]) -> Response:
    """Return an answer with messages, which counts as unsent until it is out.

    Raises OverloadedError if there is no memory for it.
    """
    answer = forms.answer(fields)
    reserved = unsent.try_reserve(len(answer.get_data()))
    if reserved is None:
        raise unsent.overloaded()
    answer.call_on_close(reserved.release)
    return answer


def json_body(environ: WSGIEnvironment, reader: bodies.BodyReader) -> Any:
    """Return the JSON of a body, None: there is none; raise RefusedError for what is no JSON."""
    body = _body(environ, reader)
    reserved, offload = run_blocking(reader.reserve(body, MESSAGE_BYTES))
    with reserved:
        return offload(_loaded, body, reader.bounds)[0]


def _body(environ: WSGIEnvironment, reader: bodies.BodyReader) -> bodies.Body:
    encoding = environ.get("HTTP_CONTENT_ENCODING", "")
    return bodies.Body(bodies.JSON, encoding, requests.body(environ, reader.bounds.batch))


def _traced(messages: list[Outgoing], context: Mapping[str, str], longest: int) -> list[Outgoing]:
    """Return messages that carry the context of their request's trace."""
    traced = tracing.add([outgoing.message for outgoing in messages], context, longest)
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
        raise bad(f"The body is no JSON: {json_failure(data, error)}") from error


def _identity(principal: Principal, topic: TopicName, key: str | None) -> tuple[str, ...] | None:
    return None if key is None else ("pip64", principal.name, str(topic), key)
