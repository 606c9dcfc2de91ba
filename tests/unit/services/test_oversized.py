"""Entries that no poll can answer: they hold up no group, and may go to a topic of their own."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest

from router.backends.memory.log import MemoryConsumer
from router.errors import BackendTimeoutError, FencedError, PublishRefusedError
from router.model import Message, Position, Stored, Subscription, TopicInfo, TopicName
from router.services.consume import ConsumeOptions, PollServer
from router.services.topic_metadata import TopicMetadataCache
from tests.unit.services.polling import GROUP, TOPIC, Bench
from tests.unit.web.applications import Troubled

DEAD = TopicName("public", "default", "dead")
BIG = b"BIG"


class _Marking(MemoryConsumer):
    """Gives what begins with BIG as an entry that is too large."""

    __slots__ = ("_inner", "_of")

    def __init__(self, of: _Backend, inner: MemoryConsumer) -> None:
        self._inner, self._of, self.partition = inner, of, inner.partition

    def receive(self, limit: int, max_bytes: int, timeout: float) -> list[Stored]:
        some = self._inner.receive(limit, max_bytes, timeout)
        return [replace(s, oversized=s.message.value.startswith(BIG)) for s in some]

    def acknowledge(self, upto: Position, timeout: float) -> None:
        if self._of.fenced:
            raise FencedError
        self._of.acknowledged.append(upto)
        self._inner.acknowledge(upto, timeout)

    def close(self) -> None:
        self._inner.close()


class _Backend(Troubled):
    def __init__(self) -> None:
        super().__init__()
        self.acknowledged: list[Position] = []
        self.fenced = False

    def consume(self, *given: Any, **named: Any) -> MemoryConsumer:
        inner = super().consume(*given, **named)
        return _Marking(self, inner)


class _Bench(Bench):
    def __init__(self, dead_letters: TopicName | None = None) -> None:
        super().__init__()
        self.marking = _Backend()
        self.backend = self.marking
        self.backend.create_topic(TopicInfo(TOPIC), 1)
        old = self.subscriber
        directory = TopicMetadataCache(self.backend, 0, 1, old.context.clock)
        options = ConsumeOptions(1 << 24, 5, False, dead_letter_topic=dead_letters)
        self.subscriber = PollServer(
            self.backend, self.node, directory, options, self.metrics, old.context.clock
        )

    def counted(self) -> float:
        """Return how many entries were passed over since the last call."""
        drained = self.metrics.drain().counters
        return sum(n for name, _, n in drained if name == "router_oversized_entries_total")

    def dead(self) -> list[Message]:
        """Return what was put into the dead-letter topic."""
        published = self.backend.published
        return [m for batch in published if batch.topic == DEAD for m in batch.messages]


@pytest.fixture
def benches() -> Iterator[list[_Bench]]:
    made: list[_Bench] = []
    yield made
    for bench in made:
        bench.pool.shutdown()


@pytest.fixture
def bench(benches: list[_Bench]) -> _Bench:
    benches.append(_Bench())
    return benches[-1]


@pytest.fixture
def keeping(benches: list[_Bench]) -> _Bench:
    benches.append(_Bench(DEAD))
    return benches[-1]


def test_oversized_entries_are_passed_over_and_counted(bench: _Bench) -> None:
    bench.publish(BIG + b"1", BIG + b"2", b"a", BIG + b"3", b"b")
    assert bench.take() == [b"a"]
    assert bench.counted() == 2
    assert bench.take() == [b"b"]
    assert bench.counted() == 1
    assert bench.take() == []


def test_group_of_nothing_but_oversized_entries_gets_on(bench: _Bench) -> None:
    bench.publish(BIG)
    bench.publish(BIG)
    assert bench.take() == []
    assert [position.entry for position in bench.marking.acknowledged] == [0, 1]
    bench.publish(b"next")
    assert bench.take() == [b"next"]
    assert bench.counted() == 2


def test_oversized_entry_behind_an_answer_is_not_acknowledged_before_it(bench: _Bench) -> None:
    bench.publish(b"a", BIG, b"b")
    poll = bench.poll()
    assert [stored.message.value for stored in poll.messages] == [b"a"]
    poll.abandon()
    assert bench.marking.acknowledged == []
    assert bench.take() == [b"a"]


def test_oversized_entry_goes_to_the_dead_letter_topic(keeping: _Bench) -> None:
    keeping.publish(b"a")
    keeping.publish(BIG + b"1")
    assert keeping.take() == [b"a"]
    assert keeping.take() == []
    (kept,) = keeping.dead()
    assert kept.value == BIG + b"1"
    assert kept.properties["router-origin-topic"] == str(TOPIC)
    assert kept.properties["router-origin-group"] == GROUP.name
    assert kept.properties["router-origin-position"].endswith(":1:-1")


def test_dead_letter_topic_takes_nothing_of_its_own(keeping: _Bench) -> None:
    keeping.publish(BIG)
    keeping.take()
    assert keeping.take(subscription=Subscription(DEAD, "g")) == []
    assert len(keeping.dead()) == 1


def test_entry_is_not_passed_over_while_the_dead_letter_topic_is_away(keeping: _Bench) -> None:
    keeping.publish(BIG, b"a")
    keeping.backend.publishing.append(BackendTimeoutError())
    with pytest.raises(BackendTimeoutError):
        keeping.poll()
    assert keeping.marking.acknowledged == []
    assert keeping.take() == [b"a"]
    assert keeping.counted() == 1


def test_entry_that_the_dead_letter_topic_refuses_does_not_block(keeping: _Bench) -> None:
    class _RefusedForGoodError(PublishRefusedError):
        retriable = False

    keeping.publish(BIG, b"a")
    keeping.backend.publishing.append(_RefusedForGoodError())
    assert keeping.take() == [b"a"]
    assert keeping.counted() == 1


def test_entry_that_another_poll_has_is_not_counted(bench: _Bench) -> None:
    bench.publish(BIG)
    bench.marking.fenced = True
    assert bench.take() == []
    assert bench.counted() == 0
