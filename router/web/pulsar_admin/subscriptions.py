"""Subscriptions of a topic: listed, made, deleted, moved, and what is skipped of them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

import structlog
from flask import Response

from router.errors import BadRequestError, NotAllowedError, SubscriptionNotFoundError
from router.model import Position, Principal, Subscription, TopicName
from router.node.administration import SubscriptionPlace
from router.web.access import Right
from router.web.forms import answer
from router.web.openapi.description import flag as flag_of
from router.web.pulsar_admin import shapes
from router.web.pulsar_admin.context import ResourceViews
from router.web.pulsar_admin.shapes import changes, reads
from router.web.pulsar_admin.views import (
    TOPIC,
    AdminRefusedError,
    body_object,
    done,
    flag,
    subscription_name,
    whole,
)
from router.web.requests import MAX_NUMBER, number

SUBSCRIPTION: Final = f"{TOPIC}/subscription/<subscription>"
MAX_SKIP: Final = 2**31 - 1
MAX_INDEX: Final = 2**20
_PARTITIONED: Final = {405: "The topic is partitioned."}

_log = structlog.get_logger(__name__)


class SubscriptionViews(ResourceViews):
    """The views of subscriptions."""

    @reads(f"{TOPIC}/subscriptions", shapes.NAMES, "The names.")
    def subscriptions(self, **path: str) -> Response:
        """Answer the names of a topic's subscriptions."""
        return answer(self._inspection.subscriptions(self._topic(Right.VIEW, path)))

    @changes(
        f"PUT {SUBSCRIPTION}",
        shapes.PERSISTENT_ONLY,
        body=shapes.PLACE._replace(required=False),
        refuses=shapes.REFUSED | {405: "It is partitioned, or properties are given."},
    )
    def create_subscription(self, subscription: str, **path: str) -> Response:
        """Make a subscription: from the id in the body on, else from the next message on."""
        principal, made = self._managed(path, subscription)
        values = body_object()
        if values.get("properties"):
            raise NotAllowedError("a subscription that is made here has no properties")
        place = self._place(made.topic, values)
        if made.name in self._inspection.subscriptions(made.topic):
            raise AdminRefusedError(409, "Subscription already exists for topic")
        self._administration.create_subscription(made, **place)
        return _changed("subscription-created", principal, made)

    @changes(
        f"DELETE {SUBSCRIPTION}",
        shapes.PERSISTENT_ONLY,
        flag_of("force", "Delete it while it is read."),
    )
    def delete_subscription(self, subscription: str, **path: str) -> Response:
        """Delete a subscription without consumers; with `force`, one with consumers too."""
        principal, deleted = self._managed(path, subscription)
        self._administration.delete_subscription(deleted, force=flag("force"))
        return _changed("subscription-deleted", principal, deleted)

    @reads(
        f"{SUBSCRIPTION}/properties",
        dict,
        "The properties.",
        shapes.PERSISTENT_ONLY,
        fails=(*shapes.READ_FAILS, "subscription-not-found"),
    )
    def subscription_properties(self, subscription: str, **path: str) -> Response:
        """Answer the properties that a subscription was made with."""
        topic, name = self._topic(Right.VIEW, path), subscription_name(subscription)
        for cursor in self._administration.cursors(topic):
            if cursor.subscription == name:
                return answer(cursor.properties)
        raise SubscriptionNotFoundError(f"Subscription {name} not found for topic {topic}")

    @changes(f"POST {SUBSCRIPTION}/skip/<count>", shapes.PERSISTENT_ONLY, refuses=_PARTITIONED)
    def skip(self, subscription: str, count: str, **path: str) -> Response:
        """Skip so many entries, of a topic without partitions."""
        principal, moved = self._managed(path, subscription)
        if self._administration.partitions(moved.topic):
            raise AdminRefusedError(405, "Skip messages on a partitioned topic is not allowed")
        skipped = number("count", count)
        if skipped > MAX_SKIP:
            raise BadRequestError(f"at most {MAX_SKIP} messages are skipped at once")
        self._administration.skip(moved, count=skipped)
        return _changed("subscription-skipped", principal, moved)

    @changes(f"POST {SUBSCRIPTION}/skip_all", shapes.PERSISTENT_ONLY)
    def skip_all(self, subscription: str, **path: str) -> Response:
        """Skip everything that there is."""
        principal, moved = self._managed(path, subscription)
        self._administration.skip(moved, all=True)
        return _changed("subscription-skipped", principal, moved)

    @changes(f"POST {SUBSCRIPTION}/expireMessages/<seconds>", shapes.PERSISTENT_ONLY)
    def expire(self, subscription: str, seconds: str, **path: str) -> Response:
        """Skip what was stored longer ago."""
        principal, moved = self._managed(path, subscription)
        self._administration.skip(moved, before_ms=self._before(seconds))
        return _changed("subscription-skipped", principal, moved)

    @changes(f"POST {TOPIC}/all_subscription/expireMessages/<seconds>", shapes.PERSISTENT_ONLY)
    def expire_all(self, seconds: str, **path: str) -> Response:
        """Skip what was stored longer ago, for all subscriptions."""
        (principal, topic), before = (
            self._authorizer.topic(Right.MANAGE, path),
            self._before(seconds),
        )
        for name in self._inspection.subscriptions(topic):
            moved = Subscription(topic, name)
            self._administration.skip(moved, before_ms=before)
            _changed("subscription-skipped", principal, moved)
        return done()

    @changes(f"POST {SUBSCRIPTION}/resetcursor/<timestamp>", shapes.PERSISTENT_ONLY)
    def reset_to_time(self, subscription: str, timestamp: str, **path: str) -> Response:
        """Move a subscription to the first message that was stored at a time or later."""
        principal, moved = self._managed(path, subscription)
        time = number("timestamp", timestamp)
        self._administration.reset_subscription(moved, timestamp_ms=time)
        return _changed("subscription-reset", principal, moved)

    @changes(
        f"POST {SUBSCRIPTION}/resetcursor",
        shapes.PERSISTENT_ONLY,
        body=shapes.PLACE,
        refuses=_PARTITIONED,
    )
    def reset_to_position(self, subscription: str, **path: str) -> Response:
        """Move a subscription to the message of this id, or behind it."""
        principal, moved = self._managed(path, subscription)
        place = self._place(moved.topic, body_object())
        if not place:
            raise BadRequestError("the body is to be the id of a message")
        self._administration.reset_subscription(moved, **place)
        return _changed("subscription-reset", principal, moved)

    def _place(self, topic: TopicName, values: Mapping[str, Any]) -> SubscriptionPlace:
        """Return the place that a message id names; empty if it names none."""
        if values.get("ledgerId") is None:
            return {}
        ledger = whole(values["ledgerId"], "ledgerId")
        entry = whole(values.get("entryId"), "entryId")
        if ledger < 0:
            return {"earliest": True}
        if MAX_NUMBER in {ledger, entry}:
            return {"latest": True}
        if self._administration.partitions(topic):
            raise AdminRefusedError(
                405, f"{topic} is partitioned: name the partition of the message"
            )
        # Of a batch, so many of its first messages are passed over.
        index = whole(values.get("batchIndex", -1), "batchIndex")
        # Pulsar's Java client writes `excluded`, its description says `isExcluded`.
        excluded = bool(values.get("isExcluded") or values.get("excluded"))
        if index < 0:
            return {"position": Position(ledger, max(0, entry + excluded))}
        if index + excluded > MAX_INDEX:
            raise BadRequestError("batchIndex: no batch has as many messages")
        return {"position": Position(ledger, max(0, entry), batch_index=index + excluded)}

    def _before(self, seconds: str) -> int:
        return max(0, self._context.wall_ms() - number("seconds", seconds) * 1000)


def _changed(event: str, principal: Principal, changed: Subscription) -> Response:
    _log.info(event, topic=str(changed.topic), subscription=changed.name, user=principal.name)
    return done()
