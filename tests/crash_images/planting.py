"""Faults that are planted in the product, which crash images must find.

`python -m tests.crash_images.planting` plants each in turn, or those whose names are given: it
makes a recording and tries images until one fails. Nothing on disk is changed: the source of one
module is replaced as it is imported, by the recorded processes and by the one that opens images.
"""

from __future__ import annotations

import asyncio
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Final

from tests.simulation.mutations import MUTATIONS, Finder, Mutation

MAX_IMAGES: Final = 3_000
FOUND: Final = "found: "
_STORAGE: Final = "router.broker.storage"
ALWAYS: Final = (
    Mutation(
        "storage",
        "retention runs each half second",
        "router.broker.topics.maintenance",
        "MAINTENANCE_INTERVAL_SECONDS: Final = 60.0",
        "MAINTENANCE_INTERVAL_SECONDS: Final = 0.5",
    ),
)
_SHARED: Final = {
    "a commit group is acknowledged before its sync",
    "a journal file gets its name before its sync",
    "the name of a journal file is not synced",
    "a checkpoint does not sync the segments",
    "a checkpoint cuts one journal file too many",
    "recovery removes the old journal before the new one is there",
}
"""Of the faults of the simulation."""
FAULTS: Final[tuple[Mutation, ...]] = (
    *(mutation for mutation in MUTATIONS if mutation.name in _SHARED),
    Mutation(
        "storage",
        "the journal is cut before the checkpoint is committed",
        f"{_STORAGE}.checkpointer",
        "        await self.metadata.run(lambda c: rows.save_checkpoint(c, checkpoint))\n"
        "        await self.in_thread(lambda: _cut_journal(context, number, everything))",
        "        await self.in_thread(lambda: _cut_journal(context, number, everything))\n"
        "        await self.metadata.run(lambda c: rows.save_checkpoint(c, checkpoint))",
    ),
    Mutation(
        "storage",
        "the names of new segments are not synced",
        f"{_STORAGE}.writing",
        "        for folder in sorted(self._folders):\n            self._disk.sync_folder(folder)",
        "        for folder in sorted(self._folders):\n            pass",
    ),
    Mutation(
        "storage",
        "the metadata is not synced",
        "router.broker.disk.database",
        "PRAGMA synchronous = FULL",
        "PRAGMA synchronous = OFF",
    ),
    Mutation(
        "storage",
        "a start believes what the page cache has of the metadata",
        "router.broker.disk.database",
        "PRAGMA wal_checkpoint",
        "SELECT 0, 1 << 30, 0",
    ),
    Mutation(
        "storage",
        "the checksum of a commit group is ignored",
        f"{_STORAGE}.commit_groups",
        "if crc32c(body, crc32c(head, 0)) == checksum else None",
        "if checksum >= 0 else None",
    ),
    Mutation(
        "storage",
        "the end of a reused journal file is not marked",
        f"{_STORAGE}.journal",
        "[*parts, pack_end(self._next_group, self._salt)])",
        "[*parts])",
    ),
    Mutation(
        "storage",
        "a segment that is written again is not synced",
        f"{_STORAGE}.rewriting",
        "        disk.sync_data(file)\n        if self._points:",
        "        if self._points:",
    ),
    Mutation(
        "storage",
        "segments are removed before the metadata has the one in their place",
        f"{_STORAGE}.reclaim",
        "            await self._checkpointer.metadata.run(store)\n"
        "            ledger.replace_segments(sources, new)\n"
        "            failure = await self._try("
        "partial(self._context.writer.remove, ledger.id, sources))",
        "            failure = await self._try("
        "partial(self._context.writer.remove, ledger.id, sources))\n"
        "            await self._checkpointer.metadata.run(store)\n"
        "            ledger.replace_segments(sources, new)",
    ),
    Mutation(
        "storage",
        "the cleaner deletes the newer of two messages of a key",
        "router.broker.compaction.key_index",
        "row = previous.number, message.number, previous.tombstone",
        "row = message.number, message.number, previous.tombstone",
    ),
    Mutation(
        "storage",
        "an acknowledgement of a consumer is answered before its sync",
        "router.broker.nats.consumers.log",
        "        self._store.after_sync(done)",
        "        done()",
    ),
)


def plant(name: str) -> None:
    """Have modules be imported with what is always replaced, and with the fault of this name."""
    for mutation in (*ALWAYS, *(one for one in FAULTS if one.name == name)):
        sys.meta_path.insert(0, Finder(mutation))


def find(name: str) -> str:
    """Return what the first image says that finds a fault, in this process; empty: none does."""
    plant(name)
    # After the fault is planted, so that it is in what opens the images, too.
    from tests.crash_images.making import record  # noqa: PLC0415
    from tests.crash_images.trying import plan, run  # noqa: PLC0415

    with tempfile.TemporaryDirectory() as folder:
        (made := Path(folder) / "recording").mkdir()
        try:
            recording = record(made, name, planted=name)
        except AssertionError:
            return "the router did not go on after the kill of its broker"
        trials = plan(recording, name, range(MAX_IMAGES))
        failures = asyncio.run(run(recording, trials, Path(folder) / "image", most=1))
        return str(failures[0]).replace(folder, "") if failures else ""


def main() -> int:
    """Plant the faults, each in a process of its own; the status says if one was missed."""
    if sys.argv[1:2] == ["--one"]:
        if finding := find(sys.argv[2]):
            sys.stdout.write(f"\n{FOUND}{finding}\n")
        return 0
    chosen = [one.name for one in FAULTS if not sys.argv[1:] or one.name in sys.argv[1:]]
    missed = 0
    for name in chosen:
        command = [sys.executable, "-m", "tests.crash_images.planting", "--one", name]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        # What the store logs is on the same output.
        found = [line for line in done.stdout.splitlines() if line.startswith(FOUND)]
        missed += not found
        sys.stdout.write(f"{name}: {found[0] if found else 'NOT FOUND ' + done.stderr[-500:]}\n")
        sys.stdout.flush()
    sys.stdout.write(f"{len(chosen) - missed} of {len(chosen)} found\n")
    return bool(missed)


if __name__ == "__main__":
    sys.exit(main())
