"""Owns when files that the metadata no longer names are removed: at once, or after a backup.

A backup copies files while the store goes on. What the metadata named at its cut must stay until it
is copied; entries and journal files are only ever appended to, so nothing else has to be held. The
alternative, hard links, would not hold a journal file, which a later one is written over, and takes
a system call for each file before the first can be copied.

A process that ends meanwhile leaves files that the metadata does not name. The next start finds the
folder of the backup, and removes them.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path


class Removals:
    """Runs removals, or keeps them while they are held.

    `hold` may be called by any thread; the rest by the one thread that removes files.
    """

    def __init__(self) -> None:
        self._held = False
        self._waiting: dict[Path, Callable[[], object]] = {}

    def hold(self) -> None:
        """Keep removals from now on."""
        self._held = True

    def run(self, path: Path, work: Callable[[], object]) -> None:
        """Remove a file or what else goes with it, now or when removals are not held any more.

        Of several that wait with the same path the last one is run.
        """
        if self._held:
            self._waiting[path] = work
        else:
            work()

    def is_waiting(self, path: Path) -> bool:
        """Return whether the removal of a file waits."""
        return path in self._waiting

    def release(self) -> None:
        """Run the removals that waited, and hold no more. Raises OSError."""
        self._held = False
        waiting, self._waiting = self._waiting, {}
        for work in waiting.values():
            work()
