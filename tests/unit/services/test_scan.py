"""Stretches of a topic: forward, back, and within bounds."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from time import monotonic

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from router.backends import Batch, Start
from router.backends.memory import MemoryBackend
from router.model import Message, Policies, Stored, TopicName
from router.services.consume import PollMailbox
from router.services.directory import Directory
from router.services.read import Reading, ReadOptions, Whence
from router.services.scan import (
    PAGE_BOUNDS,
    Found,
    Scan,
    ScanBounds,
    after,
    before,
    beginning,
    end_of,
)

TOPIC = TopicName.parse("t")
OPTIONS = ReadOptions(5.0, False, 10, 5.0, 60.0, 1_000_000)
LATE = ScanBounds(10_000, 1 << 20, 0.05)


@pytest.fixture
def backend() -> Iterator[MemoryBackend]:
    made = MemoryBackend(auto_create=False)
    made.create_topic(TOPIC, 2, Policies(), {}, 5)
    yield made
    made.close()


@pytest.fixture
def reading(backend: MemoryBackend) -> Reading:
    return reads(backend)


def reads(backend: MemoryBackend) -> Reading:
    return Reading(backend, Directory(backend, 0, 5, monotonic), OPTIONS, monotonic)


def store(backend: MemoryBackend, partition: int, *values: bytes) -> None:
    backend.publish(Batch(TOPIC, partition, [Message(value) for value in values]), 5)


def everything(stored: Stored) -> bool:
    return True


def values(messages: Sequence[Stored]) -> list[bytes]:
    return [stored.message.value for stored in messages]


def last(backend: MemoryBackend, reading: Reading, most: int, bounds: ScanBounds) -> Found:
    stats = backend.describe_topic(TOPIC, 5)
    return before(reading, stats, end_of(stats), most, everything, bounds)


def test_last_messages_come_with_what_follows_them(
    backend: MemoryBackend, reading: Reading
) -> None:
    for number in range(10):
        store(backend, number % 2, b"%d" % number)
    found = last(backend, reading, 4, PAGE_BOUNDS)
    assert len(found.messages) == 4
    # Those of one millisecond have no order among partitions.
    for parity in (0, 1):
        own = [value for value in values(found.messages) if int(value) % 2 == parity]
        assert own == [b"%d" % number for number in range(parity, 10, 2)][5 - len(own) :]
    store(backend, 0, b"next")
    feed = reading.feed(TOPIC, found.end, PollMailbox())
    assert values(feed.take(10, 1000)) == [b"next"]
    feed.close()


def test_batches_that_are_more_than_one_look_takes_are_read_from_fewer_entries(
    backend: MemoryBackend, reading: Reading
) -> None:
    for number in range(9):
        store(backend, 0, *(b"%d.%d" % (number, index) for index in range(100)))
    found = last(backend, reading, 50, replace(PAGE_BOUNDS, messages=250))
    assert values(found.messages) == [b"8.%d" % index for index in range(50, 100)]


def test_last_batch_comes_whole(backend: MemoryBackend, reading: Reading) -> None:
    store(backend, 0, *(b"%d" % number for number in range(300)))
    assert len(last(backend, reading, 1_000, PAGE_BOUNDS).messages) == 300


def test_topic_without_messages_is_followed_from_its_first(
    backend: MemoryBackend, reading: Reading
) -> None:
    found = last(backend, reading, 50, PAGE_BOUNDS)
    assert (found.messages, found.whole) == ((), True)
    assert found.end == {0: Start.EARLIEST, 1: Start.EARLIEST}


def test_search_back_goes_on_until_enough_is_found(
    backend: MemoryBackend, reading: Reading
) -> None:
    for number in range(500):
        store(backend, number % 2, b"needle" if number in {3, 40} else b"hay")
    stats = backend.describe_topic(TOPIC, 5)
    found = before(
        reading, stats, end_of(stats), 2, lambda stored: stored.message.value == b"needle"
    )
    assert len(found.messages) == 2
    assert found.looked <= 500


def test_scan_that_misses_a_partition_gives_what_it_has_and_says_where_it_stands(
    backend: MemoryBackend, reading: Reading
) -> None:
    store(backend, 0, b"a", b"b")
    starts = beginning([0, 1], Start.EARLIEST)
    # Without an end of the second partition it would wait for a message for ever.
    scan = Scan(reading, TOPIC, starts, {0: end_of(backend.describe_topic(TOPIC, 5))[0]}, LATE)
    try:
        assert values(list(scan)) == [b"a", b"b"]
    finally:
        scan.close()
    assert not scan.whole
    store(backend, 1, b"c")
    rest = after(
        reading, TOPIC, (scan.places, end_of(backend.describe_topic(TOPIC, 5))), 9, everything
    )
    assert values(rest.messages) == [b"c"]
    assert rest.whole


def test_scan_holds_no_more_bytes_than_its_bound_and_one_message(
    backend: MemoryBackend, reading: Reading
) -> None:
    for partition in (0, 1):
        for _ in range(6):
            store(backend, partition, b"x" * 1000)
    starts = beginning([0, 1], Start.EARLIEST)
    ends = end_of(backend.describe_topic(TOPIC, 5))
    bounds = replace(PAGE_BOUNDS, max_bytes=2_500)
    found = after(reading, TOPIC, (starts, ends), 99, everything, bounds)
    assert 0 < len(found.messages) <= 3
    assert not found.whole


sizes = st.lists(st.tuples(st.integers(0, 1), st.integers(1, 4)), max_size=14)


@settings(deadline=None, max_examples=60)
@given(batches=sizes, most=st.integers(1, 5), odd=st.booleans())
def test_pages_in_either_direction_hold_each_message_once(
    batches: list[tuple[int, int]], most: int, odd: bool
) -> None:
    backend = MemoryBackend(auto_create=False)
    backend.create_topic(TOPIC, 2, Policies(), {}, 5)
    reading, number = reads(backend), 0
    for partition, count in batches:
        store(backend, partition, *(b"%d" % (number + index) for index in range(count)))
        number += count
    wanted = [b"%d" % n for n in range(number) if n % 2 or not odd]
    stats = backend.describe_topic(TOPIC, 5)

    def chosen(stored: Stored) -> bool:
        return stored.message.value in wanted

    assert sorted(_forward(reading, end_of(stats), most, chosen)) == sorted(wanted)
    assert sorted(_back(reading, backend, most, chosen)) == sorted(wanted)
    backend.close()


def _forward(reading: Reading, ends: dict[int, Whence], most: int, chosen: object) -> list[bytes]:
    assert callable(chosen)
    places, found = beginning([0, 1], Start.EARLIEST), list[bytes]()
    while True:
        page = after(reading, TOPIC, (places, ends), most, chosen)
        found += values(page.messages)
        places = page.end
        if page.whole:
            return found


def _back(reading: Reading, backend: MemoryBackend, most: int, chosen: object) -> list[bytes]:
    assert callable(chosen)
    stats = backend.describe_topic(TOPIC, 5)
    places, found = end_of(stats), list[bytes]()
    while True:
        page = before(reading, stats, places, most, chosen)
        found += values(page.messages)
        if page.whole or page.begin == places:
            return found
        places = page.begin
