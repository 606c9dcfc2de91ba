"""Stretches of a topic: forward, back, and within bounds."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from time import monotonic

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from router.backends import Batch, Start
from router.backends.memory import MemoryBackend
from router.backends.memory.log import MemoryReader
from router.model import Message, Position, Stored, TopicInfo, TopicName, TopicStats
from router.node import Mailbox
from router.services import scan
from router.services.consume import PollMailbox
from router.services.pages import PAGE_BOUNDS, MessagePage, after, before
from router.services.read import ReadOptions, StartPosition, TopicReader
from router.services.scan import Scan, ScanBounds, beginning, end_of
from router.services.topic_metadata import TopicMetadataCache

TOPIC = TopicName.parse("t")
OPTIONS = ReadOptions(5.0, False, 10, 5.0, 60.0, 1_000_000)
LATE = ScanBounds(10_000, 1 << 20, 0.05)


@pytest.fixture
def backend() -> Iterator[MemoryBackend]:
    made = MemoryBackend(auto_create=False)
    made.create_topic(TopicInfo(TOPIC, 2), 5)
    yield made
    made.close()


@pytest.fixture
def reading(backend: MemoryBackend) -> TopicReader:
    return reads(backend)


def reads(backend: MemoryBackend, clock: Callable[[], float] = monotonic) -> TopicReader:
    return TopicReader(backend, TopicMetadataCache(backend, 0, 5, clock), OPTIONS, clock)


def store(backend: MemoryBackend, partition: int, *values: bytes) -> None:
    backend.publish(Batch(TOPIC, partition, [Message(value) for value in values]), 5)


def everything(stored: Stored) -> bool:
    return True


def values(messages: Sequence[Stored]) -> list[bytes]:
    return [stored.message.value for stored in messages]


def last(
    backend: MemoryBackend, reading: TopicReader, most: int, bounds: ScanBounds
) -> MessagePage:
    stats = backend.describe_topic(TOPIC, 5)
    return before(reading, stats, end_of(stats), most, everything, bounds)


def test_last_messages_come_with_what_follows_them(
    backend: MemoryBackend, reading: TopicReader
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
    backend: MemoryBackend, reading: TopicReader
) -> None:
    for number in range(9):
        store(backend, 0, *(b"%d.%d" % (number, index) for index in range(100)))
    found = last(backend, reading, 50, replace(PAGE_BOUNDS, messages=250))
    assert values(found.messages) == [b"8.%d" % index for index in range(50, 100)]


def test_last_batch_comes_whole(backend: MemoryBackend, reading: TopicReader) -> None:
    store(backend, 0, *(b"%d" % number for number in range(300)))
    assert len(last(backend, reading, 1_000, PAGE_BOUNDS).messages) == 300


def test_topic_without_messages_is_followed_from_its_first(
    backend: MemoryBackend, reading: TopicReader
) -> None:
    found = last(backend, reading, 50, PAGE_BOUNDS)
    assert (found.messages, found.whole) == ((), True)
    assert found.end == {0: Start.EARLIEST, 1: Start.EARLIEST}


def test_search_back_goes_on_until_enough_is_found(
    backend: MemoryBackend, reading: TopicReader
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
    backend: MemoryBackend, reading: TopicReader
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
    backend: MemoryBackend, reading: TopicReader
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
    backend.create_topic(TopicInfo(TOPIC, 2), 5)
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


def _forward(
    reading: TopicReader, ends: dict[int, StartPosition], most: int, chosen: object
) -> list[bytes]:
    assert callable(chosen)
    places, found = beginning([0, 1], Start.EARLIEST), list[bytes]()
    while True:
        page = after(reading, TOPIC, (places, ends), most, chosen)
        found += values(page.messages)
        places = page.end
        if page.whole:
            return found


def _back(reading: TopicReader, backend: MemoryBackend, most: int, chosen: object) -> list[bytes]:
    assert callable(chosen)
    stats = backend.describe_topic(TOPIC, 5)
    places, found = end_of(stats), list[bytes]()
    while True:
        page = before(reading, stats, places, most, chosen)
        found += values(page.messages)
        if page.whole or page.begin == places:
            return found
        places = page.begin


class Slow(MemoryBackend):
    """A store of which a partition's readers from a time give nothing for a while."""

    def __init__(self, silent_receives: int) -> None:
        super().__init__(auto_create=False)
        self.create_topic(TopicInfo(TOPIC, 2), 5)
        self.silent_receives = silent_receives

    def read(
        self,
        topic: TopicName,
        partition: int,
        start: Start | int | Position,
        mailbox: Mailbox,
        timeout: float,
    ) -> MemoryReader:
        reader = super().read(topic, partition, start, mailbox, timeout)
        return SlowReader(self, reader) if partition and isinstance(start, int) else reader


