"""A disk that cannot read for a while: nothing that was written is in doubt for that."""

from __future__ import annotations

from pathlib import Path

import pytest

from router.broker.disk.faults import StoreError
from router.broker.folder import MARK
from router.broker.storage.segments import file_of
from tests.unit.broker.storage.rig import (
    FailingDisk,
    fill,
    killed,
    one_ledger,
    opened,
    payload,
    read_all,
)

COUNT = 64


@pytest.mark.parametrize("reads_before", range(2))
async def test_a_start_that_cannot_read_the_journal_leaves_it_to_the_next(
    folder: Path, reads_before: int
) -> None:
    async with killed(folder) as store:
        await fill(store, await one_ledger(store), [payload(n) for n in range(COUNT)], each=True)
    disk = _LaterFailing(reads_before)
    with pytest.raises(StoreError, match="Input/output error"):
        async with opened(folder, disk=disk):
            pass
    assert not (folder / "data" / MARK).exists()
    async with opened(folder) as store:
        assert len(await read_all(await one_ledger(store))) == COUNT


async def test_an_index_that_cannot_be_read_is_given_up(folder: Path) -> None:
    async with opened(folder) as store:
        ledger = await one_ledger(store)
        await fill(store, ledger, [payload(n) for n in range(COUNT)], each=True)
    path = file_of(folder / "data" / "ledgers", ledger.id, ledger.segments[-1])
    assert path.with_suffix(".idx").exists()
    disk = _IndexFailing()
    async with opened(folder, disk=disk) as store:
        ledger = await one_ledger(store)
        await fill(store, ledger, [payload(n) for n in range(COUNT, 2 * COUNT)])
    assert disk.has_failed
    assert not (folder / "data" / MARK).exists()
    async with opened(folder) as store:
        assert len(await read_all(await one_ledger(store))) == 2 * COUNT


class _LaterFailing(FailingDisk):
    """Cannot read after so many reads."""

    def __init__(self, reads: int) -> None:
        super().__init__()
        self._left = reads

    def pread(self, descriptor: int, size: int, start: int) -> bytes:
        self._left -= 1
        self.failures = int(self._left < 0)
        return super().pread(descriptor, size, start)


class _IndexFailing(FailingDisk):
    """Cannot read the indexes of segments."""

    has_failed = False

    def pread(self, descriptor: int, size: int, start: int) -> bytes:
        if Path(f"/proc/self/fd/{descriptor}").readlink().suffix == ".idx":
            self.has_failed, self.failures = True, 1
        return super().pread(descriptor, size, start)
