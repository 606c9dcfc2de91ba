"""A file system as a recording leaves it: what is on disk for certain, and what may be.

It promises what POSIX does, and no more. The bytes of a file are on disk after a sync of the file;
a name is after a sync of its folder. Until then each block of 512 or 4,096 bytes may be as it was
after any write since the last sync, independent of the others, the size of the file as well, and
each change of a name may have happened or not; changes of the same name keep their order. A rename
happens as a whole. Where a file is longer than what arrived of it stand zeros, or bytes of another
file. ext4 and XFS leave fewer states: they keep changes of names in their order.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from enum import Enum
from hashlib import blake2b
from random import Random
from typing import Final

from tests.crash_images.recording import (
    Create,
    Event,
    MakeFolder,
    RemoveFolder,
    Rename,
    Send,
    Sync,
    SyncAll,
    SyncFolder,
    Truncate,
    Unlink,
    Write,
)

BLOCK_BYTES: Final = (512, 4096)
MAX_EXTENSION_BYTES: Final = 9_000
_ALL: Final = 1 << 62
_NONE: Final = -1

Change = Write | Truncate
Filler = Callable[[int], bytes]
"""Returns so many bytes of what stands where nothing arrived."""
NameChange = Create | MakeFolder | RemoveFolder | Rename | Unlink


class Crash(Enum):
    """What a crash leaves of that which is not on disk for certain."""

    KILLED = "everything, as if only the process were killed"
    NOTHING = "nothing"
    IN_ORDER = "the first changes of each file, and the first of all names"
    ANY_BLOCKS = "any blocks of each file and any sizes, and any changes of names"
    LAST_TORN = "everything, but of the last write of each file any blocks"
    LONGER = "all blocks, and files that are longer than what was written"


class Tail(Enum):
    """What stands in a part of a file to which nothing arrived."""

    ZEROS = "zeros"
    NOISE = "bytes without meaning"
    STALE = "bytes of another file"


@dataclass
class File:
    """A file's bytes on disk, and its changes since, each with its place in the recording."""

    durable: bytearray = field(default_factory=bytearray)
    pending: list[tuple[int, Change]] = field(default_factory=list)

    def sync(self, begun: int) -> None:
        """Have the changes before a place be on disk."""
        kept = []
        for place, change in self.pending:
            if place < begun:
                _apply(self.durable, change)
            else:
                kept.append((place, change))
        self.pending = kept

    def now(self) -> bytes:
        """Return the bytes as a process reads them."""
        data = bytearray(self.durable)
        for _, change in self.pending:
            _apply(data, change)
        return bytes(data)


def _apply(data: bytearray, change: Change) -> None:
    if isinstance(change, Truncate):
        del data[change.size :]
        data.extend(bytes(change.size - len(data)))
        return
    if change.start > len(data):
        data.extend(bytes(change.start - len(data)))
    data[change.start : change.start + len(change.data)] = change.data


@dataclass
class Image:
    """A folder as a crash leaves it: the bytes of files by their paths, and the folders."""

    files: dict[str, bytes]
    folders: list[str]

    def digest(self) -> bytes:
        """Return what two images have in common only if they are the same."""
        found = blake2b("\0".join(self.folders).encode(), digest_size=16)
        for path, data in sorted(self.files.items()):
            found.update(f"\0{path}\0{len(data)}\0".encode())
            found.update(data)
        return found.digest()


