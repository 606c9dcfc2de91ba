"""Owns the failures of backups, each with the exit status of a command that it ends."""

from __future__ import annotations

import os


class BackupError(Exception):
    """A backup cannot be taken, read or restored; `str()` is a sentence for the operator."""

    def __init__(self, sentence: str, status: int) -> None:
        super().__init__(sentence)
        self.status = status


def unusable(sentence: str) -> BackupError:
    """Return the failure of a folder that cannot be used."""
    return BackupError(sentence, os.EX_CANTCREAT)


def damaged(sentence: str) -> BackupError:
    """Return the failure of a backup that is not as it was written."""
    return BackupError(sentence, os.EX_DATAERR)


def interrupted(sentence: str) -> BackupError:
    """Return the failure of a backup that may go well when it is taken again."""
    return BackupError(sentence, os.EX_TEMPFAIL)
