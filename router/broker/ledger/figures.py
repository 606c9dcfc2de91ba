"""What a store takes of its disk, for those who watch it."""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple


class Figures(NamedTuple):
    """Sizes in bytes, and numbers of files; `free` is what may still be written."""

    disk: int
    free: int
    journal: int
    journal_files: int


def look(folder: Path) -> Figures:
    """Return the figures of a data folder; raise OSError where it cannot be read."""
    found = os.statvfs(folder)
    sizes = []
    with os.scandir(folder / "journal") as entries:
        for entry in entries:
            with suppress(FileNotFoundError):  # removed meanwhile
                sizes.append(entry.stat().st_size)
    return Figures(
        found.f_blocks * found.f_frsize, found.f_bavail * found.f_frsize, sum(sizes), len(sizes)
    )
