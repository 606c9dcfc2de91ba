"""Owns the failures of a disk that holds a broker's data, and which put that data in doubt."""

from __future__ import annotations

import errno
import sqlite3
from typing import Final

_OUT_OF_SPACE: Final = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EFBIG})
_REFUSED: Final = frozenset({errno.EMFILE, errno.ENFILE, errno.ENOMEM, errno.EACCES, errno.EPERM})
_SQLITE_DISK: Final = frozenset({10, 11, 26})  # SQLITE_IOERR, SQLITE_CORRUPT, SQLITE_NOTADB
# SQLite tells only ENOSPC apart: over a quota or a file size limit it says SQLITE_IOERR_WRITE, and
# of its shared memory file SQLITE_IOERR_SHMSIZE. Neither puts in doubt what was synced before.
_SQLITE_NO_ROOM: Final = frozenset({sqlite3.SQLITE_IOERR_WRITE, sqlite3.SQLITE_IOERR_SHMSIZE})


class StoreError(Exception):
    """The stored data cannot be used; `str()` is a sentence for the operator."""


class FormatError(StoreError):
    """The data has a format that this release does not read."""


def puts_in_doubt(error: BaseException) -> bool:
    """Return whether written data may be lost or wrong after this error of the disk.

    Not if only space, quota, file size, descriptors or permission were missing: then a restart
    recovers.
    """
    if isinstance(error, OSError):
        return error.errno not in _OUT_OF_SPACE | _REFUSED
    if isinstance(error, sqlite3.Error):
        code = getattr(error, "sqlite_errorcode", 0)
        return code not in _SQLITE_NO_ROOM and code & 0xFF in _SQLITE_DISK
    return False


def lacks_space(error: BaseException) -> bool:
    """Return whether only space, quota or file size were missing."""
    if isinstance(error, sqlite3.Error):
        code = getattr(error, "sqlite_errorcode", 0)
        return code == sqlite3.SQLITE_FULL or code in _SQLITE_NO_ROOM
    return isinstance(error, OSError) and error.errno in _OUT_OF_SPACE
