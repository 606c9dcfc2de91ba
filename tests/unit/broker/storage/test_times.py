"""Finding the first entry since a time, whatever the clock did meanwhile."""

from __future__ import annotations

import asyncio
import tempfile
import threading
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from router.broker.storage import PULSAR_FORMAT, Ledger, Store
from tests.unit.broker.storage.rig import SMALL, ignore, one_ledger, opened, payload, run, synced

OPTIONS = replace(SMALL, segment=300, index_step=60, cache=100)
times = st.lists(st.integers(0, 40), max_size=40)


def expected(found: list[int], wanted: int) -> int:
    return next((entry for entry, time in enumerate(found) if time >= wanted), len(found))


@pytest.mark.slow
@settings(max_examples=25, deadline=None)
@given(sessions=st.lists(times, min_size=1, max_size=3), together=st.integers(1, 9))
def test_it_is_the_first_in_the_log_however_often_the_clock_was_set(
    sessions: list[list[int]], together: int
) -> None:
    async def work(folder: Path) -> None:
        stored: list[int] = []
        for session in sessions:
            async with opened(folder, OPTIONS) as store:
                ledger = await one_ledger(store)
                for number, time_ms in enumerate(session):
                    ledger.append(payload(len(stored)), PULSAR_FORMAT, 1, time_ms, ignore)
                    stored.append(time_ms)
                    if number % together == 0:
                        await synced(store)
                await synced(store)
                for wanted in range(0, 42, 3):
                    assert await ledger.find_time(wanted) == expected(stored, wanted)

    with tempfile.TemporaryDirectory() as folder:
        run(work(Path(folder)))


async def test_what_is_flushed_while_retention_overtakes_it_is_not_missed(folder: Path) -> None:
    async def append(ledger: Ledger, store: Store, moments: list[int]) -> None:
        for moment in moments:
            ledger.append(payload(moment), PULSAR_FORMAT, 1, moment, ignore)
            await synced(store)

    async with opened(folder, OPTIONS) as store:
        ledger = await one_ledger(store)
        await append(ledger, store, [30, *range(15)])
        await store._checkpointer.checkpoint()
        first, flushed = ledger.segments[0], ledger.flushed_entry
        assert first.next_entry < flushed
        held = threading.Event()
        for _ in range(4):
            store._context.readers.submit(held.wait)
        finding = asyncio.ensure_future(ledger.find_time(20))
        await asyncio.sleep(0)
        async with store._checkpointer.alone():  # as retention does
            store._context.writer.remove(ledger.id, [first])
            ledger.drop(ledger.segments[1:])
        await append(ledger, store, [25, *range(15)])
        await store._checkpointer.checkpoint()
        assert ledger.flushed_entry > 16
        held.set()
        assert await finding == 16


def test_damage_that_may_hold_it_is_the_answer(folder: Path) -> None:
    times = [10, 20, 30, 40, 50]

    async def make() -> None:
        async with opened(folder) as store:
            ledger = await one_ledger(store)
            for moment in times:
                ledger.append(bytes(20), PULSAR_FORMAT, 1, moment, ignore)
            await synced(store)

    async def find() -> None:
        async with opened(folder) as store:
            ledger = await one_ledger(store)
            found = [await ledger.find_time(moment) for moment in times]
            assert found == [0, 1, 2, 2, 4]

    run(make())
    (segment,) = (folder / "data" / "ledgers").rglob("*.seg")
    data = bytearray(segment.read_bytes())
    size = len(data) // len(times)
    for entry in (2, 3):
        data[(entry + 1) * size - 1] ^= 1
    segment.write_bytes(data)
    run(find())
