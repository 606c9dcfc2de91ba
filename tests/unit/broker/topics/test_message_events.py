"""What was done with messages, in memory: by ranges, within a bound, and not of other ledgers."""

from __future__ import annotations

from itertools import count

import pytest

from router.broker.topics import message_events
from router.broker.topics.calls import AdminCalls
from router.broker.topics.message_events import EVENT_BYTES, LEDGER_BYTES, MessageEvents
from router.errors import BadRequestError
from router.model import TopicName
from tests.unit.broker.topics.test_cursor_administration import Direct, T, direct

__all__ = ["direct"]


def test_an_event_is_of_the_messages_of_its_range() -> None:
    events = MessageEvents(count(1).__next__)
    events.add(7, ((2, 1), (4, -1)), "replayed", "a", "anna")
    events.add(7, ((3, -1), (3, -1)), "requeued", "b", "")
    found = {
        place: [one.action for one in events.find(7, place)]
        for place in ((2, 0), (2, 1), (3, -1), (4, -1), (5, -1))
    }
    assert found == {
        (2, 0): [],
        (2, 1): ["replayed"],
        (3, -1): ["replayed", "requeued"],
        (4, -1): ["replayed"],
        (5, -1): [],
    }
    assert events.find(8, (3, -1)) == []


def test_an_operation_that_is_noted_twice_is_found_once() -> None:
    events = MessageEvents(count(1).__next__)
    for operation in ("r1", "r1", "", "", "r2"):
        events.add(7, ((2, 1), (4, -1)), "replayed", "a", "anna", operation)
    events.add(7, ((2, 1), (4, -1)), "replayed", "a", "bob", "r1")
    found = [(one.user, one.operation, one.at) for one in events.find(7, (3, -1))]
    assert found == [
        ("anna", "r1", 2),
        ("anna", "", 4),
        ("anna", "", 5),
        ("anna", "r2", 6),
        ("bob", "r1", 7),
    ]


def test_the_newest_events_are_kept_and_it_is_known_since_when() -> None:
    events = MessageEvents(
        count(1).__next__, max_bytes=2 * LEDGER_BYTES + 3 * (EVENT_BYTES + 4 * 3)
    )
    for entry in range(5):
        events.add(entry % 2, ((entry, -1), (entry, -1)), "a", "b", "c")
    kept = [entry for entry in range(5) if events.find(entry % 2, (entry, -1))]
    assert kept == [2, 3, 4]
    assert events.since == 4  # the second event was at 3


def test_many_ledgers_with_an_event_each_are_within_the_bound() -> None:
    bound = 100_000
    events = MessageEvents(lambda: 1, bound)
    for ledger in range(2_000):
        events.add(ledger, ((0, -1), (0, -1)), "a", "b", "c")
    kept = [ledger for ledger in range(2_000) if events.find(ledger, (0, -1))]
    assert kept == list(range(2_000 - len(kept), 2_000))
    assert len(kept) == bound // (LEDGER_BYTES + EVENT_BYTES + 4 * 3)


def test_long_texts_are_cut() -> None:
    events = MessageEvents(lambda: 1)
    events.add(1, ((0, -1), (0, -1)), "a", "b" * 1_000, "c" * 1_000)
    (found,) = events.find(1, (0, -1))
    assert (len(found.topic), len(found.user)) == (message_events.MAX_TEXT,) * 2


def test_longest_name_of_a_topic_is_whole() -> None:
    """Cut, it would be another topic's or none, on whose rights it depends who may see it."""
    part = "x" * 249
    longest = str(TopicName(part, part, part, "non-persistent"))
    events = MessageEvents(lambda: 1)
    events.add(1, ((0, -1), (0, -1)), "replayed", longest, "anna")
    (found,) = events.find(1, (0, -1))
    assert str(TopicName.parse(found.topic)) == longest


def test_calls_note_events_of_the_ledger_that_a_partition_has(direct: Direct) -> None:
    calls = AdminCalls(direct.topics)
    ledger = direct.partition(0).ledger.id
    for place in (ledger, ledger + 1_000):
        direct.runner.run(
            calls.add_message_events(
                str(T), 0, place, [[1, -1, 2, -1]], "replayed", "other", "anna"
            )
        )
    found = direct.runner.run(calls.message_events(str(T), 0, ledger, 2, -1))
    (event,) = found["events"]
    assert (event["action"], event["topic"], event["user"]) == ("replayed", "other", "anna")
    assert event["at"] >= found["since"] > 0
    gone = direct.runner.run(calls.message_events(str(T), 0, ledger + 1_000, 2, -1))
    assert gone["events"] == []
    with pytest.raises(BadRequestError):
        direct.runner.run(calls.message_events(str(T), 99, ledger, 2, -1))
