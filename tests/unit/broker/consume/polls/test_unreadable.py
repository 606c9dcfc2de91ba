"""What an engine leaves behind whose polls read from a disk that cannot be read."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from router.broker.entries import ENTRY_FORMATS, keep_messages
from router.broker.storage import Store, StoreOptions, partition_reader
from router.broker.topics.topics import TopicOptions, Topics
from router.model import Message
from tests.unit.broker.consume.polls.polling import Clock, House
from tests.unit.broker.storage.rig import FailingDisk


async def test_what_a_lost_worker_read_ends_with_the_engine(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    house = await House.open(tmp_path)
    await house.publish([Message(b"0")])
    await house.close()
    monkeypatch.setattr(partition_reader, "RETRY_SECONDS", (60.0,))
    disk, clock = FailingDisk(), Clock()
    store = await Store.open(tmp_path, StoreOptions(), clock, disk, keep_messages=keep_messages)
    house = House(store, Topics(store, TopicOptions(), clock, ENTRY_FORMATS), clock)
    before, disk.failures = asyncio.all_tasks(), 1
    house.begin(timeout=1.0)
    async with asyncio.timeout(20):
        while disk.failures:  # noqa: ASYNC110 - it is read in a thread
            await asyncio.sleep(0.001)
    house.engine.gone(house.worker)
    house.engine.close()
    for _ in range(10):
        await asyncio.sleep(0)
    left = asyncio.all_tasks() - before
    await house.close()
    assert not left
