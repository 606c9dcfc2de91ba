"""Reading from disk for a subscription when the disk, or the machine, says no."""

from __future__ import annotations

import asyncio
import errno
import os
from pathlib import Path

import pytest

from router.broker.consume import SubscriptionType
from router.broker.consume.dispatch import dispatcher
from router.broker.disk.files import Disk
from tests.unit.broker.consume.dispatch.bench import on_a_partition
from tests.unit.broker.storage.rig import until

STORED = 20


class Failing:
    """Lets segments not be opened so many times."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, times: int) -> None:
        self.left = times
        whole = Disk.open

        def open_or_fail(disk: Disk, path: Path, flags: int) -> int:
            if self.left and path.suffix == ".seg" and flags == os.O_RDONLY:
                self.left -= 1
                raise OSError(errno.EMFILE, "too many open files")
            return whole(disk, path, flags)

        monkeypatch.setattr(Disk, "open", open_or_fail)


@pytest.mark.parametrize("kind", list(SubscriptionType))
async def test_reading_goes_on_by_itself_when_files_can_be_opened_again(
    folder: Path, monkeypatch: pytest.MonkeyPatch, kind: SubscriptionType
) -> None:
    monkeypatch.setattr(dispatcher, "READ_RETRY_SECONDS", 0.01)
    async with on_a_partition(folder) as bench:
        await bench.publish(STORED)
    async with on_a_partition(folder, cache=0) as bench:
        Failing(monkeypatch, 3)
        subscription = await bench.subscription()
        bench.consumer(subscription, "a", kind, permits=100)
        await until(lambda: len(bench.notes.got) == STORED)
        assert sorted(bench.notes.entries()) == list(range(STORED))
        assert subscription.failure is None


async def test_reading_is_not_tried_again_when_nobody_waits_for_it(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(dispatcher, "READ_RETRY_SECONDS", 0.01)
    async with on_a_partition(folder) as bench:
        await bench.publish(STORED)
    async with on_a_partition(folder, cache=0) as bench:
        failing = Failing(monkeypatch, 100)
        subscription = await bench.subscription()
        consumer = bench.consumer(subscription, "a", SubscriptionType.SHARED, permits=100)
        await until(lambda: subscription.failure is not None)
        subscription.detach(consumer)
        before = failing.left
        await asyncio.sleep(0.05)
        assert failing.left == before


async def test_what_was_read_ahead_is_counted_until_it_is_taken(folder: Path) -> None:
    async with on_a_partition(folder) as bench:
        await bench.publish(STORED)
    async with on_a_partition(folder, cache=0) as bench:
        subscription = await bench.subscription()
        came = asyncio.Event()
        feed = dispatcher.EntryFeed(subscription, came.set)
        assert (feed.take(), feed.ahead_bytes) == (None, 0)
        await came.wait()
        held, sizes = feed.ahead_bytes, []
        while (entry := feed.take()) is not None:
            sizes.append(len(entry.payload))
            assert feed.ahead_bytes == held - sum(sizes)
        assert (len(sizes), feed.ahead_bytes) == (STORED, 0)
        came.clear()
        feed.rewind(0)
        feed.take()
        await came.wait()
        assert feed.ahead_bytes == held
        feed.close()
        assert feed.ahead_bytes == 0
