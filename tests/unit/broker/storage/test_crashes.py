"""A power cut or an error at any operation on the disk: what was confirmed is still there."""

from __future__ import annotations

import asyncio
import copy
import errno
import os
import random
import shutil
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

import pytest

from router.broker.folder import MARK
from router.broker.storage import (
    PULSAR_FORMAT,
    Ack,
    Store,
    StoreError,
    StoreOptions,
    checkpointer,
)
from router.broker.storage.files import repair
from router.model.policies import Policies
from tests.unit.broker.storage.disks import Faults, MemoryDisk
from tests.unit.broker.storage.rig import (
    NOW_MS,
    SMALL,
    TOPIC,
    Work,
    clock,
    fill,
    killed,
    one_ledger,
    opened,
    payload,
    read_all,
    run,
    synced,
)

pytestmark = [pytest.mark.slow, pytest.mark.no_cover, pytest.mark.timeout(600)]

# Each run takes one in so many operations, others every time; 1 takes them all.
STEP = int(os.environ.get("SOAK_FAULT_STEP", "5"))


async def work_on(
    folder: Path, disk: MemoryDisk, work: Work, options: StoreOptions = SMALL
) -> None:
    """Work on a disk that may fail somewhere, even while it is being opened."""
    with suppress(StoreError):
        store = await Store.open(folder / "data", options, clock, disk)
        await work.run(store)
        await store.close()


def operations(folder: Path, *, syncs_all: bool = False) -> range:
    """Return the numbers of the operations to fail: some of all that the work takes."""
    (folder / "data").mkdir(parents=True)
    disk = MemoryDisk(syncs_all=syncs_all)
    run(work_on(folder, disk, Work()))
    assert disk.faults.count > 200
    return range(1 + random.randrange(STEP), disk.faults.count, STEP)


async def check_twice(folder: Path, disk: MemoryDisk, work: Work) -> None:
    """Demand that a store opens on the disk as it should be, goes on, and closes well."""
    async with opened(folder, disk=disk) as store:
        await work.check(store)
        await work.go_on(store)
        await work.check(store)
    async with opened(folder, disk=disk) as store:
        await work.check(store)


@pytest.mark.parametrize("syncs_all", [False, True])
def test_what_was_confirmed_is_there_after_a_power_cut_at_any_operation(
    folder: Path, syncs_all: bool
) -> None:
    for at in operations(folder / "clean", syncs_all=syncs_all):
        place, seed = folder / str(at), random.random()
        (place / "data").mkdir(parents=True)
        faults = Faults(at, errno.ENOSPC, dead=True)
        disk, work = MemoryDisk(faults, syncs_all=syncs_all), Work()
        run(work_on(place, disk, work))
        try:
            run(check_twice(place, disk.crash(random.Random(seed)), work))
        except BaseException as error:
            error.add_note(f"operation {at} ({faults.names[at - 1 :][:1]}), seed {seed}")
            raise


@pytest.mark.parametrize("ending", ["closed", "killed", "ended with entries in the journal"])
def test_what_was_confirmed_is_there_after_a_power_cut_while_ledgers_come_into_use(
    folder: Path, monkeypatch: pytest.MonkeyPatch, ending: str
) -> None:
    """A second life, which begins with idle ledgers or with what a kill left to be recovered."""
    (folder / "data").mkdir()
    disk, before = MemoryDisk(), Work()
    if ending == "ended with entries in the journal":
        monkeypatch.setattr(checkpointer, "MAX_LEDGERS_WRITTEN_AT_END", 1)

    async def begin() -> None:
        async with (killed if ending == "killed" else opened)(folder, disk=disk) as store:
            await before.run(store)

    async def go_on(later: MemoryDisk, work: Work) -> None:
        with suppress(StoreError):
            store = await Store.open(folder / "data", SMALL, clock, later)
            with suppress(StoreError):
                await use_idle_ledgers(store, work)
            await store.close()

    def again(at: int) -> tuple[MemoryDisk, Work]:
        """Go on from the end of the first life up to an operation that fails like all after it."""
        shutil.rmtree(folder / "data")
        shutil.copytree(folder / "first", folder / "data")
        later, work = disk.crash(random.Random(0)), copy.deepcopy(before)
        later.faults = Faults(at, errno.ENOSPC, dead=True)
        run(go_on(later, work))
        return later, work

    run(begin())
    disk = disk.crash(random.Random(0))
    shutil.copytree(folder / "data", folder / "first")
    operations = again(0)[0].faults.count
    assert operations > 80
    for at in range(1 + random.randrange(STEP), operations, STEP):
        later, work = again(at)
        seed = random.random()
        try:
            run(check_twice(folder, later.crash(random.Random(seed)), work))
        except BaseException as error:
            error.add_note(f"operation {at} ({later.faults.names[at - 1 :][:1]}), seed {seed}")
            raise


