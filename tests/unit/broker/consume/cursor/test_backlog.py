"""Counting what a subscription has not acknowledged, in messages, over a real store."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from router.broker.consume import BacklogCounter
from router.broker.consume.visible import Visible
from router.broker.storage import (
    PULSAR_FORMAT,
    Ack,
    Cursor,
    DamagedError,
    Entry,
    Ledger,
    Store,
    StoreOptions,
)
from router.model.policies import Policies

# Segments of a few entries, and none of them in memory.
SMALL = StoreOptions(segment=200, cache=0)


def with_ledger(folder: Path, sizes: list[int], test: Callable[[Ledger], Awaitable[None]]) -> None:
    """Store entries of so many messages, reopen the store, and run the test on what it holds."""

    async def run() -> None:
        store = await Store.open(folder, SMALL, lambda: 1_000.0)
        topic = await store.create_topic("t", 0, Policies(), {})
        (number,) = topic.ledger_ids
        await append(store, store.ledger(number), sizes)
        await store.close()
        store = await Store.open(folder, SMALL, lambda: 1_000.0)
        try:
            await test(store.ledger(number))
        finally:
            await store.close()

    asyncio.run(run())


async def append(store: Store, ledger: Ledger, sizes: list[int]) -> None:
    for messages in sizes:
        ledger.append(b"v" * 40, PULSAR_FORMAT, messages, 1, lambda _: None)
    stored = asyncio.Event()
    store.after_sync(stored.set)
    await stored.wait()


@pytest.mark.slow
@settings(max_examples=40)
@given(sizes=st.lists(st.integers(1, 5), min_size=1, max_size=20), data=st.data())
def test_backlog_is_what_is_left_of_each_entry(sizes: list[int], data: st.DataObject) -> None:
    cursor = Cursor()
    left = dict(enumerate(sizes))
    for entry in data.draw(st.lists(st.sampled_from(sorted(left)), max_size=20)):
        open_messages = data.draw(st.integers(0, sizes[entry]))
        if not left[entry]:
            continue
        bits = (1 << min(open_messages, left[entry])) - 1
        cursor.apply(Ack(entry, ack_set=(bits,) if bits else ()))
        left[entry] = bits.bit_count()

    deleted = data.draw(st.sets(st.integers(0, sum(sizes) - 1)))

    async def test(ledger: Ledger) -> None:
        assert await BacklogCounter(reads=1_000).backlog(Visible(ledger), cursor) == sum(
            left.values()
        )
        ledger.delete([(number, number) for number in deleted])
        first, live = 0, 0
        for entry, messages in enumerate(sizes):
            # The lowest messages of an entry are the ones that are left.
            live += len(set(range(first, first + left[entry])) - deleted)
            first += messages
        assert await BacklogCounter(reads=1_000).backlog(Visible(ledger), cursor) == live

    with TemporaryDirectory() as folder:
        with_ledger(Path(folder), sizes, test)


async def test_backlog_counts_what_is_in_memory_and_what_is_on_disk(folder: Path) -> None:
    store = await Store.open(folder, StoreOptions(cache=0), lambda: 1_000.0)
    try:
        topic = await store.create_topic("t", 0, Policies(), {})
        ledger = store.ledger(topic.ledger_ids[0])
        await append(store, ledger, [3, 4])
        await store.retain(1_000_000)
        await append(store, ledger, [5, 6])
        for acknowledged, expected in enumerate((18, 15, 11, 6, 0), -1):
            assert await BacklogCounter().backlog(Visible(ledger), Cursor(acknowledged)) == expected
    finally:
        await store.close()


def test_backlog_is_estimated_when_there_were_too_many_reads(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    reads = []
    read = Ledger.read

    async def counted(ledger: Ledger, start: int, entries: int, size: int) -> list[Entry]:
        reads.append(start)
        return await read(ledger, start, entries, size)

    monkeypatch.setattr(Ledger, "read", counted)
    sizes = [1, 5] * 100
    cursor = Cursor()
    for entry in range(1, 200, 4):
        cursor.apply(Ack(entry))

    async def test(ledger: Ledger) -> None:
        found = await BacklogCounter(reads=3).backlog(Visible(ledger), cursor)
        assert len(reads) == 3
        # Fifty batches of five are acknowledged; one is taken for as much as the mean, about three.
        assert 600 - 50 * 5 <= found <= 600 - 50 * 2

    with_ledger(folder, sizes, test)


def test_backlog_is_estimated_when_an_entry_cannot_be_read(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def damaged(ledger: Ledger, start: int, entries: int, size: int) -> list[Entry]:
        raise DamagedError(ledger.id, folder, start, start, 0, 1)

    monkeypatch.setattr(Ledger, "read", damaged)

    async def test(ledger: Ledger) -> None:
        assert ledger.segments[0].next_entry == 3
        assert await BacklogCounter().backlog(Visible(ledger), Cursor(0)) == 18 - 6

    with_ledger(folder, [1, 5, 12], test)
