"""Offsets of a stream: their JSON, and the batch between two of them."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from router.backends.pulsar.extents import EntryPosition
from router.errors import BadRequestError
from router.pipelines.source.offsets import MessagePoint, Offset, Part

PARTS = st.builds(Part, st.sampled_from(["persistent://a/b/c", "d"]), st.integers(-1, 3))
PLACES = st.builds(EntryPosition, st.integers(0, 2**63), st.integers(0, 2**63))
OFFSETS = st.builds(
    Offset,
    st.dictionaries(PARTS, PLACES),
    st.dictionaries(PARTS, st.integers(0, 2**60)),
    st.dictionaries(PARTS, PLACES),
    st.integers(1, 9),
    st.integers(1, 9),
    st.dictionaries(
        PARTS, st.integers(0, 2**60) | st.builds(MessagePoint, PLACES, st.integers(0, 999))
    ),
)


@given(offset=OFFSETS)
def test_offset_survives_its_json(offset: Offset) -> None:
    assert Offset.of_json(json.loads(json.dumps(offset.json()))) == offset


@given(offset=OFFSETS)
def test_equal_offsets_make_equal_text(offset: Offset) -> None:
    backwards = Offset(
        dict(reversed(list(offset.next.items()))),
        dict(reversed(list(offset.index.items()))),
        dict(reversed(list(offset.begin.items()))),
        offset.lost,
        offset.losses,
        dict(reversed(list(offset.low.items()))),
    )
    assert json.dumps(offset.json()) == json.dumps(backwards.json())


@pytest.mark.slow
@given(start=OFFSETS, end=OFFSETS)
def test_starts_lie_before_the_end_and_come_from_either_offset(start: Offset, end: Offset) -> None:
    for part, place in start.starts(end).items():
        assert place == end.begin.get(part, start.next.get(part))
        assert place < end.next[part]


@pytest.mark.parametrize(
    "told",
    [
        {},
        {"version": 2, "next": {}},
        {"version": 1},
        {"version": 1, "next": {"t": {"0": "1"}}},
        {"version": 1, "next": {"t": {"x": "1:2"}}},
        {"version": 1, "next": {"t": "1:2"}},
        {"version": 1, "next": {}, "low": {"t": {"0": "1"}}},
        {"version": 1, "next": {}, "low": {"t": {"0": [1, 2, 3]}}},
    ],
)
def test_offset_of_something_else_is_refused(told: dict[str, object]) -> None:
    with pytest.raises(BadRequestError):
        Offset.of_json(told)