async def use_idle_ledgers(store: Store, work: Work) -> None:
    """Use the ledgers of a start one after the other, with all that passes over idle ones."""
    now_ms = NOW_MS + 100_000
    await store.retain(now_ms)
    topic = await store.create_topic(f"{TOPIC}-short", 2, Policies(), {})
    one, other = sorted(work.expected)
    record = next(iter(store.subscriptions(one)))
    await store.cuts.begin(lambda: None)
    await asyncio.gather(store.retain(now_ms), store.delete_topic(topic.id))
    work.acknowledge(store, record, 6)
    work.append(store.ledger(other))
    await synced(store)
    await store.retain(now_ms)
    await store.cuts.end()
    await work.go_on(store)
    await store.retain(now_ms)


@pytest.mark.parametrize("error", [errno.EIO, errno.ENOSPC, errno.EFBIG])
def test_the_first_error_ends_the_store_and_loses_nothing_that_was_confirmed(
    folder: Path, error: int
) -> None:
    # What fails while space is reclaimed ends nothing; see test_reclaim.
    options = replace(SMALL, reclaim_bytes=10**6)
    for at in operations(folder / "clean"):
        place = folder / str(at)
        (place / "data").mkdir(parents=True)
        disk, work = MemoryDisk(Faults(at, error)), Work()
        disk.short_writes = bool(at % 2)
        run(work_on(place, disk, work, options))
        if disk.faults.count < at:
            continue  # this time the work took fewer operations, and nothing failed
        marked = (place / "data" / MARK).exists()
        assert marked == (error == errno.EIO), disk.faults.names[at - 1]
        if marked:
            with pytest.raises(StoreError, match="READ-ONLY"):
                run(check_twice(place, disk.reread(), work))
            (place / "data" / MARK).unlink()
        try:
            run(check_twice(place, disk.reread(), work))
        except BaseException as problem:
            problem.add_note(f"operation {at} ({disk.faults.names[at - 1]})")
            raise


async def test_nothing_is_acknowledged_after_a_failed_sync(folder: Path) -> None:
    disk = MemoryDisk()
    (folder / "data").mkdir()
    store = await Store.open(folder / "data", SMALL, clock, disk)
    ledger = await one_ledger(store)
    await fill(store, ledger, [b"before"])
    disk.faults = Faults(2, errno.EIO)  # the write goes well, its sync does not
    done: list[int] = []
    ledger.append(b"lost", PULSAR_FORMAT, 1, 0, done.append)
    assert (await store.failed).args[0] == errno.EIO
    assert disk.faults.names == ["write", "sync_data"]
    assert (done, ledger.durable_entry) == ([], 1)
    with pytest.raises(StoreError):
        ledger.append(b"later", PULSAR_FORMAT, 1, 0, done.append)
    store.after_sync(lambda: done.append(-1))
    await store.close()
    assert done == []


async def test_acknowledgement_after_the_store_failed_is_made_in_memory_alone(folder: Path) -> None:
    """What is polled until the broker has ended goes on behind it."""
    async with opened(folder) as store:
        ledger = await one_ledger(store)
        await fill(store, ledger, [b"0", b"1"])
        record = await store.create_subscription(ledger.id, "group", -1, {})
        store.fail(OSError(errno.ENOSPC, "full"))
        done: list[int] = []
        store.acknowledge(record, Ack(0), lambda: done.append(0))
        assert record.cursor.is_acked(0)
    assert done == []
    async with opened(folder) as store:
        [record] = store.subscriptions(ledger.id)
        assert not record.cursor.is_acked(0)


