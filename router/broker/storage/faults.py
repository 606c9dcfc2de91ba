"""Owns the failures of the store, and which errors of a disk are harmless once there is space."""

from __future__ import annotations

import errno
import os
import sqlite3
from contextlib import suppress
from pathlib import Path
from typing import Final

from router.broker.folder import MARK

OUT_OF_SPACE: Final = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EFBIG})
_REFUSED: Final = frozenset({errno.EMFILE, errno.ENFILE, errno.ENOMEM, errno.EACCES, errno.EPERM})
_SQLITE_DISK: Final = frozenset({10, 11, 26})  # SQLITE_IOERR, SQLITE_CORRUPT, SQLITE_NOTADB
# SQLite tells only ENOSPC apart: over a quota or a file size limit it says SQLITE_IOERR_WRITE, and
# of its shared memory file SQLITE_IOERR_SHMSIZE. Neither puts in doubt what was synced before.
_SQLITE_NO_ROOM: Final = frozenset({sqlite3.SQLITE_IOERR_WRITE, sqlite3.SQLITE_IOERR_SHMSIZE})


class StoreError(Exception):
    """The store cannot be used; `str()` is a sentence for the operator."""


class FormatError(StoreError):
    """The folder has a format that this release does not read."""


class DamagedError(Exception):
    """Stored entries cannot be read as they were written; they are never served.

    `first` and `last` bound the entries, `start` and `end` the bytes of `file`, both ends of the
    entries included and the last byte not.
    """

    def __init__(self, ledger: int, entries: tuple[int, int], file: Path, span: tuple[int, int]):
        self.ledger = ledger
        self.first, self.last = entries
        self.file = file
        self.start, self.end = span
        super().__init__(
            f"ledger {ledger}: entries {self.first} to {self.last} are damaged, bytes {self.start} "
            f"to {self.end} of {file}; `router check --repair` gives them up"
        )


class JournalDamagedError(StoreError):
    """The journal is damaged before its last commit group, so acknowledged data is lost."""

    def __init__(self, file: Path, span: tuple[int, int], reason: str) -> None:
        self.file = file
        self.start, self.end = span
        super().__init__(
            f"the journal {file} is damaged, bytes {self.start} to {self.end}: {reason}; "
            "`router check --repair` saves what can be read and gives up the rest"
        )


def leaves_mark(error: BaseException) -> bool:
    """Return whether the folder must be repaired before it is written again.

    Not if only space, quota, file size, descriptors or permission were missing: then nothing that
    was written is in doubt, and a restart recovers.
    """
    if isinstance(error, OSError):
        return error.errno not in OUT_OF_SPACE | _REFUSED
    if isinstance(error, sqlite3.Error):
        code = getattr(error, "sqlite_errorcode", 0)
        return code not in _SQLITE_NO_ROOM and code & 0xFF in _SQLITE_DISK
    return isinstance(error, JournalDamagedError)


def lacks_space(error: BaseException) -> bool:
    """Return whether only space, quota or file size were missing."""
    if isinstance(error, sqlite3.Error):
        code = getattr(error, "sqlite_errorcode", 0)
        return code == sqlite3.SQLITE_FULL or code in _SQLITE_NO_ROOM
    return isinstance(error, OSError) and error.errno in OUT_OF_SPACE


def write_mark(folder: Path, reason: str) -> None:
    """Leave the reason in the folder, if its disk still takes that."""
    flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC | os.O_NOFOLLOW
    with suppress(OSError), os.fdopen(os.open(folder / MARK, flags, 0o600), "w") as file:
        file.write(reason + "\n")
