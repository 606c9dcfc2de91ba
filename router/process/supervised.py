"""Which process supervises a data folder: the lock that `serve` and `router broker` hold.

Theory of operation. The holder of the lock keeps a broker running on the folder. Every other
process that finds the lock held starts none: it waits for the holder's broker. A broker that a
command started leaves as soon as the lock is held, so that a supervisor gets the folder however
many clients use it.

The lock is one of the kernel's open file descriptions (F_OFD_SETLK): it ends with its holder
however that ends, outlives an exec of the holder, and can be asked for without being taken
(F_OFD_GETLK). The alternative, flock, has to be taken for a moment to be asked for, and a
supervisor that starts in that moment finds it taken.

A supervisor that ends in order takes its process id out. So one that finds the lock free and a
process id in the file follows a supervisor that was killed, whose children may need a moment to
end. One that became another program, the broker alone, has no children, and says so in the file.
"""

from __future__ import annotations

import fcntl
import os
import struct
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Final

LOCK: Final = "supervisor.lock"
_UNKNOWN: Final = "unknown"
_ALONE: Final = "alone"
"""Behind the process id of a holder that has no children."""
TIMEOUT_SECONDS: Final = 5.0
_PAUSE_SECONDS: Final = 0.02
# A link in the place of the lock would have another file truncated.
_FLAGS: Final = os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW
_SIZE: Final = 32
"""Of the file in bytes."""
_FLOCK: Final = struct.Struct("hhqqi0q")
"""The kernel's `struct flock`: type, whence, start, length, pid."""


class SupervisedError(Exception):
    """Another process supervises the folder, or it cannot be used; `status`: exit status for it."""

    def __init__(self, sentence: str, status: int) -> None:
        super().__init__(sentence)
        self.status = status


class Supervision:
    """The lock of a folder, held by this process until it closes it or ends."""

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor

    def close(self) -> None:
        """Give up this process's copy of the lock; callable twice.

        A forked child closes its copy and so leaves the lock to its parent alone.
        """
        descriptor, self._descriptor = self._descriptor, -1
        if descriptor >= 0:
            os.close(descriptor)

    def end(self) -> None:
        """Give up the lock, after the children ended; callable twice, or after `close`."""
        if self._descriptor >= 0:
            with suppress(OSError):
                _write(self._descriptor, "")
        self.close()

    def outlive_exec(self) -> None:
        """Have the program that takes the place of this one hold the lock."""
        with suppress(OSError):  # a full disk: then who follows may wait in vain for its ports
            _write(self._descriptor, f"{os.getpid()} {_ALONE}")
        os.set_inheritable(self._descriptor, True)


def take(
    folder: Path, timeout: float = TIMEOUT_SECONDS, pause: Callable[[float], None] = time.sleep
) -> Supervision:
    """Return the lock of a folder, which is made if it is not there; raise SupervisedError.

    A holder that does not leave within `timeout` seconds keeps it.
    """
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        descriptor = os.open(folder / LOCK, _FLAGS | os.O_CREAT, 0o600)
    except OSError as error:
        raise SupervisedError(
            f"cannot use the data folder {folder}: {error}", os.EX_CANTCREAT
        ) from error
    taken = Supervision(descriptor)
    try:
        _lock(descriptor, folder, timeout, pause)
        _sign(descriptor, folder)
    except BaseException:
        taken.close()
        raise
    return taken


def holder(folder: Path) -> str | None:
    """Return the process id of the folder's supervisor as text, None: there is none."""
    held, words = _look(folder)
    return (words or [_UNKNOWN])[0] if held else None


def killed(folder: Path) -> str | None:
    """Return the process id of the last supervisor if it was killed, None: it was not, or runs."""
    held, words = _look(folder)
    return None if held or not words or _ALONE in words else words[0]


def _look(folder: Path) -> tuple[bool, list[str]]:
    """Return whether the lock is held, and the words in the file, the process id first."""
    try:
        descriptor = os.open(folder / LOCK, _FLAGS)
    except OSError:
        return False, []
    try:
        found = fcntl.fcntl(descriptor, fcntl.F_OFD_GETLK, _whole(fcntl.F_WRLCK))
        return _FLOCK.unpack(found)[0] != fcntl.F_UNLCK, _words(descriptor)
    finally:
        os.close(descriptor)


def _lock(descriptor: int, folder: Path, timeout: float, pause: Callable[[float], None]) -> None:
    for tries_left in range(max(1, round(timeout / _PAUSE_SECONDS)), -1, -1):
        try:
            fcntl.fcntl(descriptor, fcntl.F_OFD_SETLK, _whole(fcntl.F_WRLCK))
        except (BlockingIOError, PermissionError):
            if tries_left:
                pause(_PAUSE_SECONDS)
        else:
            return
    name = (_words(descriptor) or [_UNKNOWN])[0]
    raise SupervisedError(
        f"another router (process {name}) uses the data folder {folder}: stop it, or name another"
        " folder with --data",
        os.EX_TEMPFAIL,
    )


def _sign(descriptor: int, folder: Path) -> None:
    try:
        _write(descriptor, f"{os.getpid()}")
    except OSError as error:
        raise SupervisedError(
            f"cannot use the data folder {folder}: {error}", os.EX_IOERR
        ) from error


def _write(descriptor: int, words: str) -> None:
    """Write over what the file says, in its place: a start on a full disk finds it has a block."""
    os.pwrite(descriptor, words.ljust(_SIZE - 1).encode() + b"\n", 0)


def _words(descriptor: int) -> list[str]:
    return os.pread(descriptor, _SIZE, 0).decode("ascii", "replace").split()


def _whole(kind: int) -> bytes:
    return _FLOCK.pack(kind, os.SEEK_SET, 0, 0, 0)
