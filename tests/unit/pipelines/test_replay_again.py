"""A replay that is begun again, without Spark: its rows are written down already."""

from __future__ import annotations

import threading
from collections.abc import Iterable
from pathlib import Path
from typing import Any, cast

import pyarrow as pa
import pytest
from pyarrow import parquet

from router import settings as all_settings
from router.backends import Batch
from router.backends.memory import MemoryBackend
from router.errors import ReadFailedError
from router.pipelines.declaration import Pipeline, SourceSpec
from router.pipelines.jobs import JobContext
from router.pipelines.jobs.options import read
from router.pipelines.jobs.replay_files import ReplayFiles
from router.pipelines.jobs.replaying import replay

WEEK_MS = 7 * 86_400_000


class Numbering(MemoryBackend):
    """A store with transactions, which keeps the numbers of batches for a while."""

    def __init__(self) -> None:
        super().__init__(auto_create=True)
        self.numbers: list[int] = []

    def numbered(self, name: str) -> Numbering:
        return self

    def store(self, number: int, owner: str, appends: Iterable[Batch], timeout: float) -> bool:
        self.numbers.append(number)
        return bool(list(appends))


def write(folder: Path) -> None:
    folder.mkdir()
    columns: dict[str, Any] = {
        "topic": ["t"],
        "partition": pa.array([0], pa.int32()),
        "key": pa.array([None], pa.binary()),
        "value": pa.array([b"v"]),
        "properties": pa.array([[]], pa.map_(pa.string(), pa.string())),
        "event_time": pa.array([None], pa.int64()),
    }
    parquet.write_table(pa.table(columns), folder / "part-00000-5c7c8d9e-c000.snappy.parquet")
    (folder / "_SUCCESS").touch()


@pytest.mark.parametrize(("later_ms", "refused"), [(WEEK_MS - 1_000, False), (WEEK_MS + 1, True)])
def test_file_is_refused_when_kafka_may_have_forgotten_its_number(
    folder: Path, later_ms: int, refused: bool
) -> None:
    options = read("replay", {"archive": "table"})
    files = ReplayFiles(folder / "replay")
    chosen = {
        name: list(value) if isinstance(value, tuple) else value
        for name, value in options.values.items()
        if name not in {"rate", "chunk"}
    }
    files.begin(files.make(chosen, write, lambda _: {"t": 0}, 1), 0, 1_000)
    store, message = Numbering(), list[str]()
    context = JobContext(
        pipeline=Pipeline("p", SourceSpec(), checkpoint=str(folder)),
        spark=cast("Any", None),
        backend=store,
        settings=all_settings.load(None, {}, {"backend.url": "kafka://localhost:9092"}),
        stop=threading.Event(),
        notify=message.append,
        clock=lambda: 0.0,
        wall_ms=lambda: 1_000 + later_ms,
    )
    if refused:
        with pytest.raises(ReadFailedError, match="longer ago than the store remembers"):
            replay(context, options)
    else:
        assert replay(context, options)
    assert store.numbers == ([] if refused else [0])
