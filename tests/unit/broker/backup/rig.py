"""A store that is worked on while it is backed up, and what a restored copy of it must hold."""

from __future__ import annotations

import asyncio
import random
import threading
import time
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final, TypeVar

from router.broker.backup import Manifest, Repository
from router.broker.backup.copying import FileCopier
from router.broker.backup.restoring import restore, settle
from router.broker.backup.taking import Work, take
from router.broker.backup.verifying import verify
from router.broker.disk.files import Disk
from router.broker.node.backups import Backups
from router.broker.node.registry import FileRegistry
from router.broker.storage import PULSAR_FORMAT, Ack, Ledger, Store
from router.broker.storage.files import check
from router.model.administration import BackupCut
from router.model.policies import Policies
from tests.unit.broker.storage.rig import (
    NOW_MS,
    SMALL,
    clock,
    fill,
    one_ledger,
    payload,
    read_all,
    synced,
)

T = TypeVar("T")
NOW: Final = datetime(2026, 11, 23, 1, 0, tzinfo=UTC)


class SlowDisk(Disk):
    """A disk on which a commit group takes longer than a checkpoint."""

    def sync_data(self, descriptor: int) -> None:
        if threading.current_thread().name == "journal":
            time.sleep(0.02)
        super().sync_data(descriptor)


class Local:
    """The source of a backup: a store of this process, for the thread that copies."""

    def __init__(self, backups: Backups) -> None:
        self._backups = backups
        self._loop = asyncio.get_running_loop()

    def begin(self) -> BackupCut:
        return self._run(self._backups.begin(self))

    def end(self, cut: BackupCut) -> None:
        self._run(self._backups.end(self, cut.id))

    def gone(self) -> None:
        self._loop.call_soon_threadsafe(self._backups.gone, self)

    def _run(self, work: Coroutine[Any, Any, T]) -> T:
        return asyncio.run_coroutine_threadsafe(work, self._loop).result(20)


@asynccontextmanager
async def served(folder: Path, disk: Disk | None = None) -> AsyncIterator[tuple[Store, Backups]]:
    """Open the folder's store, its registry, and what takes backups of them."""
    registry = await FileRegistry.open(_made(folder))
    store = await Store.open(folder, SMALL, clock, disk)
    try:
        yield store, await Backups.open(folder, registry, store, clock)
    finally:
        await store.close()
        await registry.close()


def _made(folder: Path) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    return folder


def back_up(
    data: Path,
    target: Path,
    source: Local,
    *,
    disk: Disk | None = None,
    progress: Callable[[int], None] | None = None,
) -> Manifest:
    """Take a backup; blocks."""
    repository = Repository(target, disk)
    copier = FileCopier(repository.disk, None, progress)
    try:
        return take(Work(data, repository, copier, lambda _total: None), source, NOW)
    finally:
        source.gone()


async def filled(store: Store, count: int) -> None:
    """Append so many entries to the one ledger, each in a commit group of its own."""
    ledger = await one_ledger(store)
    begin = ledger.next_entry
    await fill(store, ledger, [payload(begin + n) for n in range(count)], each=True)


def taken(data: Path, target: Path, count: int = 0, disk: Disk | None = None) -> Manifest:
    """Append so many entries and take a backup."""

    async def work() -> Manifest:
        async with served(data) as (store, backups):
            await filled(store, count)
            return await asyncio.to_thread(back_up, data, target, Local(backups), disk=disk)

    return asyncio.run(work())


def problems(target: Path, manifest: Manifest, repository: Repository | None = None) -> list[str]:
    """Return what reading all of a backup finds."""
    repository = repository or Repository(target)
    return list(verify(repository, manifest, FileCopier(repository.disk)))


def restored(target: Path, manifest: Manifest, folder: Path, disk: Disk | None = None) -> Path:
    """Restore a backup, and demand that nothing is left to recover."""
    disk = disk or Disk()
    restore(Repository(target, disk), manifest, folder, FileCopier(disk), disk)
    settle(folder, SMALL, clock)
    assert check(folder) == []
    assert not list((folder / "journal").iterdir())
    return folder


@dataclass
class State:
    """What a store holds by topic: appended entries, and what is acknowledged and deleted."""

    entries: dict[str, int] = field(default_factory=dict)
    acked: dict[str, set[int]] = field(default_factory=dict)
    deleted: dict[str, set[int]] = field(default_factory=dict)

    def add(self, topic: str) -> None:
        self.entries[topic] = 0
        self.acked[topic], self.deleted[topic] = set(), set()


