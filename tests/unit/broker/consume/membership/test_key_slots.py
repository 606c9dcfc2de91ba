"""Every slot has one owner, and only what must change hands does."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, cast

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from router.broker.consume import ClientConsumer, HashRangeError, KeyPolicy
from router.broker.consume.membership.hashing import SLOTS, murmur3
from router.broker.consume.membership.key_slots import Assignment, Ranges, Ring

NAMES = st.lists(st.sampled_from(["a", "b", "c", "the same"]), min_size=1, max_size=6)


def consumer(name: str, *ranges: tuple[int, int]) -> ClientConsumer:
    nothing = cast("Any", None)
    keys = KeyPolicy(sticky=bool(ranges), ranges=ranges)
    return ClientConsumer(link=nothing, consumer_id=1, name=name, keys=keys)


def owners(assignment: Assignment) -> list[ClientConsumer | None]:
    """Whose each slot is; none has the number 0."""
    return [None, *map(assignment.owner, range(1, SLOTS))]


@settings(max_examples=12)
@given(names=NAMES)
def test_ring_gives_every_slot_to_one_consumer(names: list[str]) -> None:
    ring = Ring()
    there = [consumer(name) for name in names]
    for one in there:
        ring.add(one)
    assert set(owners(ring)[1:]) == set(there)


@pytest.mark.slow
@pytest.mark.no_cover
@settings(max_examples=12)
@given(names=NAMES, which=st.integers(0, 5))
def test_only_what_the_leaving_consumer_had_moves(names: list[str], which: int) -> None:
    ring = Ring()
    there = [consumer(name) for name in names]
    for one in there:
        ring.add(one)
    before = owners(ring)
    leaving = there[which % len(there)]
    ring.remove(leaving)
    after = owners(ring)
    assert leaving not in after
    moved = [(old, new) for old, new in zip(before, after, strict=True) if old is not new]
    assert {old for old, _ in moved} == {leaving}
    # And one that comes takes slots, but moves none between the others.
    ring.add(leaving)
    again = owners(ring)
    assert all(new in {old, leaving} for old, new in zip(after, again, strict=True))


def test_ring_shares_slots_out_evenly() -> None:
    ring = Ring()
    for n in range(4):
        ring.add(consumer(f"c{n}"))
    found = owners(ring)
    shares = [found.count(one) for one in set(found[1:])]
    assert len(shares) == 4
    assert min(shares) > SLOTS // 4 * 0.6


def test_ring_without_consumers_gives_nobody_a_slot() -> None:
    ring = Ring()
    one = consumer("a")
    ring.add(one)
    ring.remove(one)
    assert ring.owner(1) is None


RANGE = st.tuples(st.integers(0, 40), st.integers(0, 40)).map(lambda pair: (min(pair), max(pair)))


def slots(ranges: Sequence[tuple[int, int]]) -> list[int]:
    return [slot for first, last in ranges for slot in range(first, last + 1)]


@given(asked=st.lists(st.lists(RANGE, min_size=1, max_size=3), max_size=5))
def test_ranges_are_given_only_where_they_are_free(asked: list[list[tuple[int, int]]]) -> None:
    ranges = Ranges()
    model: dict[int, ClientConsumer] = {}
    for number, wanted in enumerate(asked):
        one = consumer(str(number), *wanted)
        wished = slots(wanted)
        if len(set(wished)) == len(wished) and not model.keys() & set(wished):
            ranges.add(one)
            model |= dict.fromkeys(wished, one)
        else:
            with pytest.raises(HashRangeError):
                ranges.add(one)
    assert [ranges.owner(slot) for slot in range(60)] == [model.get(slot) for slot in range(60)]
    for one in set(model.values()):
        ranges.remove(one)
    assert not any(map(ranges.owner, range(60)))


@pytest.mark.parametrize("wrong", [[(5, 4)], [(-1, 4)], [(0, SLOTS)], []])
def test_ranges_that_are_none_are_refused(wrong: list[tuple[int, int]]) -> None:
    with pytest.raises(HashRangeError):
        Ranges().add(consumer("a", *wrong))


@pytest.mark.parametrize(
    ("key", "hashed"),
    [
        # What Murmur3_32Hash of Apache Pulsar 4.2.4 makes of them.
        (b"", 0),
        (b"a", 1009084850),
        (b"ab", 465557343),
        (b"abc", 870159354),
        (b"abcd", 1139631978),
        (b"key-1", 414258592),
        (b"persistent://public/default/t", 1850889519),
        ("grüße".encode(), 1418952266),
        (b"\xff\xfe\x00\x01\x80", 2146232631),
        (bytes(300), 853467315),
    ],
)
def test_keys_hash_as_apache_pulsar_has_it(key: bytes, hashed: int) -> None:
    assert murmur3(key) == hashed
