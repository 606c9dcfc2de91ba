"""A command that ends anywhere, and a disk that is full anywhere: the next command goes on."""

from __future__ import annotations

import asyncio
import errno
import os
import random
import shutil
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest

from router.broker.backup import BackupError, Manifest, Repository
from router.broker.disk.files import Buffer, Disk
from router.broker.folder import MARK
from router.broker.storage import PULSAR_FORMAT, Ack, Store, StoreError
from tests.unit.broker.backup.rig import Local, back_up, found, problems, restored, served
from tests.unit.broker.storage.rig import NOW_MS, SMALL, clock, one_ledger, payload, run, synced

pytestmark = [pytest.mark.slow, pytest.mark.no_cover, pytest.mark.timeout(120)]
STEP = int(os.environ.get("SOAK_FAULT_STEP", "5"))


class KilledError(BaseException):
    """The process is gone: nothing handles this."""


class EndingDisk(Disk):
    """A disk of a process that is killed at an operation, or for which it is full from there on."""

    def __init__(self, at: int = 0, *, full: bool = False) -> None:
        self._at, self._full = at, full
        self.count = 0

    def _step(self, *, grows: bool = False) -> None:
        self.count += 1
        if self._at and self.count >= self._at and (grows or not self._full):
            raise OSError(errno.ENOSPC, "full") if self._full else KilledError

    def open(self, path: Path, flags: int) -> int:
        self._step(grows=bool(flags & os.O_CREAT) and not path.exists())
        return super().open(path, flags)

    def write(self, descriptor: int, parts: Sequence[Buffer]) -> int:
        self._step(grows=True)
        return super().write(descriptor, parts)

    def sync_data(self, descriptor: int) -> None:
        self._step()
        super().sync_data(descriptor)

    def sync_folder(self, folder: Path) -> None:
        self._step()
        super().sync_folder(folder)

    def rename(self, source: Path, target: Path) -> None:
        self._step()
        super().rename(source, target)

    def unlink(self, path: Path) -> None:
        self._step()
        super().unlink(path)

    def make_folder(self, path: Path) -> bool:
        self._step(grows=not path.exists())
        return super().make_folder(path)

    def truncate(self, descriptor: int, size: int) -> None:
        self._step()
        super().truncate(descriptor, size)


async def publish(store: Store, count: int) -> None:
    """Publish to the one ledger, and acknowledge half of all."""
    ledger = await one_ledger(store)
    begin = ledger.next_entry
    for number in range(begin, begin + count):
        data, producer = payload(number), ("p", number)
        ledger.append(data, PULSAR_FORMAT, 1, NOW_MS, lambda _entry: None, producer)
        await synced(store)
    records = list(store.subscriptions(ledger.id))
    record = records[0] if records else await store.create_subscription(ledger.id, "g", -1, {})
    store.acknowledge(record, Ack(ledger.next_entry // 2, cumulative=True))
    await synced(store)


def whole(target: Path, manifest: Manifest, folder: Path, entries: int) -> None:
    """Demand that a backup restores to so many entries, of which half are acknowledged."""
    assert problems(target, manifest) == []
    held, there = asyncio.run(found(restored(target, manifest, folder)))
    assert list(held.entries.values()) == [entries]
    assert list(there.values()) == [set(range(entries))]
    assert list(held.acked.values()) == [set(range(entries // 2 + 1))]


@contextmanager
def refused_as_full(ended: list[int]) -> Iterator[None]:
    """Note that the block ends with a sentence; what only reads or removes needs no space."""
    try:
        yield
    except BackupError as error:
        if "full" not in str(error):
            raise
        ended.append(error.status)


@pytest.mark.parametrize("full", [False, True], ids=["killed", "full"])
def test_a_backup_may_end_anywhere_and_the_next_one_is_whole(folder: Path, full: bool) -> None:
    data, first = folder / "data", folder / "first"
    ended: list[int] = []

    async def take(target: Path, disk: Disk | None = None) -> Manifest:
        async with served(data) as (_store, backups):
            return await asyncio.to_thread(back_up, data, target, Local(backups), disk=disk)

    async def add(count: int) -> None:
        async with served(data) as (store, _backups):
            await publish(store, count)

    run(add(40))
    earlier = asyncio.run(take(first))
    run(add(30))
    shutil.copytree(first, folder / "counted")
    counting = EndingDisk()
    asyncio.run(take(folder / "counted", counting))
    for at in range(1 + random.randrange(STEP), counting.count, STEP):
        target = folder / f"at-{at}"
        shutil.copytree(first, target)
        with suppress(KilledError) if not full else refused_as_full(ended):
            asyncio.run(take(target, EndingDisk(at, full=full)))
        complete = Repository(target).ids()
        assert complete[0] == earlier.id
        newest = asyncio.run(take(target))
        assert Repository(target).ids() == [*complete, newest.id]
        assert {path.name for path in (target / "backups").iterdir()} == {*complete, newest.id}
        whole(target, newest, folder / f"new-{at}", 70)
        whole(target, earlier, folder / f"old-{at}", 40)
        for name in (target, folder / f"new-{at}", folder / f"old-{at}"):
            shutil.rmtree(name)
    assert not full or ended


def test_a_restore_may_end_anywhere_and_be_run_again(folder: Path) -> None:
    data, target = folder / "data", folder / "backups"

    async def take() -> Manifest:
        async with served(data) as (store, backups):
            await publish(store, 50)
            return await asyncio.to_thread(back_up, data, target, Local(backups))

    manifest = asyncio.run(take())
    counting = EndingDisk()
    restored(target, manifest, folder / "counted", counting)
    refused = 0
    for at in range(1 + random.randrange(STEP), counting.count, STEP):
        place = folder / f"at-{at}"
        with pytest.raises(KilledError):
            restored(target, manifest, place, EndingDisk(at))
        if (place / MARK).exists() or not (place / "metadata.db").exists():
            refused += 1
            if (place / MARK).exists():
                with pytest.raises(StoreError, match="router restore"):
                    asyncio.run(Store.open(place, SMALL, clock))
            restored(target, manifest, place)
        held, there = asyncio.run(found(place))
        assert (list(held.entries.values()), list(there.values())) == ([50], [set(range(50))])
        shutil.rmtree(place)
    assert refused > counting.count // STEP // 2


def test_a_backup_goes_on_where_one_was_cut_short(folder: Path) -> None:
    """What is on disk of large segments is not copied again."""
    data, target = folder / "data", folder / "backups"

    async def work() -> tuple[int, Manifest]:
        async with served(data) as (store, backups):
            ledger = await one_ledger(store)
            for number in range(6):
                ledger.append(bytes([number]) * (2 << 20), PULSAR_FORMAT, 1, 0, lambda _e: None)
                await synced(store)
            copied: list[int] = []

            def end_late(size: int) -> None:
                copied.append(size)
                if sum(copied) > 7 << 20:
                    raise KilledError

            with pytest.raises(KilledError):
                await asyncio.to_thread(back_up, data, target, Local(backups), progress=end_late)
            assert Repository(target).ids() == []
            manifest = await asyncio.to_thread(back_up, data, target, Local(backups))
            return sum(copied), manifest

    before, manifest = asyncio.run(work())
    assert problems(target, manifest) == []
    assert manifest.size > 12 << 20
    assert manifest.copied < manifest.size - before + (3 << 20)
