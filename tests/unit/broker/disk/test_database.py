"""A database of the broker as a process finds it that was started after a kill."""

from __future__ import annotations

import shutil
import sqlite3
from contextlib import closing, suppress
from operator import methodcaller
from pathlib import Path

import pytest

from router.broker.disk.database import DatabaseSchema, connect, transact
from router.broker.disk.faults import StoreError
from router.broker.disk.files import Disk

SCHEMA = DatabaseSchema(1, "CREATE TABLE items (name TEXT NOT NULL)")


def items(path: Path) -> list[str]:
    with closing(sqlite3.connect(path)) as found:
        return [name for (name,) in found.execute("SELECT name FROM items")]


def make_killed(folder: Path, killed: Path, commits: int) -> None:
    """Leave a database as a kill does, with a log that may be in the page cache only."""
    killed.mkdir()
    with closing(connect(folder / "a.db", Disk(), SCHEMA)) as made:
        for number in range(commits):
            statement = f"INSERT INTO items VALUES ('{number}')"
            transact(made, Disk(), methodcaller("execute", statement))
        for file in folder.glob("a.db*"):
            if not file.name.endswith("-shm"):
                shutil.copy(file, killed)


def test_what_a_killed_process_committed_does_not_depend_on_the_page_cache(tmp_path: Path) -> None:
    killed, disk = tmp_path / "killed", Disk()
    make_killed(tmp_path, killed, 1)
    with closing(connect(killed / "a.db", disk, SCHEMA)):
        shutil.copy(killed / "a.db", tmp_path / "synced.db")
        assert items(tmp_path / "synced.db") == ["0"]


@pytest.mark.slow
def test_a_bit_that_flips_in_the_log_loses_no_commit_but_the_last_unseen(tmp_path: Path) -> None:
    commits = 5
    make_killed(tmp_path, tmp_path / "killed", commits)
    size = (tmp_path / "killed" / "a.db-wal").stat().st_size
    refused = 0
    for place in [*range(0, size, 97), 2, 6, 10, 17, 21, 26]:
        copy = tmp_path / "copy"
        shutil.rmtree(copy, ignore_errors=True)
        shutil.copytree(tmp_path / "killed", copy)
        data = bytearray((copy / "a.db-wal").read_bytes())
        data[place] ^= 1 << place % 8
        (copy / "a.db-wal").write_bytes(data)
        with suppress(StoreError), closing(connect(copy / "a.db", Disk(), SCHEMA)) as found:
            rows = found.execute("SELECT count(*) FROM items").fetchone()
            assert rows[0] >= commits - 1
            continue
        refused += 1
        with pytest.raises(StoreError, match=r"a\.db-wal is damaged"):
            connect(copy / "a.db", Disk(), SCHEMA)
    assert refused > size // 97 // 2
