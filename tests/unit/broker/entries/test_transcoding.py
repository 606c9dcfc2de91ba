"""Entries in another format than they are stored in: made once, and kept within a bound."""

from __future__ import annotations

import asyncio
import threading
import tracemalloc
from collections.abc import Callable, Coroutine, Sequence
from typing import Any

import pytest

from router.broker.consume.dispatch.non_persistent import NOT_STORED
from router.broker.consume.entry_info import OPAQUE_ENTRY, UnreadableEntryError
from router.broker.entries import (
    CACHED_OVERHEAD_BYTES,
    ENTRY_FORMATS,
    MAX_BYTES_AT_ONCE,
    MAX_JOB_BYTES,
    MAX_JOB_ENTRIES,
    MAX_MESSAGES_AT_ONCE,
    EntryFormats,
    Transcoder,
    pulsar,
)
from router.broker.entries.workers import EntryWorkers
from router.broker.storage import Entry
from router.model import Message
from tests.unit.broker.entries import tiny

MESSAGES = [
    Message(b"one", b"k", {"a": "b"}),
    Message(b"two"),
    Message(b"", b"\xff"),
]


class CountedTiny:
    """The tiny format; counts how often an entry was taken apart."""

    def __init__(self) -> None:
        self.read = 0
        self.threads: list[str] = []
        self.describe = tiny.describe
        self.describe_special = tiny.describe_special
        self.from_messages = tiny.from_messages
        self.keep_messages = tiny.keep_messages
        self.keys = tiny.keys
        self.latest_time = tiny.latest_time

    def to_messages(self, payload: bytes) -> Sequence[Message]:
        self.read += 1
        self.threads.append(threading.current_thread().name)
        return tiny.to_messages(payload)


def tiny_entry(number: int, messages: Sequence[Message] = MESSAGES, count: int = 0) -> Entry:
    payload = tiny.from_messages(messages, 5)
    return Entry(number, 99, 5, tiny.TAG, count or len(messages), payload)


def test_an_entry_is_transcoded_both_ways_with_all_its_messages() -> None:
    transcoder = Transcoder(tiny.FORMATS)
    entry = tiny_entry(0)
    made = transcoder.payload(1, entry, pulsar.TAG)
    assert list(pulsar.to_messages(made)) == MESSAGES
    as_pulsar = Entry(0, 99, 5, pulsar.TAG, len(MESSAGES), made)
    assert transcoder.payload(2, as_pulsar, tiny.TAG) == entry.payload
    assert transcoder.payload(2, as_pulsar, pulsar.TAG) is made


def test_an_entry_is_transcoded_once_while_it_is_cached() -> None:
    counted = CountedTiny()
    formats = EntryFormats({pulsar.TAG: ENTRY_FORMATS[pulsar.TAG], tiny.TAG: counted})
    size = len(Transcoder(formats).payload(1, tiny_entry(0), pulsar.TAG)) + CACHED_OVERHEAD_BYTES
    transcoder, counted.read = Transcoder(formats, max_cached_bytes=2 * size), 0
    for number in (0, 1, 0, 0, 1):
        transcoder.payload(1, tiny_entry(number), pulsar.TAG)
    assert counted.read == 2
    transcoder.payload(1, tiny_entry(2), pulsar.TAG)  # in the place of 0, which was asked last for
    transcoder.payload(1, tiny_entry(1), pulsar.TAG)
    assert counted.read == 3
    transcoder.payload(1, tiny_entry(0), pulsar.TAG)
    transcoder.payload(2, tiny_entry(0), pulsar.TAG)  # of another partition
    assert counted.read == 5


def test_entries_that_are_not_stored_are_told_apart_though_they_have_one_position() -> None:
    transcoder = Transcoder(tiny.FORMATS)
    for value in (b"a", b"b"):
        payload = tiny.from_messages([Message(value)], 0)
        entry = Entry(0, NOT_STORED, 1_000, tiny.TAG, 1, payload)
        made = transcoder.payload(0, entry, pulsar.TAG)
        assert [one.value for one in pulsar.to_messages(made)] == [value]


