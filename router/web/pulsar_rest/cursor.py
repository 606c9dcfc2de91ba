"""PIP 64's cursor: where a subscription stands, and acknowledging messages."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any, Final

from flask import Blueprint, Response, request

from router.errors import BadRequestError
from router.model import NOT_PARTITIONED, CursorState, Position, Subscription, TopicName
from router.services.fetch import Fetcher
from router.services.read import Reading
from router.web import forms
from router.web.access import Right
from router.web.names import consumer_name
from router.web.openapi.description import (
    answers_json,
    answers_nothing,
    operation,
)
from router.web.pulsar_rest import ids, paths, shapes
from router.web.pulsar_rest.errors import BAD_MESSAGES, RefusedError
from router.web.pulsar_rest.produce import Parts, json_body

MOST_IDS: Final = 10_000
MOST_LEFT: Final = 10_000_000
"""Messages of the batches in which a request acknowledges some: each that is left takes a bit."""
_CUMULATIVE: Final = {"individual": False, "cumulative": True}


class CursorViews:
    """The views of cursors."""

    def __init__(self, parts: Parts, fetcher: Fetcher, reading: Reading) -> None:
        self._parts = parts
        self._fetcher = fetcher
        self._reading = reading

    def add(self, routes: Blueprint) -> None:
        """Add the routes."""
        at = "/subscription/<subscription>/cursor"
        paths.route(routes, "GET", at, self.cursor)
        paths.route(routes, "POST", at, self.acknowledge)

    @operation(
        answers=answers_json(shapes.CURSOR, "Where it stands."),
        fails=shapes.CONSUME_FAILS,
        refuses={422: shapes.NUMBERED},
    )
    def cursor(
        self, domain: str, tenant: str, namespace: str, topic: str, subscription: str
    ) -> Response:
        """Answer where a subscription stands on each partition."""
        group = self._group(paths.topic_name(domain, tenant, namespace, topic), subscription)
        states = self._fetcher.cursors(group)
        told = {
            "backlog": sum(state.backlog for state in states),
            "partitions": [_state(state) for state in sorted(states, key=lambda s: s.partition)],
        }
        return forms.answer({"cursor": told})

    @operation(
        body=shapes.ACKNOWLEDGED,
        answers=answers_nothing("The messages are acknowledged."),
        fails=shapes.CONSUME_FAILS,
        refuses={422: shapes.NUMBERED},
    )
    def acknowledge(
        self, domain: str, tenant: str, namespace: str, topic: str, subscription: str
    ) -> Response:
        """Acknowledge messages, each alone or with all before it in its partition."""
        group = self._group(paths.topic_name(domain, tenant, namespace, topic), subscription)
        body = json_body(request.environ, self._parts.reader)
        if not isinstance(body, dict):
            raise RefusedError(BAD_MESSAGES, "The body is no JSON object.")
        cumulative = _kind(body)
        positions = _positions(body)
        known = self._reading.partitions(group.topic)
        positions = [_own(position, known) for position in positions]
        if positions:
            self._fetcher.acknowledge(group, positions, cumulative=cumulative)
        return Response(status=204)

    def _group(self, topic: TopicName, subscription: str) -> Subscription:
        access = self._parts.access
        access.demand(access.principal(request.environ), topic, Right.SUBSCRIBE)
        return Subscription(topic, consumer_name(subscription, "subscription"))


def _kind(body: dict[str, Any]) -> bool:
    kind = body.get("type", "individual")
    found = _CUMULATIVE.get(kind.lower()) if isinstance(kind, str) else None
    if found is None:
        raise RefusedError(BAD_MESSAGES, "type: expected individual or cumulative")
    return found


def _positions(body: dict[str, Any]) -> list[Position]:
    given = body.get("messageIds")
    if not isinstance(given, list) or len(given) > MOST_IDS:
        raise RefusedError(BAD_MESSAGES, f"messageIds: expected a list of at most {MOST_IDS} ids")
    try:
        # What a publish answers for a message that failed: there is nothing to acknowledge.
        positions = [ids.read(text) for text in given if text is not None]
    except BadRequestError as error:
        raise RefusedError(BAD_MESSAGES, f"messageIds: {error}") from error
    batches = {(p.ledger, p.entry, p.partition): p.batch_size for p in positions}
    if sum(batches.values()) > MOST_LEFT:
        raise RefusedError(
            BAD_MESSAGES,
            f"messageIds: they are of batches of more than {MOST_LEFT} messages; send fewer",
        )
    return positions


def _own(position: Position, partitions: Sequence[int]) -> Position:
    """Return a position as the store knows it: those of a plain topic are of no partition."""
    if position.partition in partitions:
        return position
    if list(partitions) == [NOT_PARTITIONED] and position.partition == 0:
        return replace(position, partition=NOT_PARTITIONED)
    raise RefusedError(BAD_MESSAGES, f"messageIds: the topic has no partition {position.partition}")


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
