"""Changes of a topic: what a store says that it can do, it does, and refuses what it cannot."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from router.backends import Start
from router.errors import NotAllowedError, RouterError
from router.model import Subscription
from tests.contract.conftest import WAIT, Opened


def done(change: Callable[[], None], cannot: str) -> bool:
    """Make a change that the store can make; one that it cannot is refused."""
    if not cannot:
        change()
        return True
    with pytest.raises(NotAllowedError):
        change()
    return False


def test_partitioned_topic_grows_where_the_store_says_so(opened: Opened) -> None:
    backend, topic = opened.backend, opened.new_topic(2)
    backend.subscribe(Subscription(topic, "g"), Start.EARLIEST, WAIT)
    able = backend.capabilities(WAIT)
    if done(lambda: backend.grow_topic(topic, 3, WAIT), able.grow):
        assert backend.partitions(topic, WAIT) == 3
        assert len(backend.describe_topic(topic, WAIT).partitions) == 3
        with pytest.raises(RouterError):
            backend.grow_topic(topic, 2, WAIT)
        with pytest.raises(RouterError):
            backend.grow_topic(opened.new_topic(0), 2, WAIT)


def test_retention_changes_where_the_store_says_so(opened: Opened) -> None:
    backend, topic = opened.backend, opened.new_topic(0)
    able = backend.capabilities(WAIT)
    if done(lambda: backend.set_retention(topic, 60_000, -1, WAIT), able.retention):
        policies = backend.describe_topic(topic, WAIT).info.policies
        assert (policies.retention_ms, policies.retention_bytes) == (60_000, -1)
        backend.set_retention(topic, None, 1 << 30, WAIT)
        policies = backend.describe_topic(topic, WAIT).info.policies
        assert (policies.retention_ms, policies.retention_bytes) == (None, 1 << 30)
