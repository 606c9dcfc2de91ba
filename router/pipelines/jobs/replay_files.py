"""The rows of a replay on disk: sorted once, cut into numbered files, published in that order."""

# Theory of operation. A replay that is killed must go on with the very rows that it had left, while
# the archive may grow, be compacted or be vacuumed meanwhile. So what is to be replayed is first
# written down, sorted by topic, partition and position, into files of a bounded number of rows:
#
#     writing-xxxxxxxxxxxxxxxx   what Spark is writing; after a kill it counts for nothing
#     rows                       whole: renamed when all is on disk
#         manifest.json          the files in order, the partitions of topics, for which options,
#                                and how many rows an append has
#     progress.json              the number of the next file, and when its publishing began
#
# A file is one batch of the publisher, its number the batch's: what the store has of it is not
# stored again. The alternative, noting each receipt, has a gap between a receipt and its note.

from __future__ import annotations

import json
import re
import secrets
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import Any, Final

import pyarrow as pa

from router.errors import ReadFailedError, SettingError
from router.model import NOT_PARTITIONED, Message, TopicName
from router.pipelines.sinks.chunks import AppendChunk
from router.pipelines.sinks.staging import SUCCESS, StagingDisk

COLUMNS: Final = ("topic", "partition", "key", "value", "properties", "event_time")
_READ_ROWS: Final = 1_024
_APPEND_BYTES: Final = 900 * 1024
_OVERHEAD_BYTES: Final = 64
# Until 2026-11-27 appends were cut by the rate of each run, which is noted nowhere.
_EARLIER: Final = (
    "{} was written by an earlier version, which did not note how many rows an append has: going on"
    " could lose messages. Look at the end of the topic, then replay the rest from there, with"
    " another checkpoint, which the command has by --name."
)
_PART: Final = re.compile(r"part-(\d+)-.*-c(\d+)\.(?:[a-z0-9]+\.)?parquet")


@dataclass(frozen=True, slots=True)
class ReplayPlan:
    """What is replayed: files in order with their rows, and how many partitions each topic has.

    `identity` is random: the store knows the replay by it. `options` are those it was made for. A
    file is cut into appends of at most `append_rows` at each attempt, whatever the rate is by then:
    the store knows an append by its first row, and would drop one that has more rows than before.
    """

    identity: str
    files: tuple[tuple[Path, int], ...]
    partitions: Mapping[str, int]
    options: Mapping[str, Any]
    append_rows: int

    @property
    def rows(self) -> int:
        """How many messages there are."""
        return sum(rows for _, rows in self.files)