def test_what_is_served_after_a_failed_sync_survives_the_next_power_cut(folder: Path) -> None:
    """The page cache may still hold what the sync did not write: it must not be believed."""
    for at in operations(folder / "clean"):
        place = folder / str(at)
        (place / "data").mkdir(parents=True)
        disk, work = MemoryDisk(Faults(at, errno.ENOSPC)), Work()
        run(work_on(place, disk, work))
        after = disk.reread()
        promised = asyncio.run(served(place, after, work))
        found = asyncio.run(served(place, after.crash(random.Random(at)), work))
        for ledger_id, payloads in promised.items():
            assert found[ledger_id][: len(payloads)] == payloads


def test_what_a_process_left_that_was_killed_is_on_disk_when_the_next_one_has_ended(
    folder: Path,
) -> None:
    """Names of folders and files too, which the next one finds made and not synced."""
    for at in operations(folder / "clean"):
        place = folder / str(at)
        (place / "data").mkdir(parents=True)
        disk, work = MemoryDisk(Faults(at, errno.ENOSPC, dead=True)), Work()
        run(work_on(place, disk, work))
        later = disk.reread()
        run(check_twice(place, later, work))
        try:
            run(check_twice(place, later.crash(random.Random(at)), work))
        except BaseException as problem:
            problem.add_note(f"operation {at} ({disk.faults.names[at - 1 :][:1]})")
            raise


async def served(folder: Path, disk: MemoryDisk, work: Work) -> dict[int, list[bytes]]:
    """Return what a process serves that is killed soon after."""
    found: dict[int, list[bytes]] = {}
    async with killed(folder, disk=disk) as store:
        await work.check(store)
        for ledger_id in work.expected:
            entries = await read_all(store.ledger(ledger_id))
            found[ledger_id] = [entry.payload for entry in entries]
    return found


def test_recovery_may_be_cut_short_again_and_again(folder: Path) -> None:
    (folder / "data").mkdir()
    disk, work = MemoryDisk(), Work()

    async def begin() -> None:
        async with killed(folder, disk=disk) as store:
            await work.run(store)

    run(begin())
    chance, attempts = random.Random(3), 0
    disk = disk.crash(chance)
    while True:
        attempts += 1
        disk.faults = Faults(attempts, errno.ENOSPC, dead=True)
        try:
            store = asyncio.run(Store.open(folder / "data", SMALL, clock, disk))
        except StoreError:
            disk = disk.crash(chance)
            continue
        assert store.boot >= 2
        break
    assert attempts > 10
    run(check_twice(folder, disk.crash(chance), work))


def test_a_repair_may_be_cut_short_again_and_again(folder: Path) -> None:
    (folder / "data").mkdir()
    disk = MemoryDisk()

    async def begin() -> None:
        async with opened(folder, disk=disk) as store:
            await fill(store, await one_ledger(store), [payload(n) for n in range(30)])

    run(begin())
    damaged = max(path for path in disk.names if path.suffix == ".seg" and "/1/" in str(path))
    content = disk.names[damaged]
    assert content is not None
    content.data[50] ^= 1
    content.synced = bytes(content.data)
    chance, attempts = random.Random(5), 0
    while True:
        attempts += 1
        disk.faults = Faults(attempts, errno.ENOSPC, dead=True)
        try:
            repair(folder / "data", clock, disk)
        except StoreError:
            disk = disk.crash(chance)
            continue
        break
    assert attempts > 5
    disk.faults = Faults()

    async def end() -> None:
        async with opened(folder, disk=disk) as store:
            ledger = await one_ledger(store)
            (hole,) = ledger.holes
            found = {entry.entry_id: entry.payload for entry in await read_all(ledger)}
            assert hole.first == hole.last
            assert found == {n: payload(n) for n in range(30) if n != hole.first}

    run(end())
