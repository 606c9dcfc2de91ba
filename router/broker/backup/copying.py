"""Owns the copying of files: in blocks, at a bounded rate, with checksums, onto the disk."""

from __future__ import annotations

import errno
import os
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Final

from router.broker.backup.manifest import StoredFile
from router.broker.disk.files import (
    MIN_FILES_FOR_SYNC_ALL,
    Disk,
    crc32c,
    opened,
    read_all,
    write_all,
)

BLOCK_BYTES: Final = 1 << 20
MIN_SYNCED_BYTES: Final = 1 << 20
"""A file to which so many bytes are added is synced at once, others all together at the end."""
SYNC_STEP_BYTES: Final = 4 << 20
"""After so many bytes a copy is synced: the disk may be the journal's, which would wait for all."""
OVERLAP_BYTES: Final = 64 << 10
"""The last bytes of what is copied already, which must be those of the file."""

BURST_SECONDS: Final = 0.1
"""So much of the time in which nothing was copied may be made up for beyond the rate."""

Progress = Callable[[int], None]
"""Called with numbers of bytes as they are copied."""


class OtherBytesError(Exception):
    """What was copied of a file is not how it begins now."""


class FileCopier:
    """Copies files; `rate`: bytes a second, None: as fast as it goes."""

    def __init__(self, disk: Disk, rate: int | None = None, progress: Progress | None = None):
        self._disk = disk
        self._rate = rate
        self._progress = progress or (lambda _size: None)
        self._due = 0.0  # when what is copied would have been, at the rate
        self._unsynced: list[Path] = []
        self._folders: set[Path] = set()
        self.copied = 0

    def extend(
        self, source: Path, target: Path, known: StoredFile | None, size: int
    ) -> tuple[int, int]:
        """Have a copy hold the first `size` bytes of a file; return its size and their checksum.

        The size is less if no more can be read; what is copied already stays. `known`: what that
        is. The bytes are on disk on return if there are many, else after `sync`. Raises
        OtherBytesError.
        """
        begin, crc = self._begin(target, known)
        if begin > size:
            raise OtherBytesError(f"{target} is not a copy of {source}")
        if _size(source) < min(size, begin + 1):
            return begin, crc
        if not self._continues(source, target, begin):
            raise OtherBytesError(f"{target} is not a copy of {source}")
        return self._append(target, begin, crc, self._blocks(source, begin, size))

    def extend_by(self, data: bytes, target: Path, known: StoredFile | None = None) -> int:
        """Do what `extend` does, with the bytes of a file; return their checksum."""
        begin, crc = self._begin(target, known)
        if begin > len(data) or crc32c(data[:begin], 0) != crc:
            raise OtherBytesError(f"{target} is not a copy of what it should hold")
        self._count(len(data) - begin)
        return self._append(target, begin, crc, iter([data[begin:]]))[1]

    def sync(self, root: int) -> None:
        """Return when all that was copied is on disk; `root`: a descriptor of its file system.

        It must have been opened before the first copy.
        """
        if self._disk.syncs_all and len(self._unsynced) > MIN_FILES_FOR_SYNC_ALL:
            self._disk.sync_all(root)
        else:
            for path in self._unsynced:
                with opened(self._disk, path, os.O_RDWR) as descriptor:
                    self._disk.sync_data(descriptor)
            for folder in sorted(self._folders):
                self._disk.sync_folder(folder)
        self._unsynced.clear()
        self._folders.clear()

    def checksum(self, path: Path, size: int) -> int | None:
        """Return the checksum of the first bytes of a file; None: not all of them can be read."""
        crc = read = 0
        try:
            for data in self._blocks(path, 0, size):
                crc, read = crc32c(data, crc), read + len(data)
        except FileNotFoundError:
            return None
        return crc if read == size else None

    def _blocks(self, path: Path, start: int, end: int) -> Iterator[bytes]:
        """Yield the bytes of a file, up to where it ends or the disk cannot read it."""
        with opened(self._disk, path, os.O_RDONLY) as descriptor:
            at = start
            while at < end and (data := self._read(descriptor, min(BLOCK_BYTES, end - at), at)):
                yield data
                at += len(data)
                self._count(len(data))
        self._disk.drop_cached(path, start, end - start)

    def _read(self, descriptor: int, size: int, start: int) -> bytes:
        try:
            return read_all(self._disk, descriptor, size, start)
        except OSError as error:
            if error.errno != errno.EIO:
                raise
            return b""

    def _begin(self, target: Path, known: StoredFile | None) -> tuple[int, int]:
        """Return how many bytes of a copy stay, and their checksum."""
        if known is None or _size(target) < known.size:
            return 0, 0  # or it lost bytes
        return known.size, known.crc

    def _continues(self, source: Path, target: Path, begin: int) -> bool:
        """Return whether a copy may be one of how a file begins, as far as the disk reads that."""
        size = min(begin, OVERLAP_BYTES)
        if not size:
            return True
        found = []
        for path in (source, target):
            with opened(self._disk, path, os.O_RDONLY) as descriptor:
                found.append(self._read(descriptor, size, begin - size))
        return found[0] in (b"", found[1])

    def _append(
        self, target: Path, begin: int, crc: int, blocks: Iterator[bytes]
    ) -> tuple[int, int]:
        self._disk.make_folder(target.parent)
        self._folders |= {target.parent, target.parent.parent}
        written = 0
        with opened(self._disk, target, os.O_WRONLY | os.O_CREAT) as descriptor:
            self._disk.truncate(descriptor, begin)
            self._disk.seek(descriptor, begin)
            for data in blocks:
                crc = crc32c(data, crc)
                write_all(self._disk, descriptor, [data])
                written += len(data)
                if written % SYNC_STEP_BYTES == 0:
                    self._disk.sync_data(descriptor)
            if written >= MIN_SYNCED_BYTES:
                self._disk.sync_data(descriptor)
            else:
                self._unsynced.append(target)
        if written >= MIN_SYNCED_BYTES:
            self._disk.drop_cached(target, begin, written)
        return begin + written, crc

    def _count(self, size: int) -> None:
        self.copied += size
        self._progress(size)
        if self._rate is not None:
            now = time.monotonic()
            self._due = max(self._due, now - BURST_SECONDS) + size / self._rate
            if self._due > now:
                time.sleep(self._due - now)


def _size(path: Path) -> int:
    try:
        return path.stat().st_size
    except FileNotFoundError:
        return 0
