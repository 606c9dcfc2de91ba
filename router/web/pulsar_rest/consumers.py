"""PIP 64's consumers: create, fetch, delete; any node serves them."""

from __future__ import annotations

from typing import Any, NamedTuple

from flask import Blueprint, Response, request

from router.backends import Start
from router.errors import BadReadOptionError, RouterError
from router.model import Schema, SchemaType, Stored, Subscription, TopicName, check_consumer_name
from router.services.fetch import Fetcher, FetchingConsumer, Member, ReadSchema
from router.services.groups import moment
from router.services.read import ReadBounds, Reading
from router.web import addresses, forms, offload, streams
from router.web.access import Right
from router.web.names import consumer_name
from router.web.openapi.description import (
    EVENTS,
    JSON,
    Reply,
    answers_json,
    answers_nothing,
    operation,
)
from router.web.openapi.description import moment as moment_of
from router.web.parameters import Query
from router.web.pulsar_rest import dialects, ids, paths, schemas, shapes
from router.web.pulsar_rest.dialects import Dialect
from router.web.pulsar_rest.errors import BAD_MESSAGES, RefusedError
from router.web.pulsar_rest.produce import Parts, json_body, messages_answer
from router.web.pulsar_rest.read import FetchDefaults, failure, held
from router.web.pulsar_rest.values import Shown


class ConsumerViews:
    """The views of consumers."""

    def __init__(
        self, parts: Parts, fetcher: Fetcher, reading: Reading, defaults: FetchDefaults
    ) -> None:
        self._parts = parts
        self._fetcher = fetcher
        self._reading = reading
        self._defaults = defaults

    def add(self, routes: Blueprint) -> None:
        """Add the routes; PIP 64 spells `consumer` and `consumers`, and both are taken."""
        at = "/subscription/<subscription>"
        paths.route(routes, "POST", at, self.create)
        for word in ("consumer", "consumers"):
            one = f"{at}/{word}/<consumer>"
            paths.route(routes, "GET", f"{one}/messages", self.fetch)
            paths.route(routes, "DELETE", one, self.delete)

    @operation(
        moment_of("start", "Where a subscription begins that does not exist yet."),
        body=shapes.CREATED,
        answers=answers_json(shapes.CONSUMER, "The consumer."),
        fails=(
            *shapes.CONSUME_FAILS,
            "consumer-exists",
            "subscription-limit",
            "incompatible-schema",
        ),
        refuses={422: shapes.NUMBERED},
    )
    def create(
        self, domain: str, tenant: str, namespace: str, topic: str, subscription: str
    ) -> Response:
        """Create a consumer, and its subscription where there is none."""
        environ = request.environ
        name = self._allowed(paths.topic_name(domain, tenant, namespace, topic))
        group = Subscription(name, consumer_name(subscription, "subscription"))
        body = json_body(environ, self._parts.reader)
        if body is None:
            body = {}
        if not isinstance(body, dict):
            raise RefusedError(BAD_MESSAGES, "The body is no JSON object.")
        begin = _start(Query(environ), body)
        names = (_named(body, "name"), _named(body, "id"))
        member = self._fetcher.create(group, *names, begin, self._named_schema(name, body))
        return forms.answer(
            {
                "id": member.id,
                "name": member.name,
                "base_uri": self._base_uri(member),
                "schema_version": member.schema.version,
            }
        )

    @operation(
        *shapes.FETCHING,
        answers={
            200: Reply("Messages.", {JSON: shapes.MESSAGES, streams.MIMETYPE: EVENTS}),
        },
        fails=shapes.CONSUME_FAILS,
        refuses={422: shapes.NUMBERED},
    )
    def fetch(
        self,
        domain: str,
        tenant: str,
        namespace: str,
        topic: str,
        subscription: str,
        consumer: str,
    ) -> Response:
        """Answer messages that no other consumer of the subscription was given."""
        environ = request.environ
        name = self._allowed(paths.topic_name(domain, tenant, namespace, topic))
        group = Subscription(name, consumer_name(subscription, "subscription"))
        consumer = consumer_name(consumer, "consumer")
        query = Query(environ)
        bounds, named = self._defaults.bounds(query), _named_in(query)
        if streams.wanted(environ):
            return self._stream(group, consumer, named, bounds)
        if environ["REQUEST_METHOD"] == "HEAD":
            return forms.answer({})
        fetching = self._fetcher.consumer(group, consumer)
        shown = self._shown(fetching, named)
        with self._parts.tracing.receiving(environ, group.topic.local, group.name) as operation:
            messages = held(environ, lambda caller: self._fetcher.fetch(fetching, bounds, caller))
            operation.received(messages)
        told: dict[str, object] = {"messages": [shown.message(stored) for stored in messages]}
        return messages_answer(self._parts.unsent, told)

    @operation(answers=answers_nothing("The consumer is deleted."), fails=shapes.CONSUME_FAILS)
    def delete(
        self,
        domain: str,
        tenant: str,
        namespace: str,
        topic: str,
        subscription: str,
        consumer: str,
    ) -> Response:
        """Remove a consumer; what it did not acknowledge is given to others."""
        name = self._allowed(paths.topic_name(domain, tenant, namespace, topic))
        group = Subscription(name, consumer_name(subscription, "subscription"))
        self._fetcher.delete(group, consumer_name(consumer, "consumer"))
        return Response(status=204)

    def _allowed(self, topic: TopicName) -> TopicName:
        access = self._parts.access
        access.demand(access.principal(request.environ), topic, Right.SUBSCRIBE)
        return topic

    def _named_schema(self, topic: TopicName, body: dict[str, Any]) -> ReadSchema | None:
        """Return the schema that a body names for reading, None: it names none."""
        wish = dialects.schema_wish(body, dialects.dialect_of(body))
        if not wish.given():
            return None
        chosen = schemas.choose(self._parts.schemas, topic, wish, Dialect.PIP)
        as_bytes = chosen.schema is not None and chosen.schema.type is SchemaType.NONE
        return ReadSchema(chosen.number(), as_bytes)

    def _shown(self, consumer: FetchingConsumer, named: _Named | None) -> Shown:
        """Return how messages are shown: by what the query names, else the consumer's schema."""
        topic, schema = consumer.subscription.topic, consumer.member.schema
        by: Schema | None = None
        if named is not None:
            by = named.schema
        elif schema.as_bytes:
            by = Schema(SchemaType.NONE)
        elif schema.version is not None:
            by = self._parts.schemas.find(topic, schemas.version_of(schema.version))
        return Shown(topic, self._parts.schemas, by)

    def _base_uri(self, member: Member) -> str:
        return f"{addresses.root(request.environ)}{request.path.rstrip('/')}/consumer/{member.id}"

    def _stream(
        self, group: Subscription, consumer: str, named: _Named | None, bounds: ReadBounds
    ) -> Response:
        shown = self._shown(self._fetcher.consumer(group, consumer), named)
        # A piece of a stream waits for a slow client uncounted: it has the size of all streams'.
        piece = min(bounds.max_bytes, self._reading.options.chunk)

        def begin(mailbox: Any, watch: offload.Watch) -> tuple[streams.Source, streams.Words]:
            source = self._reading.repeated(
                lambda wait: self._fetcher.fetch(
                    self._fetcher.consumer(group, consumer),
                    ReadBounds(wait, min(bounds.limit, 200), piece),
                    (mailbox, watch),
                ),
                mailbox,
            )
            return source, _Fetched(shown)

        return streams.answer(request.environ, begin, self._defaults.write_timeout)


