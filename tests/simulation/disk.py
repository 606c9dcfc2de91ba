"""A disk that forgets what was not synced, takes its time, fails, fills up and rots.

It is the disk of the storage tests (`tests/unit/broker/storage/disks.py`) with a log of the writes
since the last sync of each file. A power cut leaves any of their sectors, or a first part of them.
Operations are counted, so that the power can go, or an error come, at any of them.
"""

from __future__ import annotations

import errno
import os
import re
import sqlite3
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from random import Random
from typing import NamedTuple

from router.broker.disk.files import Buffer
from tests.simulation.loop import PowerCutError
from tests.simulation.seeded import CLOCK
from tests.unit.broker.storage.disks import Content, Handle, MemoryDisk, _apply

SECTORS = (512, 4096)
REWRITTEN = re.compile(r"-\d+\.seg$")


class Write(NamedTuple):
    """A change of a file since its last sync: at a place, these bytes over those of before.

    A truncation has no new bytes; `size` is the size of the file before.
    """

    start: int
    data: bytes
    before: bytes
    size: int


class LoggedContent(Content):
    """A file's bytes, and how they came about since the last sync."""

    def __init__(self, data: bytes = b"") -> None:
        super().__init__(bytearray(data))
        self.writes: list[Write] = []
        self.folder: Path | None = None
        """The one in which it was opened."""

    def write(self, start: int, piece: bytes) -> None:
        data = self.data
        self.writes.append(Write(start, piece, bytes(data[start : start + len(piece)]), len(data)))
        data[start : start + len(piece)] = piece

    def truncate(self, size: int) -> None:
        self.writes.append(Write(size, b"", bytes(self.data[size:]), len(self.data)))
        del self.data[size:]

    def sync(self) -> None:
        self.writes.clear()

    def after_power_cut(self, chance: Random) -> bytes:
        """Return what the disk has of the file."""
        data = bytearray(self.data)
        writes = self.writes
        for write in reversed(writes):
            data[write.start : write.start + len(write.data)] = write.before
            del data[write.size :]
            if not write.data:
                data[write.start :] = write.before
        if not writes:
            return bytes(data)
        sector = chance.choice(SECTORS)
        kind = chance.random()
        if kind < 0.25:
            return bytes(data)
        if kind < 0.5:
            for write in writes[: chance.randint(0, len(writes))]:
                _write_sectors(data, write, sector, lambda: True)
            last = writes[-1]
            return bytes(data[: max(len(data) - chance.randint(0, sector), last.start)])
        odds = chance.choice((0.2, 0.5, 0.9, 1.0))
        for write in writes:
            _write_sectors(data, write, sector, lambda: chance.random() < odds)
        return bytes(data)


