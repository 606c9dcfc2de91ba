"""What becomes of stored entries when it is not the disk that fails but memory."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

import pytest

from router.broker.disk.files import Buffer, Disk
from router.broker.storage import PULSAR_FORMAT, StoreError
from tests.unit.broker.storage.rig import (
    NOW_MS,
    SMALL,
    killed,
    one_ledger,
    opened,
    read_all,
    run,
    synced,
    until,
)


class Short(Disk):
    """A disk before which memory runs out while files of one kind are written to, once."""

    def __init__(self, suffix: str) -> None:
        self.suffix = suffix
        self.armed = False
        self._files: set[int] = set()

    def open(self, path: Path, flags: int) -> int:
        descriptor = super().open(path, flags)
        self._files.discard(descriptor)
        if path.suffix == self.suffix:
            self._files.add(descriptor)
        return descriptor

    def write(self, descriptor: int, parts: Sequence[Buffer]) -> int:
        if self.armed and descriptor in self._files:
            self.armed = False
            raise MemoryError
        return super().write(descriptor, parts)


PAYLOADS = [b"%05d" % number + b"." * 100 for number in range(200)]


@pytest.mark.parametrize("suffix", [".seg", ".new"], ids=["segment", "journal"])
def test_store_ends_and_loses_nothing_when_memory_runs_out(folder: Path, suffix: str) -> None:
    confirmed: list[int] = []

    async def work() -> None:
        disk = Short(suffix)
        async with killed(folder, SMALL, disk) as store:
            ledger = await one_ledger(store)
            with suppress(StoreError):
                for number, payload in enumerate(PAYLOADS):
                    if number == 3:
                        disk.armed = True
                    ledger.append(payload, PULSAR_FORMAT, 1, NOW_MS, confirmed.append)
                    async with asyncio.timeout(5):
                        await synced(store)
            await until(store.failed.done)
        async with opened(folder) as store:
            found = [entry.payload for entry in await read_all(await one_ledger(store))]
            assert found[: len(confirmed)] == PAYLOADS[: len(confirmed)]

    run(work())
    assert confirmed
