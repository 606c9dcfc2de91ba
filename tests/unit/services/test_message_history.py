"""What was done with messages: as calls to the broker, whose failures change nothing."""

from __future__ import annotations

from typing import Any

import pytest

from router.errors import BackendTimeoutError
from router.model import Message, Position, Stored, TopicName
from router.services.message_history import REPLAYED, MessageAction, MessageHistory, ranges_of

T, OTHER = TopicName.parse("t"), TopicName.parse("other")


class Broker:
    """Takes the calls, and may fail."""

    def __init__(self, answer: Any = None, *, fails: bool = False) -> None:
        self.calls: list[tuple[str, dict[str, Any]]] = []
        self._answer = answer
        self._fails = fails

    def call(self, name: str, **arguments: Any) -> Any:
        self.calls.append((name, arguments))
        if self._fails:
            raise BackendTimeoutError("no answer")
        return self._answer


@pytest.mark.parametrize("fails", [False, True])
def test_what_was_done_is_noted_by_partition(fails: bool) -> None:
    broker = Broker(fails=fails)
    ranges = [(Position(7, 1, 0, 2), Position(7, 3, 0)), (Position(7, 5, 0), Position(7, 5, 0))]
    MessageHistory(broker).record(T, ranges, REPLAYED, OTHER, "anna", "r1")
    names = {
        "operation": "r1",
        "topic": str(T),
        "other": str(OTHER),
        "action": REPLAYED,
        "user": "anna",
    }
    rows = [[1, 2, 3, -1], [5, -1, 5, -1]]
    expected = names | {"partition": 0, "ledger": 7, "ranges": rows}
    assert broker.calls == [("add_message_events", expected)]


def test_what_is_known_has_a_beginning() -> None:
    row: dict[str, Any] = {"action": REPLAYED, "topic": str(OTHER), "user": "anna", "at": 5}
    broker = Broker({"events": [row], "since": 3})
    found = MessageHistory(broker).find(T, Position(7, 1, 0))
    assert found == ([MessageAction(**row)], 3)
    assert MessageHistory().find(T, Position(7, 1, 0)) is None


def test_ranges_hold_what_is_chosen_and_nothing_between() -> None:
    chosen = [
        (0, 0, True),
        (1, 0, True),
        (0, 1, True),
        (0, 2, False),
        (1, 1, True),
        (0, 3, True),
        (0, 4, False),
    ]
    read = [(Stored(Message(b""), Position(7, e, p), 1), is_in) for p, e, is_in in chosen]
    found = [(first.partition, first.entry, last.entry) for first, last in ranges_of(read)]
    assert sorted(found) == [(0, 0, 1), (0, 3, 3), (1, 0, 1)]
