"""Owns every operation on files of data: one seam, so that tests can fail each one."""

from __future__ import annotations

import ctypes
import errno
import os
import re
import sqlite3
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Final, NamedTuple, cast

import crc32c as _crc32c

Buffer = bytes | memoryview
crc32c = cast("Callable[[bytes, int], int]", _crc32c.crc32c)
"""CRC32-C of the bytes, carried on from another one (0: none)."""

MAX_PARTS: Final = 1024
"""Of one write; as Linux has it."""
MIN_FILES_FOR_SYNC_ALL: Final = 64
"""Up to so many files are synced one by one; of more the whole file system is."""
MIN_UNCOPIED_BYTES: Final = 16 << 10
"""A part of so many bytes is not worth copying for the sake of its neighbours."""

_LIBC = ctypes.CDLL(None, use_errno=True)
_SYNC_FILE_RANGE: Final = getattr(_LIBC, "sync_file_range", None)
if _SYNC_FILE_RANGE is not None:
    _SYNC_FILE_RANGE.argtypes = [ctypes.c_int, ctypes.c_int64, ctypes.c_int64, ctypes.c_uint]
# Without its flags to wait: those take the file's write error, which the sync would not meet then.
_SYNC_FILE_RANGE_WRITE: Final = 2
_NOT_SERVED: Final = {errno.ENOSYS, errno.EINVAL, errno.ESPIPE, errno.EOPNOTSUPP}


def _syncfs_reports_errors() -> bool:
    """Whether syncfs tells of failed write-backs, as Linux does from 5.8 on."""
    found = re.match(r"(\d+)\.(\d+)", os.uname().release)
    release = (int(found[1]), int(found[2])) if found is not None else (0, 0)
    return sys.platform == "linux" and hasattr(_LIBC, "syncfs") and release >= (5, 8)


class Disk:
    """The file system as it is. Every method raises OSError; descriptors are plain numbers.

    `syncs_all`: whether `sync_all` may be relied on.
    """

    syncs_all = _syncfs_reports_errors()

    def open(self, path: Path, flags: int) -> int:
        """Open a file, made with mode 0600 if the flags say so; a symbolic link is refused."""
        return os.open(path, flags | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)

    def close(self, descriptor: int) -> None:
        """Close a descriptor."""
        os.close(descriptor)

    def write(self, descriptor: int, parts: Sequence[Buffer]) -> int:
        """Write parts at the descriptor's place, at most MAX_PARTS of them.

        May write less and returns how many bytes it wrote.
        """
        return os.writev(descriptor, parts)

    def seek(self, descriptor: int, place: int) -> None:
        """Have the next write begin at a place of the file."""
        os.lseek(descriptor, place, os.SEEK_SET)

    def pread(self, descriptor: int, size: int, start: int) -> bytes:
        """Read at most `size` bytes; less at the end of the file."""
        return os.pread(descriptor, size, start)

    def sync_data(self, descriptor: int) -> None:
        """Return when the file's bytes and size are on disk."""
        os.fdatasync(descriptor)

    def begin_write_back(self, descriptor: int, start: int, size: int) -> None:
        """Have the system begin to write bytes of a file to disk, where it can; never waits.

        A later `sync_data` finds less to do, and what others sync meanwhile is not behind all of
        it at once. It reports no failure of the write-back: that is left to `sync_data`.
        """
        if _SYNC_FILE_RANGE is None:
            return
        if _SYNC_FILE_RANGE(descriptor, start, size, _SYNC_FILE_RANGE_WRITE) != 0:
            number = ctypes.get_errno()
            if number not in _NOT_SERVED:
                raise OSError(number, os.strerror(number))

    def sync_folder(self, folder: Path) -> None:
        """Return when the names in the folder are on disk."""
        descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)

    def sync_all(self, descriptor: int) -> None:
        """Return when everything on the file system of this folder is on disk.

        Raises OSError also for write-backs that failed since the descriptor was opened or last
        synced, of files that were closed since.
        """
        if _LIBC.syncfs(descriptor) != 0:
            number = ctypes.get_errno()
            raise OSError(number, os.strerror(number))

    def drop_cached(self, path: Path, start: int, size: int) -> None:
        """Ask the system to forget its copy of bytes that are on disk, whether it does or not."""
        with suppress(OSError), opened(self, path, os.O_RDONLY) as descriptor:
            os.posix_fadvise(descriptor, start, size, os.POSIX_FADV_DONTNEED)

    def truncate(self, descriptor: int, size: int) -> None:
        """Cut the file."""
        os.ftruncate(descriptor, size)

    def size(self, descriptor: int) -> int:
        """Return the size of an open file."""
        return os.fstat(descriptor).st_size

    def rename(self, source: Path, target: Path) -> None:
        """Give a file another name, in place of a file that has it."""
        source.replace(target)

    def unlink(self, path: Path) -> None:
        """Remove a file; one that is gone is no error."""
        path.unlink(missing_ok=True)

    def make_folder(self, path: Path) -> bool:
        """Make a folder with mode 0700; return whether it was not there."""
        try:
            path.mkdir(mode=0o700, parents=True)
        except FileExistsError:
            return False
        return True

    def remove_folder(self, path: Path) -> None:
        """Remove an empty folder; one that is gone is no error."""
        with suppress(FileNotFoundError):
            path.rmdir()

    def list(self, folder: Path) -> list[str]:
        """Return the names in a folder, sorted; none if it is not there."""
        try:
            return sorted(os.listdir(folder))  # noqa: PTH208 - of ten thousand folders
        except FileNotFoundError:
            return []

    def free(self, folder: Path) -> int:
        """Return the bytes that may still be written."""
        found = os.statvfs(folder)
        return found.f_bavail * found.f_frsize

    def commit(self, connection: sqlite3.Connection) -> None:
        """End a transaction of the metadata; raises sqlite3.Error."""
        connection.execute("COMMIT")


