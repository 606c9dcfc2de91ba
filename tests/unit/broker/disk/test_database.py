"""A database of the broker as a process finds it that was started after a kill."""

from __future__ import annotations

import shutil
import sqlite3
from contextlib import closing
from pathlib import Path

from router.broker.disk.database import Schema, connect, transact
from router.broker.disk.files import Disk

SCHEMA = Schema(1, "CREATE TABLE items (name TEXT NOT NULL)")


def items(path: Path) -> list[str]:
    with closing(sqlite3.connect(path)) as found:
        return [name for (name,) in found.execute("SELECT name FROM items")]


def test_what_a_killed_process_committed_does_not_depend_on_the_page_cache(tmp_path: Path) -> None:
    killed, disk = tmp_path / "killed", Disk()
    killed.mkdir()
    with closing(connect(tmp_path / "a.db", disk, SCHEMA)) as before:
        transact(before, disk, lambda c: c.execute("INSERT INTO items VALUES ('one')"))
        # As a kill leaves it: the log of SQLite may be in the page cache only.
        for file in tmp_path.glob("a.db*"):
            if not file.name.endswith("-shm"):
                shutil.copy(file, killed)
    with closing(connect(killed / "a.db", disk, SCHEMA)):
        shutil.copy(killed / "a.db", tmp_path / "synced.db")
        assert items(tmp_path / "synced.db") == ["one"]