def _write_sectors(data: bytearray, write: Write, sector: int, lands: Callable[[], bool]) -> None:
    """Write those sectors of a write that reached the disk; what did not is zero if it is new."""
    if not write.data:
        if lands():
            del data[write.start :]
        return
    end = write.start + len(write.data)
    if end > len(data):
        data.extend(bytes(end - len(data)))
    start = write.start
    while start < end:
        stop = min(end, (start // sector + 1) * sector)
        if lands():
            data[start:stop] = write.data[start - write.start : stop - write.start]
        start = stop


class Latency:
    """How long operations take, in seconds."""

    def __init__(self, chance: Random) -> None:
        self.chance = chance
        self.stall = 0.0
        """The next sync takes so much longer."""
        self.factor = 1.0
        self.on_stall: Callable[[float], None] | None = None
        """Called when the next sync that stalls begins, with how long it takes."""

    def sync(self) -> float:
        seconds = self.chance.uniform(0.0003, 0.004) * self.factor + self.stall
        if self.stall and self.on_stall is not None:
            strike, self.on_stall = self.on_stall, None
            strike(seconds)
        self.stall = 0.0
        return seconds


class SimulatedDisk(MemoryDisk):
    """The disk of one broker process; `crash` and `reread` return that of the next one."""

    def __init__(self, chance: Random, latency: Latency, note: Callable[[str], None]) -> None:
        super().__init__(syncs_all=True)
        self.chance, self.latency, self.note = chance, latency, note
        self.count = 0
        self.cut_at = 0
        """The power goes at the operation of this number."""
        self.fail_at = 0
        self.fail_with = errno.EIO
        self.fails_on: tuple[str, ...] = ()
        self.unreadable_until = 0.0
        """Until then no file of a folder can be read, or of any one if it is None."""
        self.unreadable: Path | None = None
        self.rewrite_fault: Callable[[], None] | None = None
        """Called when the next file of a segment without its deleted messages is made."""
        self.is_dead = False
        self._elapsed = 0.0
        self.max_handles = 0

    def take_elapsed(self) -> float:
        """Return how long the operations took since the last call."""
        seconds, self._elapsed = self._elapsed, 0.0
        return seconds

    @contextmanager
    def _step(self, name: str) -> Iterator[None]:
        self._begin(name)
        yield

    def _begin(self, name: str) -> None:
        """Count an operation; raise what befalls it."""
        if self.is_dead:
            raise OSError(errno.EIO, "the process is dead")
        self.count += 1
        if self.cut_at and self.count >= self.cut_at:
            self.cut_at = 0
            self.note(f"cut at {name}")
            raise PowerCutError
        if self.fail_at and self.count >= self.fail_at and name in self.fails_on:
            self.fail_at = 0
            self.note(f"errno {self.fail_with} at {name}")
            raise OSError(self.fail_with, os.strerror(self.fail_with))

    def _begin_read(self, name: str, folder: Path | None) -> None:
        """Count what reads a file of a folder; raise what befalls it."""
        self._begin(name)
        if CLOCK.now < self.unreadable_until and self.unreadable in {None, folder}:
            self.note(f"unreadable at {name}")
            raise OSError(errno.EIO, os.strerror(errno.EIO))

    def open(self, path: Path, flags: int) -> int:
        if self.rewrite_fault is not None and flags & os.O_CREAT and REWRITTEN.search(path.name):
            self.note("rewrite")
            strike, self.rewrite_fault = self.rewrite_fault, None
            strike()
        if flags == os.O_RDONLY:
            self._begin_read("open to read", path.parent)
        else:
            self._begin("open")
        self._next += 1
        if flags & os.O_DIRECTORY:
            self.handles[self._next] = Handle(LoggedContent(), 0, append=False)
            return self._next
        content = self.names.get(path)
        if content is None:
            if not flags & os.O_CREAT or path.parent not in self.names:
                raise FileNotFoundError(errno.ENOENT, "no such file", str(path))
            content = LoggedContent()
            self._set(path, content)
        logged = _logged(content)
        logged.folder = path.parent
        if flags & os.O_TRUNC and content.data:
            logged.truncate(0)
        self.handles[self._next] = Handle(content, 0, bool(flags & os.O_APPEND))
        self.max_handles = max(self.max_handles, len(self.handles))
        return self._next

    def list(self, folder: Path) -> list[str]:
        # Texts are compared in a fraction of the time of paths.
        within = f"{folder}/"
        found = [path[len(within) :] for path in map(str, self.names) if path.startswith(within)]
        return sorted(name for name in found if "/" not in name)

    def close(self, descriptor: int) -> None:
        self.handles.pop(descriptor, None)

    def write(self, descriptor: int, parts: Sequence[Buffer]) -> int:
        handle = self.handles[descriptor]
        piece = b"".join(parts)
        if self.cut_at and self.count + 1 >= self.cut_at:
            # Some of it has come as far as the page cache.
            piece = piece[: self.chance.randint(0, len(piece))]
        if len(piece) > self.space:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        place = len(handle.content.data) if handle.append else handle.place
        _logged(handle.content).write(place, piece)
        handle.place = place + len(piece)
        with self._step("write"):
            return len(piece)

    def pread(self, descriptor: int, size: int, start: int) -> bytes:
        content = _logged(self.handles[descriptor].content)
        self._begin_read("pread", content.folder)
        with memoryview(content.data) as data:
            return bytes(data[start : start + size])

    def sync_data(self, descriptor: int) -> None:
        self._elapsed += self.latency.sync()
        with self._step("sync_data"):
            _logged(self.handles[descriptor].content).sync()

    def sync_folder(self, folder: Path) -> None:
        self._elapsed += self.latency.sync()
        super().sync_folder(folder)

    def sync_all(self, descriptor: int) -> None:
        self._elapsed += self.latency.sync() * 2
        with self._step("sync_all"):
            for content in self.names.values():
                if content is not None:
                    _logged(content).sync()
            self._keep_names(lambda _path: True)

    def truncate(self, descriptor: int, size: int) -> None:
        with self._step("truncate"):
            _logged(self.handles[descriptor].content).truncate(size)

    def begin_write_back(self, descriptor: int, start: int, size: int) -> None:
        """Do nothing: whether it reaches the disk is up to chance anyway."""

    def drop_cached(self, path: Path, start: int, size: int) -> None:
        """Do nothing: there is one copy."""

    def commit(self, connection: sqlite3.Connection) -> None:
        self._elapsed += self.latency.sync()
        with self._step("commit"):
            connection.execute("COMMIT")
        with self._step("committed"):
            return

    def flip(self, chance: Random) -> None:
        """Flip a bit of what is at rest."""
        contents = {path: one for path, one in self.names.items() if one is not None and one.data}
        if contents:
            path = chance.choice(list(contents))
            data = contents[path].data
            place = chance.randrange(len(data))
            data[place] ^= 1 << chance.randrange(8)
            self.note(f"bit flip at {place} of {path}")

    def crash(self, chance: Random) -> SimulatedDisk:
        """Return the disk as a power cut leaves it."""
        after = self._next_disk()
        names = dict(self.synced_names)
        for path, content in self.changes[: chance.randint(0, len(self.changes))]:
            _apply(names, path, content)
        for path, content in names.items():
            if path.parent in names or path.parent not in self.names:
                kept = None
                if content is not None:
                    kept = LoggedContent(_logged(content).after_power_cut(chance))
                after.names[path] = after.synced_names[path] = kept
        self._forget()
        return after

    def reread(self) -> SimulatedDisk:
        """Return the disk as the next process sees it when only this one was killed."""
        after = self._next_disk()
        after.names, after.synced_names = dict(self.names), dict(self.synced_names)
        after.changes = [*self.changes]
        self._forget()
        return after

    def _forget(self) -> None:
        """Hold no file: the tasks of a dead process, which hold its disk, last as long as a run."""
        self.names, self.synced_names, self.changes = {}, {}, []
        self.handles.clear()

    def _next_disk(self) -> SimulatedDisk:
        self.is_dead = True
        after = SimulatedDisk(self.chance, self.latency, self.note)
        after.space, after.rewrite_fault = self.space, self.rewrite_fault
        after.unreadable_until, after.unreadable = self.unreadable_until, self.unreadable
        return after


def _logged(content: Content) -> LoggedContent:
    assert isinstance(content, LoggedContent)
    return content