def test_the_cache_has_a_bound_for_small_entries_too() -> None:
    transcoder = Transcoder(tiny.FORMATS, max_cached_bytes=1 << 20)
    tracemalloc.start()
    try:
        for number in range(20_000):
            transcoder.payload(1, tiny_entry(number, [Message(b"v")]), pulsar.TAG)
        held, _peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert held < 1 << 20


def test_an_entry_larger_than_the_cache_is_not_kept() -> None:
    transcoder = Transcoder(tiny.FORMATS, max_cached_bytes=1)
    first = transcoder.payload(1, tiny_entry(0), pulsar.TAG)
    assert transcoder.payload(1, tiny_entry(0), pulsar.TAG) == first
    assert transcoder.payload(1, tiny_entry(0), pulsar.TAG) is not first


def run(test: Callable[[Transcoder], Coroutine[Any, Any, None]], formats: EntryFormats) -> None:
    async def running() -> None:
        transcoder = Transcoder(formats)
        try:
            await test(transcoder)
        finally:
            transcoder.close()

    asyncio.run(running())


LARGE = [Message(b"v")] * (MAX_MESSAGES_AT_ONCE + 1)


def test_a_large_entry_is_transcoded_beside_the_loop_once_for_all_that_wait() -> None:
    counted = CountedTiny()
    formats = EntryFormats({pulsar.TAG: ENTRY_FORMATS[pulsar.TAG], tiny.TAG: counted})

    async def test(transcoder: Transcoder) -> None:
        entry = tiny_entry(0, LARGE)
        job = transcoder.prepare(1, [entry], pulsar.TAG)
        assert job is not None
        assert transcoder.prepare(1, [entry], pulsar.TAG) is job
        made = await transcoder.transcoded(1, [entry], pulsar.TAG)
        assert counted.threads == ["entries_0"]
        assert transcoder.prepare(1, [entry], pulsar.TAG) is None
        assert transcoder.payload(1, entry, pulsar.TAG) is made
        assert list(pulsar.to_messages(made)) == LARGE
        assert counted.read == 1

    run(test, formats)


def test_entries_that_need_no_work_or_little_are_not_handed_to_a_thread() -> None:
    async def test(transcoder: Transcoder) -> None:
        assert transcoder.prepare(1, [tiny_entry(0)], pulsar.TAG) is None
        assert transcoder.prepare(1, [tiny_entry(0, LARGE)], tiny.TAG) is None
        large = Message(bytes(MAX_BYTES_AT_ONCE))
        assert transcoder.prepare(1, [tiny_entry(1, [large])], pulsar.TAG) is not None
        await transcoder.transcoded(1, [tiny_entry(1, [large])], pulsar.TAG)

    run(test, tiny.FORMATS)


def test_why_an_entry_cannot_be_transcoded_is_found_once() -> None:
    counted = CountedTiny()
    formats = EntryFormats({pulsar.TAG: ENTRY_FORMATS[pulsar.TAG], tiny.TAG: counted})

    async def test(transcoder: Transcoder) -> None:
        entry = tiny_entry(0, LARGE, count=99)
        for _ in range(2):
            with pytest.raises(UnreadableEntryError, match="33 messages, 99 were stored"):
                await transcoder.transcoded(1, [entry], pulsar.TAG)
            with pytest.raises(UnreadableEntryError, match="33 messages, 99 were stored"):
                transcoder.payload(1, entry, pulsar.TAG)
        assert counted.read == 1

    run(test, formats)


def test_a_reader_that_stops_waiting_does_not_end_the_work_of_others() -> None:
    async def test(transcoder: Transcoder) -> None:
        entry = tiny_entry(0, LARGE)
        one, other = [
            asyncio.create_task(transcoder.transcoded(1, [entry], pulsar.TAG)) for _ in range(2)
        ]
        await asyncio.sleep(0)
        one.cancel()
        assert list(pulsar.to_messages(await other)) == LARGE

    run(test, tiny.FORMATS)


