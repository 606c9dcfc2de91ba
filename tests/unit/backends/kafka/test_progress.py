"""How far a group is: acknowledgements in any order, against a set; and the note that keeps it."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from router.backends.kafka.group_progress import MAX_NOTE_BYTES, CommitProgress
from router.backends.kafka.offsets import CommittedOffset, epoch_of, note_of
from router.errors import NotSupportedError

RANGES = st.lists(st.tuples(st.integers(0, 400), st.integers(1, 200)), max_size=12)


def grown(offset: int, ranges: list[tuple[int, int]]) -> CommitProgress:
    progress = CommitProgress(offset, shared=True)
    for first, size in ranges:
        progress = progress.acknowledge((first, first + size))
    return progress


@given(offset=st.integers(0, 300), ranges=RANGES, first=st.integers(0, 700))
def test_acknowledging_in_any_order_is_a_set(
    offset: int, ranges: list[tuple[int, int]], first: int
) -> None:
    progress = grown(offset, ranges)
    done = {*range(offset), *(place for a, n in ranges for place in range(a, a + n))}
    assert {place for place in range(700) if progress.covers(place)} == done
    assert progress.offset not in done
    # What retention took is no backlog, be it acknowledged or not.
    assert progress.backlog(first, 650) == len(set(range(first, 650)) - done)
    ends = [progress.offset, *(end for pair in progress.apart for end in pair)]
    assert ends == sorted(set(ends))


@given(offset=st.integers(0, 300), ranges=RANGES)
def test_acknowledging_together_is_as_one_by_one(
    offset: int, ranges: list[tuple[int, int]]
) -> None:
    before = grown(offset, ranges[:4])
    together = before.acknowledge(*((first, first + size) for first, size in ranges[4:]))
    assert together == grown(offset, ranges)


@given(offset=st.integers(0, 2**60), ranges=RANGES)
def test_a_note_keeps_what_is_acknowledged(offset: int, ranges: list[tuple[int, int]]) -> None:
    progress = grown(offset, [(offset + first, size) for first, size in ranges])
    note = note_of(7, progress)
    commit = CommittedOffset(progress.offset, note)
    assert commit.progress() == progress
    assert epoch_of(commit) == 7


@given(text=st.text("ABCz09_-", max_size=9))
def test_a_note_of_anybody_is_read_without_failing(text: str) -> None:
    progress = CommittedOffset(5, f"router-epoch 3 acked {text}").progress()
    ends = [5, *(end for pair in progress.apart for end in pair)]
    assert progress.offset == 5
    assert ends == sorted(set(ends))


def test_notes_of_before_and_of_others_say_nothing_of_ranges() -> None:
    for note in ("", "router-epoch 3", "what another client wrote"):
        assert CommittedOffset(5, note).progress() == CommitProgress(5)


@pytest.mark.slow
@pytest.mark.no_cover
def test_more_gaps_than_a_note_holds_are_refused() -> None:
    many = grown(0, [(place, 1) for place in range(2, 2 * 1_500, 2)])
    assert len(note_of(2**63 - 1, many)) <= MAX_NOTE_BYTES
    assert CommittedOffset(0, note_of(1, many)).progress() == many
    with pytest.raises(NotSupportedError):
        grown(0, [(place, 1) for place in range(2, 2 * 2_000, 2)]).text()
