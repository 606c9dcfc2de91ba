"""Waiting requests of pull consumers: their statuses, shares, limits and ends."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from router.broker.nats.consumers.priority import Backlog
from router.broker.nats.consumers.pull import DeliveryRun, PullQueue, Status
from router.wire.nats.jetstream.config import ConsumerConfig
from router.wire.nats.jetstream.policies import PriorityPolicy

SECOND = 1_000_000_000


class Clients:
    """Subscribers of inboxes: all that are not named as gone or full are there and take more."""

    def __init__(self) -> None:
        self.gone: set[str] = set()
        self.full: set[str] = set()

    def interested(self, subject: str) -> bool:
        return subject not in self.gone

    def writable(self, subject: str) -> bool:
        return subject not in self.full


class Pulling:
    def __init__(self, **config: Any) -> None:
        self.backlog = Backlog(0, 0)
        self.clients = Clients()
        self.sent: list[Status] = []
        given = ConsumerConfig(**({"max_waiting": 512} | config))
        self.queue = PullQueue(given, self.clients, self.sent.append, lambda: self.backlog)

    def ask(self, inbox: str = "in", now: int = 0, available: int = 0, **request: object) -> bool:
        return self.queue.add(inbox, json.dumps(request).encode(), now, lambda: available)

    def give(self, size: int = 10, now: int = 0) -> str | None:
        to = self.queue.choose(size, now)
        if to is not None:
            self.queue.sent(to, size, now)
        return to

    @property
    def texts(self) -> list[tuple[str, int, str]]:
        return [(one.to, one.code, one.text) for one in self.sent]


@pytest.mark.parametrize(
    ("body", "messages"), [(b"", 1), (b"3", 3), (b'{"batch":2}', 2), (b"0", 1), (b"-1", 1)]
)
def test_request_gets_as_many_messages_as_its_body_says(body: bytes, messages: int) -> None:
    pulling = Pulling()
    assert pulling.queue.add("in", body, 0, lambda: 0)
    assert [pulling.give() for _ in range(messages + 1)] == ["in"] * messages + [None]
    assert not pulling.sent


def test_requests_take_turns() -> None:
    pulling = Pulling()
    pulling.ask("a", batch=2)
    pulling.ask("b", batch=1)
    assert [pulling.give() for _ in range(4)] == ["a", "b", "a", None]


@given(
    batches=st.lists(st.integers(1, 5), min_size=1, max_size=4),
    count=st.integers(1, 20),
    heartbeat=st.booleans(),
)
def test_a_run_of_messages_counts_as_many_messages(
    batches: list[int], count: int, heartbeat: bool
) -> None:
    given: dict[str, Any] = {"expires": 9 * SECOND, "idle_heartbeat": SECOND if heartbeat else 0}
    one, run = Pulling(), Pulling()
    for batch in batches:
        one.ask(batch=batch, **given)
        run.ask(batch=batch, **given)
    assert run.queue.choose_run(5) == DeliveryRun("in", sum(batches))
    count = min(count, sum(batches))
    for _ in range(count):
        assert one.give(now=5) == "in"
    run.queue.run_sent(count, 5)
    assert list(run.queue._waiting) == list(one.queue._waiting)
    assert run.queue.last_ns == one.queue.last_ns


def test_requests_of_several_clients_or_with_limits_get_no_run() -> None:
    for other in ({"inbox": "b"}, {"max_bytes": 1_000}, {"expires": 3}):
        pulling = Pulling()
        pulling.ask("a", batch=2)
        assert pulling.queue.choose_run(5) == DeliveryRun("a", 2)
        pulling.ask(**({"inbox": "a", "batch": 2} | other))  # type: ignore[arg-type]
        assert pulling.queue.choose_run(5) is None
    assert Pulling().queue.choose_run(0) is None


@pytest.mark.parametrize(
    ("request_", "text"),
    [
        ({"batch": "x"}, None),
        ({"idle_heartbeat": 60, "expires": 100}, "heartbeat value too large"),
        ({"min_pending": 1}, "Not a Overflow Priority consumer"),
        ({"id": "x"}, "Not a Pinned Client Priority consumer"),
        ({"priority": 10}, "Priority must be between 0 and 9"),
    ],
)
def test_bad_request_is_refused(request_: dict[str, Any], text: str | None) -> None:
    pulling = Pulling()
    assert not pulling.ask(**request_)
    [(to, code, shown)] = pulling.texts
    assert (to, code) == ("in", 400)
    assert shown.startswith("Bad Request - ")
    assert text is None or shown == f"Bad Request - {text}"


@pytest.mark.parametrize(
    ("config", "request_", "text"),
    [
        ({"max_batch": 5}, {"batch": 6}, "Exceeded MaxRequestBatch of 5"),
        (
            {"max_expires": SECOND},
            {"expires": SECOND + 1},
            "Exceeded MaxRequestExpires of 1s",
        ),
        ({"max_bytes": 10}, {"max_bytes": 11}, "Exceeded MaxRequestMaxBytes of 10"),
    ],
)
def test_request_over_a_limit_of_the_consumer_is_refused(
    config: dict[str, int], request_: dict[str, Any], text: str
) -> None:
    pulling = Pulling(**config)
    assert not pulling.ask(**request_)
    assert pulling.texts == [("in", 409, text)]


def test_waiting_requests_have_a_bound() -> None:
    pulling = Pulling(max_waiting=2)
    assert pulling.ask("a")
    assert pulling.ask("b")
    assert not pulling.ask("c")
    assert pulling.texts == [("c", 409, "Exceeded MaxWaiting")]
    assert not pulling.ask("d", expires=SECOND, idle_heartbeat=SECOND // 4)
    assert len(pulling.sent) == 1


def test_request_that_does_not_wait_ends_without_messages() -> None:
    pulling = Pulling()
    assert not pulling.ask(no_wait=True)
    assert pulling.texts == [("in", 404, "No Messages")]


def test_request_that_does_not_wait_ends_with_the_messages() -> None:
    pulling = Pulling()
    assert pulling.ask(batch=5, no_wait=True, available=1)
    assert pulling.give() == "in"
    pulling.queue.expire(0, at_end=True)
    assert pulling.texts == [("in", 404, "No Messages")]
    assert not len(pulling.queue)


def test_request_that_does_not_wait_but_expires_waits_for_the_first_message() -> None:
    pulling = Pulling()
    assert pulling.ask(batch=5, no_wait=True, expires=SECOND)
    pulling.queue.expire(0, at_end=True)
    assert len(pulling.queue) == 1
    assert pulling.give() == "in"
    pulling.queue.expire(0, at_end=True)
    assert pulling.texts == [("in", 404, "No Messages")]


def test_messages_of_others_are_not_promised_twice() -> None:
    pulling = Pulling()
    assert pulling.ask("a", batch=3, expires=SECOND)
    assert not pulling.ask("b", batch=1, no_wait=True, available=2)
    assert pulling.texts == [("b", 408, "Requests Pending")]


def test_request_expires_with_what_is_left_of_it() -> None:
    pulling = Pulling()
    pulling.ask(batch=5, max_bytes=100, expires=SECOND)
    assert pulling.give(size=30) == "in"
    assert pulling.queue.next_event() == SECOND
    pulling.queue.expire(SECOND)
    [status] = pulling.sent
    assert (status.code, status.text) == (408, "Request Timeout")
    assert dict(status.headers) == {"Nats-Pending-Messages": "4", "Nats-Pending-Bytes": "70"}


def test_request_that_is_over_gets_no_message() -> None:
    pulling = Pulling()
    pulling.ask(expires=SECOND)
    assert pulling.give(now=SECOND) is None
    assert pulling.texts == [("in", 408, "Request Timeout")]


def test_bytes_of_a_request_are_a_bound() -> None:
    pulling = Pulling()
    pulling.ask("a", batch=9, max_bytes=25)
    pulling.ask("b", batch=1, max_bytes=100)
    assert pulling.give(size=20) == "a"
    assert pulling.give(size=20) == "b"
    assert pulling.give(size=20) is None
    assert pulling.texts == [
        ("b", 409, "Batch Completed"),
        ("a", 409, "Message Size Exceeds MaxBytes"),
    ]


def test_exact_bytes_end_a_request() -> None:
    pulling = Pulling()
    pulling.ask(batch=9, max_bytes=20)
    assert pulling.give(size=20) == "in"
    assert not len(pulling.queue)


def test_request_without_a_subscriber_is_dropped() -> None:
    pulling = Pulling()
    pulling.ask("a")
    pulling.ask("b")
    pulling.clients.gone.add("a")
    assert pulling.give() == "b"
    assert not pulling.sent


def test_client_that_cannot_take_more_is_passed_over_and_stays() -> None:
    pulling = Pulling()
    pulling.ask("a")
    pulling.ask("b")
    pulling.clients.full.add("a")
    assert pulling.give() == "b"
    assert pulling.give() is None
    assert pulling.queue.blocked == ["a"]
    pulling.clients.full.clear()
    assert pulling.give() == "a"


def test_heartbeats_come_while_nothing_else_does() -> None:
    pulling = Pulling()
    pulling.ask(batch=2, expires=9 * SECOND, idle_heartbeat=SECOND)
    pulling.queue.tick(SECOND - 1, ())
    assert not pulling.sent
    pulling.queue.tick(SECOND, (("Nats-Last-Stream", "7"),))
    assert pulling.sent == [Status("in", 100, "Idle Heartbeat", (("Nats-Last-Stream", "7"),))]
    assert pulling.give(now=SECOND + 500) == "in"
    assert pulling.queue.next_event() == 2 * SECOND + 500


def test_end_of_the_consumer_ends_its_requests() -> None:
    pulling = Pulling()
    pulling.ask("a")
    pulling.ask("b")
    pulling.queue.close(409, "Consumer Deleted")
    assert pulling.texts == [("a", 409, "Consumer Deleted"), ("b", 409, "Consumer Deleted")]
    assert not len(pulling.queue)


def grouped(policy: PriorityPolicy, **config: Any) -> Pulling:
    return Pulling(priority_policy=policy, priority_groups=("g", "h"), **config)


@pytest.mark.parametrize(
    ("policy", "request_", "text"),
    [
        (PriorityPolicy.OVERFLOW, {}, "Priority Group missing"),
        (PriorityPolicy.PINNED_CLIENT, {"group": "x"}, "Invalid Priority Group"),
        (PriorityPolicy.OVERFLOW, {"group": "g", "id": "x"}, "Not a Pinned Client"),
        (PriorityPolicy.PRIORITIZED, {"group": "g", "min_pending": 1}, "Not a Overflow"),
    ],
)
def test_a_request_that_does_not_fit_the_policy(
    policy: PriorityPolicy, request_: dict[str, Any], text: str
) -> None:
    pulling = grouped(policy)
    assert not pulling.ask(**request_)
    ((_, code, shown),) = pulling.texts
    assert (code, text in shown) == (400, True)


def test_a_request_that_waits_for_an_overflow_is_passed_over() -> None:
    pulling = grouped(PriorityPolicy.OVERFLOW)
    pulling.ask("spare", group="g", batch=9, min_pending=5, min_ack_pending=3)
    pulling.ask("first", group="g", batch=2)
    pulling.backlog = Backlog(4, 2)
    assert [pulling.give(), pulling.give(), pulling.give()] == ["first", "first", None]
    for backlog in (Backlog(5, 0), Backlog(1, 3)):
        pulling.backlog = backlog
        assert pulling.give() == "spare"
    assert not pulling.texts


def test_messages_go_to_the_pinned_client_until_its_time_is_over() -> None:
    pulling = grouped(PriorityPolicy.PINNED_CLIENT, priority_timeout=9 * SECOND)
    pulling.ask("a", group="g", batch=2, expires=99 * SECOND)
    pulling.ask("b", group="g", batch=9, expires=99 * SECOND)
    assert [pulling.give(), pulling.give(), pulling.give()] == ["a", "a", None]
    pin = pulling.queue.pin_id
    assert pin
    assert pulling.queue.next_event() == 9 * SECOND
    assert not pulling.ask("x", group="g", id="other")
    assert pulling.ask("a2", group="g", id=pin, now=8 * SECOND)
    pulling.queue.tick(16 * SECOND, ())
    assert pulling.give(now=16 * SECOND) == "a2"
    pulling.queue.tick(17 * SECOND, ())
    assert pulling.give(now=17 * SECOND) == "b"
    assert pulling.queue.pin_id not in {"", pin}
    assert not pulling.ask("a3", group="g", id=pin, now=17 * SECOND)
    assert pulling.texts == [
        ("x", 423, "Nats-Pin-Id mismatch"),
        ("a3", 423, "Nats-Pin-Id mismatch"),
    ]


def test_a_request_of_a_client_that_is_unpinned_ends() -> None:
    pulling = grouped(PriorityPolicy.PINNED_CLIENT, priority_timeout=9 * SECOND)
    pulling.ask("a", group="g", batch=5)
    pulling.ask("b", group="g", batch=5)
    pulling.clients.gone.add("a")
    assert pulling.give() == "b"  # a client that is gone is not pinned
    pulling.ask("c", group="g")
    pulling.queue.pin.release()
    assert pulling.give() == "c"
    assert pulling.texts == [("b", 423, "Nats-Wrong-Pin-Id")]


def test_requests_of_a_lower_number_come_first() -> None:
    pulling = grouped(PriorityPolicy.PRIORITIZED)
    pulling.ask("late", group="g", priority=2)
    for inbox in ("a", "b"):
        pulling.ask(inbox, group="g", priority=1, batch=2)
    assert [pulling.give() for _ in range(6)] == ["a", "b", "a", "b", "late", None]