def test_small_entries_that_readers_go_on_to_are_made_together() -> None:
    counted = CountedTiny()
    formats = EntryFormats({pulsar.TAG: ENTRY_FORMATS[pulsar.TAG], tiny.TAG: counted})

    async def test(transcoder: Transcoder) -> None:
        entries = [tiny_entry(number) for number in range(100)]
        await transcoder.transcoded(1, entries, pulsar.TAG)
        assert counted.threads == ["entries_0"] * MAX_JOB_ENTRIES
        for entry in entries[:MAX_JOB_ENTRIES]:
            assert transcoder.cached(1, entry, pulsar.TAG) is not None
        large = Message(bytes(MAX_JOB_BYTES))
        entries = [tiny_entry(number, [large]) for number in (200, 201)]
        await transcoder.transcoded(1, entries, pulsar.TAG)
        assert counted.read == MAX_JOB_ENTRIES + 1

    run(test, formats)


def test_an_entry_that_two_jobs_would_hold_is_made_once() -> None:
    counted = CountedTiny()
    formats = EntryFormats({pulsar.TAG: ENTRY_FORMATS[pulsar.TAG], tiny.TAG: counted})

    async def test(transcoder: Transcoder) -> None:
        entries = [tiny_entry(number, LARGE) for number in range(3)]
        first = transcoder.prepare(1, entries[:2], pulsar.TAG)
        both = transcoder.prepare(1, entries[1:], pulsar.TAG)
        assert first is not None
        assert both is not None
        assert first is not both
        await both
        assert counted.read == 3

    run(test, formats)


def test_what_readers_are_sent_instead_of_an_entry_takes_its_place() -> None:
    entry = tiny_entry(0, count=9)
    transcoder = Transcoder(tiny.FORMATS)
    with pytest.raises(UnreadableEntryError):
        transcoder.payload(1, entry, pulsar.TAG)
    assert transcoder.cached(1, entry, pulsar.TAG) is None
    transcoder.keep(1, entry, pulsar.TAG, b"instead")
    assert transcoder.cached(1, entry, pulsar.TAG) == b"instead"
    assert transcoder.payload(1, entry, pulsar.TAG) == b"instead"


async def test_workers_run_jobs_in_their_order_within_their_bound() -> None:
    workers = EntryWorkers(threads=1, max_queued=2)
    begun: list[int] = []
    may_end = threading.Event()

    def work(number: int) -> int:
        begun.append(number)
        assert may_end.wait(10)
        return number

    jobs = [asyncio.create_task(workers.run(work, number)) for number in range(10)]
    await asyncio.sleep(0)
    may_end.set()
    assert await asyncio.gather(*jobs) == begun == list(range(10))
    workers.close()


@pytest.mark.parametrize(
    ("entry", "reason"),
    [
        (Entry(0, 0, 5, 77, 1, b"?"), "does not know the entry format 77"),
        (tiny_entry(0, count=2), "holds 3 messages, 2 were stored"),
        (Entry(0, 0, 5, tiny.TAG, 1, b"\0\0\0\x09cut"), "cut short"),
    ],
)
def test_what_cannot_be_read_is_never_made_up(entry: Entry, reason: str) -> None:
    with pytest.raises(UnreadableEntryError, match=reason):
        Transcoder(tiny.FORMATS).payload(1, entry, pulsar.TAG)


def test_an_entry_of_an_unknown_format_is_opaque() -> None:
    unknown = ENTRY_FORMATS[77]
    assert unknown.describe(b"?") is OPAQUE_ENTRY
    assert unknown.describe_special(b"?") is None
    assert (OPAQUE_ENTRY.messages, OPAQUE_ENTRY.key_hash()) == (1, 0)
    assert list(OPAQUE_ENTRY.properties()) == [{}]
    with pytest.raises(UnreadableEntryError, match="does not know the entry format"):
        unknown.from_messages(MESSAGES, 1)
