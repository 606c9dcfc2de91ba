"""The arithmetic of an audit, against sets."""

from __future__ import annotations

import itertools

from hypothesis import given
from hypothesis import strategies as st

from router.pipelines.jobs.audit import Account, PartitionGap, Twice
from tests.unit.pipelines.gaps import adds_up, spans


@given(count=st.integers(0, 40), lost=st.sets(st.integers(0, 39)))
def test_spans_name_exactly_what_is_missing(count: int, lost: set[int]) -> None:
    published = [str(i) for i in range(count)]
    there = [name for i, name in enumerate(published) if i not in lost]
    found = spans(published, there)
    named = [i for span in found for i in range(int(span.first), int(span.last) + 1)]
    assert named == sorted(i for i in lost if i < count)
    assert [span.messages for span in found] == [int(s.last) - int(s.first) + 1 for s in found]
    assert all(int(a.last) + 1 < int(b.first) for a, b in itertools.pairwise(found))


def test_account_is_balanced_when_only_the_newest_wait() -> None:
    account = Account("t", 0, published=5, archived=3, dead=1, waiting=1)
    assert account.balanced(complete=False)
    assert not account.balanced(complete=True)
    assert adds_up(account)


def test_account_says_each_gap_and_repeat_and_how_many_more() -> None:
    account = Account(
        "t",
        2,
        published=9,
        archived=7,
        repeats=3,
        missing=5,
        gaps=(PartitionGap("1:4:0", "1:6:0", 3), PartitionGap("1:9:0", "1:9:0", 1)),
        twice=(Twice("1:1:0", 3),),
    )
    assert adds_up(account)
    assert account.lines(complete=False) == [
        "t[2]: NOT COMPLETE: published 9 = archived 7 + dead 0 - repeats 3 - gone 0 - unknown 0"
        " + missing 5 + waiting 0",
        "t[2]: missing 1:4:0 to 1:6:0 (3)",
        "t[2]: missing 1:9:0",
        "t[2]: missing 1 more in further gaps",
        "t[2]: 1:1:0 is there 3 times",
        "t[2]: 1 more repeats",
    ]


def test_account_is_not_balanced_when_the_archive_is_of_another_topic() -> None:
    assert not Account("t", 0, published=1, archived=2, unknown=1).balanced(complete=False)