class FileSystem:
    """Takes the events of a recording one by one; `image` returns what a crash may leave then."""

    def __init__(self) -> None:
        self._files: dict[int, File] = {}
        self._names: dict[str, int | None] = {}
        self._pending: list[tuple[int, NameChange]] = []
        self._place = 0

    def take(self, event: Event) -> None:
        """Take the next event of the recording."""
        place = self._place
        self._place += 1
        if isinstance(event, Write | Truncate):
            self._files[event.file].pending.append((place, event))
        elif isinstance(event, Sync):
            self._files[event.file].sync(event.begun)
        elif isinstance(event, SyncFolder):
            self._keep_names(event.begun, event.path)
        elif isinstance(event, SyncAll):
            for file in self._files.values():
                file.sync(event.begun)
            self._keep_names(event.begun, None)
        elif not isinstance(event, Send):
            if isinstance(event, Create):
                self._files[event.file] = File()
            self._pending.append((place, event))

    def current(self) -> Image:
        """Return the folder as processes see it."""
        names = dict(self._names)
        for _, change in self._pending:
            _rename(names, change)
        return _image(names, {number: file.now() for number, file in self._files.items()})

    def image(self, kind: Crash, chance: Random) -> Image:
        """Return the folder as a crash leaves it."""
        names = dict(self._names)
        for _, change in self._surviving_names(kind, chance):
            _rename(names, change)
        tail = chance.choice(list(Tail))
        found = {}
        for number in sorted({number for number in names.values() if number is not None}):
            file = self._files[number]
            found[number] = bytes(file.durable)
            if file.pending:
                found[number] = self._surviving_bytes(file, kind, tail, chance)
        return _image(names, found)

    def _keep_names(self, begun: int, folder: str | None) -> None:
        """Have the changes of names before a place be on disk: those in a folder, None: all."""
        kept = []
        for place, change in self._pending:
            if place < begun and (folder is None or folder in _folders(change)):
                _rename(self._names, change)
            else:
                kept.append((place, change))
        self._pending = kept

    def _surviving_names(self, kind: Crash, chance: Random) -> Iterator[tuple[int, NameChange]]:
        pending = self._pending
        if kind in (Crash.KILLED, Crash.LAST_TORN):
            yield from pending
        elif kind in (Crash.IN_ORDER, Crash.LONGER):
            yield from pending[: chance.randint(0, len(pending))]
        elif kind is Crash.ANY_BLOCKS:
            # One that is dropped takes all later changes of its names with it.
            dropped: set[str] = set()
            odds = chance.choice((0.2, 0.5, 0.8))
            for place, change in pending:
                names = set(_names(change))
                if names & dropped or chance.random() >= odds:
                    dropped |= names
                else:
                    yield place, change

    def _surviving_bytes(self, file: File, kind: Crash, tail: Tail, chance: Random) -> bytes:
        """Return the bytes of a file of which not everything is on disk for certain."""
        places = [place for place, _ in file.pending]
        if kind is Crash.KILLED:
            return file.now()
        if kind is Crash.NOTHING:
            return bytes(file.durable)
        if kind is Crash.IN_ORDER:
            return _Versions(file).until(chance.choice([_NONE, *places]))
        versions = _Versions(file)
        fill = self._fill(tail, chance)
        if kind is Crash.LONGER:
            is_written = any(isinstance(change, Write) for _, change in file.pending)
            return versions.until(_ALL) + fill(chance.randint(1, MAX_EXTENSION_BYTES) * is_written)
        block = chance.choice(BLOCK_BYTES)
        if kind is Crash.LAST_TORN:
            before = places[-2] if len(places) > 1 else _NONE
            size = versions.size(chance.choice((before, _ALL)))
            return versions.mixed(block, lambda: chance.choice((before, _ALL)), size, fill)
        odds = chance.choice((0.2, 0.5, 0.9))

        def choose() -> int:
            return _ALL if chance.random() < odds else chance.choice((_NONE, *places))

        size = versions.size(chance.choice((_NONE, *places, _ALL)))
        return versions.mixed(block, choose, size, fill)

    def _fill(self, tail: Tail, chance: Random) -> Filler:
        stale = b""
        if tail is Tail.STALE:
            others = [file for file in self._files.values() if len(file.durable) > BLOCK_BYTES[0]]
            stale = bytes(chance.choice(others).durable) if others else b""

        def fill(size: int) -> bytes:
            if tail is Tail.NOISE:
                return chance.randbytes(size)
            start = chance.randrange(0, max(1, len(stale)), BLOCK_BYTES[0]) if stale else 0
            return stale[start : start + size].ljust(size, b"\0")

        return fill


class _Versions:
    """A file at different places of its recording, as a whole or block by block."""

    def __init__(self, file: File) -> None:
        self._file = file

    def until(self, last: int) -> bytes:
        """Return the file with the changes up to a place."""
        data = bytearray(self._file.durable)
        for place, change in self._file.pending:
            if place <= last:
                _apply(data, change)
        return bytes(data)

    def size(self, last: int) -> int:
        """Return how long the file is after the changes up to a place."""
        size = len(self._file.durable)
        for place, change in self._file.pending:
            if place > last:
                break
            if isinstance(change, Write):
                size = max(size, change.start + len(change.data))
            else:
                size = change.size
        return size

    def mixed(self, block: int, choose: Callable[[], int], size: int, fill: Filler) -> bytes:
        """Return a file of this size, each block of which has the changes up to a chosen place."""
        durable = self._file.durable
        longest = max([len(durable), *(self.size(place) for place, _ in self._file.pending)])
        data = bytearray(durable).ljust(longest, b"\0")
        last: dict[int, int] = {}
        arrived: set[int] = set()
        for place, change in self._file.pending:
            if isinstance(change, Write):
                start, piece = change.start, change.data
            else:
                start, piece = change.size, bytes(max(0, longest - change.size))
            for number in range(start // block, -(-(start + len(piece)) // block)):
                if number not in last:
                    last[number] = choose()
                if place <= last[number]:
                    arrived.add(number)
                    begin, end = max(start, number * block), (number + 1) * block
                    part = piece[begin - start : end - start]
                    data[begin : begin + len(part)] = part
        for number in last.keys() - arrived:
            begin, end = number * block, min((number + 1) * block, longest)
            if begin >= len(durable):
                data[begin:end] = fill(end - begin)
        return bytes(data[:size])


def _image(names: dict[str, int | None], contents: dict[int, bytes]) -> Image:
    """Return an image without what stands in folders that are not there."""
    folders = {""}
    files = {}
    for path in sorted(names):
        if path.rpartition("/")[0] not in folders:
            continue
        number = names[path]
        if number is None:
            folders.add(path)
        else:
            files[path] = contents[number]
    return Image(files, sorted(folders - {""}))


def _rename(names: dict[str, int | None], change: NameChange) -> None:
    if isinstance(change, Create):
        names[change.path] = change.file
    elif isinstance(change, MakeFolder):
        names[change.path] = None
    elif isinstance(change, Rename):
        names[change.target] = names.pop(change.path)
    else:
        names.pop(change.path, None)


def _names(change: NameChange) -> tuple[str, ...]:
    return (change.path, change.target) if isinstance(change, Rename) else (change.path,)


def _folders(change: NameChange) -> set[str]:
    return {path.rpartition("/")[0] for path in _names(change)}
