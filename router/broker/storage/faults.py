"""Owns the failures of stored data that is damaged."""

from __future__ import annotations

from pathlib import Path

from router.broker.disk.faults import StoreError, puts_in_doubt


class DamagedError(Exception):
    """Stored entries cannot be read as they were written; they are never served.

    `first` and `last` bound the entries, `start` and `end` the bytes of `file`, both ends of the
    entries included and the last byte not.
    """

    def __init__(self, ledger: int, file: Path, first: int, last: int, start: int, end: int):
        self.ledger, self.file = ledger, file
        self.first, self.last = first, last
        self.start, self.end = start, end
        super().__init__(
            f"ledger {ledger}: entries {first} to {last} are damaged, bytes {start} to {end} of "
            f"{file}; `router check --repair` gives them up"
        )


class JournalDamagedError(StoreError):
    """The journal is damaged before its last commit group, so acknowledged data is lost."""

    def __init__(self, file: Path, start: int, end: int, reason: str) -> None:
        self.file = file
        self.start, self.end = start, end
        super().__init__(
            f"the journal {file} is damaged, bytes {start} to {end}: {reason}; "
            "`router check --repair` saves what can be read and gives up the rest"
        )


def leaves_mark(error: BaseException) -> bool:
    """Return whether the folder must be repaired before it is written again."""
    return puts_in_doubt(error) or isinstance(error, JournalDamagedError)
