"""A NATS client as one who calls: the rights that it has are kept for a moment."""

from __future__ import annotations

import time
from typing import Any, cast

import pytest

from router.access.permissions import Right
from router.broker.nats.protocol.authorization import CACHE_SECONDS, NatsCaller
from router.errors import ForbiddenError
from router.model import Principal, TopicName

TOPIC = TopicName.parse("orders")


class Authorizing:
    """An identity and its authorizer, whose answer a test sets."""

    open = trusted = administers = False
    allows = True

    def __init__(self) -> None:
        self.authorizer = self
        self.principal = Principal("anna")
        self.checks = 0

    def authorize(self, *_parts: Any) -> None:
        self.checks += 1
        if not self.allows:
            raise ForbiddenError("no right")


def test_a_right_is_kept_for_a_moment_and_a_refusal_is_not(monkeypatch: pytest.MonkeyPatch) -> None:
    now = 100.0
    monkeypatch.setattr(time, "monotonic", lambda: now)
    identity = Authorizing()
    caller = NatsCaller(cast("Any", identity))
    assert caller.may(TOPIC, Right.SUBSCRIBE)
    assert caller.may(TOPIC, Right.SUBSCRIBE)
    assert identity.checks == 1
    identity.allows = False
    assert not caller.may(TOPIC, Right.MANAGE)
    with pytest.raises(ForbiddenError):
        caller.authorize(TOPIC, Right.SUBSCRIBE)
    now += CACHE_SECONDS + 0.1
    assert not caller.may(TOPIC, Right.SUBSCRIBE)
    identity.allows = True
    assert caller.may(TOPIC, Right.SUBSCRIBE)
    identity.principal = Principal("another")
    identity.allows = False
    assert not caller.may(TOPIC, Right.SUBSCRIBE)
