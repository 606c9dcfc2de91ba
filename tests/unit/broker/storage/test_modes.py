"""Who may read the files of the store, and whose files it does not write to."""

from __future__ import annotations

import os
import sqlite3
import stat
from contextlib import closing
from pathlib import Path

import pytest

from router.broker.disk.database import DatabaseSchema, connect
from router.broker.disk.faults import StoreError
from router.broker.disk.files import Disk, opened
from router.broker.folder import MARK, write_mark

SCHEMA = DatabaseSchema(1, "CREATE TABLE t (x INTEGER)")


@pytest.fixture(autouse=True)
def open_umask() -> object:
    """Have files be made for all to read, were it not for what is tested."""
    before = os.umask(0)
    yield
    os.umask(before)


def modes(folder: Path) -> dict[str, int]:
    return {path.name: stat.S_IMODE(path.stat().st_mode) for path in folder.iterdir()}


def written(path: Path) -> sqlite3.Connection:
    connection = connect(path, Disk(), SCHEMA)
    connection.execute("INSERT INTO t VALUES (1)")
    return connection


def test_database_and_what_lies_beside_it_are_private(tmp_path: Path) -> None:
    with closing(written(tmp_path / "metadata.db")):
        assert modes(tmp_path) == dict.fromkeys(
            ("metadata.db", "metadata.db-wal", "metadata.db-shm"), 0o600
        )


def test_database_that_others_could_read_is_made_private(tmp_path: Path) -> None:
    # Copied while it is open: what a killed process leaves.
    (first := tmp_path / "first").mkdir()
    (second := tmp_path / "second").mkdir()
    with closing(written(first / "metadata.db")):
        for path in first.iterdir():
            (second / path.name).write_bytes(path.read_bytes())
    assert set(modes(second).values()) == {0o666}
    with closing(connect(second / "metadata.db", Disk(), SCHEMA)) as connection:
        assert connection.execute("SELECT count(*) FROM t").fetchone() == (1,)
        assert set(modes(second).values()) == {0o600}


@pytest.mark.parametrize("name", ["metadata.db", "metadata.db-wal"])
def test_database_that_is_a_link_is_refused(tmp_path: Path, name: str) -> None:
    aim = tmp_path / "aim"
    aim.write_bytes(b"")
    (tmp_path / name).symlink_to(aim)
    with pytest.raises(StoreError, match=f"{name} is a symbolic link"):
        connect(tmp_path / "metadata.db", Disk(), SCHEMA)
    assert aim.read_bytes() == b""


def test_file_of_the_store_that_is_a_link_is_refused(tmp_path: Path) -> None:
    aim = tmp_path / "aim"
    aim.write_bytes(b"precious")
    (tmp_path / "segment").symlink_to(aim)
    for flags in (os.O_RDONLY, os.O_RDWR | os.O_CREAT | os.O_TRUNC):
        with pytest.raises(OSError, match="symbolic"), opened(Disk(), tmp_path / "segment", flags):
            pass
    write_mark(tmp_path, "a reason")
    assert modes(tmp_path)[MARK] == 0o600
    (tmp_path / MARK).unlink()
    (tmp_path / MARK).symlink_to(aim)
    write_mark(tmp_path, "a reason")
    assert aim.read_bytes() == b"precious"
