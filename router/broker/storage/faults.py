"""Owns the failures of stored data that is damaged, and the mark that they leave in the folder."""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path

from router.broker.disk.faults import StoreError, puts_in_doubt
from router.broker.folder import MARK


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
    """Return whether the folder must be repaired before it is written again."""
    return puts_in_doubt(error) or isinstance(error, JournalDamagedError)


def write_mark(folder: Path, reason: str) -> None:
    """Leave the reason in the folder, if its disk still takes that."""
    flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC | os.O_NOFOLLOW
    with suppress(OSError), os.fdopen(os.open(folder / MARK, flags, 0o600), "w") as file:
        file.write(reason + "\n")
