"""Subscriptions of a topic: listed, made, deleted, moved, and what is skipped of them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Final

import structlog
from flask import Blueprint, Response

from router.backends.embedded.administration import Administration
from router.errors import BadRequestError, NotAllowedError, SubscriptionNotFoundError
from router.model import TopicName
from router.web.access import Right
from router.web.openapi.description import (
    OBJECT,
    answers_json,
    answers_nothing,
    operation,
)
from router.web.openapi.description import flag as flag_of
from router.web.parameters import MAX_NUMBER, number
from router.web.pulsar_admin import shapes
from router.web.pulsar_admin.door import Door, Entered
from router.web.pulsar_admin.errors import RefusedError
from router.web.pulsar_admin.paths import (
    TOPIC,
    answer,
    done,
    flag,
    given_object,
    subscription_name,
    whole,
)
from router.web.pulsar_admin.stats import Looking
from router.wire.pulsar import pulsar_pb2 as pb

SUBSCRIPTION: Final = f"{TOPIC}/subscription/<subscription>"
MAX_SKIP: Final = 2**31 - 1

_log = structlog.get_logger(__name__)


class SubscriptionViews:
    """The views of subscriptions; `wall_ms` is the time in milliseconds since 1970."""

    def __init__(
        self, door: Door, administration: Administration, wall_ms: Callable[[], int]
    ) -> None:
        self._door = door
        self._administration = administration
        self._looking = Looking(administration)
        self._wall_ms = wall_ms

    def add(self, routes: Blueprint) -> None:
        """Add the routes."""
        routes.get(f"{TOPIC}/subscriptions")(self.subscriptions)
        routes.put(SUBSCRIPTION)(self.create_subscription)
        routes.delete(SUBSCRIPTION)(self.delete_subscription)
        routes.get(f"{SUBSCRIPTION}/properties")(self.subscription_properties)
        routes.post(f"{SUBSCRIPTION}/skip/<count>")(self.skip)
        routes.post(f"{SUBSCRIPTION}/skip_all")(self.skip_all)
        routes.post(f"{SUBSCRIPTION}/expireMessages/<seconds>")(self.expire)
        routes.post(f"{TOPIC}/all_subscription/expireMessages/<seconds>")(self.expire_all)
        routes.post(f"{SUBSCRIPTION}/resetcursor/<timestamp>")(self.reset_to_time)
        routes.post(f"{SUBSCRIPTION}/resetcursor")(self.reset_to_position)

    @operation(answers=answers_json(shapes.NAMES, "The names."), fails=shapes.LOOKING)
    def subscriptions(self, **path: str) -> Response:
        """Answer the names of a topic's subscriptions."""
        name = self._door.topic(Right.VIEW, path).topic
        return answer(self._looking.subscriptions(name))

    @operation(
        body=shapes.PLACE,
        answers=answers_nothing(),
        fails=shapes.MANAGING,
        refuses=shapes.REFUSED | {405: "It is partitioned, or properties are given."},
    )
    def create_subscription(self, subscription: str, **path: str) -> Response:
        """Make a subscription: from the id in the body on, else from the next message on."""
        entered, name = self._enter(path), subscription_name(subscription)
        wish = given_object()
        if wish.get("properties"):
            raise NotAllowedError("a subscription that is made here has no properties")
        made = pb.CreateSubscription(topic=str(entered.topic), subscription=name)
        self._place(entered.topic, wish, made)
        if name in self._looking.subscriptions(entered.topic):
            raise RefusedError(409, "Subscription already exists for topic")
        self._administration.ask(pb.CommandAdmin(create_subscription=made))
        return self._changed("subscription-created", entered, name)

    @operation(
        flag_of("force", "Delete it while it is read."),
        answers=answers_nothing(),
        fails=shapes.MANAGING,
    )
    def delete_subscription(self, subscription: str, **path: str) -> Response:
        """Delete a subscription that nobody reads, by force also one that somebody reads."""
        entered, name = self._enter(path), subscription_name(subscription)
        gone = pb.SubscriptionRef(topic=str(entered.topic), subscription=name, force=flag("force"))
        self._administration.ask(pb.CommandAdmin(delete_subscription=gone), again=False)
        return self._changed("subscription-deleted", entered, name)

    @operation(
        answers=answers_json(OBJECT, "The properties."),
        fails=(*shapes.LOOKING, "subscription-not-found"),
    )
    def subscription_properties(self, subscription: str, **path: str) -> Response:
        """Answer the properties that a subscription was made with."""
        topic, name = self._door.topic(Right.VIEW, path).topic, subscription_name(subscription)
        for cursor in self._looking.cursors(topic):
            if cursor.subscription == name:
                return answer({pair.key: pair.value for pair in cursor.properties})
        raise SubscriptionNotFoundError(f"Subscription {name} not found for topic {topic}")

    @operation(
        answers=answers_nothing(), fails=shapes.MANAGING, refuses={405: "The topic is partitioned."}
    )
    def skip(self, subscription: str, count: str, **path: str) -> Response:
        """Skip so many entries, of a topic without partitions."""
        entered = self._enter(path)
        if self._administration.partitions(str(entered.topic)):
            raise RefusedError(405, "Skip messages on a partitioned topic is not allowed")
        skipped = number("count", count)
        if skipped > MAX_SKIP:
            raise BadRequestError(f"at most {MAX_SKIP} messages are skipped at once")
        return self._skip(entered, subscription_name(subscription), {"count": skipped})

    @operation(answers=answers_nothing(), fails=shapes.MANAGING)
    def skip_all(self, subscription: str, **path: str) -> Response:
        """Skip everything that there is."""
        return self._skip(self._enter(path), subscription_name(subscription), {"all": True})

    @operation(answers=answers_nothing(), fails=shapes.MANAGING)
    def expire(self, subscription: str, seconds: str, **path: str) -> Response:
        """Skip what was stored longer ago."""
        entered = self._enter(path)
        return self._skip(
            entered, subscription_name(subscription), {"before_ms": self._before(seconds)}
        )

    @operation(answers=answers_nothing(), fails=shapes.MANAGING)
    def expire_all(self, seconds: str, **path: str) -> Response:
        """Skip what was stored longer ago, for all subscriptions."""
        entered, before = self._enter(path), self._before(seconds)
        for name in self._looking.subscriptions(entered.topic):
            self._skip(entered, name, {"before_ms": before})
        return done()

    @operation(answers=answers_nothing(), fails=shapes.MANAGING)
    def reset_to_time(self, subscription: str, timestamp: str, **path: str) -> Response:
        """Move a subscription to the first message that was stored at a time or later."""
        entered, name = self._enter(path), subscription_name(subscription)
        moved = pb.ResetSubscription(
            topic=str(entered.topic),
            subscription=name,
            timestamp_ms=number("timestamp", timestamp),
        )
        self._administration.ask(pb.CommandAdmin(reset_subscription=moved))
        return self._changed("subscription-reset", entered, name)

    @operation(
        body=shapes.PLACE,
        answers=answers_nothing(),
        fails=shapes.MANAGING,
        refuses={405: "The topic is partitioned."},
    )
    def reset_to_position(self, subscription: str, **path: str) -> Response:
        """Move a subscription to the message of this id, or behind it."""
        entered, name = self._enter(path), subscription_name(subscription)
        moved = pb.ResetSubscription(topic=str(entered.topic), subscription=name)
        self._place(entered.topic, given_object(), moved)
        if not any(moved.HasField(field) for field in ("earliest", "latest", "position")):
            raise BadRequestError("the body is to be the id of a message")
        self._administration.ask(pb.CommandAdmin(reset_subscription=moved))
        return self._changed("subscription-reset", entered, name)

    def _enter(self, path: Mapping[str, str]) -> Entered:
        return self._door.topic(Right.MANAGE, path)

    def _place(
        self,
        topic: TopicName,
        wish: Mapping[str, Any],
        command: pb.CreateSubscription | pb.ResetSubscription,
    ) -> None:
        """Write the place that a message id names into a command; none leaves it as it is."""
        if wish.get("ledgerId") is None:
            return
        ledger = whole(wish["ledgerId"], "ledgerId")
        entry = whole(wish.get("entryId"), "entryId")
        if ledger < 0:
            command.earliest = True
        elif MAX_NUMBER in {ledger, entry}:
            # A subscription that is made begins there if nothing else is said.
            if isinstance(command, pb.ResetSubscription):
                command.latest = True
        else:
            if self._administration.partitions(str(topic)):
                raise RefusedError(
                    405, f"{topic} is partitioned: name the partition of the message"
                )
            command.position.ledgerId = ledger
            command.position.entryId = max(0, entry + bool(wish.get("isExcluded")))

    def _before(self, seconds: str) -> int:
        return max(0, self._wall_ms() - number("seconds", seconds) * 1000)

    def _skip(self, entered: Entered, name: str, what: Mapping[str, Any]) -> Response:
        command = pb.SkipMessages(topic=str(entered.topic), subscription=name, **what)
        self._administration.ask(pb.CommandAdmin(skip_messages=command), again=False)
        return self._changed("subscription-skipped", entered, name)

    def _changed(self, event: str, entered: Entered, name: str) -> Response:
        principal, topic = entered
        _log.info(event, topic=str(topic), subscription=name, user=principal.name)
        return done()
