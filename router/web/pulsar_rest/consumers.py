"""PIP 64's consumers: create, fetch, delete; any node serves them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, Final
from wsgiref.types import WSGIEnvironment

import orjson
from flask import Response, request

from router.backends import Start
from router.clocks.steps import Steps, run_blocking
from router.errors import BadReadOptionError, BadRequestError, ConflictError
from router.model import (
    NOT_PARTITIONED,
    CursorState,
    Position,
    Schema,
    SchemaType,
    Stored,
    Subscription,
    TopicName,
    check_consumer_name,
)
from router.services.consume import PollMailbox
from router.services.fetch.consumers import FetchMember, NewConsumer, ReadSchema
from router.services.fetch.fetcher import Fetcher, FetchingConsumer
from router.services.groups import moment
from router.services.read import ReadBounds, TopicReader
from router.web import addresses, bodies, forms, offload, streams
from router.web.front import DirectAnswer
from router.web.openapi import description as api
from router.web.pulsar_rest import dialects, ids, paths, schemas, shapes
from router.web.pulsar_rest.dialects import RestDialect
from router.web.pulsar_rest.errors import bad
from router.web.pulsar_rest.produce import RestContext, json_body
from router.web.pulsar_rest.read import FetchDefaults, Named, failure, named_in
from router.web.pulsar_rest.values import MessageFormatter
from router.web.requests import Query, consumer_name

MAX_IDS: Final = 10_000
MAX_REMAINING: Final = 10_000_000
"""Messages of the batches in which a request acknowledges some: each that is left takes a bit."""
_NO_CONTENT: Final = "Content-Type", "text/html; charset=utf-8"
_CUMULATIVE: Final = {"individual": False, "cumulative": True}


@dataclass(eq=False)
class ConsumerViews:
    """The views of consumers."""

    _context: RestContext
    _fetcher: Fetcher
    _reading: TopicReader
    _defaults: FetchDefaults

    @api.operation(
        "POST <topic>/subscription/<subscription>",
        api.moment("start", "Where a subscription begins that does not exist yet."),
        body=shapes.CREATED,
        answers=api.answers_json(shapes.CONSUMER, "The consumer."),
        fails=(
            *shapes.CONSUME_FAILS,
            "consumer-exists",
            "subscription-limit",
            "incompatible-schema",
        ),
        refuses=shapes.NUMBERED,
    )
    def create(self, subscription: str, **path: str) -> Response:
        """Create a consumer, and its subscription where there is none."""
        environ = request.environ
        group = self._context.group(path, subscription)
        body = run_blocking(json_body(environ, self._context.reader))
        if body is None:
            body = {}
        if not isinstance(body, dict):
            raise bad("The body is no JSON object.")
        begin = _start(Query(environ), body)
        names = (_named(body, "name"), _named(body, "id"))
        new = NewConsumer(*names, begin, self._named_schema(group.topic, body))
        member = self._fetcher.create(group, new)
        return forms.answer(
            {
                "id": member.id,
                "name": member.name,
                "base_uri": self._base_uri(member),
                "schema_version": member.schema.version,
            }
        )

    @api.operation(
        "GET <topic>/subscription/<subscription>/consumer/<consumer>/messages",
        "GET <topic>/subscription/<subscription>/consumers/<consumer>/messages",
        *shapes.FETCHING,
        answers=shapes.ANSWERED,
        fails=shapes.CONSUME_FAILS,
        refuses=shapes.NUMBERED,
    )
    def fetch(self, subscription: str, consumer: str, **path: str) -> Response:
        """Answer messages that no other consumer of the subscription was given."""
        names = {**path, "subscription": subscription, "consumer": consumer}
        return run_blocking(self.fetched(request.environ, **names)).response()

    def fetched(
        self,
        environ: WSGIEnvironment,
        domain: str,
        tenant: str,
        namespace: str,
        topic: str,
        subscription: str,
        consumer: str,
    ) -> Steps[DirectAnswer]:
        """Answer as `fetch` does."""
        name = paths.topic_name(domain, tenant, namespace, topic)
        self._context.check_readable(environ, name)
        group = Subscription(name, consumer_name(subscription, "subscription"))
        consumer = consumer_name(consumer, "consumer")
        query = Query(environ)
        bounds, named = self._defaults.bounds(query), named_in(query)
        if streams.is_requested(environ, query):
            return DirectAnswer.of(self._stream(environ, group, consumer, named, bounds))
        if environ["REQUEST_METHOD"] == "HEAD":
            return DirectAnswer.whole(b"{}", bodies.JSON)
        try:
            fetching = self._fetcher.consumer(group, consumer)
            fields = yield from self._fetched(environ, fetching, named, bounds)
        except ConflictError:  # the consumers of the subscription have changed
            fetching = self._fetcher.consumer(group, consumer, again=True)
            fields = yield from self._fetched(environ, fetching, named, bounds)
        return DirectAnswer.unsent(self._context.unsent, orjson.dumps(fields))

    @api.operation(
        "DELETE <topic>/subscription/<subscription>/consumer/<consumer>",
        "DELETE <topic>/subscription/<subscription>/consumers/<consumer>",
        answers=api.answers_nothing("The consumer is deleted."),
        fails=shapes.CONSUME_FAILS,
    )
    def delete(self, subscription: str, consumer: str, **path: str) -> Response:
        """Remove a consumer; what it did not acknowledge is given to others."""
        group = self._context.group(path, subscription)
        self._fetcher.delete(group, consumer_name(consumer, "consumer"))
        return Response(status=204)

    def _named_schema(self, topic: TopicName, body: dict[str, Any]) -> ReadSchema | None:
        """Return the schema that a body names for reading, None: it names none."""
        requested = dialects.requested_schema(body, dialects.dialect_of(body))
        if not requested.given():
            return None
        chosen = schemas.choose(self._context.schemas, topic, requested, RestDialect.PIP)
        as_bytes = chosen.schema is not None and chosen.schema.type is SchemaType.NONE
        return ReadSchema(chosen.number(), as_bytes)

    def _fetched(
        self,
        environ: WSGIEnvironment,
        fetching: FetchingConsumer,
        named: Named | None,
        bounds: ReadBounds,
    ) -> Steps[dict[str, object]]:
        formatter, group = self._formatter(fetching, named), fetching.subscription
        mailbox = PollMailbox()
        watch = offload.Watch(environ.get("gunicorn.socket"), mailbox.wake)
        with self._context.receiving(environ, group) as operation:
            try:
                messages = yield from self._fetcher.fetch_steps(fetching, bounds, mailbox, watch)
            finally:
                watch.close()
            if operation is not None:
                operation.received(messages)
        return {"messages": [formatter.message(stored) for stored in messages]}

    def _formatter(self, consumer: FetchingConsumer, named: Named | None) -> MessageFormatter:
        """Return how messages are shown: by what the query names, else the consumer's schema."""
        topic, schema = consumer.subscription.topic, consumer.member.schema
        by: Schema | None = None
        if named is not None:
            by = named.schema
        elif schema.as_bytes:
            by = Schema(SchemaType.NONE)
        elif schema.version is not None:
            by = self._context.schemas.find(topic, schemas.version_of(schema.version))
        return MessageFormatter(topic, self._context.schemas, by)

    def _base_uri(self, member: FetchMember) -> str:
        return f"{addresses.root(request.environ)}{request.path.rstrip('/')}/consumer/{member.id}"

    def _stream(
        self,
        environ: WSGIEnvironment,
        group: Subscription,
        consumer: str,
        named: Named | None,
        bounds: ReadBounds,
    ) -> Response:
        formatter = self._formatter(self._fetcher.consumer(group, consumer), named)
        # A piece of a stream waits for a slow client uncounted: it has the size of all streams'.
        piece = min(bounds.max_bytes, self._reading.options.chunk)

        def begin(
            mailbox: Any, watch: offload.Watch
        ) -> tuple[streams.StreamSource, streams.EventFormat]:
            source = self._reading.repeated(
                lambda wait: self._fetcher.fetch(
                    self._fetcher.consumer(group, consumer, again=True),
                    ReadBounds(wait, min(bounds.limit, 200), piece),
                    mailbox,
                    watch,
                ),
                mailbox,
            )
            return source, streams.EventFormat(_FetchedIds(), formatter.line, failure)

        return streams.answer(environ, begin, self._defaults.write_timeout)


