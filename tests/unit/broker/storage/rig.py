"""A store under test: opening it, filling it, and saying what must be found in it again."""

from __future__ import annotations

import asyncio
import errno
import os
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from router.broker.disk.files import Disk
from router.broker.storage import (
    PULSAR_FORMAT,
    Ack,
    Entry,
    Ledger,
    Store,
    StoreError,
    StoreOptions,
    SubscriptionRecord,
)
from router.model.policies import Policies

NOW_MS: Final = 1_700_000_000_000
SMALL: Final = StoreOptions(
    segment=700, journal=1500, cache=6000, reserve=0, index_step=200, open_files=4, reclaim_bytes=1
)
TOPIC: Final = "persistent://public/default/orders"


class FailingDisk(Disk):
    """Cannot read so many more times."""

    def __init__(self) -> None:
        super().__init__()
        self.failures = 0

    def pread(self, descriptor: int, size: int, start: int) -> bytes:
        if self.failures:
            self.failures -= 1
            raise OSError(errno.EIO, os.strerror(errno.EIO))
        return super().pread(descriptor, size, start)


def clock() -> float:
    return NOW_MS / 1000


def run(coroutine: Coroutine[Any, Any, None]) -> None:
    asyncio.run(coroutine)


@asynccontextmanager
async def opened(
    folder: Path, options: StoreOptions = SMALL, disk: Disk | None = None
) -> AsyncIterator[Store]:
    store = await Store.open(folder / "data", options, clock, disk)
    try:
        yield store
    finally:
        await store.close()


@asynccontextmanager
async def killed(
    folder: Path, options: StoreOptions = SMALL, disk: Disk | None = None
) -> AsyncIterator[Store]:
    """Open a store that is not closed but dropped, as if the process were killed."""
    async with opened(folder, options, disk) as store:
        try:
            yield store
        finally:
            store.fail(PermissionError(13, "killed"))


async def synced(store: Store) -> None:
    """Return when everything is on disk; raise StoreError if the store fails."""
    await store.synced()


async def until(condition: Callable[[], bool]) -> None:
    """Return when it holds; raise TimeoutError if it never does."""
    async with asyncio.timeout(5):
        while not condition():  # noqa: ASYNC110 - what is waited for is not the loop's doing
            await asyncio.sleep(0.001)


async def one_ledger(store: Store) -> Ledger:
    for topic in store.topics():
        return store.ledger(topic.ledger_ids[0])
    topic = await store.create_topic(TOPIC, 0, Policies(), {})
    return store.ledger(topic.ledger_ids[0])


async def fill(store: Store, ledger: Ledger, payloads: list[bytes], each: bool = False) -> None:
    """Append entries and wait for them: each in a round of its own, or all in one."""
    for payload in payloads:
        ledger.append(payload, PULSAR_FORMAT, 1, NOW_MS, ignore)
        if each:
            await synced(store)
    await synced(store)


def ignore(_entry: int) -> None:
    return


async def read_all(ledger: Ledger, most: int = 7) -> list[Entry]:
    found: list[Entry] = []
    start = ledger.first_entry
    while entries := await ledger.read(start, most, 1000):
        found += entries
        start = entries[-1].entry_id + 1
    return found


def payload(number: int) -> bytes:
    """Distinct, and of different lengths."""
    return b"%06d" % number + b"." * (number * 37 % 90)


def first_number(entry: int) -> int:
    """Return the number of the first message of an entry that `Work` appends."""
    return sum(1 + number % 3 for number in range(entry))


def deleted_numbers(ledger: Ledger) -> set[int]:
    """Return the numbers of the messages that are deleted, or gone with all around them."""
    listed = {n for first, last in ledger.deleted_numbers.ranges() for n in range(first, last + 1)}
    assert all(ledger.first_number <= number < ledger.next_index for number in listed)
    return listed | set(range(ledger.first_number))


@dataclass
class Expected:
    """What was asked of one ledger, and what was confirmed."""

    appended: list[bytes] = field(default_factory=list)
    confirmed: list[int] = field(default_factory=list)
    acks_asked: set[int] = field(default_factory=set)
    acks_confirmed: set[int] = field(default_factory=set)
    deletes_asked: set[int] = field(default_factory=set)
    deletes_confirmed: set[int] = field(default_factory=set)


