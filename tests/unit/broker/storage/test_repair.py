"""What a repair saves from a damaged journal, and what a check says of bounds that do not fit."""

from __future__ import annotations

import asyncio
import sqlite3
import threading
from contextlib import closing
from pathlib import Path

import pytest

from router.broker.disk import row_sums
from router.broker.storage import PULSAR_FORMAT, Ack, StoreOptions
from router.broker.storage.commit_groups import pack_file_header, read_file_header
from router.broker.storage.files import check, repair
from router.broker.storage.offset_index import POINT_SIZE
from router.broker.storage.records import HEAD
from router.broker.storage.values import ValueChange, ValueOperation
from router.model.policies import Policies
from tests.unit.broker.storage.rig import (
    NOW_MS,
    clock,
    fill,
    ignore,
    killed,
    one_ledger,
    opened,
    payload,
    read_all,
    run,
    synced,
)

ROOMY = StoreOptions(reserve=0)


def damage(folder: Path, pattern: bytes) -> None:
    """Change a byte of the journal where the pattern stands."""
    (file,) = (folder / "data" / "journal").glob("*.log")
    data = bytearray(file.read_bytes())
    data[data.index(pattern)] ^= 1
    file.write_bytes(data)


async def test_cursors_and_marks_of_sound_rounds_outlive_a_damaged_one(folder: Path) -> None:
    async with killed(folder, ROOMY) as store:
        ledger = await one_ledger(store)
        other = await store.create_topic("deleted", 0, Policies(), {})
        record = await store.create_subscription(ledger.id, "g", -1, {})
        ledger.append(b"first", PULSAR_FORMAT, 1, NOW_MS, ignore, ("p", 1))
        for key in ("kept", "removed"):
            store.change_value(ValueChange(ValueOperation.PUT, "values", key, b"1"))
        await synced(store)
        store.change_value(ValueChange(ValueOperation.PUT, "values", "lost", b"2"))
        ledger.append(b"broken", PULSAR_FORMAT, 2, NOW_MS, ignore, ("p", 2))
        ledger.append(b"beside it", PULSAR_FORMAT, 2, NOW_MS, ignore, ("q", 5))
        await synced(store)
        ledger.append(b"third", PULSAR_FORMAT, 1, NOW_MS, ignore, ("r", 3))
        store.ledger(other.ledger_ids[0]).append(
            b"of no use", PULSAR_FORMAT, 1, NOW_MS, ignore, ("p", 1)
        )
        store.reset(record, -1)
        store.change_value(ValueChange(ValueOperation.REMOVE, "values", "removed"))
        store.change_value(ValueChange(ValueOperation.PUT, "values", "later", b"3"))
        await synced(store)
        store.acknowledge(record, Ack(0))
        store.acknowledge(record, Ack(3))
        gone = await store.create_subscription(ledger.id, "gone", -1, {})
        store.acknowledge(gone, Ack(0))
        await synced(store)
        await store.delete_subscription(gone)
        await store.delete_topic(other.id)
    damage(folder, b"broken")
    (finding,) = check(folder / "data")
    assert finding.serious
    assert [f.repaired for f in repair(folder / "data", clock)] == [True]
    assert check(folder / "data") == []
    async with opened(folder, ROOMY) as store:
        ledger = await one_ledger(store)
        found = {entry.entry_id: entry.payload for entry in await read_all(ledger)}
        assert found == {0: b"first", 2: b"beside it", 3: b"third"}
        assert [(hole.first, hole.last) for hole in ledger.holes] == [(1, 1)]
        # Marks of the damaged round are given up: a retry is stored twice, never dropped.
        last = {name: mark.sequence for name, mark in ledger.producers}
        assert last == {"p": 1, "r": 3}
        assert store.values.of("values") == {"kept": b"1", "later": b"3"}
        (record,) = store.subscriptions(ledger.id)
        assert [n for n in range(4) if not record.cursor.is_acked(n)] == [2]


def test_repair_rebuilds_the_index_of_a_long_segment(folder: Path) -> None:
    count = 400

    async def make() -> None:
        async with opened(folder, ROOMY) as store:
            await fill(store, await one_ledger(store), [bytes(1000) for _ in range(count)])

    async def find() -> None:
        async with opened(folder, ROOMY) as store:
            ledger = await one_ledger(store)
            for entry in (0, 60, 149, 151, 399):
                assert (await ledger.read(entry, 1, 1))[0].entry_id == entry
            assert (await ledger.read(150, 1, 1))[0].entry_id == 151
            assert await ledger.find_time(NOW_MS) == 0

    run(make())
    (segment,) = (folder / "data" / "ledgers").rglob("*.seg")
    data = bytearray(segment.read_bytes())
    data[150 * (HEAD.size + 1000) + 500] = 1
    segment.write_bytes(data)
    repair(folder / "data", clock)
    assert check(folder / "data") == []
    for index in (folder / "data" / "ledgers").rglob("*.idx"):
        assert index.stat().st_size >= 2 * POINT_SIZE
    run(find())


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        ("UPDATE ledgers SET next_entry = 9", "segments end before entry 6, not 9"),
        (
            "UPDATE segments SET first_index = 5",
            "entry 0 holds messages 0 to 0, which do not follow 4",
        ),
        ("UPDATE segments SET next_index = 2", "entry 2 holds messages 2 to 2"),
        ("DELETE FROM segments WHERE first_entry = 2", "entries 2 to 2 are missing"),
    ],
)
def test_bounds_that_do_not_fit_are_found(folder: Path, change: str, sentence: str) -> None:
    async def make() -> None:
        for turn in range(3):
            options = StoreOptions(reserve=0, segment=1)
            async with opened(folder, options) as store:
                await fill(store, await one_ledger(store), [payload(turn), payload(turn)])

    run(make())
    with closing(sqlite3.connect(folder / "data" / "metadata.db")) as connection, connection:
        row_sums.install(connection)
        connection.execute(change)
    assert any(sentence in finding.sentence for finding in check(folder / "data"))


def test_a_gap_between_journal_files_is_found(folder: Path) -> None:
    async def work() -> None:
        async with killed(folder, ROOMY) as store:
            await fill(store, await one_ledger(store), [b"a", b"b"])

    run(work())
    (file,) = (folder / "data" / "journal").glob("*.log")
    missing, later = (file.with_name(f"{int(file.stem) + n:010d}.log") for n in (1, 2))
    header = read_file_header(file.read_bytes())
    assert header is not None
    later.write_bytes(pack_file_header(header._replace(number=header.number + 2, base=0)))
    (finding,) = check(folder / "data")
    assert (finding.serious, finding.file) == (True, missing)


async def test_a_read_that_retention_overtakes_goes_on_behind_it(folder: Path) -> None:
    options = StoreOptions(reserve=0, segment=1)
    for turn in range(3):
        async with opened(folder, options) as store:
            await fill(store, await one_ledger(store), [payload(turn)])
    async with opened(folder, options) as store:
        ledger = await one_ledger(store)
        held = threading.Event()
        for _ in range(4):
            store._context.readers.submit(held.wait)
        reading = asyncio.ensure_future(ledger.read(0, 1, 1))
        finding = asyncio.ensure_future(ledger.find_time(1))
        await asyncio.sleep(0)
        for segment in ledger.segments[:2]:
            store._context.writer.remove(ledger.id, [segment])
        ledger.drop(ledger.segments[2:])
        held.set()
        assert [entry.entry_id for entry in await reading] == [2]
        assert await finding == 2
