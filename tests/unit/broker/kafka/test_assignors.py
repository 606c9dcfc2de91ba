"""The assignors of consumer groups: each partition once, to readers, in balance, few moves."""

from __future__ import annotations

import heapq
from collections.abc import Callable, Mapping, Sequence
from itertools import combinations, count
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from router.broker.kafka.assignors import (
    ASSIGNORS,
    AssignedMember,
    Assignment,
    assign_range,
    assign_uniform,
)

TOPICS = (b"a", b"b", b"c")
partitions = st.dictionaries(st.sampled_from(TOPICS), st.integers(1, 6))
topics = st.frozensets(st.sampled_from(TOPICS))
owned = st.frozensets(st.tuples(st.sampled_from(TOPICS), st.integers(0, 7)), max_size=6)
members = st.lists(st.tuples(topics, owned), min_size=1, max_size=5).map(
    lambda found: [AssignedMember(f"m{n}", None, *one) for n, one in enumerate(found)]
)
GROUPS = list(combinations(range(10), 4))
alike = st.lists(owned, min_size=1, max_size=5).map(
    lambda found: [
        AssignedMember(f"m{n}", None, frozenset(TOPICS), one) for n, one in enumerate(found)
    ]
)


@pytest.mark.parametrize("name", ASSIGNORS)
@given(members=members, partitions=partitions)
def test_each_partition_is_given_to_one_reader(
    name: str, members: Sequence[AssignedMember], partitions: Mapping[bytes, int]
) -> None:
    found = ASSIGNORS[name](members, partitions)
    assert found.keys() == {one.id for one in members}
    given = [place for owned in found.values() for place in owned]
    read = frozenset[bytes]().union(*(one.topics for one in members))
    every = [(topic, n) for topic in partitions if topic in read for n in range(partitions[topic])]
    assert sorted(given) == sorted(every)
    for one in members:
        assert {topic for topic, _ in found[one.id]} <= one.topics


@given(members=members, partitions=partitions)
def test_no_move_makes_a_uniform_assignment_more_even(
    members: Sequence[AssignedMember], partitions: Mapping[bytes, int]
) -> None:
    found = assign_uniform(members, partitions)
    for one in members:
        for other in members:
            if any(topic in other.topics for topic, _ in found[one.id]):
                assert len(found[one.id]) <= len(found[other.id]) + 1


@given(members=alike, partitions=partitions)
def test_members_with_one_subscription_keep_what_they_may(
    members: Sequence[AssignedMember], partitions: Mapping[bytes, int]
) -> None:
    before = assign_uniform(members, partitions)
    again = [AssignedMember(one.id, None, one.topics, before[one.id]) for one in members]
    assert assign_uniform(again, partitions) == before
    joined = assign_uniform([*again, AssignedMember("new", None, frozenset(TOPICS))], partitions)
    assert all(joined[one.id] <= before[one.id] for one in members)


def test_members_with_unlike_subscriptions_cost_little_for_each_partition(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    steps = count()
    for name in ("heappush", "heappop", "heapreplace"):
        real = getattr(heapq, name)

        def counted(*given: Any, real: Callable[..., Any] = real) -> Any:
            next(steps)
            return real(*given)

        monkeypatch.setattr(heapq, name, counted)
    # Each of 210 topics has readers that no other topic has.
    read = [{b"%03d" % n for n, ids in enumerate(GROUPS) if id in ids} for id in range(10)]
    found = assign_uniform(
        [AssignedMember(f"m{id}", None, frozenset(topics)) for id, topics in enumerate(read)],
        {b"%03d" % n: 10 for n in range(len(GROUPS))},
    )
    assert sorted(map(len, found.values())) == [210] * 10
    assert next(steps) < 20 * 2_100


def test_a_range_is_of_adjacent_partitions_and_by_instance() -> None:
    reads = frozenset({b"a", b"b"})
    members = [
        AssignedMember("z", "i1", reads),
        AssignedMember("m", None, reads),
        AssignedMember("y", "i2", reads),
    ]
    found = assign_range(members, {b"a": 7, b"b": 3})
    assert {one: shown(owned) for one, owned in found.items()} == {
        "z": "a0 a1 a2 b0",
        "y": "a3 a4 b1",
        "m": "a5 a6 b2",
    }


def shown(assignment: Assignment) -> str:
    return " ".join(f"{topic.decode()}{number}" for topic, number in sorted(assignment))
