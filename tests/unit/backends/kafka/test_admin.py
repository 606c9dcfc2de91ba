"""Topics that are created and deleted while brokers learn of it one by one."""

from __future__ import annotations

import time
from types import SimpleNamespace
from typing import Any, cast
from unittest import mock
from uuid import uuid4

import pytest
from hypothesis import given
from hypothesis import strategies as st

from router.backends.kafka import cluster as cluster_module
from router.backends.kafka.admin import Admin, create_topic
from router.backends.kafka.apis import CREATE_TOPICS, DELETE_TOPICS, METADATA, ApiRequest
from router.backends.kafka.cluster import Cluster
from router.backends.kafka.failures import KafkaConnectionLostError
from router.backends.kafka.options import KafkaConnectionOptions
from router.errors import BackendUnavailableError, TopicExistsError, TopicNotFoundError

WAIT = 10.0
UNKNOWN = 3
EXISTS = 36
GONE = None


class Brokers(Cluster):
    """Brokers of which each shows a change from its nth look at the topic on; GONE: none answers.

    The controller is the first. Requests to any broker go to that which learns last.
    """

    def __init__(self, lags: list[int | None]) -> None:
        super().__init__(KafkaConnectionOptions(()))
        self.lags = dict(enumerate(lags))
        self.there: bytes | None = None
        self._late: dict[int, int] = {}
        self._before: bytes | None = None

    def change(self, topic_id: bytes | None) -> None:
        """Create the topic, or delete it."""
        self._before, self.there = self.there, topic_id
        self._late = {node: lag for node, lag in self.lags.items() if lag}

    def shown(self, node: int) -> bytes | None:
        """Return the topic's id as a broker knows it, None: it knows no topic."""
        return self._before if self._late.get(node) else self.there

    def ask(self, request: ApiRequest, deadline: float, node: int | None = None) -> Any:
        if node is None:
            node = max((n for n, lag in self.lags.items() if lag is not GONE), key=self._lag)
        if self.lags[node] is GONE:
            raise KafkaConnectionLostError("connection refused")
        if request.api is METADATA:
            return self._metadata(request, node)
        code, topic_id = 0, None if request.api is DELETE_TOPICS else uuid4().bytes
        if request.api is CREATE_TOPICS and self.there is not None:
            code = EXISTS
        elif request.api is DELETE_TOPICS and self.there is None:
            code = UNKNOWN
        else:
            self.change(topic_id)
        answered = [SimpleNamespace(error_code=code, error_message=None)]
        return SimpleNamespace(topics=answered, responses=answered)

    def _lag(self, node: int) -> int:
        return self._late.get(node, 0)

    def _metadata(self, request: ApiRequest, node: int) -> Any:
        brokers = [SimpleNamespace(node_id=n, host="h", port=n) for n in self.lags]
        topics = []
        for topic in request.message.topics:
            found = self.shown(node)
            leader = SimpleNamespace(partition_index=0, leader_id=0, error_code=0)
            topics.append(
                SimpleNamespace(
                    name=topic.name,
                    error_code=0 if found else UNKNOWN,
                    topic_id=found,
                    partitions=[leader] if found else [],
                )
            )
            if node in self._late:
                self._late[node] = max(0, self._late[node] - 1)
        return SimpleNamespace(brokers=brokers, controller_id=0, topics=topics)


def _create(brokers: Brokers, wait: float = WAIT) -> None:
    with mock.patch.object(cluster_module, "MIN_PAUSE_SECONDS", 0.0):
        create_topic(brokers, "t", 1, 1, {}, time.monotonic() + wait)


def _delete(brokers: Brokers) -> None:
    known = SimpleNamespace(deleted=lambda *_: None)
    admin = Admin(brokers, *cast(Any, (None, None, None, known)))
    with mock.patch.object(cluster_module, "MIN_PAUSE_SECONDS", 0.0):
        admin.delete("t", time.monotonic() + WAIT)


lags = st.tuples(st.integers(0, 4), st.lists(st.integers(0, 4) | st.just(GONE), max_size=3)).map(
    lambda lag: [lag[0], *lag[1]]
)


@given(lags)
def test_what_was_created_or_deleted_is_so_at_every_broker_that_answers(
    lags: list[int | None],
) -> None:
    brokers = Brokers(lags)
    alive = [node for node, lag in brokers.lags.items() if lag is not GONE]
    _create(brokers)
    assert all(brokers.shown(node) == brokers.there is not None for node in alive)
    brokers.change(uuid4().bytes)  # as when another worker has just created it
    brokers._before = None
    with pytest.raises(TopicExistsError):
        _create(brokers)
    assert all(brokers.shown(node) == brokers.there for node in alive)
    _delete(brokers)
    assert all(brokers.shown(node) is None for node in alive)
    with pytest.raises(TopicNotFoundError):
        _delete(brokers)


def test_a_topic_that_a_broker_never_shows_is_not_called_created() -> None:
    with pytest.raises(BackendUnavailableError, match="not known to all brokers"):
        _create(Brokers([0, 1_000_000]), wait=0.05)
