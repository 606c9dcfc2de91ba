"""The deleted numbers of a partition are what a plain set would hold, and so are their rows."""

from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from router.broker.storage import deleted_ranges
from router.broker.storage.deleted_ranges import DeletedRanges

NUMBERS = 60
numbers = st.integers(0, NUMBERS)


class DeletedModel(RuleBasedStateMachine):
    """Deletions, trims and restarts, beside a set and the rows that checkpoints stored."""

    def __init__(self) -> None:
        super().__init__()
        self.numbers: set[int] = set()
        self.rows: dict[int, int] = {}
        self.deleted = DeletedRanges()
        self.limit = deleted_ranges.MAX_CHUNK_RANGES

    @initialize(limit=st.sampled_from([2, 4, 512]))
    def limit_chunks(self, limit: int) -> None:
        deleted_ranges.MAX_CHUNK_RANGES = limit  # type: ignore[misc]

    def teardown(self) -> None:
        deleted_ranges.MAX_CHUNK_RANGES = self.limit  # type: ignore[misc]

    @rule(first=numbers, length=st.integers(0, 9))
    def add(self, first: int, length: int) -> None:
        added = set(range(first, first + length))
        assert self.deleted.add(first, first + length - 1) == len(added - self.numbers)
        self.numbers |= added

    @rule(first=numbers)
    def add_one(self, first: int) -> None:
        self.add(first, 1)

    @rule(below=numbers)
    def remove_below(self, below: int) -> None:
        self.deleted.remove_below(below)
        self.numbers = {number for number in self.numbers if number >= below}

    @rule(start=numbers)
    def remove_from(self, start: int) -> None:
        kept = {number for number in self.numbers if number < start}
        assert self.deleted.remove_from(start) == (kept != self.numbers)
        self.numbers = kept

    @rule()
    def checkpoint(self) -> None:
        for first, last in self.deleted.take_changes():
            if last is None:
                self.rows.pop(first, None)
            else:
                self.rows[first] = last

    @rule()
    def restart(self) -> None:
        self.checkpoint()
        self.deleted = DeletedRanges(sorted(self.rows.items()))

    @rule(first=numbers, last=numbers)
    def count_and_list(self, first: int, last: int) -> None:
        between = {number for number in self.numbers if first <= number <= last}
        assert self.deleted.count_between(first, last) == len(between)
        assert self.deleted.covers(first, last) == (
            len(between) == last + 1 - first or last < first
        )
        listed = [n for a, b in self.deleted.ranges(first, last) for n in range(a, b + 1)]
        assert listed == sorted(between)

    @invariant()
    def holds_the_same_numbers(self) -> None:
        spans = list(self.deleted.ranges())
        assert [n for first, last in spans for n in range(first, last + 1)] == sorted(self.numbers)
        assert all(b[0] > a[1] + 1 for a, b in pairwise(spans))
        assert (len(self.deleted), self.deleted.count) == (len(spans), len(self.numbers))
        assert bool(self.deleted) == bool(self.numbers)
        for number in range(0, NUMBERS + 10, 3):
            assert self.deleted.contains(number) == (number in self.numbers)
            behind = next(n for n in range(number, NUMBERS + 99) if n not in self.numbers)
            assert self.deleted.first_live(number) == behind
            before = next((n for n in range(number, -1, -1) if n not in self.numbers), -1)
            assert self.deleted.last_live(number) == before


DeletedModel.TestCase.settings = settings(max_examples=60, stateful_step_count=30, deadline=None)
TestDeletedRangesAreASet = pytest.mark.slow(DeletedModel.TestCase)


def test_deleted_ranges_take_many_scattered_numbers() -> None:
    deleted = DeletedRanges()
    for number in range(0, 20_000, 2):
        assert deleted.add(number * 7919 % 20_000, number * 7919 % 20_000) == 1
    assert len(deleted) == deleted.count == 10_000
    assert deleted.add(0, 19_999) == 10_000
    assert list(deleted.ranges()) == [(0, 19_999)]