class ReplayFiles:
    """The files of one replay in its folder; used by one process at a time."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._disk = StagingDisk()

    def find(self, options: Mapping[str, Any]) -> ReplayPlan | None:
        """Return what was written down before, None: nothing yet.

        Raises SettingError where it was for other options, ReadFailedError where it is damaged or
        of an earlier version.
        """
        folder = self._folder / "rows"
        if not folder.is_dir():
            return None
        try:
            found = json.loads((folder / "manifest.json").read_bytes())
            if "files" in found and "append_rows" not in found:
                raise ReadFailedError(_EARLIER.format(folder))
            files = tuple((folder / name, int(rows)) for name, rows in found["files"])
            partitions, known = found["partitions"], found["options"]
            rows = int(found["append_rows"])
            plan = ReplayPlan(found["identity"], files, partitions, known, rows)
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise ReadFailedError(f"{folder} is damaged: {error}") from error
        if plan.options != options:
            raise SettingError(
                f"{self._folder} belongs to a replay with other options: give this one another"
                " checkpoint, which the command has by --name, or delete that folder."
            )
        if missing := [path for path, _ in files[self.next(plan) :] if not path.is_file()]:
            raise ReadFailedError(f"{missing[0]} is missing: part of the replay is published.")
        return plan

    def make(
        self,
        options: Mapping[str, Any],
        write: Callable[[Path], None],
        partitions: Callable[[Path], Mapping[str, int]],
        append_rows: int,
    ) -> ReplayPlan:
        """Have the rows written, whole or not at all; `partitions` counts those of their topics."""
        self._folder.mkdir(parents=True, exist_ok=True)
        for left in self._folder.glob("writing-*"):
            self._disk.remove(left)
        folder = self._folder / f"writing-{secrets.token_hex(8)}"
        write(folder)
        if not (folder / SUCCESS).is_file():
            raise ReadFailedError(f"{folder} was not written to its end.")
        files = [(path.name, rows) for path in in_order(folder) if (rows := _rows(path))]
        for name, _ in files:
            self._disk.sync(folder / name)
        manifest = {
            "identity": secrets.token_hex(8),
            "files": files,
            "partitions": dict(partitions(folder)),
            "options": dict(options),
            "append_rows": append_rows,
        }
        self._disk.write(folder / "manifest.json", json.dumps(manifest).encode())
        self._disk.rename(folder, self._folder / "rows")
        found = self.find(options)
        assert found is not None, "it was renamed to this name"
        return found

    def forget(self) -> None:
        """Remove what was written down of a replay of nothing: there may be something later."""
        self._disk.remove(self._folder / "rows")

    def next(self, plan: ReplayPlan) -> int:
        """Return the number of the file that is published next; their count at the end."""
        return int(self._progress(plan).get("next", 0))

    def begin(self, plan: ReplayPlan, number: int, now_ms: int) -> int:
        """Note that publishing a file begins; return when it did so for the first time, in ms."""
        progress = self._progress(plan)
        if progress.get("next") == number and "begun" in progress:
            return int(progress["begun"])
        self._note(plan, {"next": number, "begun": now_ms})
        return now_ms

    def finish(self, plan: ReplayPlan, number: int) -> None:
        """Note that a file is published; its rows are not needed any more."""
        self._note(plan, {"next": number + 1})
        plan.files[number][0].unlink(missing_ok=True)

    def _progress(self, plan: ReplayPlan) -> dict[str, Any]:
        try:
            found: dict[str, Any] = json.loads((self._folder / "progress.json").read_bytes())
        except FileNotFoundError:
            return {}
        except ValueError as error:
            raise ReadFailedError(f"{self._folder}/progress.json is damaged: {error}") from error
        # What an earlier replay noted, whose rows were deleted, says nothing about this one.
        return found if found.get("identity") == plan.identity else {}

    def _note(self, plan: ReplayPlan, progress: dict[str, Any]) -> None:
        noted = {"identity": plan.identity, **progress}
        self._disk.write(self._folder / "progress.json", json.dumps(noted).encode())


def in_order(folder: Path) -> list[Path]:
    """Return the files that Spark wrote by task, and each task's as it wrote them.

    By number: Spark's names sort like text only up to the thousandth file of a task.
    """
    found = [(match, path) for path in folder.iterdir() if (match := _PART.fullmatch(path.name))]
    return [path for _, path in sorted(found, key=lambda one: (int(one[0][1]), int(one[0][2])))]


def chunks(
    path: Path, places: Mapping[str, tuple[TopicName, int]], max_rows: int
) -> Iterator[AppendChunk]:
    """Yield the appends of a file in order, of at most so many rows; memory is that of one.

    `places` are the topics with their partitions, by the names that the rows have for them.

    A message goes to the partition that it was in, or where there are fewer, to that number modulo
    theirs: what was in one partition stays in one, in order.
    """
    first, size = 0, 0
    place: tuple[TopicName, int] | None = None
    together: list[Message] = []
    for number, (target, message) in enumerate(_messages(path, places)):
        weight = message.size() + _OVERHEAD_BYTES
        full = len(together) >= max_rows or size + weight > _APPEND_BYTES
        if together and place is not None and (full or target != place):
            yield AppendChunk(*place, first, together)
            together, size = [], 0
        if not together:
            first, place = number, target
        together.append(message)
        size += weight
    if together and place is not None:
        yield AppendChunk(*place, first, together)


def topics(folder: Path, limit: int) -> dict[str, int]:
    """Return the topics that rows go to, and the highest partition each was in; raise SettingError.

    `limit` bounds how many topics there may be.
    """
    found: dict[str, int] = {}
    for batch in chain.from_iterable(map(_batches, in_order(folder))):
        pairs = zip(*_columns(batch, ("topic", "partition")), strict=True)
        for topic, partition in set(pairs):
            found[topic] = max(found.get(topic, 0), partition)
        if len(found) > limit:
            raise SettingError(f"a replay goes to at most {limit} topics: replay some at a time")
    return found


def _messages(
    path: Path, places: Mapping[str, tuple[TopicName, int]]
) -> Iterator[tuple[tuple[TopicName, int], Message]]:
    for batch in _batches(path):
        for row in zip(*_columns(batch, COLUMNS), strict=True):
            topic, partition, key, value, properties, event_time = row
            target, count = places[topic]
            place = (target, partition % count if count else NOT_PARTITIONED)
            known = {name: text for name, text in properties if text is not None}
            yield place, Message(value or b"", key, known, event_time, null=value is None)


def _batches(path: Path) -> Iterator[pa.RecordBatch]:
    from router.pipelines.sinks.parquet import record_batches  # noqa: PLC0415 - needs an extra

    return record_batches(path, _READ_ROWS, COLUMNS)


def _columns(batch: pa.RecordBatch, names: Sequence[str]) -> list[list[Any]]:
    from router.pipelines.sinks.parquet import values  # noqa: PLC0415 - see above

    return [values(batch, name) for name in names]


def _rows(path: Path) -> int:
    from pyarrow import parquet  # noqa: PLC0415 - an extra, which declarations do without

    with parquet.ParquetFile(path) as file:
        return int(file.metadata.num_rows)
