"""What a worker knows about topics."""

from __future__ import annotations

import pytest

from router.backends.memory import MemoryBackend
from router.errors import NotAllowedError, TopicNotFoundError
from router.model import TopicInfo, TopicName
from router.services import topic_metadata as directory
from router.services.topic_metadata import TTL_SECONDS, TopicMetadataCache
from tests.processes import ManualClock

TOPIC = TopicName.parse("t")


class Counted(MemoryBackend):
    """Counts how often it is asked."""

    asked = 0

    def partitions(self, topic: TopicName, timeout: float) -> int:
        self.asked += 1
        return super().partitions(topic, timeout)


def test_partitions_are_asked_for_once_in_a_while(clock: ManualClock) -> None:
    backend = Counted()
    backend.create_topic(TopicInfo(TOPIC, 3), 1)
    known = TopicMetadataCache(backend, 0, 1, clock)
    assert [known.partitions(TOPIC) for _ in range(5)] == [3] * 5
    assert backend.asked == 1
    clock.advance(TTL_SECONDS)
    assert known.partitions(TOPIC) == 3
    assert backend.asked == 2


def test_partitions_are_asked_for_again_when_forgotten(clock: ManualClock) -> None:
    backend = Counted()
    backend.create_topic(TopicInfo(TOPIC, 3), 1)
    known = TopicMetadataCache(backend, 0, 1, clock)
    known.partitions(TOPIC)
    backend.delete_topic(TOPIC, 1)
    backend.create_topic(TopicInfo(TOPIC, 5), 1)
    assert known.partitions(TOPIC) == 3
    known.forget(TOPIC)
    assert known.partitions(TOPIC) == 5


def test_partitions_of_an_unknown_topic_are_not_invented(clock: ManualClock) -> None:
    known = TopicMetadataCache(MemoryBackend(), 4, 1, clock)
    with pytest.raises(TopicNotFoundError, match=r"\[t\]"):
        known.partitions(TOPIC)


class Listed(MemoryBackend):
    """Counts how often all of its topics are listed."""

    listed = 0

    def list_topics(self, timeout: float, *, internal: bool = False) -> list[TopicInfo]:
        self.listed += 1
        return super().list_topics(timeout, internal=internal)


def test_topics_are_not_made_on_demand_where_there_are_too_many(clock: ManualClock) -> None:
    backend = Listed()
    known = TopicMetadataCache(backend, 0, 1, clock, max_topics=2)
    for name in ("a", "b"):
        known.partitions(TopicName.parse(name), create=True)
    for name in ("c", "d", "e"):
        with pytest.raises(NotAllowedError, match=r"topics\.auto_max_topics"):
            known.partitions(TopicName.parse(name), create=True)
    assert backend.listed == 3, "a flood of names does not count the topics each time"
    assert known.partitions(TopicName.parse("a"), create=True) == 0
    backend.delete_topic(TopicName.parse("b"), 1)
    clock.advance(TTL_SECONDS)
    assert known.partitions(TopicName.parse("c"), create=True) == 0
    assert len(backend.list_topics(1)) == 2


def test_partitions_of_an_unknown_topic_are_made_when_asked_for(clock: ManualClock) -> None:
    backend = MemoryBackend()
    assert TopicMetadataCache(backend, 4, 1, clock).partitions(TOPIC, create=True) == 4
    assert backend.partitions(TOPIC, 1) == 4


def test_topic_that_somebody_else_makes_meanwhile_is_taken(clock: ManualClock) -> None:
    class Raced(MemoryBackend):
        raced = False

        def partitions(self, topic: TopicName, timeout: float) -> int:
            if not self.raced:
                self.raced = True
                self.create_topic(TopicInfo(topic, 2), timeout)
                raise TopicNotFoundError
            return super().partitions(topic, timeout)

    assert TopicMetadataCache(Raced(), 4, 1, clock).partitions(TOPIC, create=True) == 2


def test_memory_of_topics_is_bounded(clock: ManualClock, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(directory, "MAX_TOPICS", 3)
    backend = Counted()
    known = TopicMetadataCache(backend, 0, 1, clock)
    for name in "abcd":
        known.partitions(TopicName.parse(name), create=True)
    asked = backend.asked
    known.partitions(TopicName.parse("d"))
    assert backend.asked == asked
    known.partitions(TopicName.parse("a"))
    assert backend.asked == asked + 1
