"""The data folder as the broker process holds it: private, locked by one process, fit for use."""

from __future__ import annotations

import fcntl
import os
import stat
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Final

from router.broker.disk.faults import StoreError
from router.process import node_socket

LOCK: Final = "broker.lock"
MARK: Final = "READ-ONLY"
BACKUP: Final = "backup"
"""The folder that is there before removals of files are held for a backup, and until they ran."""
RETRY_SECONDS: Final = 0.02
_LOCK_FLAGS: Final = os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW


class FolderError(Exception):
    """The folder cannot be served; `str()` is the sentence to say so, `status` the exit status."""

    def __init__(self, sentence: str, status: int) -> None:
        super().__init__(sentence)
        self.status = status


class FolderBusyError(FolderError):
    """Another process serves the folder."""


@contextmanager
def hold(
    folder: Path,
    seconds: float,
    pause: Callable[[float], None] = time.sleep,
    *,
    even_if_served: bool = False,
) -> Iterator[None]:
    """Hold the folder for this process alone, and create it if it is missing.

    Raises FolderBusyError if another broker holds it for so many seconds, or at once if that broker
    answers clients, unless `even_if_served`. Raises FolderError if the folder is marked READ-ONLY
    or is no folder. The kernel releases it when the process ends.
    """
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        descriptor = os.open(folder / LOCK, _LOCK_FLAGS, 0o600)
    except OSError as error:
        raise FolderError(
            f"cannot use the data folder {folder}: {error}", os.EX_CANTCREAT
        ) from error
    try:
        _lock(descriptor, folder, seconds, pause, even_if_served=even_if_served)
        _refuse_mark(folder)
        _sign(descriptor, folder)
        yield
        # While this process has the lock: the next broker's socket has the same name.
        with suppress(FileNotFoundError):
            (folder / node_socket.SOCKET).unlink()
    finally:
        os.close(descriptor)


@contextmanager
def hold_unserved(folder: Path) -> Iterator[None]:
    """Keep brokers away from the folder; raise StoreError if one serves it."""
    descriptor = os.open(folder / LOCK, _LOCK_FLAGS, 0o600)
    try:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            raise StoreError(f"a broker serves {folder}; stop it first") from error
        yield
    finally:
        os.close(descriptor)


def read_mark(folder: Path) -> str | None:
    """Return why the folder must be repaired before it is written; None: it need not be."""
    try:
        return (folder / MARK).read_text(encoding="utf-8", errors="replace").strip()
    except FileNotFoundError:
        return None


def write_mark(folder: Path, reason: str) -> None:
    """Leave the reason in the folder, if its disk still takes that."""
    flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC | os.O_NOFOLLOW
    with suppress(OSError), os.fdopen(os.open(folder / MARK, flags, 0o600), "w") as file:
        file.write(reason + "\n")


def exposed(folder: Path) -> str | None:
    """Return a warning for a folder in which all users may create files, else None.

    They could replace the files of the broker. Raises OSError.
    """
    if not folder.stat().st_mode & stat.S_IWOTH:
        return None
    return f"all users of this machine may write to the data folder {folder}: chmod o-w {folder}"


def _lock(
    descriptor: int,
    folder: Path,
    seconds: float,
    pause: Callable[[float], None],
    *,
    even_if_served: bool,
) -> None:
    for _ in range(max(1, round(seconds / RETRY_SECONDS))):
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            # It may be ending: then the folder is free in a moment.
            if not even_if_served and _answers(folder):
                break
            pause(RETRY_SECONDS)
        else:
            return
    holder = os.pread(descriptor, 32, 0).decode("ascii", "replace").strip() or "unknown"
    raise FolderBusyError(
        f"another broker (process {holder}) serves the data folder {folder}", os.EX_TEMPFAIL
    )


def _sign(descriptor: int, folder: Path) -> None:
    try:
        os.ftruncate(descriptor, 0)
        os.pwrite(descriptor, f"{os.getpid()}\n".encode(), 0)
    except OSError as error:
        # Space may come: a supervisor may try again.
        raise FolderError(f"cannot use the data folder {folder}: {error}", os.EX_IOERR) from error


def _answers(folder: Path) -> bool:
    try:
        node_socket.connect(folder, RETRY_SECONDS).close()
    except OSError:
        return False
    return True


def _refuse_mark(folder: Path) -> None:
    if (reason := read_mark(folder)) is not None:
        raise FolderError(
            f"the data folder {folder} is marked READ-ONLY: {reason or 'no reason given'}; "
            "look at its disk, then run `router check --repair`",
            os.EX_DATAERR,
        )
