"""Data folders of earlier releases: brought up when a store opens, and read as they are before."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from pathlib import Path

import pytest

from router.broker.ledger import Ack, StoreError
from router.broker.ledger import check as checking
from router.broker.ledger.database import form_of
from router.broker.ledger.disk import Disk
from router.broker.ledger.metadata import FORMS, connect
from tests.unit.broker.ledger.rig import fill, one_ledger, opened, payload, read_all, run

# As release 1.0 made them.
FORM_1 = """
CREATE TABLE meta (key TEXT PRIMARY KEY, value INTEGER NOT NULL) WITHOUT ROWID;
CREATE TABLE topics (
    id INTEGER PRIMARY KEY AUTOINCREMENT, name TEXT NOT NULL UNIQUE, partitions INTEGER NOT NULL,
    policies TEXT NOT NULL, properties TEXT NOT NULL, created_ms INTEGER NOT NULL
);
CREATE TABLE ledgers (
    id INTEGER PRIMARY KEY AUTOINCREMENT,
    topic_id INTEGER NOT NULL REFERENCES topics (id) ON DELETE CASCADE,
    partition INTEGER NOT NULL, next_entry INTEGER NOT NULL, next_index INTEGER NOT NULL,
    UNIQUE (topic_id, partition)
);
CREATE TABLE segments (
    ledger_id INTEGER NOT NULL REFERENCES ledgers (id) ON DELETE CASCADE,
    first_entry INTEGER NOT NULL, first_index INTEGER NOT NULL, next_entry INTEGER NOT NULL,
    next_index INTEGER NOT NULL, size INTEGER NOT NULL, first_ms INTEGER NOT NULL,
    max_ms INTEGER NOT NULL, PRIMARY KEY (ledger_id, first_entry)
) WITHOUT ROWID;
CREATE TABLE subscriptions (
    id INTEGER PRIMARY KEY AUTOINCREMENT,
    ledger_id INTEGER NOT NULL REFERENCES ledgers (id) ON DELETE CASCADE,
    name TEXT NOT NULL, properties TEXT NOT NULL, created_ms INTEGER NOT NULL,
    last_used_ms INTEGER NOT NULL, cursor BLOB NOT NULL, UNIQUE (ledger_id, name)
);
CREATE TABLE producers (
    ledger_id INTEGER NOT NULL REFERENCES ledgers (id) ON DELETE CASCADE,
    name TEXT NOT NULL, sequence INTEGER NOT NULL, entry INTEGER NOT NULL,
    messages INTEGER NOT NULL, time_ms INTEGER NOT NULL, PRIMARY KEY (ledger_id, name)
) WITHOUT ROWID;
CREATE TABLE holes (
    ledger_id INTEGER NOT NULL REFERENCES ledgers (id) ON DELETE CASCADE,
    first_entry INTEGER NOT NULL, last_entry INTEGER NOT NULL, reason TEXT NOT NULL,
    found_ms INTEGER NOT NULL, PRIMARY KEY (ledger_id, first_entry)
) WITHOUT ROWID;
CREATE INDEX producers_by_time ON producers (time_ms);
"""
TABLES = {
    "meta": "key, value",
    "topics": "id, name, partitions, policies, properties, created_ms",
    "ledgers": "id, topic_id, partition, next_entry, next_index",
    "segments": "*",
    "subscriptions": "*",
    "producers": "*",
    "holes": "*",
}


class FullDisk(Disk):
    """Takes no commit."""

    def commit(self, connection: sqlite3.Connection) -> None:
        raise OSError(28, "No space left on device")


@pytest.fixture
def old(folder: Path) -> Path:
    """A folder with 30 entries, 10 of them acknowledged, as the release 1.0 left it."""

    async def make() -> None:
        async with opened(folder) as store:
            ledger = await one_ledger(store)
            await fill(store, ledger, [payload(number) for number in range(30)])
            record = await store.create_subscription(ledger.id, "g", -1, {})
            store.acknowledge(record, Ack(9, cumulative=True))

    run(make())
    database = folder / "data" / "metadata.db"
    present = database.rename(database.with_suffix(".new"))
    with closing(sqlite3.connect(database, isolation_level=None)) as connection:
        connection.executescript(FORM_1)
        connection.execute("ATTACH ? AS present", (str(present),))
        for table, columns in TABLES.items():
            connection.execute(f"INSERT INTO {table} SELECT {columns} FROM present.{table}")
        connection.execute("PRAGMA user_version = 1")
    for left in database.parent.glob("metadata.new*"):
        left.unlink()
    return folder


def form(folder: Path) -> int:
    with closing(sqlite3.connect(folder / "data" / "metadata.db")) as connection:
        return form_of(connection)


def test_all_is_there_when_an_old_folder_is_opened(old: Path) -> None:
    async def look() -> None:
        async with opened(old) as store:
            ledger = await one_ledger(store)
            assert [entry.entry_id for entry in await read_all(ledger)] == list(range(30))
            (record,) = store.subscriptions(ledger.id)
            assert record.cursor.mark_delete == 9
            assert (ledger.topic_epoch, ledger.terminated) == (None, False)
            await fill(store, ledger, [b"more"])

    run(look())
    assert form(old) == len(FORMS)


def test_what_is_new_is_kept_when_an_old_folder_is_opened_again(old: Path) -> None:
    async def change() -> None:
        async with opened(old) as store:
            ledger = await one_ledger(store)
            ledger.topic_epoch = 7
            await store.save_epoch(ledger)
            await store.terminate(ledger)

    async def look() -> None:
        async with opened(old) as store:
            ledger = await one_ledger(store)
            assert (ledger.topic_epoch, ledger.terminated) == (7, True)

    run(change())
    run(look())


def test_check_reads_an_old_folder_and_leaves_it_as_it_is(old: Path) -> None:
    assert checking.check(old / "data") == []
    assert form(old) == 1


def test_an_old_folder_stays_old_when_it_cannot_be_brought_up(old: Path) -> None:
    with pytest.raises(OSError, match="No space"):
        connect(old / "data" / "metadata.db", FullDisk())
    assert form(old) == 1


def test_a_folder_of_a_later_release_is_not_touched(old: Path) -> None:
    with closing(sqlite3.connect(old / "data" / "metadata.db")) as connection:
        connection.execute("PRAGMA user_version = 99")
    with pytest.raises(StoreError, match="another release"):
        connect(old / "data" / "metadata.db", Disk())
    assert form(old) == 99
