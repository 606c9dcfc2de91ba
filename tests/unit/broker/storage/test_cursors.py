"""A cursor is a set of entries, whatever the order in which they are acknowledged."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from router.broker.storage.cursors import Ack, Cursor, bits, words

LAST = 24
BATCH = 70  # more than one word of bits
entries = st.integers(0, LAST)
indexes = st.sets(st.integers(0, BATCH - 1))


class CursorIsASet(RuleBasedStateMachine):
    """The model: acknowledged entries, and the unacknowledged indexes of some others."""

    def __init__(self) -> None:
        super().__init__()
        self.cursor = Cursor()
        self.acked: set[int] = set()
        self.partial: dict[int, set[int]] = {}

    def _ack(self, chosen: set[int]) -> bool:
        new = chosen - self.acked
        self.acked |= chosen
        for entry in chosen:
            self.partial.pop(entry, None)
        return bool(new)

    def _part(self, entry: int, left: set[int]) -> bool:
        if entry in self.acked:
            return False
        before = self.partial.get(entry)
        remaining = left if before is None else before & left
        if not remaining:
            return self._ack({entry})
        self.partial[entry] = remaining
        return remaining != before

    @rule(entry=entries)
    def acknowledge_one(self, entry: int) -> None:
        assert self.cursor.apply(Ack(entry)) == self._ack({entry})

    @rule(entry=entries)
    def acknowledge_all_up_to(self, entry: int) -> None:
        changed = self.cursor.apply(Ack(entry, cumulative=True))
        assert changed == self._ack(set(range(entry + 1)))

    @rule(entry=entries, left=indexes, cumulative=st.booleans())
    def acknowledge_part_of_a_batch(self, entry: int, left: set[int], cumulative: bool) -> None:
        ack_set = tuple(words(sum(1 << index for index in left)))
        changed = self.cursor.apply(Ack(entry, cumulative, ack_set))
        below = cumulative and self._ack(set(range(entry)))
        assert changed == (self._part(entry, left) or below)

    @rule(first=entries, last=entries)
    def skip(self, first: int, last: int) -> None:
        assert self.cursor.skip(first, last) == self._ack(set(range(first, last + 1)))

    @rule(mark_delete=st.integers(-1, LAST))
    def reset(self, mark_delete: int) -> None:
        self.cursor.reset(mark_delete)
        self.acked, self.partial = set(range(mark_delete + 1)), {}

    @rule(next_entry=entries)
    def clip(self, next_entry: int) -> None:
        beyond = {entry for entry in (*self.acked, *self.partial) if entry >= next_entry}
        assert self.cursor.clip(next_entry) == bool(beyond)
        self.acked -= beyond
        self.partial = {e: left for e, left in self.partial.items() if e < next_entry}

    @rule()
    def dump_and_load(self) -> None:
        self.cursor = Cursor.load(self.cursor.dump())

    @invariant()
    def remaining_indexes_are_those_of_the_model(self) -> None:
        counts = {entry: len(left) for entry, left in self.partial.items()}
        assert dict(self.cursor.partials()) == counts
        for entry, left in self.partial.items():
            assert bits(self.cursor.ack_set(entry)) == sum(1 << index for index in left)
        assert dict(self.cursor.partials()) == {e: len(left) for e, left in self.partial.items()}

    @invariant()
    def same_as_the_model(self) -> None:
        everything = range(LAST + 2)
        assert {entry for entry in everything if self.cursor.is_acked(entry)} == self.acked
        open_entries = [entry for entry in everything if entry not in self.acked]
        assert self.cursor.mark_delete == open_entries[0] - 1
        for entry in everything:
            expected = next(e for e in [*open_entries, LAST + 2] if e >= entry)
            assert self.cursor.next_unacked(entry) == expected
            if entry not in self.partial:
                assert self.cursor.ack_set(entry) == []

    @invariant()
    def ranges_are_apart_and_in_order(self) -> None:
        end = self.cursor.mark_delete
        for first, last in self.cursor.ranges():
            assert end + 1 < first <= last
            end = last


TestCursorIsASet = pytest.mark.slow(pytest.mark.no_cover(CursorIsASet.TestCase))
TestCursorIsASet.settings = settings(max_examples=120, stateful_step_count=25, deadline=None)


@given(st.lists(st.integers(-(2**63), 2**63 - 1), max_size=4))
def test_words_survive_the_way_to_bits_and_back(given_words: list[int]) -> None:
    back = words(bits(given_words))
    assert back + [0] * (len(given_words) - len(back)) == given_words


def test_replaying_a_stretch_that_a_cursor_contains_changes_nothing() -> None:
    acks = [Ack(3), Ack(1), Ack(5, ack_set=(13,)), Ack(2, cumulative=True), Ack(5, ack_set=(9,))]
    cursor = Cursor()
    for ack in acks:
        cursor.apply(ack)
    before = cursor.dump()
    assert not any(cursor.apply(ack) for ack in acks[2:])
    assert cursor.dump() == before


def test_loading_refuses_bytes_that_are_no_cursor() -> None:
    cursor = Cursor(4)
    cursor.skip(7, 9)
    data = cursor.dump()
    for wrong in (data[:-1], data + b"\0", b"", b"\x07" + data[1:]):
        with pytest.raises(ValueError, match="stored cursor"):
            Cursor.load(wrong)
