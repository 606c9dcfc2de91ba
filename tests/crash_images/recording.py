"""What a recording is: the changes of a folder's files, in the order in which they were made.

Paths are relative to the folder. Files have numbers, because their names change. A change is noted
when the call has returned, a `Sync` too, with the place in the recording where it was called: only
what was written before that place is on disk for certain. A `Send` is noted before its bytes leave.
"""

from __future__ import annotations

import pickle
from pathlib import Path
from typing import NamedTuple


class Create(NamedTuple):
    """A name that was not there is a new file's."""

    path: str
    file: int


class MakeFolder(NamedTuple):
    """A folder was made."""

    path: str


class RemoveFolder(NamedTuple):
    """An empty folder was removed."""

    path: str


class Write(NamedTuple):
    """Bytes of a file, from a place on."""

    file: int
    start: int
    data: bytes


class Truncate(NamedTuple):
    """A file has this size; what it has more than before is zeros."""

    file: int
    size: int


class Rename(NamedTuple):
    """A file has another name, in place of a file that had it."""

    path: str
    target: str


class Unlink(NamedTuple):
    """A name is gone."""

    path: str


class Sync(NamedTuple):
    """A file's bytes and size are on disk as they were at `begun`."""

    file: int
    begun: int


class SyncFolder(NamedTuple):
    """The names in a folder are on disk as they were at `begun`."""

    path: str
    begun: int


class SyncAll(NamedTuple):
    """Everything is on disk as it was at `begun`."""

    begun: int


class Send(NamedTuple):
    """A process writes to the connection of a client, whose port this is, at a time in ns."""

    port: int
    time_ns: int


Event = (
    Create
    | MakeFolder
    | RemoveFolder
    | Write
    | Truncate
    | Rename
    | Unlink
    | Sync
    | SyncFolder
    | SyncAll
    | Send
)


def save(events: list[Event], path: Path) -> None:
    """Write a recording to a file."""
    path.write_bytes(pickle.dumps(events))


def load(path: Path) -> list[Event]:
    """Read a recording that `save` wrote."""
    found: list[Event] = pickle.loads(path.read_bytes())
    return found