class Work:
    """Publishes to two partitions, acknowledges and deletes, noting what was confirmed."""

    def __init__(self) -> None:
        self.expected: dict[int, Expected] = {}
        self.subscribed: set[int] = set()

    async def run(self, store: Store, rounds: int = 20) -> None:
        """Work until done or until the store fails."""
        with suppress(StoreError):
            ledgers = await self._ledgers(store)
            for number in range(rounds):
                for ledger in ledgers:
                    for _ in range(1 + number % 3):
                        self.append(ledger)
                    self._delete(store, ledger, number)
                await synced(store)
                for ledger in ledgers:
                    for record in store.subscriptions(ledger.id):
                        self.acknowledge(store, record, number)
                if number % 5 == 4:
                    await store.retain(NOW_MS + number * 1000)
            await synced(store)

    async def _ledgers(self, store: Store) -> list[Ledger]:
        found = [topic for topic in store.topics() if topic.name == TOPIC]
        topic = found[0] if found else await store.create_topic(TOPIC, 2, Policies(), {"k": "v"})
        for ledger_id in topic.ledger_ids:
            self.expected.setdefault(ledger_id, Expected())
            if not list(store.subscriptions(ledger_id)):
                await store.create_subscription(ledger_id, "group", -1, {})
            self.subscribed.add(ledger_id)
        return [store.ledger(ledger_id) for ledger_id in topic.ledger_ids]

    def append(self, ledger: Ledger) -> None:
        """Append one more entry."""
        expected = self.expected[ledger.id]
        number = len(expected.appended)
        expected.appended.append(payload(number))
        entry = ledger.append(
            payload(number),
            PULSAR_FORMAT,
            1 + number % 3,
            NOW_MS,
            expected.confirmed.append,
            ("p", number),
        )
        assert entry == number

    def _delete(self, store: Store, ledger: Ledger, number: int) -> None:
        """Delete single messages, the newest too, and now and then all of some segments."""
        expected, end = self.expected[ledger.id], ledger.next_index
        ranges = [(end * 5 // 7, end * 5 // 7)]
        if number % 3 == 2:
            ranges.append((end - 1, end - 1))
        if number % 8 == 6:
            ranges += [(0, end // 4), (end // 2, end * 3 // 4)]
        deleted = {n for first, last in ranges for n in range(first, last + 1)}
        expected.deletes_asked |= deleted
        store.delete_messages(ledger, ranges, lambda: expected.deletes_confirmed.update(deleted))

    def acknowledge(self, store: Store, record: SubscriptionRecord, number: int) -> None:
        """Acknowledge what a round of this number does."""
        expected = self.expected[record.ledger_id]
        cumulative = number % 4 == 3
        entry = number // 2 if cumulative else number
        entries = set(range(entry + 1)) if cumulative else {entry}
        expected.acks_asked |= entries
        confirm: Callable[[], None] = lambda: expected.acks_confirmed.update(entries)  # noqa: E731
        store.acknowledge(record, Ack(entry, cumulative), confirm)

    async def check(self, store: Store) -> None:
        """Demand that everything confirmed is there, in order, and nothing that was not asked."""
        for ledger_id, expected in self.expected.items():
            ledger = store.ledger(ledger_id)
            end = ledger.next_entry
            found = {entry.entry_id: entry.payload for entry in await read_all(ledger)}
            assert list(found) == sorted(found)
            assert found.items() <= dict(enumerate(expected.appended[:end])).items()
            assert expected.confirmed == list(range(len(expected.confirmed)))
            assert ledger.durable_entry == end >= len(expected.confirmed)
            assert ledger.next_index == first_number(end)
            deleted = deleted_numbers(ledger)
            assert expected.deletes_confirmed <= deleted <= expected.deletes_asked
            assert ledger.messages == ledger.next_index - len(deleted)
            gone = set(range(end)) - set(found)
            assert all(set(range(first_number(n), first_number(n + 1))) <= deleted for n in gone)
            self._check_mark(ledger)
            self._check_cursor(store, ledger_id, gone)

    def _check_mark(self, ledger: Ledger) -> None:
        mark = ledger.producers.last("p")
        last = -1 if mark is None else mark.sequence
        # Never a mark without its entry, never an entry without its mark.
        assert last == ledger.next_entry - 1
        assert mark is None or (mark.entry, mark.messages) == (last, 1 + last % 3)

    def _check_cursor(self, store: Store, ledger_id: int, gone: set[int]) -> None:
        expected, records = self.expected[ledger_id], list(store.subscriptions(ledger_id))
        if ledger_id in self.subscribed:
            (record,) = records
            acked = {n for n in range(len(expected.appended)) if record.cursor.is_acked(n)}
            assert expected.acks_confirmed <= acked <= expected.acks_asked | gone

    async def go_on(self, store: Store) -> None:
        """Take what was found as the truth, and work on."""
        for ledger_id, expected in self.expected.items():
            ledger = store.ledger(ledger_id)
            # Numbers that are given out again are not deleted.
            expected.deletes_asked = deleted_numbers(ledger)
            expected.deletes_confirmed = set(expected.deletes_asked)
            count = ledger.next_entry
            del expected.appended[count:]
            expected.confirmed = list(range(count))
        await self.run(store, 4)