class _FetchedIds:
    """The ids of events of a consumer: its cursor says where it goes on, not the event."""

    def begin(self) -> None:
        """Return nothing."""

    def after(self, stored: Stored) -> str:
        return ids.write(stored.position)


def _named(body: dict[str, Any], word: str) -> str | None:
    name = body.get(word)
    if name is None or name == "":
        return None
    if not isinstance(name, str):
        raise bad(f"{word}: expected a text")
    return check_consumer_name(name, "consumer")


def _start(query: Query, body: dict[str, Any]) -> Start | int:
    """Return where a new subscription begins: as Apache Pulsar's, at what comes from now on."""
    start_given, given = query.moment("start"), body.get("start")
    if given is None:
        return Start.LATEST if start_given is None else start_given
    if not isinstance(given, str | int) or isinstance(given, bool):
        raise BadReadOptionError("start: expected earliest, latest, or a time.")
    return moment("start", str(given))


class CursorViews:
    """The views of cursors."""

    def __init__(self, context: RestContext, fetcher: Fetcher, reading: TopicReader) -> None:
        self._context = context
        self._fetcher = fetcher
        self._reading = reading

    @api.operation(
        "GET <topic>/subscription/<subscription>/cursor",
        answers=api.answers_json(shapes.CURSOR, "Where it stands."),
        fails=shapes.CONSUME_FAILS,
        refuses=shapes.NUMBERED,
    )
    def cursor(self, subscription: str, **path: str) -> Response:
        """Answer where a subscription stands on each partition."""
        group = self._context.group(path, subscription)
        states = self._fetcher.cursors(group)
        fields = {
            "backlog": sum(state.backlog for state in states),
            "partitions": [_state(state) for state in sorted(states, key=lambda s: s.partition)],
        }
        return forms.answer({"cursor": fields})

    @api.operation(
        "POST <topic>/subscription/<subscription>/cursor",
        body=shapes.ACKNOWLEDGED,
        answers=api.answers_nothing("The messages are acknowledged."),
        fails=shapes.CONSUME_FAILS,
        refuses=shapes.NUMBERED,
    )
    def acknowledge(self, subscription: str, **path: str) -> Response:
        """Acknowledge messages, each alone or with all before it in its partition."""
        names = {**path, "subscription": subscription}
        return run_blocking(self.acknowledged(request.environ, **names)).response()

    def acknowledged(
        self,
        environ: WSGIEnvironment,
        domain: str,
        tenant: str,
        namespace: str,
        topic: str,
        subscription: str,
    ) -> Steps[DirectAnswer]:
        """Acknowledge as `acknowledge` does."""
        name = paths.topic_name(domain, tenant, namespace, topic)
        self._context.check_readable(environ, name)
        group = Subscription(name, consumer_name(subscription, "subscription"))
        body = yield from json_body(environ, self._context.reader)
        if not isinstance(body, dict):
            raise bad("The body is no JSON object.")
        cumulative, positions = _kind(body), _positions(body)
        partitions = self._reading.partitions(name)
        positions = [_own(position, partitions) for position in positions]
        if positions:
            try:
                self._fetcher.acknowledge(group, positions, cumulative=cumulative)
            except BadRequestError as error:
                raise bad(f"messageIds: {error}") from error
        return DirectAnswer((), [_NO_CONTENT], "204 NO CONTENT")


