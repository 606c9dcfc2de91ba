"""Polls: claiming, waiting, answering, acknowledging, letting go."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import Any

import pytest

from router.backends import Start
from router.backends.memory.log import MemoryConsumer
from router.errors import (
    BackendTimeoutError,
    BackendUnavailableError,
    FencedError,
    MessageOverMaxBytesError,
    ReadFailedError,
    RouterError,
    SubscriptionBusyError,
    TooManyRequestsError,
    TopicNotFoundError,
)
from router.model import PollOutcome, Position, Subscription, TopicInfo, TopicName
from router.node.memory import MemoryClaim
from router.services.consume import AckMode, ClientGoneError, PollMailbox, session
from tests.unit.services.polling import PATIENCE, TOPIC, Bench, Leaving, until


def test_messages_are_answered_once_and_in_order(bench: Bench) -> None:
    bench.publish(b"a", b"b")
    bench.publish(b"c")
    assert bench.take() == [b"a", b"b", b"c"]
    assert bench.take() == []


def test_new_group_starts_at_latest_unless_asked_otherwise(bench: Bench) -> None:
    bench.publish(b"before")
    assert bench.take(start=Start.LATEST) == []
    bench.publish(b"after")
    assert bench.take() == [b"after"]


def test_messages_come_again_when_the_answer_was_abandoned(bench: Bench) -> None:
    bench.publish(b"a")
    for _ in range(2):
        poll = bench.poll()
        assert [s.message.value for s in poll.messages] == [b"a"]
        poll.abandon()
        poll.delivered()
    assert bench.take() == [b"a"]
    assert bench.take() == []


def test_limit_leaves_the_rest_for_the_next_poll(bench: Bench) -> None:
    bench.publish(b"a", b"b", b"c")
    assert [bench.take(limit=2), bench.take(limit=2)] == [[b"a", b"b"], [b"c"]]


def test_max_bytes_leaves_the_rest_for_the_next_poll(bench: Bench) -> None:
    bench.publish(b"aaa", b"bbb", b"c")
    assert [bench.take(max_bytes=5), bench.take(max_bytes=5)] == [[b"aaa"], [b"bbb", b"c"]]


def test_message_over_max_bytes_is_refused_and_stays(bench: Bench) -> None:
    bench.publish(b"aaaaaa")
    with pytest.raises(MessageOverMaxBytesError, match="6 bytes, maxBytes is 5"):
        bench.poll(max_bytes=5)
    assert bench.take(max_bytes=6) == [b"aaaaaa"]


def test_message_over_max_bytes_does_not_hold_up_other_partitions(
    benches: Callable[..., Bench],
) -> None:
    bench = benches(2)
    bench.publish(b"large!", partition=0)
    bench.publish(b"small", partition=1)
    assert bench.take(max_bytes=5) == [b"small"]
    assert bench.take(max_bytes=6) == [b"large!"]


def test_poll_takes_from_all_partitions(benches: Callable[..., Bench]) -> None:
    bench = benches(3)
    for partition in range(3):
        bench.publish(b"%d" % partition, partition=partition)
    assert sorted(bench.take()) == [b"0", b"1", b"2"]
    assert bench.take() == []


def test_limit_holds_over_all_partitions(benches: Callable[..., Bench]) -> None:
    bench = benches(3)
    for partition in range(3):
        bench.publish(b"a", b"b", partition=partition)
    taken = [bench.take(limit=4), bench.take(limit=4)]
    assert [len(some) for some in taken] == [4, 2]
    assert sorted(taken[0] + taken[1]) == [b"a"] * 3 + [b"b"] * 3


def test_waiting_poll_wakes_for_a_message(bench: Bench) -> None:
    waiting = bench.later()
    bench.publish(b"a")
    assert [s.message.value for s in waiting.result(PATIENCE).messages] == [b"a"]


def test_waiting_poll_ends_empty_when_its_time_is_over(bench: Bench) -> None:
    begin = time.monotonic()
    assert bench.take(timeout=0.1) == []
    assert 0.1 <= time.monotonic() - begin < PATIENCE


def test_waiting_poll_of_a_client_that_leaves_frees_its_claim(bench: Bench) -> None:
    client = Leaving()
    waiting = bench.later(client)
    client.leave()
    with pytest.raises(ClientGoneError):
        waiting.result(PATIENCE)
    bench.publish(b"a")
    assert bench.take() == [b"a"]
    assert bench.polls() == {"refused": 1, "delivered": 1}


def test_waiting_polls_are_answered_at_once_when_the_worker_stops(bench: Bench) -> None:
    waiting = [bench.later(consumer=f"c{n}") for n in range(3)]
    bench.subscriber.stop()
    assert [poll.result(PATIENCE).messages for poll in waiting] == [[]] * 3
    assert bench.polls() == {"refused": 3}
    assert bench.take(timeout=PATIENCE) == []


def test_poll_after_the_stop_still_gets_what_is_there(bench: Bench) -> None:
    bench.subscriber.stop()
    bench.publish(b"a")
    assert bench.take(timeout=PATIENCE) == [b"a"]


def test_second_poll_of_an_id_waits_its_time_and_names_the_holder(bench: Bench) -> None:
    waiting = bench.later()
    with pytest.raises(SubscriptionBusyError, match=r"c1 of group g is polling already: .*c1") as e:
        bench.poll(timeout=0.05)
    assert e.value.retry_after is not None
    bench.publish(b"a")
    assert waiting.result(PATIENCE).messages


def test_poll_that_waits_for_the_acknowledgement_of_the_one_before_says_that_the_store_is_away(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    acknowledging, go = threading.Event(), threading.Event()
    acknowledge = MemoryConsumer.acknowledge

    def frozen(self: MemoryConsumer, upto: Position, timeout: float) -> None:
        acknowledging.set()
        assert go.wait(PATIENCE)
        acknowledge(self, upto, timeout)

    def away(timeout: float) -> None:
        raise BackendTimeoutError("Kafka did not answer in time.")

    monkeypatch.setattr(MemoryConsumer, "acknowledge", frozen)
    monkeypatch.setattr(bench.backend, "ready", away)
    bench.publish(b"a")
    first = bench.pool.submit(bench.take)
    assert acknowledging.wait(PATIENCE)
    with pytest.raises(SubscriptionBusyError, match=r"waits for the store: Kafka did not") as e:
        bench.poll(timeout=0.05)
    assert "already" not in str(e.value)
    assert "consumer c1" in str(e.value)
    go.set()
    assert first.result(PATIENCE) == [b"a"]


def test_second_poll_of_an_id_goes_on_when_the_first_ends(bench: Bench) -> None:
    first = bench.later()
    second = bench.later()
    bench.publish(b"a")
    first.result(PATIENCE).delivered()
    bench.publish(b"b")
    assert [s.message.value for s in second.result(PATIENCE).messages] == [b"b"]


def test_ids_of_a_group_share_the_partitions(benches: Callable[..., Bench]) -> None:
    bench = benches(2)
    waiting = {name: bench.later(consumer=name) for name in ("c1", "c2")}
    until(lambda: _held(bench) == 2)
    for partition in range(2):
        bench.publish(b"%d" % partition, partition=partition)
    polls = [poll.result(PATIENCE) for poll in waiting.values()]
    assert [len(poll.messages) for poll in polls] == [1, 1]
    for poll in polls:
        poll.delivered()
    assert bench.take(consumer="c1") + bench.take(consumer="c2") == []


def _held(bench: Bench) -> int:
    deals = bench.node.claims
    return sum(1 for claim in deals if len(claim.granted()) == 1)


def test_spare_ids_wait_their_time_and_get_nothing(bench: Bench) -> None:
    first = bench.later(consumer="c1")
    spare = bench.later(consumer="c2", timeout=0.1)
    other = {"c1": first, "c2": spare}
    assert spare.result(PATIENCE).messages == []
    bench.publish(b"a")
    assert [s.message.value for s in other["c1"].result(PATIENCE).messages] == [b"a"]


def test_too_many_empty_polls_are_refused_after_one_look(benches: Callable[..., Bench]) -> None:
    bench = benches(limit=2)
    assert [bench.take(), bench.take()] == [[], []]
    for _ in range(3):
        with pytest.raises(TooManyRequestsError) as e:
            bench.poll(timeout=PATIENCE)
        assert e.value.retry_after is not None
    bench.publish(b"a")
    assert bench.take() == [b"a"]
    assert bench.polls() == {"empty": 2, "refused": 3, "delivered": 1}


def test_ack_next_acknowledges_with_the_next_poll_of_the_id(bench: Bench) -> None:
    bench.publish(b"a", b"b", b"c")
    assert bench.take(ack=AckMode.NEXT, limit=2) == [b"a", b"b"]
    assert _backlog(bench) == 3
    assert bench.take(ack=AckMode.NEXT) == [b"c"]
    assert _backlog(bench) == 1
    assert bench.take() == []
    assert _backlog(bench) == 0


def test_ack_next_gives_the_messages_to_another_id_that_takes_over(bench: Bench) -> None:
    bench.publish(b"a")
    assert bench.take(ack=AckMode.NEXT, consumer="c1") == [b"a"]
    until(lambda: bench.take(consumer="c2") == [b"a"])


def _backlog(bench: Bench) -> int:
    return sum(s.backlog for s in bench.backend.describe_topic(TOPIC, 1).subscriptions)


def test_unknown_topic_is_told(bench: Bench) -> None:
    with pytest.raises(TopicNotFoundError):
        bench.poll(subscription=Subscription(TopicName.parse("nowhere"), "g"))


def test_unknown_topic_is_created_when_settings_say_so(benches: Callable[..., Bench]) -> None:
    bench = benches(create=True)
    assert bench.take(subscription=Subscription(TopicName.parse("new"), "g")) == []
    assert bench.backend.partitions(TopicName.parse("new"), 1) == 0


def test_topic_deleted_under_a_waiting_poll_is_told(bench: Bench) -> None:
    waiting = bench.later()
    bench.backend.delete_topic(TOPIC, 1)
    with pytest.raises(TopicNotFoundError):
        waiting.result(PATIENCE)
    with pytest.raises(TopicNotFoundError):
        bench.poll()


def test_topic_made_anew_has_the_group_again(bench: Bench) -> None:
    assert bench.take() == []
    bench.backend.delete_topic(TOPIC, 1)
    bench.backend.create_topic(TopicInfo(TOPIC), 1)
    bench.publish(b"a")
    assert bench.take() == [b"a"]


@pytest.mark.parametrize("error", [ReadFailedError("damaged"), BackendTimeoutError()])
def test_failed_reading_is_told_and_nothing_is_held(bench: Bench, error: RouterError) -> None:
    bench.publish(b"a")
    bench.backend.reading.append(error)
    with pytest.raises(type(error)):
        bench.poll()
    assert bench.take() == [b"a"]


def test_failed_reading_of_one_partition_does_not_hold_up_others(
    benches: Callable[..., Bench],
) -> None:
    bench = benches(2)
    bench.publish(b"a", partition=0)
    bench.publish(b"b", partition=1)
    bench.backend.reading.append(ReadFailedError())
    assert len(first := bench.take()) == 1
    assert sorted(first + bench.take()) == [b"a", b"b"]


@pytest.mark.parametrize("error", [FencedError(), BackendUnavailableError("gone")])
def test_failed_acknowledgement_is_no_failure_of_the_poll(bench: Bench, error: RouterError) -> None:
    bench.publish(b"a")
    bench.backend.acknowledging.append(error)
    assert bench.take() == [b"a"]
    assert bench.take() == [b"a"]
    assert bench.take() == []


def test_partition_held_by_a_foreign_consumer_is_waited_for(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(session, "BUSY_RETRY_SECONDS", 0.01)
    bench.publish(b"a")
    bench.backend.opening += [SubscriptionBusyError("a reader of another kind")] * 2
    assert bench.take(timeout=PATIENCE) == [b"a"]


def test_partition_held_by_a_foreign_consumer_to_the_end_is_told(bench: Bench) -> None:
    bench.backend.opening += [SubscriptionBusyError("a reader of another kind")]
    with pytest.raises(SubscriptionBusyError, match="another kind"):
        bench.poll()


def test_poll_claims_again_when_the_broker_went_away(bench: Bench) -> None:
    waiting = bench.later()
    [claim] = bench.node.claims
    claim.release(PollOutcome.REFUSED)
    claim.is_lost = True
    claim.mailbox.wake()
    until(lambda: bench.node.claims and claim not in bench.node.claims)
    bench.publish(b"a")
    assert [s.message.value for s in waiting.result(PATIENCE).messages] == [b"a"]


def test_poll_ends_when_the_broker_stays_away(bench: Bench) -> None:
    waiting = bench.later()
    bench.node.close()
    with pytest.raises(BackendUnavailableError):
        waiting.result(PATIENCE)


class Away:
    """A broker that serves polls itself, and goes away before it has answered one."""

    is_held = False

    def poll(self, *_given: object) -> Away:
        return self

    def answer(self) -> None:
        raise BackendUnavailableError("gone")

    def done(self, *_given: object, **_more: object) -> None:
        """Hold nothing."""


def test_poll_does_not_end_with_nothing_when_nothing_was_looked_at(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(MemoryClaim, "lost", lambda _: True)
    with pytest.raises(BackendUnavailableError, match="went away"):
        bench.poll()
    away: Any = Away()
    bench.subscriber._store = away
    with pytest.raises(BackendUnavailableError, match="gone"):
        bench.poll()


def test_polls_and_messages_are_counted(bench: Bench) -> None:
    bench.publish(b"ab", b"c")
    bench.take()
    bench.poll()
    drained = bench.metrics.drain()
    counted = {(n, labels): v for n, labels, v in drained.counters if n.endswith("_total")}
    assert counted == {
        ("router_delivered_messages_total", ()): 2,
        ("router_delivered_bytes_total", ()): 3,
        ("router_polls_total", (("outcome", "delivered"),)): 1,
        ("router_polls_total", (("outcome", "empty"),)): 1,
    }
    assert drained.gauges == [("router_polls_waiting", (), 0)]


def test_mailbox_remembers_a_wake_that_came_early() -> None:
    mailbox = PollMailbox()
    mailbox.wake()
    begin = time.monotonic()
    mailbox.wait(PATIENCE)
    assert time.monotonic() - begin < PATIENCE / 2
    threading.Timer(0.05, mailbox.wake).start()
    mailbox.wait(PATIENCE)
    assert time.monotonic() - begin < PATIENCE / 2