class Traffic:
    """Publishes, acknowledges, deletes; makes topics and deletes them; notes all in its order.

    What is noted is the journal's order, since both are that of the event loop. A topic is noted
    when it is made, and as gone when its deletion was asked for.
    """

    def __init__(self, store: Store, seed: int) -> None:
        self._store = store
        self._chance = random.Random(seed)
        self.events: list[tuple[str, str, int]] = []
        self.confirmed = -1
        self.ledgers: dict[str, Ledger] = {}
        self.asked_to_go: set[str] = set()
        self.gone: set[str] = set()
        self._made = 0

    async def make_topic(self) -> None:
        name = f"persistent://public/default/t{self._made}"
        self._made += 1
        topic = await self._store.create_topic(name, 0, Policies(), {})
        await self._store.create_subscription(topic.ledger_ids[0], "g", -1, {})
        self._note("make", name, 0)()
        self.ledgers[name] = self._store.ledger(topic.ledger_ids[0])

    async def delete_topic(self) -> None:
        name = self._chance.choice([*self.ledgers])
        self.asked_to_go.add(name)
        ledger = self.ledgers.pop(name)
        await self._store.delete_topic(ledger.topic_id)
        self.gone.add(name)

    async def run(self, stopped: asyncio.Event) -> None:
        """Work until it is stopped."""
        while not stopped.is_set():
            if self._chance.random() < 0.05 or len(self.ledgers) < 3:
                await self.make_topic()
            elif self._chance.random() < 0.02:
                await self.delete_topic()
            for _ in range(self._chance.randint(1, 8)):
                self.step()
            if self._chance.random() < 0.3:
                await synced(self._store)
            if self._chance.random() < 0.05:
                await self._store.retain(NOW_MS)
            await asyncio.sleep(0)

    def step(self) -> None:
        """Do one thing that the journal holds."""
        name = self._chance.choice([*self.ledgers])
        ledger = self.ledgers[name]
        kind = self._chance.choice("aaaaackd")
        if kind == "a":
            number = ledger.next_entry
            done = self._note("append", name, number)
            ledger.append(
                payload(number), PULSAR_FORMAT, 1, NOW_MS, lambda _e: done(), ("p", number)
            )
        elif ledger.durable_entry:
            number = self._chance.randrange(ledger.durable_entry)
            if kind == "d":
                if number >= ledger.first_number:
                    begin = max(ledger.first_number, number - 12)
                    done = self._note("delete", name, begin << 32 | number)
                    self._store.delete_messages(ledger, [(begin, number)], done)
            else:
                (record,) = self._store.subscriptions(ledger.id)
                done = self._note("upto" if kind == "c" else "ack", name, number)
                self._store.acknowledge(record, Ack(number, kind == "c"), done)

    def _note(self, kind: str, name: str, number: int) -> Callable[[], None]:
        place = len(self.events)
        self.events.append((kind, name, number))

        def confirm() -> None:
            self.confirmed = max(self.confirmed, place)

        return confirm

    def prefixes(self, least: int) -> Iterator[State]:
        """Yield the state, but for deletions of topics, after each prefix up to `least` or more."""
        state = State()
        for place, (kind, name, number) in enumerate(self.events):
            if kind == "make":
                state.add(name)
            elif kind == "append":
                state.entries[name] = number + 1
            elif kind == "delete":
                state.deleted[name] |= set(range(number >> 32, (number & 0xFFFFFFFF) + 1))
            else:
                first = 0 if kind == "upto" else number
                state.acked[name] |= set(range(first, number + 1))
            if place >= least:
                yield state


async def found(folder: Path) -> tuple[State, dict[str, set[int]]]:
    """Return what a restored folder holds, and which entries of each topic are there."""
    state, there = State(), {}
    store = await Store.open(folder, SMALL, clock)
    for topic in store.topics():
        ledger = store.ledger(topic.ledger_ids[0])
        state.add(topic.name)
        state.entries[topic.name] = ledger.next_entry
        read = {entry.entry_id: entry.payload for entry in await read_all(ledger)}
        assert read == {number: payload(number) for number in read}
        there[topic.name] = {*read}
        mark = ledger.producers.last("p")
        assert (-1 if mark is None else mark.entry) == ledger.next_entry - 1
        for record in store.subscriptions(ledger.id):
            state.acked[topic.name] = {n for n in read if record.cursor.is_acked(n)}
        spans = ledger.deleted_numbers.ranges()
        state.deleted[topic.name] = {n for a, b in spans for n in range(a, b + 1)} & {*read}
    await store.close()
    return state, there