def write_all(disk: Disk, descriptor: int, parts: Sequence[Buffer]) -> None:
    """Write all of the parts, however little each call takes."""
    for start in range(0, len(parts), MAX_PARTS):
        left = parts[start : start + MAX_PARTS]
        while left:
            done = disk.write(descriptor, left)
            left = _after(left, done)


def gather(parts: Sequence[bytes]) -> list[bytes]:
    """Return the same bytes in fewer parts: small ones are joined, of large ones no copy is made.

    To hand the system thousands of small parts costs more than to join them; and one call for all
    means that the thread gives the interpreter away, and waits for it, once.
    """
    if max(map(len, parts), default=MIN_UNCOPIED_BYTES) < MIN_UNCOPIED_BYTES:
        return [b"".join(parts)]
    found: list[bytes] = []
    small: list[bytes] = []
    for part in parts:
        if len(part) < MIN_UNCOPIED_BYTES:
            small.append(part)
            continue
        if small:
            found.append(b"".join(small))
            small = []
        found.append(part)
    if small:
        found.append(b"".join(small))
    return found


def _after(parts: Sequence[Buffer], done: int) -> Sequence[Buffer]:
    """Return what is left of parts when so many bytes of them are written."""
    for place, part in enumerate(parts):
        if done < len(part):
            return [memoryview(part)[done:], *parts[place + 1 :]] if done else parts[place:]
        done -= len(part)
    return ()


def read_all(disk: Disk, descriptor: int, size: int, start: int) -> bytes:
    """Read `size` bytes, or up to the end of the file."""
    data = disk.pread(descriptor, size, start)
    while 0 < len(data) < size:
        more = disk.pread(descriptor, size - len(data), start + len(data))
        if not more:
            break
        data += more
    return data


def read_file(disk: Disk, path: Path) -> bytes:
    """Return all bytes of a file."""
    with opened(disk, path, os.O_RDONLY) as descriptor:
        return read_all(disk, descriptor, disk.size(descriptor), 0)


@contextmanager
def opened(disk: Disk, path: Path, flags: int) -> Iterator[int]:
    """Hold a file open."""
    descriptor = disk.open(path, flags)
    try:
        yield descriptor
    finally:
        disk.close(descriptor)


class DiskUsage(NamedTuple):
    """Sizes in bytes, and numbers of files; `free` is what may still be written."""

    disk: int
    free: int
    journal: int
    journal_files: int


def measure_disk(folder: Path) -> DiskUsage:
    """Return the figures of a data folder; raise OSError where it cannot be read."""
    found = os.statvfs(folder)
    sizes = []
    with os.scandir(folder / "journal") as entries:
        for entry in entries:
            with suppress(FileNotFoundError):  # removed meanwhile
                sizes.append(entry.stat().st_size)
    return DiskUsage(
        found.f_blocks * found.f_frsize, found.f_bavail * found.f_frsize, sum(sizes), len(sizes)
    )
