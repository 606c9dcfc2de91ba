"""Polls whose partitions are withdrawn, because the node is not sure of its leases any more."""

from __future__ import annotations

import pytest

from router.backends.memory.log import MemoryConsumer
from router.errors import CoordinationUnavailableError
from router.model import Position, Stored
from router.node.memory import MemoryClaim
from router.services.consume import AckMode, session
from tests.unit.services.polling import GROUP, PATIENCE, TOPIC, Bench, until

AWAY = "ZooKeeper is away"


def withdraw(bench: Bench) -> MemoryClaim:
    """Take everything from the one claim that stands, as after the loss of the node's leases."""
    (claim,) = bench.node.claims
    with bench.node.lock:
        claim.drop(list(claim.grants))
    claim.mailbox.wake()
    return claim


def grant_again(bench: Bench, claim: MemoryClaim) -> None:
    with bench.node.lock:
        claim.grants[-1] = 1_000
    claim.mailbox.wake()


def open_consumers(bench: Bench) -> int:
    return sum(s.consumers for s in bench.backend.describe_topic(TOPIC, 1).subscriptions)


def test_withdrawn_partition_is_closed_at_once_and_the_poll_goes_on(bench: Bench) -> None:
    waiting = bench.later()
    until(lambda: open_consumers(bench) == 1)
    claim = withdraw(bench)
    until(lambda: open_consumers(bench) == 0)
    bench.publish(b"a")
    grant_again(bench, claim)
    poll = waiting.result(PATIENCE)
    assert [stored.message.value for stored in poll.messages] == [b"a"]
    poll.delivered()
    assert bench.take() == []


def test_partition_that_is_granted_anew_between_two_looks_is_opened_anew(bench: Bench) -> None:
    waiting = bench.later()
    until(lambda: open_consumers(bench) == 1)
    (claim,) = bench.node.claims
    with bench.node.lock:
        claim.drop(list(claim.grants))
        claim.grants[-1] = 1_000
    claim.mailbox.wake()
    bench.publish(b"a")
    poll = waiting.result(PATIENCE)
    assert [stored.message.value for stored in poll.messages] == [b"a"]
    poll.delivered()
    assert bench.take() == []


class Prefetching(MemoryConsumer):
    """A consumer that was sent what there is when it was opened, as brokers do."""

    __slots__ = ("_inner", "_some")

    def __init__(self, inner: MemoryConsumer) -> None:
        self._inner = inner
        self._some = inner.receive(100, 1 << 20, 1)
        self.partition = inner.partition

    def receive(self, limit: int, max_bytes: int, timeout: float) -> list[Stored]:
        taken, self._some = self._some[:limit], self._some[limit:]
        return taken or self._inner.receive(limit, max_bytes, timeout)

    def acknowledge(self, upto: Position, timeout: float) -> None:
        self._inner.acknowledge(upto, timeout)

    def close(self) -> None:
        self._inner.close()


def test_what_the_last_poll_left_to_be_acknowledged_is_not_answered_again(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    consume = bench.backend.consume
    monkeypatch.setattr(bench.backend, "consume", lambda *asked: Prefetching(consume(*asked)))
    bench.publish(b"a", b"b", b"c")
    assert [bench.take(limit=1, ack=AckMode.NEXT) for _ in range(4)] == [[b"a"], [b"b"], [b"c"], []]


def test_answer_is_not_acknowledged_when_its_partition_was_withdrawn(bench: Bench) -> None:
    bench.publish(b"a")
    poll = bench.poll()
    withdraw(bench)
    poll.delivered()
    assert bench.take() == [b"a"]


def test_answer_is_not_acknowledged_under_a_newer_grant(bench: Bench) -> None:
    bench.publish(b"a")
    poll = bench.poll()
    grant_again(bench, withdraw(bench))
    poll.delivered()
    assert bench.take() == [b"a"]


def test_nothing_is_left_to_the_next_poll_when_the_partition_was_withdrawn(bench: Bench) -> None:
    bench.publish(b"a")
    poll = bench.poll(ack=AckMode.NEXT)
    grant_again(bench, withdraw(bench))
    poll.delivered()
    assert bench.take(ack=AckMode.NEXT) == [b"a"]


def test_poll_that_never_had_anything_says_what_the_trouble_is(bench: Bench) -> None:
    first = bench.later()
    bench.node.unavailable_reason = AWAY
    with pytest.raises(CoordinationUnavailableError, match=AWAY) as caught:
        bench.poll(timeout=0.05)
    assert caught.value.retry_after is not None
    assert bench.polls() == {"refused": 1}
    bench.publish(b"a")
    assert first.result(PATIENCE).messages


def test_poll_that_had_its_partitions_ends_empty_in_trouble(bench: Bench) -> None:
    waiting = bench.later(timeout=3)
    until(lambda: open_consumers(bench) == 1)
    bench.node.unavailable_reason = AWAY
    withdraw(bench)
    assert waiting.result(PATIENCE).messages == []


def test_poll_that_does_not_wait_outlasts_a_trouble_of_a_moment(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(session, "HANDOVER_SECONDS", PATIENCE)
    first = bench.later()
    bench.node.unavailable_reason = AWAY
    second = bench.later(timeout=0)
    bench.publish(b"a")
    first.result(PATIENCE).abandon()
    bench.node.unavailable_reason = None
    assert [s.message.value for s in second.result(PATIENCE).messages] == [b"a"]
    assert GROUP in {claim.subscription for claim in bench.node.claims}
