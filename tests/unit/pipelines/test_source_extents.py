"""Extents of partitions: what Apache Pulsar's ledgers come down to."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from router.backends.pulsar.extents import EntryPosition, EntryRead, extents_from_stats
from router.errors import BackendUnavailableError

LEDGERS = st.lists(st.integers(0, 4), min_size=1, max_size=5)


def stats(sizes: list[int]) -> dict[str, Any]:
    """Statistics of ledgers 10, 20 …; the last one is written to, and says none of its entries."""
    return {
        "lastConfirmedEntry": f"{10 * len(sizes)}:{sizes[-1] - 1}",
        "ledgers": [
            {"ledgerId": 10 * (i + 1), "entries": size if i + 1 < len(sizes) else 0}
            for i, size in enumerate(sizes)
        ],
    }


def entries(sizes: list[int]) -> list[EntryPosition]:
    return [
        EntryPosition(10 * (i + 1), entry) for i, size in enumerate(sizes) for entry in range(size)
    ]


@given(sizes=LEDGERS)
def test_extent_begins_with_the_first_entry_and_ends_behind_the_last(sizes: list[int]) -> None:
    extent, stored = extents_from_stats(0, stats(sizes), None), entries(sizes)
    assert [one for one in stored if extent.first <= one < extent.stop] == stored
    if stored:
        assert extent.first == stored[0]
    assert extent.last(extent.stop) == (stored[-1] if stored else None)


@given(sizes=LEDGERS, data=st.data())
def test_range_has_as_many_entries_as_were_requested(sizes: list[int], data: Any) -> None:
    stored = entries(sizes)
    start = data.draw(st.sampled_from([*stored, EntryPosition(10 * len(sizes), sizes[-1])]))
    count = data.draw(st.integers(1, 12))
    extent = extents_from_stats(0, stats(sizes), EntryRead(0, start, count))
    ahead = [one for one in stored if one >= start]
    assert [one for one in ahead if one < extent.end] == ahead[:count]


@given(sizes=LEDGERS, data=st.data())
def test_last_is_the_entry_before_a_place(sizes: list[int], data: Any) -> None:
    stored = entries(sizes)
    end = data.draw(
        st.sampled_from([*stored, EntryPosition(10 * len(sizes), sizes[-1]), EntryPosition(15, 0)])
    )
    before = [one for one in stored if one < end]
    assert extents_from_stats(0, stats(sizes), None).last(end) == (before[-1] if before else None)


def test_statistics_without_positions_are_refused() -> None:
    with pytest.raises(BackendUnavailableError):
        extents_from_stats(0, {"ledgers": []}, None)
