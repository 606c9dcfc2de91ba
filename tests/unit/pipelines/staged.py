"""Rows for sinks of kind topic, and disks that fail, without Spark."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from router.pipelines.sinks.staging import StagingDisk

Row = tuple[bytes | None, bytes | None]
"""Key and value of a message."""

SCHEMA = pa.schema(
    [
        ("value", pa.binary()),
        ("key", pa.binary()),
        ("properties", pa.map_(pa.string(), pa.string())),
        ("event_time", pa.int64()),
    ]
)


class CrashError(BaseException):
    """The process is gone; nothing that it would have done happens."""


class FailingDisk(StagingDisk):
    """A disk on which the process ends at a step: before it is done, or just after."""

    def __init__(self, step: int, *, after: bool) -> None:
        self.steps = 0
        self._step = step
        self._after = after

    def write(self, path: Path, data: bytes) -> None:
        self._do(lambda: StagingDisk.write(self, path, data))

    def sync(self, path: Path) -> None:
        self._do(lambda: StagingDisk.sync(self, path))

    def rename(self, old: Path, new: Path) -> None:
        self._do(lambda: StagingDisk.rename(self, old, new))

    def remove(self, path: Path) -> None:
        self._do(lambda: StagingDisk.remove(self, path))

    def _do(self, act: Callable[[], None]) -> None:
        self.steps += 1
        mine = self.steps
        if mine == self._step and not self._after:
            raise CrashError
        act()
        if mine == self._step:
            raise CrashError


def writing(rows: Sequence[Row], *, files: int = 2, whole: bool = True) -> Callable[[Path], None]:
    """Return what writes rows as Spark does: files in a new folder, and then `_SUCCESS`."""

    def write(folder: Path) -> None:
        folder.mkdir()
        share = -(-len(rows) // files) or 1
        for number in range(files):
            part = rows[number * share : (number + 1) * share]
            columns: dict[str, list[Any]] = {
                "value": [value for _, value in part],
                "key": [key for key, _ in part],
                "properties": [[("n", "1")]] * len(part),
                "event_time": [None] * len(part),
            }
            table = pa.table(columns, schema=SCHEMA)
            pq.write_table(table, folder / f"part-{number:05}-x.snappy.parquet")
        if whole:
            (folder / "_SUCCESS").touch()

    return write
