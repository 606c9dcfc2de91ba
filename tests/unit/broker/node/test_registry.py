"""The registry in the data folder: what an answer says about the disk, and what full disks do."""

from __future__ import annotations

import asyncio
import sqlite3
import stat
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from router.broker.disk.database import Operation, T
from router.broker.disk.files import Disk
from router.broker.node.registry import (
    MAX_CACHED_BYTES,
    MAX_WAITING_CALLS,
    FileRegistry,
    RegistryDamagedError,
)
from router.broker.storage import StoreError
from router.errors import BackendUnavailableError, ConflictError, DiskFullError
from router.sharing.registry import MAX_VALUE_BYTES


class FailingDisk(Disk):
    """A disk on which commits fail as long as the test wants."""

    def __init__(self) -> None:
        self.failure: int | None = None

    def commit(self, connection: sqlite3.Connection) -> None:
        if self.failure is not None:
            error = sqlite3.OperationalError("it is the disk")
            error.sqlite_errorcode = self.failure
            raise error
        super().commit(connection)


@asynccontextmanager
async def opened(folder: Path, disk: Disk | None = None) -> AsyncIterator[FileRegistry]:
    registry = await FileRegistry.open(folder, disk)
    try:
        yield registry
    finally:
        await registry.close()


async def test_boot_counts_every_start_of_the_folder(folder: Path) -> None:
    boots = []
    for _ in range(3):
        async with opened(folder) as registry:
            boots.append(await registry.next_boot())
    assert boots == [1, 2, 3]


async def test_records_and_versions_go_on_when_the_file_is_opened_again(folder: Path) -> None:
    async with opened(folder) as registry:
        await registry.put("key", "a", b"1", 0)
        await registry.delete("key", "a")
        await registry.put("key", "b", b"2", 0)
    async with opened(folder) as registry:
        found = await registry.get("key", "b")
        assert found is not None
        assert found.value == b"2"
        assert await registry.get("key", "a") is None
        assert (await registry.put("key", "a", b"3", 0)).version > found.version


def modes(folder: Path) -> set[int]:
    return {stat.S_IMODE(file.stat().st_mode) for file in folder.glob("registry.db*")}


async def test_nobody_else_may_read_the_file(folder: Path) -> None:
    async with opened(folder) as registry:
        await registry.put("key", "a", b"secret", 0)
        assert modes(folder) == {0o600}


async def test_write_is_in_the_file_when_it_is_answered(folder: Path) -> None:
    async with opened(folder) as registry:
        await registry.put("key", "a", b"1", 0)
        with sqlite3.connect(folder / "registry.db") as other:
            assert other.execute("SELECT value FROM records").fetchall() == [(b"1",)]
        other.close()


async def test_write_that_is_refused_leaves_others_in_its_commit_alone(folder: Path) -> None:
    async with opened(folder) as registry:
        names = [str(number % 5) for number in range(20)]
        results = await asyncio.gather(
            *(registry.put("key", name, b"v", 0) for name in names), return_exceptions=True
        )
        assert sum(isinstance(result, ConflictError) for result in results) == 15
        assert [record.name for record in await registry.list("key")] == list("01234")


@pytest.mark.parametrize(
    ("code", "failure"),
    [
        (sqlite3.SQLITE_FULL, DiskFullError),
        (sqlite3.SQLITE_IOERR_WRITE, DiskFullError),
        (sqlite3.SQLITE_IOERR_FSYNC, BackendUnavailableError),
    ],
)
async def test_nothing_is_written_when_the_disk_refuses_and_reading_goes_on(
    folder: Path, code: int, failure: type[Exception]
) -> None:
    disk = FailingDisk()
    async with opened(folder, disk) as registry:
        first = await registry.put("key", "a", b"1", 0)
        disk.failure = code
        for write in (registry.put("key", "a", b"2", None), registry.delete("key", "a")):
            with pytest.raises(failure, match="it is the disk"):
                await write
        assert await registry.get("key", "a") == first
        disk.failure = None
        assert (await registry.put("key", "a", b"2", first.version)).value == b"2"


async def test_too_many_calls_at_once_are_refused_and_the_others_answered(folder: Path) -> None:
    async with opened(folder) as registry:
        calls = (registry.get("key", "a") for _ in range(MAX_WAITING_CALLS + 3))
        results = await asyncio.gather(*calls, return_exceptions=True)
        assert sum(isinstance(result, BackendUnavailableError) for result in results) == 3
        assert results.count(None) == MAX_WAITING_CALLS


def test_file_that_is_none_is_refused_as_damaged(folder: Path) -> None:
    (folder / "registry.db").write_bytes(b"nonsense" * 1000)
    with pytest.raises(RegistryDamagedError, match="put a backup in its place"):
        asyncio.run(FileRegistry.open(folder))


def test_file_of_another_release_is_refused(folder: Path) -> None:
    with sqlite3.connect(folder / "registry.db") as other:
        other.execute("PRAGMA user_version = 9")
    other.close()
    with pytest.raises(
        StoreError, match="has format 9, and this release reads and writes format 2 only"
    ):
        asyncio.run(FileRegistry.open(folder))


class CountingDatabase:
    """What reads of a registry go through, counted."""

    def __init__(self, registry: FileRegistry) -> None:
        self.reads = 0
        self._read = registry._database.read
        registry._database.read = self.read  # type: ignore[method-assign]

    async def read(self, operation: Operation[T]) -> T:
        self.reads += 1
        return await self._read(operation)


async def test_record_is_read_from_memory_until_it_is_written(folder: Path) -> None:
    async with opened(folder) as registry:
        database = CountingDatabase(registry)
        written = await registry.put("key", "a", b"1", 0)
        for _ in range(3):
            assert await registry.get("key", "a") == written
        assert database.reads == 1
        written = await registry.put("key", "a", b"2", written.version)
        assert await registry.get("key", "a") == written
        await registry.delete("key", "a")
        assert await registry.get("key", "a") is None


async def test_what_is_read_beside_a_write_is_not_kept(folder: Path) -> None:
    async with opened(folder) as registry:
        for name in map(str, range(20)):
            await registry.put("key", name, b"old", 0)
            get, put = registry.get("key", name), registry.put("key", name, b"new", None)
            await asyncio.gather(get, put)
            found = await registry.get("key", name)
            assert found is not None
            assert found.value == b"new"


async def test_records_in_memory_are_bounded(folder: Path) -> None:
    async with opened(folder) as registry:
        names = [f"{n}" for n in range(2 * MAX_CACHED_BYTES // MAX_VALUE_BYTES)]
        for name in names:
            await registry.put("key", name, bytes(MAX_VALUE_BYTES), 0)
            await registry.get("key", name)
        database = CountingDatabase(registry)
        await registry.get("key", names[-1])
        assert database.reads == 0
        await registry.get("key", names[0])
        assert database.reads == 1
