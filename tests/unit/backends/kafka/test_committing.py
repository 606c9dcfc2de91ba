"""Commits that follow polls: together, in the background, and fenced as those of one poll are."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator

import pytest

from router.backends.kafka import committing
from router.backends.kafka.committing import CommitQueue
from router.backends.kafka.consumer import CLOSE_SECONDS, KafkaConsumer
from router.backends.kafka.offsets import CommittedOffset, new_epoch, note_of
from router.errors import BackendUnavailableError, ConsumerClosedError, FencedError
from router.model import NOT_PARTITIONED, ConsumerId, Grant, PollOutcome, Position, Subscription
from router.node.memory import MemoryClaim
from tests.processes import wait_until
from tests.unit.backends.kafka.test_consuming import TOPIC, WAIT, Bench, Silent, received


@pytest.fixture
def bench() -> Iterator[Bench]:
    bench = Bench()
    bench.kafka.store("t", *(b"%d" % number for number in range(10)))
    yield bench
    for reader in bench.readers:
        reader.end(BackendUnavailableError("the test is over"))
        reader.join(WAIT)
    bench.node.close()


def taken(consumer: KafkaConsumer, limit: int = 1) -> Position:
    """Poll; return the position of the last message."""
    return consumer.receive(limit, 1 << 20, WAIT)[-1].position


def committed(bench: Bench, offset: int) -> None:
    wait_until(lambda: bench.commit().offset == offset, WAIT)


def test_polls_one_after_the_other_are_committed_behind_them(bench: Bench) -> None:
    consumer = bench.consumer(bench.claim())
    for _ in range(10):
        assert consumer.acknowledge_soon(taken(consumer))
        consumer.resume()
    committed(bench, 10)
    assert bench.kafka.committed < 10
    assert bench.commit() == CommittedOffset(10, note_of(bench.epoch))
    assert received(consumer) == []


def test_closing_commits_what_is_left_before_it_returns(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(committing, "INTERVAL_SECONDS", 0.5)
    consumer = bench.consumer(bench.claim())
    assert consumer.acknowledge_soon(taken(consumer, 3))
    consumer.close()
    assert bench.commit().offset == 3


def test_closing_waits_for_the_commit_under_way(bench: Bench) -> None:
    consumer = bench.consumer(bench.claim())
    begun, go_on = threading.Event(), threading.Event()

    def wait() -> None:
        begun.set()
        go_on.wait(WAIT)

    bench.kafka.before_commit = wait
    assert consumer.acknowledge_soon(taken(consumer))
    assert begun.wait(WAIT)
    closing = threading.Thread(target=consumer.close)
    closing.start()
    closing.join(0.05)
    assert closing.is_alive()
    go_on.set()
    closing.join(WAIT)
    assert bench.commit().offset == 1


def test_nothing_is_committed_under_a_claim_that_another_poll_has_since(bench: Bench) -> None:
    claim = bench.claim()
    consumer = bench.consumer(claim)
    position = taken(consumer)
    claim.release(PollOutcome.DELIVERED)
    bench.claim()
    assert consumer.acknowledge_soon(position)
    closed(consumer)
    assert bench.commit().offset == 0


def closed(consumer: KafkaConsumer) -> None:
    """Wait until the consumer has to be opened again, and acknowledges nothing more."""

    def is_closed() -> bool:
        try:
            consumer.receive(1, 1 << 20, WAIT)
        except ConsumerClosedError:
            return True
        return False

    wait_until(is_closed, WAIT)
    assert not consumer.acknowledge_soon(Position(0, 9))
    consumer.close()


def test_a_reset_by_another_worker_is_not_undone_and_closes_the_consumer(bench: Bench) -> None:
    consumer = bench.consumer(bench.claim())
    position = taken(consumer, 4)
    moved = CommittedOffset(2, note_of(new_epoch()))
    bench.kafka.commits["g", "t", 0] = moved
    assert consumer.acknowledge_soon(position)
    closed(consumer)
    assert bench.commit() == moved


def test_a_lost_answer_is_found_out_by_the_commit_that_follows(bench: Bench) -> None:
    consumer = bench.consumer(bench.claim())
    bench.kafka.lost_answers = 1
    assert consumer.acknowledge_soon(taken(consumer))
    committed(bench, 1)
    assert consumer.acknowledge_soon(taken(consumer))
    committed(bench, 2)
    consumer.close()


def test_where_single_messages_are_acknowledged_commits_go_by_turns(bench: Bench) -> None:
    consumer = bench.consumer(bench.claim())
    position = taken(consumer, 2)
    bench.acknowledge(5)
    assert consumer.acknowledge_soon(position)
    wait_until(lambda: bench.commit().progress().offset == 2, WAIT)
    assert bench.commit().progress().covers(5)
    # From now on it is known, and the caller waits.
    assert not consumer.acknowledge_soon(taken(consumer))
    consumer.close()


def test_what_could_not_be_committed_is_left_to_a_call_that_says_so(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    consumer = bench.consumer(bench.claim())
    position = taken(consumer)
    failing = True

    def fail() -> None:
        if failing:
            raise BackendUnavailableError("no")

    bench.kafka.before_commit = fail
    assert consumer.acknowledge_soon(position)
    wait_until(lambda: consumer._failure is not None, WAIT)
    assert not consumer.acknowledge_soon(taken(consumer))
    with pytest.raises(BackendUnavailableError):
        consumer.acknowledge(position, WAIT)
    failing = False
    consumer.acknowledge(position, WAIT)
    assert bench.commit().offset == 1
    consumer.close()


def test_an_acknowledgement_of_before_a_reset_is_left_to_the_call_that_refuses_it(
    bench: Bench,
) -> None:
    consumer = bench.consumer(bench.claim())
    stale = Position(0, 0, epoch=new_epoch())
    assert not consumer.acknowledge_soon(stale)
    with pytest.raises(FencedError):
        consumer.acknowledge(stale, WAIT)


class Many:
    """Consumers of several groups, whose commits are held back until `commit`."""

    def __init__(self, bench: Bench, count: int) -> None:
        self._bench = bench
        self.names = [f"g{number}" for number in range(count)]
        self.claims = [self._claim(name) for name in self.names]
        self.consumers = [self._consumer(*one) for one in zip(self.names, self.claims, strict=True)]

    def _claim(self, name: str) -> MemoryClaim:
        self._bench.kafka.commits[name, "t", 0] = CommittedOffset(0, note_of(self._bench.epoch))
        id_ = ConsumerId(Subscription(TOPIC, name), "c1")
        return self._bench.node.claim(id_, 0, Silent(), WAIT)

    def _consumer(self, name: str, claim: MemoryClaim) -> KafkaConsumer:
        bench = self._bench
        grant = Grant(Subscription(TOPIC, name), NOT_PARTITIONED, claim.granted()[NOT_PARTITIONED])
        held = CommitQueue(bench.node, bench.offsets)
        held.add = lambda consumer: None  # type: ignore[method-assign] # the test commits
        parts = bench.node, bench.together, held
        consumer = KafkaConsumer(*parts, grant, name, bench.reader(), lambda: None)
        found = bench.kafka.commits[name, "t", 0]
        consumer.start(Silent(), 0, found, None, time.monotonic() + WAIT)
        assert consumer.acknowledge_soon(taken(consumer, 2))
        return consumer

    def commit(self) -> None:
        begun = [consumer for consumer in self.consumers if consumer.begin_commit()]
        self._bench.commits.commit(list(begun))

    def offsets(self) -> list[int]:
        return [self._bench.kafka.commits[name, "t", 0].offset for name in self.names]


def test_commits_of_many_groups_go_in_one_go(bench: Bench) -> None:
    many = Many(bench, 5)
    many.commit()
    assert bench.kafka.committed_together == [5]
    assert many.offsets() == [2] * 5


def test_a_group_that_cannot_commit_holds_up_no_other(bench: Bench) -> None:
    many = Many(bench, 5)
    many.claims[1].release(PollOutcome.DELIVERED)
    moved = bench.kafka.commits["g3", "t", 0] = CommittedOffset(7, note_of(new_epoch()))
    many.commit()
    assert many.offsets() == [2, 0, 2, moved.offset, 2]
    for number in (1, 3):
        closed(many.consumers[number])


def test_each_group_commits_by_itself_when_they_cannot_go_together(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    many = Many(bench, 3)
    monkeypatch.setattr(bench.offsets, "settled_by", unavailable)
    many.commit()
    wait_until(lambda: many.offsets() == [2] * 3, WAIT)
    assert bench.kafka.committed_together == []


def test_a_group_that_commits_by_itself_and_slowly_holds_up_no_other(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    many = Many(bench, 3)
    monkeypatch.setattr(bench.offsets, "settled_by", unavailable)
    go_on = threading.Event()
    slow = many.consumers[0]
    alone = slow.commit_alone

    def wait(deadline: float) -> None:
        go_on.wait(WAIT)
        alone(deadline)

    monkeypatch.setattr(slow, "commit_alone", wait)
    many.commit()
    wait_until(lambda: many.offsets() == [0, 2, 2], WAIT)
    go_on.set()
    wait_until(lambda: many.offsets() == [2] * 3, WAIT)


def test_nothing_is_committed_while_the_node_does_not_say_whose_grants_stand(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    many = Many(bench, 3)
    monkeypatch.setattr(bench.node, "confirm_all", unavailable)
    many.commit()
    assert many.offsets() == [0] * 3
    for consumer in many.consumers:
        assert not consumer.acknowledge_soon(Position(0, 9))
        began = time.monotonic()
        consumer.close()
        assert time.monotonic() - began < CLOSE_SECONDS


def unavailable(*given: object) -> list[bool]:
    raise BackendUnavailableError("no")
