"""A restored backup is a prefix of what was done, with all that was answered before it began."""

from __future__ import annotations

import asyncio
import time
from pathlib import Path

import pytest

from router.broker.backup import Manifest, Repository
from router.broker.disk.files import Disk
from tests.unit.broker.backup.rig import (
    Local,
    SlowDisk,
    State,
    Traffic,
    back_up,
    found,
    problems,
    restored,
    served,
)

pytestmark = [pytest.mark.slow, pytest.mark.timeout(120)]
BACKUPS = 3


def matches(expected: State, held: State, there: dict[str, set[int]], ignored: set[str]) -> bool:
    """Return whether a store holds exactly this, but for segments whose messages were deleted."""
    for name in expected.entries.keys() | held.entries.keys():
        if name in ignored and name not in held.entries:
            continue
        if expected.entries.get(name, 0) != held.entries.get(name):
            # One that was just made holds nothing yet.
            if name in held.entries or expected.entries.get(name):
                return False
            continue
        read = there[name]
        gone = set(range(held.entries[name])) - read
        if not gone <= expected.deleted.get(name, set()):
            return False
        if expected.acked.get(name, set()) & read != held.acked[name]:
            return False
        if expected.deleted.get(name, set()) & read != held.deleted[name]:
            return False
    return True


@pytest.mark.parametrize(("seed", "disk"), [(0, Disk()), (1, SlowDisk())], ids=["fast", "slow"])
def test_each_backup_is_a_prefix_in_commit_order(folder: Path, seed: int, disk: Disk) -> None:
    taken: list[tuple[Manifest, int, set[str], set[str]]] = []

    async def work() -> Traffic:
        async with served(folder / "data", disk) as (store, backups):
            traffic, stopped = Traffic(store, seed), asyncio.Event()
            for _ in range(4):
                await traffic.make_topic()
            running = asyncio.create_task(traffic.run(stopped))
            for _ in range(BACKUPS):
                await asyncio.sleep(0.1)
                confirmed, gone = traffic.confirmed, {*traffic.gone}
                manifest = await asyncio.to_thread(
                    back_up,
                    folder / "data",
                    folder / "backups",
                    Local(backups),
                    progress=lambda _size: time.sleep(0.002),
                )
                taken.append((manifest, confirmed, gone, {*traffic.asked_to_go}))
            stopped.set()
            await running
            return traffic

    traffic = asyncio.run(work())
    assert [manifest.id for manifest, *_ in taken] == Repository(folder / "backups").ids()
    assert sum(kind == "append" for kind, *_ in traffic.events) > 50
    for manifest, confirmed, gone, asked in taken:
        assert problems(folder / "backups", manifest) == []
        place = restored(folder / "backups", manifest, folder / manifest.id)
        held, there = asyncio.run(found(place))
        assert not gone & held.entries.keys()
        states = traffic.prefixes(confirmed)
        assert any(matches(state, held, there, asked) for state in states), manifest.id
