"""The compacted view says of each number what a set of the numbers that are left says."""

from __future__ import annotations

from array import array
from types import SimpleNamespace
from typing import Any, cast

from hypothesis import given
from hypothesis import strategies as st

from router.broker.consume.compacted_view import CompactedView
from router.broker.storage import Entry
from router.broker.storage.deleted_ranges import DeletedRanges

LENGTH = 12


@st.composite
def views(draw: Any) -> tuple[CompactedView, set[int]]:
    """A view of a ledger of LENGTH messages, and the numbers that it has."""
    first = draw(st.integers(0, LENGTH))
    end = draw(st.integers(0, LENGTH))
    kept = draw(st.sets(st.integers(0, end - 1))) if end else set()
    deleted = DeletedRanges()
    gone = draw(st.sets(st.integers(first, LENGTH - 1))) if first < LENGTH else set()
    for number in gone:
        deleted.add(number, number)
    ledger = SimpleNamespace(
        first_number=first,
        durable_number=LENGTH,
        next_index=LENGTH,
        undecided=None,
        deleted_numbers=deleted,
    )
    view = CompactedView(cast(Any, ledger), array("Q", sorted(kept)), end)
    # Beyond the last message nothing is left out, and before the first nothing is deleted.
    return view, {n for n in range(2 * LENGTH) if (n >= end or n in kept) and n not in gone}


@given(views())
def test_view_answers_for_each_number(found: tuple[CompactedView, set[int]]) -> None:
    view, left = found
    for number in range(LENGTH + 2):
        in_log = view.ledger.first_number <= number < LENGTH
        assert view.contains(number) == (in_log and number in left)
        assert view.is_left_out(number) == (number not in left)
        assert view.first_from(number) == min(n for n in left if n >= number)
        assert max(view.last_to(number), -1) == max((n for n in left if n <= number), default=-1)


@given(views(), st.integers(0, LENGTH), st.integers(0, LENGTH))
def test_view_answers_for_ranges(
    found: tuple[CompactedView, set[int]], first: int, length: int
) -> None:
    view, left = found
    numbers = range(first, first + length)
    assert view.count(first, first + length) == len(left & set(numbers))
    if numbers:
        last = numbers[-1]
        bits = sum(1 << (number - first) for number in numbers if number in left)
        assert view.between(first, last) == bits
        entry = Entry(0, last, 1, 0, length, b"")
        assert view.messages(entry) == (None if left >= set(numbers) else bits)
        gone = [n for low, high in view.left_out(first, last) for n in range(low, high + 1)]
        assert gone == [number for number in numbers if number not in left]


@given(views())
def test_view_leaves_something_out_where_it_says_so(
    found: tuple[CompactedView, set[int]],
) -> None:
    view, left = found
    kept = range(view.ledger.first_number, LENGTH)
    gone = sum(number not in left for number in kept)
    assert view.leaves_out >= gone
