"""Turns to append much: their order, their bound, and what they leave to others."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, cast

from router.broker.storage.append_turns import (
    MAX_HOLD_SECONDS,
    MAX_TURN_BYTES,
    SHARED_TURN_BYTES,
    AppendTurns,
    PendingGroup,
)

HALF = SHARED_TURN_BYTES // 2


class Clock:
    """An event loop's time, and the call that it is to make."""

    def __init__(self) -> None:
        self.now = 100.0
        self.calls: list[tuple[float, Callable[[], None]]] = []

    def time(self) -> float:
        return self.now

    def call_at(self, time: float, call: Callable[[], None]) -> Any:
        self.calls.append((time, call))
        return self

    def advance(self, seconds: float) -> None:
        self.now += seconds
        due = [call for time, call in self.calls if time <= self.now]
        self.calls = [one for one in self.calls if one[0] > self.now]
        for call in due:
            call()


class Turns:
    """Turns whose appends are noted by their names, and the commit groups that they begin."""

    def __init__(self) -> None:
        self.clock = Clock()
        self.begun = 0
        self.turns = AppendTurns(cast("Any", self.clock), self._begin)
        self.appended: list[str] = []

    def _begin(self) -> None:
        self.begun += 1

    def wait(self, name: str, size: int, then: Callable[[], None] = lambda: None) -> None:
        def append() -> None:
            self.appended.append(name)
            then()

        self.turns.wait(append, size)

    def group(
        self, seconds: float = 0.001, *, due: bool = False, others: bool = False
    ) -> list[str]:
        """Write a commit group; return what was appended in turns."""
        group, self.appended = PendingGroup(is_due=due), []
        self.turns.take(group)
        if self.appended or due:
            self.clock.advance(seconds)
            self.turns.ended(group, others=others)
        return self.appended


def test_turns_are_taken_in_their_order_by_all_who_wait() -> None:
    found = Turns()
    found.wait("a1", HALF, lambda: found.wait("a2", HALF))
    found.wait("b", HALF)
    assert found.turns.size == 2 * HALF
    assert found.group() == ["a1", "b", "a2"]
    assert (found.turns.size, bool(found.turns)) == (0, False)


def test_a_group_has_a_bound_and_at_least_one_turn() -> None:
    found = Turns()
    found.wait("a", MAX_TURN_BYTES + 1)
    found.wait("b", MAX_TURN_BYTES - 1)
    found.wait("c", 2)
    assert [found.group() for _ in range(3)] == [["a"], ["b"], ["c"]]


def test_without_others_a_turn_follows_the_last() -> None:
    found = Turns()
    for name in "abc":
        found.wait(name, MAX_TURN_BYTES)
        assert found.group() == [name]


def test_with_others_a_turn_comes_as_late_as_the_last_took() -> None:
    found = Turns()
    found.wait("a", HALF)
    assert found.group(0.004, others=True) == ["a"]
    found.wait("b", HALF)
    assert found.group(0.001, due=True) == []
    assert found.group() == []
    found.clock.advance(0.002)
    assert found.begun == 0
    found.clock.advance(0.0011)
    assert found.begun == 1
    assert found.group(due=True) == ["b"]


def test_with_others_a_group_has_less_of_turns() -> None:
    found = Turns()
    found.wait("a", HALF)
    assert found.group(0.001, others=True) == ["a"]
    found.clock.advance(0.002)
    for name in "bcd":
        found.wait(name, HALF)
    assert found.group(others=True) == ["b", "c"]


def test_what_others_had_written_since_the_last_turn_counts() -> None:
    found = Turns()
    found.wait("a", HALF)
    assert found.group() == ["a"]
    assert found.group(due=True) == []
    found.wait("b", HALF)
    assert found.group(0.001) == ["b"]
    found.wait("c", HALF)
    assert found.group() == []
    found.clock.advance(0.0011)
    assert found.group() == ["c"]
    found.wait("d", HALF)
    assert found.group() == ["d"], "none came meanwhile"


def test_no_turn_waits_for_longer_than_the_bound() -> None:
    found = Turns()
    found.wait("a", HALF)
    assert found.group(3_600.0, others=True) == ["a"]
    found.wait("b", HALF)
    assert found.group(due=True) == []
    found.clock.advance(MAX_HOLD_SECONDS)
    assert found.group(due=True) == ["b"]