class SlowReader(MemoryReader):
    def __init__(self, of: Slow, inner: MemoryReader) -> None:
        self._of = of
        self._inner = inner

    def receive(self, limit: int, max_bytes: int, timeout: float) -> list[Stored]:
        if self._of.silent_receives:
            self._of.silent_receives -= 1
            return []
        return self._inner.receive(limit, max_bytes, timeout)

    def close(self) -> None:
        self._inner.close()


def since(
    backend: MemoryBackend, time_ms: int, seconds: float, clock: Callable[[], float] = monotonic
) -> MessagePage:
    ends = end_of(backend.describe_topic(TOPIC, 5))
    stretch = beginning([0, 1], time_ms), ends
    bounds = replace(PAGE_BOUNDS, seconds=seconds)
    return after(reads(backend, clock), TOPIC, stretch, 99, everything, bounds)


def test_partition_that_is_silent_for_long_is_not_left_out(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(scan, "SILENCE_SECONDS", 0.01)
    backend = Slow(silent_receives=5)
    store(backend, 0, b"a")
    store(backend, 1, b"b")
    found = since(backend, 1, 20.0)
    assert (sorted(values(found.messages)), found.whole) == ([b"a", b"b"], True)
    backend.close()


def test_page_says_that_a_partition_was_too_slow_and_goes_on_there(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(scan, "SILENCE_SECONDS", 0.01)
    backend = Slow(silent_receives=1_000_000)
    store(backend, 0, b"a")
    store(backend, 1, b"b")
    found = since(backend, 1, 2.0)
    assert (values(found.messages), found.whole, found.end[1]) == ([b"a"], False, 1)
    backend.close()


def test_partitions_without_anything_newer_than_a_time_are_at_their_ends(
    monkeypatch: pytest.MonkeyPatch, backend: MemoryBackend
) -> None:
    monkeypatch.setattr(scan, "SILENCE_SECONDS", 0.01)
    store(backend, 0, b"a", b"b")
    store(backend, 1, b"c")
    found = since(backend, 2**42, 20.0)
    assert (found.messages, found.whole) == ((), True)
    assert found.end == end_of(backend.describe_topic(TOPIC, 5))


class Marked(MemoryBackend):
    """A store in which an entry without a message, such as a commit, ends each partition."""

    def describe_topic(self, topic: TopicName, timeout: float) -> TopicStats:
        stats = super().describe_topic(topic, timeout)
        parts = (replace(part, next_entry=part.next_entry + 1) for part in stats.partitions)
        return replace(stats, partitions=tuple(parts))


def test_page_reaches_ends_that_are_no_messages_within_its_time(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    now = 0.0

    def wait(_mailbox: PollMailbox, seconds: float) -> None:
        nonlocal now
        now += seconds

    # Time passes only where a page waits: its own is that of two silences.
    assert PAGE_BOUNDS.seconds == 2 * scan.SILENCE_SECONDS
    monkeypatch.setattr(PollMailbox, "wait", wait)
    backend = Marked(auto_create=False)
    backend.create_topic(TopicInfo(TOPIC, 2), 5)
    store(backend, 0, b"a")
    store(backend, 1, b"b")
    found = since(backend, 2**42, PAGE_BOUNDS.seconds, lambda: now)
    assert (found.messages, found.whole) == ((), True)
    assert found.end == end_of(backend.describe_topic(TOPIC, 5))
    backend.close()


@pytest.mark.parametrize("most_checked", [1, 2, 3])
def test_pages_back_miss_nothing_where_an_entry_of_each_partition_is_too_much(
    backend: MemoryBackend, reading: TopicReader, most_checked: int
) -> None:
    for number in range(12):
        store(backend, number % 2, b"%d" % number)
    stats = backend.describe_topic(TOPIC, 5)
    ends, found = end_of(stats), list[bytes]()
    bounds = ScanBounds(most_checked, 1 << 20, 5.0)
    for _ in range(12):
        page = before(reading, stats, ends, 50, everything, bounds)
        found += values(page.messages)
        ends = page.begin
        if page.whole:
            break
    assert sorted(found, key=int) == [b"%d" % number for number in range(12)]


def test_stretch_that_is_late_is_read_again_and_nothing_is_missed(
    backend: MemoryBackend,
) -> None:
    now = 0.0

    def clock() -> float:
        return now

    def slow(_: Stored) -> bool:
        nonlocal now
        now += 0.02  # three messages are checked in the time of a page
        return True

    for number in range(20):
        store(backend, 0, b"%d" % number)
    stats, reading = backend.describe_topic(TOPIC, 5), reads(backend, clock)
    page = before(reading, stats, end_of(stats), 50, slow, LATE)
    found = values(page.messages)
    assert found == [b"%d" % number for number in range(20 - len(found), 20)]
    assert found
