"""Disks for tests: one in memory that loses what was not synced, and one that fails on demand."""

from __future__ import annotations

import errno
import os
import random
import sqlite3
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from router.broker.disk.files import MAX_PARTS, Buffer, Disk


@dataclass(eq=False)
class Content:
    """A file's bytes, and those of them that a power cut leaves."""

    data: bytearray = field(default_factory=bytearray)
    synced: bytes = b""


@dataclass
class Handle:
    content: Content
    place: int
    append: bool


class Faults:
    """Lets the n-th operation fail; from then on all fail if the disk is `dead`."""

    def __init__(self, at: int = 0, error: int = errno.EIO, *, dead: bool = False) -> None:
        self.at, self.error, self.dead = at, error, dead
        self.count = 0
        self.names: list[str] = []
        self._lock = threading.Lock()

    def step(self, name: str) -> None:
        with self._lock:
            self.count += 1
            self.names.append(name)
            fails = self.count == self.at or (self.dead and 0 < self.at < self.count)
        if fails:
            raise OSError(self.error, os.strerror(self.error))


class MemoryDisk(Disk):
    """Files in memory with a page cache: `crash` returns the disk as a power cut leaves it.

    Names made, renamed and removed last only after a sync of their folder; a power cut keeps any
    first part of the changes that were not synced. Metadata (SQLite) is on the real disk.
    """

    def __init__(self, faults: Faults | None = None, *, syncs_all: bool = False) -> None:
        self.syncs_all = syncs_all
        self.faults = faults or Faults()
        self.names: dict[Path, Content | None] = {}
        self.synced_names: dict[Path, Content | None] = {}
        self.changes: list[tuple[Path, Content | None]] = []
        self.handles: dict[int, Handle] = {}
        self.space = 1 << 40
        self.short_writes = False
        self.uncached: list[tuple[Path, int, int]] = []
        self.begun: list[tuple[int, int]] = []
        self._next = 1000
        self._lock = threading.RLock()

    @contextmanager
    def _step(self, name: str) -> Iterator[None]:
        with self._lock:
            self.faults.step(name)
            yield

    def _set(self, path: Path, content: Content | None, *, gone: bool = False) -> None:
        if gone:
            self.names.pop(path, None)
        else:
            self.names[path] = content
        self.changes.append((path, GONE if gone else content))

    def open(self, path: Path, flags: int) -> int:
        with self._step(f"open {path.suffix}"):
            self._next += 1
            if flags & os.O_DIRECTORY:
                self.handles[self._next] = Handle(Content(), 0, append=False)
                return self._next
            content = self.names.get(path)
            if content is None:
                if not flags & os.O_CREAT or path.parent not in self.names:
                    raise FileNotFoundError(errno.ENOENT, "no such file", str(path))
                content = Content()
                self._set(path, content)
            if flags & os.O_TRUNC:
                content.data.clear()
            self.handles[self._next] = Handle(content, 0, bool(flags & os.O_APPEND))
            return self._next

    def close(self, descriptor: int) -> None:
        with self._lock:
            del self.handles[descriptor]

    def write(self, descriptor: int, parts: Sequence[Buffer]) -> int:
        with self._step("write"):
            assert len(parts) <= MAX_PARTS
            handle = self.handles[descriptor]
            place = len(handle.content.data) if handle.append else handle.place
            piece = b"".join(parts)
            if self.short_writes and len(piece) > 1:
                piece = piece[: len(piece) // 2]
            handle.content.data[place : place + len(piece)] = piece
            handle.place = place + len(piece)
            return len(piece)

    def seek(self, descriptor: int, place: int) -> None:
        with self._step("seek"):
            self.handles[descriptor].place = place

    def pread(self, descriptor: int, size: int, start: int) -> bytes:
        with self._step("pread"):
            return bytes(self.handles[descriptor].content.data[start : start + size])

    def sync_data(self, descriptor: int) -> None:
        with self._step("sync_data"):
            content = self.handles[descriptor].content
            content.synced = bytes(content.data)

    def begin_write_back(self, descriptor: int, start: int, size: int) -> None:
        with self._step("begin_write_back"):
            assert start + size <= len(self.handles[descriptor].content.data)
            self.begun.append((start, size))

    def sync_folder(self, folder: Path) -> None:
        with self._step("sync_folder"):
            self._keep_names(lambda path: path.parent == folder)

    def sync_all(self, descriptor: int) -> None:
        with self._step("sync_all"):
            for content in self.names.values():
                if content is not None:
                    content.synced = bytes(content.data)
            self._keep_names(lambda _path: True)

    def _keep_names(self, chosen: object) -> None:
        assert callable(chosen)
        rest = []
        for path, content in self.changes:
            if chosen(path):
                _apply(self.synced_names, path, content)
            else:
                rest.append((path, content))
        self.changes = rest

    def drop_cached(self, path: Path, start: int, size: int) -> None:
        with self._lock:
            content = self.names.get(path)
            if content is not None:
                end = start + size
                assert content.data[start:end] == content.synced[start:end]
                self.uncached.append((path, start, size))

    def truncate(self, descriptor: int, size: int) -> None:
        with self._step("truncate"):
            del self.handles[descriptor].content.data[size:]

    def size(self, descriptor: int) -> int:
        with self._step("size"):
            return len(self.handles[descriptor].content.data)

    def rename(self, source: Path, target: Path) -> None:
        with self._step("rename"):
            content = self.names.pop(source)
            self.names[target] = content
            # One change: a power cut leaves the file under one name or the other.
            self.changes.append((target, Renamed(source, content)))

    def unlink(self, path: Path) -> None:
        with self._step("unlink"):
            if path in self.names:
                self._set(path, None, gone=True)

    def make_folder(self, path: Path) -> bool:
        with self._step("make_folder"):
            if path in self.names:
                return False
            self._set(path, None)
            return True

    def remove_folder(self, path: Path) -> None:
        with self._step("remove_folder"):
            if path in self.names:
                assert not self.list(path)
                self._set(path, None, gone=True)

    def list(self, folder: Path) -> list[str]:
        with self._lock:
            return sorted(path.name for path in self.names if path.parent == folder)

    def free(self, folder: Path) -> int:
        with self._step("free"):
            return self.space

    def commit(self, connection: sqlite3.Connection) -> None:
        with self._step("commit"):
            super().commit(connection)
        # An error may also be told of something that did happen.
        with self._step("committed"):
            return

    def crash(self, chance: random.Random) -> MemoryDisk:
        """Return the disk as it is after a power cut: what was synced, and some of what was not."""
        after = MemoryDisk(syncs_all=self.syncs_all)
        names = dict(self.synced_names)
        for path, content in self.changes[: chance.randint(0, len(self.changes))]:
            _apply(names, path, content)
        for path, content in names.items():
            if path.parent in names or path.parent not in self.names:
                copied = None if content is None else _torn(content, chance)
                after.names[path] = after.synced_names[path] = copied
        return after

    def reread(self) -> MemoryDisk:
        """Return the disk as the next process sees it when only this one was killed."""
        after = MemoryDisk(syncs_all=self.syncs_all)
        after.names, after.synced_names = dict(self.names), dict(self.synced_names)
        after.changes = [*self.changes]
        return after


class HeldDisk(MemoryDisk):
    """A disk whose syncs of files wait while it is told to hold them; `held`: one waits."""

    def __init__(self) -> None:
        super().__init__()
        self._open = threading.Event()
        self._open.set()
        self.held = threading.Event()

    def hold(self) -> None:
        """Let no sync end from now on."""
        self.held.clear()
        self._open.clear()

    def release(self) -> None:
        """Let them end again."""
        self._open.set()

    def sync_data(self, descriptor: int) -> None:
        if not self._open.is_set():
            self.held.set()
            assert self._open.wait(HOLD_SECONDS)
        super().sync_data(descriptor)


class Renamed(Content):
    """A change of name."""

    def __init__(self, source: Path, content: Content | None) -> None:
        super().__init__()
        self.source, self.content = source, content


GONE = Content()
HOLD_SECONDS = 20
SECTOR = 64


def _apply(names: dict[Path, Content | None], path: Path, content: Content | None) -> None:
    if content is GONE:
        names.pop(path, None)
    elif isinstance(content, Renamed):
        names.pop(content.source, None)
        names[path] = content.content
    else:
        names[path] = content


def _torn(content: Content, chance: random.Random) -> Content:
    """Return what may be left: unsynced bytes are there, cut, zero, or not at all."""
    data, synced = bytes(content.data), content.synced
    if data[: len(synced)] == synced:
        tail = bytearray(data[len(synced) :])
        del tail[chance.randint(0, len(tail)) :]
        if tail and chance.random() < 0.5:
            at = chance.randrange(len(tail))
            tail[at : at + 64] = bytes(len(tail[at : at + 64]))
        data = synced + bytes(tail)
    elif chance.random() < 0.75:
        # Written over: of each sector either what was there or what was to be.
        sectors = range(0, max(len(data), len(synced)), SECTOR)
        data = b"".join(
            (data if chance.random() < 0.5 else synced)[at : at + SECTOR] for at in sectors
        )
    elif chance.random() < 0.5:
        data = synced
    return Content(bytearray(data), data)
