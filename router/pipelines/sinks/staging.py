"""Staged batches: folders of files that are whole or absent, and that never change once whole."""

# Theory of operation. What a query computes for a batch may differ at a replay: after a crash Spark
# repeats neither the order of rows nor their partitioning. So the rows of a batch are first written
# to files, and only what is in the files is published, at the first time and at every replay.
#
#     writing=N-xxxxxxxx   what Spark is writing; of a run that was killed, so it counts for nothing
#     batch=N              whole: renamed when all is on disk
#         manifest.json    which files in which order, and how they are cut into appends
#         places.json      the topics' full names and partitions when publishing was first prepared
#         begun.json       there since before the first append; `done.json` since after the last one
#     gone=N-xxxxxxxx      on its way out
#
# Spark's `_SUCCESS` says that its job came to an end; the rename says that everything is synced,
# the folder too. So there is one step at which a batch begins to exist, and a run that is killed
# before it leaves nothing but a folder to be swept away.
#
# A whole batch is damaged when a file of its manifest is missing or has another size. Before the
# first append nothing is lost by making it again; after it the batch is refused with a sentence,
# since other rows under the numbers that were used would be dropped as if they were repeats.
#
# The alternatives: publishing from what the query gives (a replay then has other rows under the
# same numbers), or a log of the receipts (it has the same gap, between a receipt and its line).
#
# All of it is plain files on a file system that the driver and the executors share.

from __future__ import annotations

import json
import os
import re
import secrets
import shutil
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Final

from router.errors import ReadFailedError

FORMAT: Final = 1
MANIFEST: Final = "manifest.json"
PLACES: Final = "places.json"
BEGUN: Final = "begun.json"
DONE: Final = "done.json"
SUCCESS: Final = "_SUCCESS"
_BATCH: Final = re.compile(r"batch=([0-9]{1,10})")
_LEFT: Final = re.compile(r"(writing|gone)=[0-9]{1,10}-[0-9a-f]{16}")


