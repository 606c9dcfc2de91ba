"""Answers that their clients do not take: a worker holds so much of them and no more."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from router.backends import Start
from router.errors import OverloadedError
from router.model import Subscription
from router.services.memory_budget import MemoryBudget
from tests.unit.services.polling import PATIENCE, TOPIC, Bench

SIZE = 10_000
OTHER = Subscription(TOPIC, "other")


@pytest.fixture
def bench() -> Iterator[Bench]:
    bench = Bench()
    # For one answer of one message, not for two.
    bench.subscriber.context.unsent = MemoryBudget(3 * SIZE, bench.subscriber.context.clock)
    bench.publish(b"1" * SIZE)
    yield bench
    bench.pool.shutdown()


def test_poll_is_refused_while_unsent_answers_hold_all_memory(bench: Bench) -> None:
    slow = bench.poll()
    with pytest.raises(OverloadedError) as refusal:
        bench.poll(subscription=OTHER)
    assert refusal.value.retry_after
    slow.delivered()
    assert bench.take(subscription=OTHER) == [b"1" * SIZE]
    assert bench.subscriber.context.unsent.used() == 0


@pytest.mark.parametrize("delivered", [False, True])
def test_poll_waits_for_unsent_answers(bench: Bench, delivered: bool) -> None:
    slow = bench.poll()
    waiting = bench.later(subscription=OTHER)
    assert not waiting.done()
    if delivered:
        slow.delivered()
    else:
        slow.abandon()
    poll = waiting.result(PATIENCE)
    assert [stored.message.value for stored in poll.messages] == [b"1" * SIZE]
    poll.delivered()
    assert bench.subscriber.context.unsent.used() == 0


def test_poll_that_waits_for_unsent_answers_is_answered_when_the_worker_stops(bench: Bench) -> None:
    slow = bench.poll()
    waiting = bench.later(subscription=OTHER)
    bench.subscriber.stop()
    # Well before the poll's own time is over.
    assert isinstance(waiting.exception(PATIENCE / 2), OverloadedError)
    with pytest.raises(OverloadedError):
        bench.take(subscription=OTHER)
    slow.delivered()
    assert bench.subscriber.context.unsent.used() == 0


def test_what_was_let_go_for_lack_of_memory_is_not_acknowledged(bench: Bench) -> None:
    """The second answer may be smaller than the one that had to be let go."""
    bench.publish(b"2" * SIZE)
    slow = bench.poll()
    with pytest.raises(OverloadedError):
        bench.poll(subscription=OTHER)
    slow.delivered()
    assert bench.take(subscription=OTHER, limit=1) == [b"1" * SIZE]
    assert bench.take(subscription=OTHER) == [b"2" * SIZE]


def test_answer_larger_than_all_memory_goes_out_alone(bench: Bench) -> None:
    bench.publish(b"2" * SIZE, b"3" * SIZE)
    poll = bench.poll()
    assert len(poll.messages) == 3
    with pytest.raises(OverloadedError):
        bench.poll(subscription=OTHER)
    poll.delivered()
    assert len(bench.take(subscription=OTHER)) == 3


def test_empty_poll_is_answered_while_others_wait_for_memory(bench: Bench) -> None:
    slow = bench.poll()
    waiting = bench.later(subscription=OTHER)
    nothing = Subscription(TOPIC, "nothing")
    bench.subscriber.context.backend.subscribe(nothing, Start.LATEST, 1)
    assert bench.take(subscription=nothing) == []
    slow.delivered()
    waiting.result(PATIENCE).delivered()


def test_empty_polls_take_no_memory(bench: Bench) -> None:
    bench.take()
    waiting = bench.later()
    assert bench.subscriber.context.unsent.used() == 0
    bench.publish(b"next")
    poll = waiting.result(PATIENCE)
    poll.delivered()
    assert len(poll.messages) == 1
