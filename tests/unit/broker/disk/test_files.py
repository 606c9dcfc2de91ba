"""The real disk behind the seam, and the loops around its single calls."""

from __future__ import annotations

import errno
import os
import sqlite3
from collections.abc import Sequence
from contextlib import closing
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from router.broker.disk.faults import puts_in_doubt
from router.broker.disk.files import (
    MAX_PARTS,
    MIN_UNCOPIED_BYTES,
    Buffer,
    Disk,
    gather,
    opened,
    read_all,
    write_all,
)


class Reluctant(Disk):
    """Reads and writes at most three bytes at a time."""

    def write(self, descriptor: int, parts: Sequence[Buffer]) -> int:
        return super().write(descriptor, [b"".join(parts)[:3]])

    def pread(self, descriptor: int, size: int, start: int) -> bytes:
        return super().pread(descriptor, min(size, 3), start)


def test_everything_is_written_and_read_however_little_each_call_does(tmp_path: Path) -> None:
    disk, data = Reluctant(), bytes(range(20))
    with opened(disk, tmp_path / "file", os.O_RDWR | os.O_CREAT) as descriptor:
        write_all(disk, descriptor, [data[:1], b"", data[1:8], data[8:]])
        assert disk.size(descriptor) == 20
        assert read_all(disk, descriptor, 20, 0) == data
        assert read_all(disk, descriptor, 99, 15) == data[15:]
        assert read_all(disk, descriptor, 5, 20) == b""
        disk.truncate(descriptor, 4)
        assert disk.size(descriptor) == 4


def test_more_parts_than_one_write_takes_are_written_in_order(tmp_path: Path) -> None:
    disk, parts = Disk(), [b"%d," % number for number in range(3 * MAX_PARTS - 1)]
    with opened(disk, tmp_path / "file", os.O_RDWR | os.O_CREAT) as descriptor:
        write_all(disk, descriptor, parts)
        assert read_all(disk, descriptor, 1 << 20, 0) == b"".join(parts)


@given(
    st.lists(
        st.sampled_from(
            [b"", b"a", b"bc" * 99, b"d" * MIN_UNCOPIED_BYTES, b"e" * (MIN_UNCOPIED_BYTES + 1)]
        )
    )
)
def test_gathered_parts_are_the_same_bytes_and_large_ones_not_copied(parts: list[bytes]) -> None:
    found = gather(parts)
    assert b"".join(found) == b"".join(parts)
    large = [part for part in parts if len(part) >= MIN_UNCOPIED_BYTES]
    assert [id(part) for part in found if part in large] == [id(part) for part in large]
    assert len(found) <= 2 * len(large) + 1


def test_system_may_begin_to_write_what_a_sync_then_waits_for(tmp_path: Path) -> None:
    disk = Disk()
    with opened(disk, tmp_path / "file", os.O_RDWR | os.O_CREAT) as descriptor:
        write_all(disk, descriptor, [b"x" * 4096])
        disk.begin_write_back(descriptor, 0, 4096)
        disk.sync_data(descriptor)
        assert read_all(disk, descriptor, 4096, 0) == b"x" * 4096
    with pytest.raises(OSError, match=os.strerror(errno.EBADF)):
        disk.begin_write_back(descriptor, 0, 4096)
    reading, writing = os.pipe()
    try:  # what it cannot do for a file is left to the sync
        disk.begin_write_back(writing, 0, 4096)
    finally:
        os.close(reading)
        os.close(writing)


def test_files_are_private_to_their_user(tmp_path: Path) -> None:
    disk = Disk()
    assert disk.make_folder(tmp_path / "a" / "b")
    assert not disk.make_folder(tmp_path / "a" / "b")
    with opened(disk, tmp_path / "a" / "b" / "f", os.O_RDWR | os.O_CREAT):
        assert (tmp_path / "a" / "b" / "f").stat().st_mode & 0o777 == 0o600
    assert (tmp_path / "a" / "b").stat().st_mode & 0o777 == 0o700
    assert disk.list(tmp_path / "a" / "b") == ["f"]


def test_what_is_gone_already_can_be_removed_and_listed(tmp_path: Path) -> None:
    disk = Disk()
    disk.unlink(tmp_path / "none")
    disk.remove_folder(tmp_path / "none")
    assert disk.list(tmp_path / "none") == []


def test_a_whole_file_system_is_synced_through_a_folder_of_it(tmp_path: Path) -> None:
    disk = Disk()
    with opened(disk, tmp_path, os.O_RDONLY | os.O_DIRECTORY) as descriptor:
        disk.sync_all(descriptor)
    with pytest.raises(OSError, match="Bad file descriptor"):
        disk.sync_all(descriptor)
    disk.sync_folder(tmp_path)
    assert disk.free(tmp_path) > 0


@pytest.mark.parametrize(
    ("number", "in_doubt"),
    [(errno.EIO, True), (errno.EROFS, True), (errno.ENOSPC, False), (errno.EDQUOT, False),
     (errno.EFBIG, False), (errno.EMFILE, False)],
)  # fmt: skip
def test_shortage_puts_no_data_in_doubt(number: int, in_doubt: bool) -> None:
    assert puts_in_doubt(OSError(number, "")) == in_doubt


def test_errors_of_the_metadata_are_told_apart_by_their_code(tmp_path: Path) -> None:
    (tmp_path / "db").write_bytes(b"no database" * 500)
    with (
        closing(sqlite3.connect(tmp_path / "db")) as damaged,
        pytest.raises(sqlite3.DatabaseError) as caught,
    ):
        damaged.execute("PRAGMA user_version = 1")
    assert puts_in_doubt(caught.value)
    with pytest.raises(sqlite3.OperationalError) as refused:
        sqlite3.connect(tmp_path / "no" / "db")
    assert not puts_in_doubt(refused.value)
    assert not puts_in_doubt(ValueError())
