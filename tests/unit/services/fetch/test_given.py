"""Spans of given messages, against a memory of each message."""

from __future__ import annotations

from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from router.model import Message, Position, Stored
from router.services.fetch import in_flight as module
from router.services.fetch.in_flight import InFlightTracker
from router.sharing.registry import check_record

ACK_MS = 100


def stored(number: int, deliver_at: int | None = None, epoch: int = 1) -> Stored:
    return Stored(Message(b"", deliver_at=deliver_at), Position(1, number, 0, -1, 0, epoch), number)


class Log:
    """A partition whose messages are remembered one by one, beside what the spans say."""

    def __init__(self, delays: list[int]) -> None:
        self.messages = [stored(n, d or None) for n, d in enumerate(delays)]
        self.acknowledged: set[int] = set()
        self.until: dict[int, tuple[int, str]] = {}
        self.record = b""
        self.now = 1_000
        self.live = frozenset({"a", "b"})

    def fetch(self, limit: int, consumer: str) -> tuple[list[int], list[int]]:
        """Fetch by spans and by memory; return what each gives."""
        given = InFlightTracker.load(self.record) if self.record else InFlightTracker()
        found: list[int] = []
        for message in self.messages:
            number = message.position.entry
            if number in self.acknowledged:
                continue
            if len(found) == limit:
                break
            if given.may_give(message, self.now, self.live):
                given.give(message, self.now + ACK_MS, consumer)
                found.append(number)
        self.record = given.dump()
        expected = [n for n in range(len(self.messages)) if self.may(n)][:limit]
        for number in expected:
            self.until[number] = self.now + ACK_MS, consumer
        return found, expected

    def may(self, number: int) -> bool:
        due, consumer = self.until.get(number, (0, ""))
        held = due > self.now and consumer in self.live
        later = (self.messages[number].message.deliver_at or 0) > self.now
        return number not in self.acknowledged and not held and not later


steps = st.lists(
    st.one_of(
        st.tuples(st.just("fetch"), st.integers(1, 6), st.sampled_from("ab")),
        st.tuples(st.just("ack"), st.integers(0, 19), st.integers(0, 3)),
        st.tuples(st.just("wait"), st.integers(1, 150), st.just(0)),
        st.tuples(st.just("gone"), st.sampled_from("ab"), st.just(0)),
    ),
    max_size=30,
)


@settings(max_examples=150)
@given(st.lists(st.sampled_from([0, 0, 0, 1_050, 1_200]), min_size=1, max_size=20), steps)
def test_spans_give_what_a_memory_of_each_message_gives(
    delays: list[int], actions: list[tuple[str, Any, Any]]
) -> None:
    log = Log(delays)
    for action, first, second in actions:
        if action == "fetch":
            found, expected = log.fetch(first, second)
            assert found == expected
        elif action == "ack":
            log.acknowledged.update(range(first, first + second))
        elif action == "wait":
            log.now += first
        else:
            log.live = log.live - {first}


def test_too_many_spans_are_joined_and_give_nothing_early() -> None:
    spans = InFlightTracker()
    for number in range(3 * module.MAX_SPANS):
        assert spans.may_give(stored(number), 0, frozenset())
        spans.give(stored(number), number + 1, "a")
    again = InFlightTracker.load(spans.dump())
    assert len(again.spans()) == module.MAX_SPANS
    for number in range(3 * module.MAX_SPANS):
        assert not again.may_give(stored(number), number, frozenset("a"))


def test_joined_spans_of_two_consumers_outlive_one_of_them() -> None:
    spans = InFlightTracker()
    for number in range(2 * module.MAX_SPANS):
        assert spans.may_give(stored(number), 0, frozenset())
        spans.give(stored(number), 1_000 + number, "ab"[number % 2])
    again = InFlightTracker.load(spans.dump())
    for number in range(0, 2 * module.MAX_SPANS, 2):  # those of the one that lives
        assert not again.may_give(stored(number), 500, frozenset("a"))


def test_messages_to_come_later_take_one_span_however_many_they_are() -> None:
    spans = InFlightTracker()
    for number in range(3 * module.MAX_SPANS):
        assert not spans.may_give(stored(number, 1_000 + 7 * number), 0, frozenset())
    again = InFlightTracker.load(spans.dump())
    assert len(again.spans()) == 1
    assert not again.may_give(stored(0, 1_000), 999, frozenset())
    assert again.may_give(stored(1, 1_007), 1_007, frozenset())


def test_record_fits_into_the_registry_whatever_its_consumers_are_called() -> None:
    spans = InFlightTracker()
    for number in range(2 * module.MAX_SPANS):
        where = Position(2**62 + number, 2**62, 0, 99_999)
        one = Stored(Message(b""), where, 0)
        assert spans.may_give(one, 0, frozenset())
        spans.give(one, 2**41 + number, f"{number}".rjust(249, "c"))
    record = spans.dump()
    check_record(module.KIND, "name", record)
    assert InFlightTracker.load(record).spans()[-1].upto == (
        2**62 + 2 * module.MAX_SPANS - 1,
        2**62,
        99_999,
    )


def test_reset_forgets_what_was_given() -> None:
    spans = InFlightTracker()
    assert spans.may_give(stored(1), 0, frozenset())
    spans.give(stored(1), 1_000, "a")
    again = InFlightTracker.load(spans.dump())
    assert again.may_give(stored(0, epoch=2), 10, frozenset("a"))
    again.give(stored(0, epoch=2), 1_000, "a")
    assert again.may_give(stored(1, epoch=2), 10, frozenset("a"))


def test_next_due_is_when_something_may_be_given() -> None:
    spans = InFlightTracker()
    assert not spans.may_give(stored(0, 700), 10, frozenset())
    assert not spans.may_give(stored(1, 500), 10, frozenset())
    assert (spans.next_due, spans.passed_over) == (500, 2)