def _kind(body: dict[str, Any]) -> bool:
    kind = body.get("type", "individual")
    found = _CUMULATIVE.get(kind.lower()) if isinstance(kind, str) else None
    if found is None:
        raise bad("type: expected individual or cumulative")
    return found


def _positions(body: dict[str, Any]) -> list[Position]:
    given = body.get("messageIds")
    if not isinstance(given, list) or len(given) > MAX_IDS:
        raise bad(f"messageIds: expected a list of at most {MAX_IDS} ids")
    try:
        # What a publish answers for a message that failed: there is nothing to acknowledge.
        positions = [ids.read(text) for text in given if text is not None]
    except BadRequestError as error:
        raise bad(f"messageIds: {error}") from error
    batches = {(p.ledger, p.entry, p.partition): p.batch_size for p in positions}
    if sum(batches.values()) > MAX_REMAINING:
        raise bad(
            f"messageIds: they are of batches of more than {MAX_REMAINING} messages; send fewer"
        )
    return positions


def _own(position: Position, partitions: Sequence[int]) -> Position:
    """Return a position as the store knows it: those of a plain topic are of no partition."""
    if position.partition in partitions:
        return position
    if list(partitions) == [NOT_PARTITIONED] and position.partition == 0:
        return replace(position, partition=NOT_PARTITIONED)
    raise bad(f"messageIds: the topic has no partition {position.partition}")


def _state(state: CursorState) -> dict[str, object]:
    mark = state.mark_delete
    return {
        "partition": max(state.partition, 0),
        "markDelete": None if mark is None else ids.write(mark),
        "acknowledged": [
            {"from": ids.write(first), "to": ids.write(last)} for first, last in state.acknowledged
        ],
        "backlog": state.backlog,
    }
