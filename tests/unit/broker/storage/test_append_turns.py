"""Turns to append much: their order, their bound, and what they leave to others."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, cast

from router.broker.storage.append_turns import (
    IDLE_SECONDS,
    MAX_HOLD_SECONDS,
    MAX_TURN_BYTES,
    OTHERS_SHARE,
    QUIET_SECONDS,
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
        self.pending = PendingGroup()

    def _begin(self) -> None:
        self.begun += 1

    def wait(self, name: str, size: int, then: Callable[[], None] = lambda: None) -> None:
        def append() -> None:
            self.appended.append(name)
            self.pending.call(lambda: None)
            then()

        self.turns.wait(append, size, self.pending)

    def other(self) -> None:
        """Append something that takes no turn."""
        self.pending.is_due = True
        self.pending.call(lambda: None)

    def group(self, seconds: float = 0.001, *, others: bool = False) -> list[str]:
        """Write a commit group; return what was appended in turns.

        `others`: something else is appended while it is written.
        """
        self.turns.take(self.pending)
        if not self.pending.calls:
            return []
        group, self.pending = self.pending, PendingGroup()
        appended, self.appended = self.appended, []
        self.clock.advance(seconds)
        if others:
            self.other()
        self.turns.ended(group, self.pending)
        return appended

    def alone(self) -> None:
        """Be where nothing else has been published since the last turn."""
        for name in "xy":
            self.wait(name, HALF)
            self.clock.advance(MAX_HOLD_SECONDS)
            assert self.group() == [name]

    def shared(self) -> None:
        """Be where others have published since the last turn, whose time is over."""
        self.wait("first", HALF)
        assert self.group(others=True) == ["first"]
        assert self.group() == []
        self.clock.advance(MAX_HOLD_SECONDS)


def test_alone_a_turn_comes_at_once_up_to_a_bound() -> None:
    found = Turns()
    found.alone()
    found.wait("a", MAX_TURN_BYTES - 1)
    found.wait("b", 1)
    assert found.appended == ["a", "b"]
    found.wait("c", 1)
    assert found.appended == ["a", "b"]
    assert [found.group(), found.group()] == [["a", "b"], ["c"]]


def test_turns_are_taken_in_their_order_by_all_who_wait() -> None:
    found = Turns()
    found.shared()
    found.wait("a1", HALF // 2, lambda: found.wait("a2", HALF))
    found.wait("b", HALF)
    assert found.turns.size == HALF // 2 + HALF
    assert found.group() == ["a1", "b"]
    found.clock.advance(MAX_HOLD_SECONDS)
    assert found.group() == ["a2"]
    assert found.turns.size == 0


def test_a_group_has_a_bound_and_at_least_one_turn() -> None:
    found = Turns()
    found.shared()
    for name, size in (("a", SHARED_TURN_BYTES + 1), ("b", SHARED_TURN_BYTES - 1), ("c", 2)):
        found.wait(name, size)
    for name in "abc":
        assert found.group() == [name]
        found.clock.advance(MAX_HOLD_SECONDS)


def test_with_others_a_turn_comes_after_their_share_of_the_time() -> None:
    found = Turns()
    found.wait("a", HALF)
    assert found.group(0.001, others=True) == ["a"]
    found.wait("b", HALF)
    assert found.group(0.001, others=True) == []
    assert found.group(OTHERS_SHARE * 0.001 - 0.0011) == []
    assert found.group() == []
    found.clock.advance(0.00005)
    assert found.begun == 0
    found.clock.advance(0.0001)
    assert found.begun == 1
    assert found.group() == ["b"]


def test_a_turn_comes_as_soon_as_others_are_quiet() -> None:
    found = Turns()
    found.wait("a", HALF)
    assert found.group(3_600.0, others=True) == ["a"]
    found.wait("b", HALF)
    assert found.group(0.001) == []
    assert found.group() == []
    found.clock.advance(QUIET_SECONDS - 0.0001)
    assert found.begun == 0
    found.clock.advance(0.0002)
    assert found.begun == 1
    assert found.group() == ["b"]


def test_a_turn_is_not_taken_beside_others_at_once() -> None:
    found = Turns()
    found.other()
    found.wait("a", HALF)
    assert found.appended == []
    assert found.group() == ["a"]


def test_others_in_the_group_of_a_turn_count() -> None:
    found = Turns()
    found.wait("a", HALF)
    found.other()
    assert found.group(0.001) == ["a"]
    found.wait("b", HALF)
    assert found.group() == []
    found.clock.advance(QUIET_SECONDS)
    assert found.group() == ["b"]
    found.wait("c", HALF)
    assert found.appended == ["c"], "none came meanwhile"


def test_turns_are_in_use_from_the_first_until_long_after_the_last() -> None:
    found = Turns()
    assert not found.turns.in_use
    found.wait("a", HALF)
    assert found.appended == [], "what was appended before is not known"
    assert found.group() == ["a"]
    for seconds, in_use in ((IDLE_SECONDS - 0.1, True), (0.2, False)):
        found.other()
        assert found.group(seconds) == []
        assert found.turns.in_use is in_use


def test_turns_stay_in_use_while_one_waits() -> None:
    found = Turns()
    found.shared()
    found.wait("a", HALF)
    found.turns.ended(PendingGroup(), PendingGroup())
    found.clock.advance(2 * IDLE_SECONDS)
    found.turns.ended(PendingGroup(), PendingGroup())
    assert found.turns.in_use
    assert found.group() == ["a"]


def test_no_turn_waits_for_longer_than_the_bound() -> None:
    found = Turns()
    found.wait("a", HALF)
    assert found.group(3_600.0, others=True) == ["a"]
    found.wait("b", HALF)
    assert found.group(0.001, others=True) == []
    found.clock.advance(MAX_HOLD_SECONDS)
    assert found.group() == ["b"]


def test_a_turn_within_a_turn_that_appended_nothing_counts_once() -> None:
    found = Turns()
    found.alone()
    found.turns.wait(lambda: found.wait("a", HALF), HALF, found.pending)
    assert found.appended == ["a"]
    found.other()
    assert found.pending.has_others