class StagingDisk:
    """The steps that change the disk, each of them durable when it returns."""

    def write(self, path: Path, data: bytes) -> None:
        """Put a file there whole, or leave what was there."""
        beside = path.with_name(f".{path.name}.new")
        with beside.open("wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        beside.rename(path)
        self.sync(path.parent)

    def sync(self, path: Path) -> None:
        """Sync a file or folder that others wrote."""
        descriptor = os.open(path, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)

    def rename(self, old: Path, new: Path) -> None:
        """Rename a folder; raise OSError if the new name is taken by one that is not empty."""
        old.rename(new)
        self.sync(new.parent)

    def remove(self, path: Path) -> None:
        """Delete a folder with all that is in it, as far as that can be done now."""
        shutil.rmtree(path, ignore_errors=True)


@dataclass(frozen=True, slots=True)
class StagingPlan:
    """Where rows go, empty: their column `topic` says it, and how they are cut into appends.

    At most so many rows and so many bytes go into an append; as many as a window holds are sorted
    by partition at a time.
    """

    topic: str
    rows: int = 5_000
    bytes: int = 900 * 1024
    window_rows: int = 20_000
    window_bytes: int = 8 * 1024 * 1024


@dataclass(frozen=True, slots=True)
class SinkTopic:
    """A topic by its full name, with its partitions (0: not partitioned)."""

    topic: str
    partitions: int


@dataclass(frozen=True, slots=True)
class Staged:
    """A whole batch: its files in the order of publishing, and what was planned for them."""

    batch: int
    folder: Path
    files: tuple[Path, ...]
    plan: StagingPlan


class Staging:
    """The staged batches of one sink; used by one thread of one process at a time."""

    def __init__(self, folder: Path, query: str, disk: StagingDisk | None = None) -> None:
        self._folder = folder
        self._query = query
        self._disk = disk or StagingDisk()

    def find(self, batch: int) -> Staged | None:
        """Return a whole batch, None: it is to be made.

        Raises ReadFailedError for one of another checkpoint, and for one that is damaged after
        its publishing began.
        """
        folder = self._at(batch)
        if not folder.is_dir():
            return None
        try:
            manifest = json.loads((folder / MANIFEST).read_bytes())
            staged = self._staged(folder, manifest)
            owner = manifest["query"]
        except (OSError, ValueError, KeyError, TypeError) as error:
            if (folder / BEGUN).exists():
                raise ReadFailedError(
                    f"{folder} is damaged ({error}) and part of it is published already: put its "
                    "files back, or begin with a new checkpoint."
                ) from error
            self._drop(folder)
            return None
        if owner != self._query:
            raise ReadFailedError(
                f"{folder} belongs to a checkpoint that is gone: to begin again, delete all of "
                f"{self._folder.parent}."
            )
        return staged

    def make(self, batch: int, write: Callable[[Path], None], plan: StagingPlan) -> Staged:
        """Have a batch written into a new folder, which becomes the batch when all is on disk.

        Raises ReadFailedError if what was written is not whole.
        """
        if not self._folder.is_dir():
            self._folder.mkdir(parents=True, exist_ok=True)
            self._disk.sync(self._folder.parent)
        self.sweep()
        folder = self._folder / f"writing={batch}-{secrets.token_hex(8)}"
        write(folder)
        if not (folder / SUCCESS).is_file():
            raise ReadFailedError(f"{folder} was not written to its end.")
        files = sorted(folder.glob("part-*"))
        for path in files:
            self._disk.sync(path)
        manifest = {
            "format": FORMAT,
            "batch": batch,
            "query": self._query,
            "files": [[path.name, path.stat().st_size] for path in files],
            "plan": asdict(plan),
        }
        self._disk.write(folder / MANIFEST, _json(manifest))
        self._disk.rename(folder, self._at(batch))
        return self._staged(self._at(batch), manifest)

    def places(self, staged: Staged) -> dict[str, SinkTopic] | None:
        """Return where the rows for each topic go in this batch, None: it is not decided."""
        found = self._noted(staged, PLACES)
        if found is None:
            return None
        return {given: SinkTopic(str(name), int(count)) for given, (name, count) in found.items()}

    def decide(self, staged: Staged, places: Mapping[str, SinkTopic]) -> None:
        """Note where rows go at every replay, however settings change and topics grow meanwhile."""
        noted = {given: [place.topic, place.partitions] for given, place in places.items()}
        self._disk.write(staged.folder / PLACES, _json(noted))

    def discard(self, staged: Staged) -> None:
        """Drop a batch of which nothing is published, to be made again."""
        if (staged.folder / BEGUN).exists():
            raise ReadFailedError(f"part of {staged.folder} is published already")
        self._drop(staged.folder)

    def begin(self, staged: Staged, now_ms: int, name: str) -> int:
        """Note that publishing begins; return when it did so for the first time, in ms.

        Raises ReadFailedError where it began under another name than this: the store would take
        what it has for another pipeline's.
        """
        begun = self._noted(staged, BEGUN)
        if begun is None:
            begun = {"ms": now_ms, "name": name}
            self._disk.write(staged.folder / BEGUN, _json(begun))
        if begun["name"] != name:
            raise ReadFailedError(
                f"part of it may be published as {begun['name']} already: run it once more under "
                f"the pipeline's old name, and then as {name}"
            )
        return int(begun["ms"])

    def finish(self, staged: Staged) -> None:
        """Note that everything is published."""
        self._disk.write(staged.folder / DONE, _json({}))

    def finished(self, staged: Staged) -> bool:
        """Return whether everything is published for certain."""
        return (staged.folder / DONE).exists()

    def forget(self, over: Callable[[int], bool]) -> None:
        """Drop the batches that are over: no replay asks for them any more."""
        for batch in self.batches():
            if over(batch):
                self._drop(self._at(batch))

    def batches(self) -> Sequence[int]:
        """Return the numbers of the batches that are there."""
        if not self._folder.is_dir():
            return []
        found = (_BATCH.fullmatch(path.name) for path in self._folder.iterdir())
        return sorted(int(match[1]) for match in found if match)

    def sweep(self) -> None:
        """Delete what runs that were killed left behind."""
        for path in list(self._folder.iterdir()):
            if _LEFT.fullmatch(path.name):
                self._disk.remove(path)

    def _at(self, batch: int) -> Path:
        return self._folder / f"batch={batch}"

    def _drop(self, folder: Path) -> None:
        """Take a batch away in one step, whatever becomes of the deleting."""
        number = folder.name.partition("=")[2]
        gone = self._folder / f"gone={number}-{secrets.token_hex(8)}"
        self._disk.rename(folder, gone)
        self._disk.remove(gone)

    def _staged(self, folder: Path, manifest: Any) -> Staged:
        """Return what a manifest describes; raise ValueError where the files differ."""
        if manifest["format"] != FORMAT:
            raise ValueError(f"format {manifest['format']} is not known")
        for name, size in manifest["files"]:
            if (folder / name).stat().st_size != size:
                raise ValueError(f"{name} does not have {size} bytes")
        files = tuple(folder / name for name, _ in manifest["files"])
        return Staged(int(manifest["batch"]), folder, files, StagingPlan(**manifest["plan"]))

    def _noted(self, staged: Staged, name: str) -> dict[str, Any] | None:
        try:
            found: dict[str, Any] = json.loads((staged.folder / name).read_bytes())
        except FileNotFoundError:
            return None
        except ValueError as error:
            raise ReadFailedError(f"{staged.folder / name} is damaged: {error}") from error
        return found


def _json(value: object) -> bytes:
    return json.dumps(value, sort_keys=True).encode()
