"""Managing topics."""

from __future__ import annotations

import pytest

from router.backends.memory import MemoryBackend
from router.errors import BadRequestError, TopicExistsError, TopicNotFoundError
from router.model import TopicInfo, TopicName, TopicStats
from router.model.policies import Policies
from router.services.manage import MAX_PARTITIONS, MAX_PROPERTY, NewTopic, TopicManagement
from router.services.topic_metadata import TopicMetadataCache
from tests.processes import ManualClock

TOPIC = TopicName.parse("t")


@pytest.fixture
def backend() -> MemoryBackend:
    return MemoryBackend(auto_create=False)


@pytest.fixture
def topics(backend: MemoryBackend, clock: ManualClock) -> TopicManagement:
    return TopicManagement(backend, TopicMetadataCache(backend, 3, 1, clock), 3, 1)


@pytest.mark.parametrize(("asked", "made"), [(None, 3), (0, 0), (1, 0), (2, 2), (1000, 1000)])
def test_create_makes_the_partitions_asked_for(
    topics: TopicManagement, asked: int | None, made: int
) -> None:
    assert topics.create(NewTopic(TOPIC, asked, Policies(retention_ms=5), {"owner": "me"}))
    info = topics.described(TOPIC).info
    assert (info.partitions, info.policies.retention_ms) == (made, 5)
    assert info.properties == {"owner": "me"}


@pytest.mark.parametrize("again", [None, 2])
def test_create_of_what_exists_says_so(topics: TopicManagement, again: int | None) -> None:
    topics.create(NewTopic(TOPIC, 2))
    assert not topics.create(NewTopic(TOPIC, again))


def test_create_of_what_exists_otherwise_is_refused(topics: TopicManagement) -> None:
    topics.create(NewTopic(TOPIC, 2))
    with pytest.raises(TopicExistsError, match="with 2 partitions"):
        topics.create(NewTopic(TOPIC, 3))


def test_create_of_what_is_deleted_meanwhile_makes_it(
    topics: TopicManagement, backend: MemoryBackend, monkeypatch: pytest.MonkeyPatch
) -> None:
    topics.create(NewTopic(TOPIC, 2))
    describe = backend.describe_topic

    def deleted(topic: TopicName, timeout: float) -> TopicStats:
        monkeypatch.setattr(backend, "describe_topic", describe)
        backend.delete_topic(topic, timeout)
        return describe(topic, timeout)

    monkeypatch.setattr(backend, "describe_topic", deleted)
    assert topics.create(NewTopic(TOPIC, 3))
    assert topics.described(TOPIC).info.partitions == 3


@pytest.mark.parametrize("asked", [-1, MAX_PARTITIONS + 1])
def test_create_bounds_the_partitions(topics: TopicManagement, asked: int) -> None:
    with pytest.raises(BadRequestError):
        topics.create(NewTopic(TOPIC, asked))


def test_create_bounds_the_properties(topics: TopicManagement) -> None:
    with pytest.raises(BadRequestError):
        topics.create(NewTopic(TOPIC, properties={"description": "x" * (MAX_PROPERTY + 1)}))


def test_deleted_topic_is_gone(topics: TopicManagement) -> None:
    topics.create(NewTopic(TOPIC))
    topics.delete(TOPIC)
    for action in (topics.described, topics.delete):
        with pytest.raises(TopicNotFoundError, match=r"\[t\]"):
            action(TOPIC)


def test_listed_are_the_topics_of_the_namespace(
    topics: TopicManagement, backend: MemoryBackend
) -> None:
    for name in ("b", "a", "other/space/c"):
        backend.create_topic(TopicInfo(TopicName.parse(name)), 1)
    assert [info.topic.local for info in topics.listed("public", "default")] == ["a", "b"]