class _Fetched:
    """Events of a consumer: where it goes on says its cursor, not the event."""

    def __init__(self, shown: Shown) -> None:
        self._shown = shown

    def place(self) -> None:
        """Return nothing."""

    def event(self, stored: Stored) -> tuple[str, bytes]:
        """Return a message's id and the message."""
        return ids.write(stored.position), self._shown.line(stored)

    def behind(self, stored: Stored) -> str:
        """Return where to go on behind a message that is not sent."""
        return ids.write(stored.position)

    def failure(self, error: RouterError) -> bytes:
        """Return a failure."""
        return failure(error)


def _named(body: dict[str, Any], word: str) -> str | None:
    name = body.get(word)
    if name is None or name == "":
        return None
    if not isinstance(name, str):
        raise RefusedError(BAD_MESSAGES, f"{word}: expected a text")
    return check_consumer_name(name, "consumer")


class _Named(NamedTuple):
    """What a query says of the schema to read by; None: values without one are texts."""

    schema: Schema | None


def _named_in(query: Query) -> _Named | None:
    text = query.text("schema_type")
    return None if text is None else _Named(schemas.named(text))


def _start(query: Query, body: dict[str, Any]) -> Start | int:
    """Return where a new subscription begins: as Apache Pulsar's, at what comes from now on."""
    asked, given = query.moment("start"), body.get("start")
    if given is None:
        return Start.LATEST if asked is None else asked
    if not isinstance(given, str | int) or isinstance(given, bool):
        raise BadReadOptionError("start: expected earliest, latest, or a time.")
    return moment("start", str(given))
