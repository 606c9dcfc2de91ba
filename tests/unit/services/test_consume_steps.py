"""Polls in steps: what they wait for, and what a server leaves when it takes no further step."""

from __future__ import annotations

import time

import pytest

from router.clocks.steps import Steps
from router.errors import SubscriptionBusyError
from router.services.consume import AnsweredPoll, ClientGoneError, ConnectedClient, PollMailbox
from tests.processes import ManualClock
from tests.unit.services.polling import PATIENCE, Bench, Leaving, until


class Polling:
    """A poll whose steps are taken by hand."""

    def __init__(self, bench: Bench, client: Leaving | None = None, **more: object) -> None:
        self.mailbox = client.mailbox if client else PollMailbox()
        request = bench.request(**({"timeout": PATIENCE} | more))
        self.steps: Steps[AnsweredPoll] = bench.subscriber.poll_steps(
            request, self.mailbox, client or ConnectedClient()
        )
        self.woken = 0

    def wait(self) -> float:
        """Take a step after which it waits for its mailbox; return for how long at most."""
        mailbox, seconds = next(self.steps)
        assert mailbox is self.mailbox
        assert seconds is not None
        self.mailbox.clear()
        self.mailbox.call(self._wake)
        return seconds

    def _wake(self) -> None:
        self.woken += 1

    def answer(self) -> list[bytes]:
        """Take the step after which it has its answer, and give that to the client."""
        with pytest.raises(StopIteration) as stop:
            next(self.steps)
        poll: AnsweredPoll = stop.value.value
        poll.delivered()
        return [stored.message.value for stored in poll.messages]


def waiting(bench: Bench) -> float:
    [(_, _, number)] = bench.metrics.drain().gauges
    return number


def test_poll_is_answered_without_waiting_when_something_is_there(bench: Bench) -> None:
    bench.publish(b"a")
    assert Polling(bench).answer() == [b"a"]
    assert waiting(bench) == 0


def test_poll_waits_for_its_mailbox_and_its_time_when_nothing_is_there(bench: Bench) -> None:
    polling = Polling(bench, timeout=500)
    assert 400 < polling.wait() <= 500
    assert (polling.woken, waiting(bench)) == (0, 1)
    polling.steps.close()


def test_poll_is_woken_and_answered_when_a_message_comes(bench: Bench) -> None:
    polling = Polling(bench)
    polling.wait()
    bench.publish(b"a", b"b")
    assert polling.woken == 1
    assert polling.answer() == [b"a", b"b"]
    assert waiting(bench) == 0
    assert bench.take() == []


def test_poll_waits_on_for_what_is_left_when_woken_for_nothing(bench: Bench) -> None:
    polling = Polling(bench)
    first = polling.wait()
    for _ in range(3):
        polling.mailbox.wake()
        assert 0 < polling.wait() <= first
    bench.publish(b"a")
    assert polling.answer() == [b"a"]


def test_poll_ends_empty_when_its_time_is_over(bench: Bench) -> None:
    polling = Polling(bench, timeout=0.5)
    polling.wait()
    time.sleep(0.51)
    assert polling.answer() == []
    assert bench.polls() == {"empty": 1}


def test_poll_that_is_closed_lets_its_claim_go_at_once(bench: Bench) -> None:
    polling = Polling(bench)
    polling.wait()
    polling.steps.close()
    bench.publish(b"a")
    assert polling.woken == 0
    assert Polling(bench).answer() == [b"a"]
    drained = bench.metrics.drain()
    ends = {labels: n for name, labels, n in drained.counters if name == "router_polls_total"}
    assert ends == {(("outcome", "refused"),): 1, (("outcome", "delivered"),): 1}
    assert drained.gauges == [("router_polls_waiting", (), 0)]


def test_other_id_goes_on_when_the_poll_that_holds_the_partition_is_closed(bench: Bench) -> None:
    first, second = Polling(bench), Polling(bench, consumer="c2")
    first.wait()
    second.wait()
    bench.publish(b"a")
    assert second.woken == 0
    first.steps.close()
    # The partition stays with its id for a while, in which that may poll again.
    until(lambda: second.woken)
    assert second.answer() == [b"a"]


def test_second_poll_of_an_id_goes_on_when_the_first_is_closed(bench: Bench) -> None:
    first, second = Polling(bench), Polling(bench)
    first.wait()
    second.wait()
    bench.publish(b"a")
    first.steps.close()
    assert second.woken == 1
    assert second.answer() == [b"a"]


def test_poll_that_waits_behind_another_is_closed_alone(bench: Bench) -> None:
    first, second = Polling(bench), Polling(bench)
    first.wait()
    second.wait()
    assert waiting(bench) == 2
    second.steps.close()
    assert waiting(bench) == 1
    bench.publish(b"a")
    assert first.answer() == [b"a"]
    with pytest.raises(StopIteration):
        next(second.steps)


def test_poll_of_a_client_that_left_ends_at_the_next_step(bench: Bench) -> None:
    client = Leaving()
    polling = Polling(bench, client)
    polling.wait()
    client.leave()
    assert polling.woken == 1
    with pytest.raises(ClientGoneError):
        next(polling.steps)
    assert waiting(bench) == 0
    bench.publish(b"a")
    assert bench.take() == [b"a"]


def test_poll_is_woken_and_ends_when_the_worker_stops(bench: Bench) -> None:
    polling = Polling(bench)
    polling.wait()
    bench.subscriber.stop()
    assert polling.woken == 1
    assert polling.answer() == []
    assert bench.polls() == {"refused": 1}


def test_poll_that_fails_is_not_counted_as_waiting(bench: Bench) -> None:
    first, second = Polling(bench), Polling(bench, timeout=0)
    first.wait()
    second.wait()  # for the handover
    time.sleep(0.55)
    with pytest.raises(SubscriptionBusyError):
        next(second.steps)
    assert waiting(bench) == 1
    first.steps.close()
    assert waiting(bench) == 0


def test_steps_that_were_never_taken_hold_nothing(bench: Bench) -> None:
    Polling(bench).steps.close()
    assert bench.metrics.drain().gauges == [("router_polls_waiting", (), 0)]
    bench.publish(b"a")
    assert bench.take() == [b"a"]


def test_waiting_is_counted_apart_from_service(bench: Bench, clock: ManualClock) -> None:
    bench.subscriber.context.clock = clock
    polling = Polling(bench, timeout=5)
    polling.wait()
    clock.advance(3)
    bench.publish(b"a")
    assert polling.answer() == [b"a"]
    seconds = {name: n for name, _, n in bench.metrics.drain().counters if name.endswith("_sum")}
    assert seconds == {"router_poll_wait_seconds_sum": 3, "router_poll_service_seconds_sum": 0}
