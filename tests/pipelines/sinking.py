"""Stores that sinks publish to, read back whole, and streams of a few rows."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Sequence
from pathlib import Path

from pyspark.sql import DataFrame, SparkSession

from router.backends import Backend, Start
from router.model import NOT_PARTITIONED, Message, TopicInfo, TopicName
from router.pipelines.declaration import SinkSpec, Trigger
from router.pipelines.sinks import SinkContext, start_sink
from router.settings import Settings

WAIT = 240.0
FIRST_TIME = 1_000_000_000


class Bell:
    """A mailbox that can be waited for."""

    def __init__(self) -> None:
        self._event = threading.Event()

    def wake(self) -> None:
        """Note that something came."""
        self._event.set()

    def wait(self) -> None:
        """Wait a moment for something to come."""
        self._event.wait(0.2)
        self._event.clear()


def new_topic(backend: Backend, name: str, partitions: int) -> TopicName:
    """Make a topic and return its name."""
    topic = TopicName.parse(name)
    backend.create_topic(TopicInfo(topic, partitions), WAIT)
    return topic


def stored(backend: Backend, topic: TopicName, quiet: float = 1.0) -> list[Message]:
    """Return all messages of a topic, partition after partition, until none comes for a while."""
    count = backend.partitions(topic, WAIT)
    found: list[Message] = []
    for partition in range(count) if count else [NOT_PARTITIONED]:
        found += _read(backend, topic, partition, quiet)
    return found


def _read(backend: Backend, topic: TopicName, partition: int, quiet: float) -> list[Message]:
    bell, found = Bell(), list[Message]()
    reader = backend.read(topic, partition, Start.EARLIEST, bell, WAIT)
    try:
        until = time.monotonic() + quiet
        while time.monotonic() < until:
            if some := reader.receive(10_000, 16 * 1024 * 1024, WAIT):
                found += [each.message for each in some]
                until = time.monotonic() + quiet
            else:
                bell.wait()
    finally:
        reader.close()
    return found


class Stream:
    """Rows that come to a stream file by file: columns id and name."""

    def __init__(self, spark: SparkSession, folder: Path) -> None:
        self._spark = spark
        self._folder = folder
        self._files = 0
        folder.mkdir()

    def add(self, rows: Sequence[tuple[int, str]]) -> None:
        """Let rows come: one more file, which is a batch of its own."""
        lines = "".join(f'{{"id": {number}, "name": "{name}"}}\n' for number, name in rows)
        file = self._folder / f"{self._files:05}.json"
        file.write_text(lines)
        # Spark takes files in the order of these times.
        os.utime(file, (FIRST_TIME + self._files, FIRST_TIME + self._files))
        self._files += 1

    def frame(self) -> DataFrame:
        """Return the stream."""
        reader = self._spark.readStream.schema("id BIGINT, name STRING")
        return reader.option("maxFilesPerTrigger", 1).json(str(self._folder))


class Sinking:
    """A sink that is run to the end of its stream, again and again, on one checkpoint."""

    def __init__(self, folder: Path, backend: Backend, settings: Settings) -> None:
        self.folder = folder
        self.told: list[str] = []
        self.context = SinkContext(
            "p",
            str(folder / "checkpoint"),
            backend,
            settings,
            Trigger(available_now=True),
            failed=lambda sink, error: self.told.append(str(error)),
        )

    def run(self, frame: DataFrame, sink: SinkSpec) -> None:
        """Run until everything that is there is in the sink; raise what ended it."""
        query = start_sink(frame, sink, self.context)
        try:
            assert query.awaitTermination(round(WAIT)), "the query does not come to an end"
        finally:
            query.stop()

    def lose_commit(self) -> None:
        """Have the last batch of the sink `out` come again."""
        commits = self.folder / "checkpoint" / "out" / "commits"
        last = max(int(path.name) for path in commits.iterdir() if path.name.isdigit())
        for name in (f"{last}", f".{last}.crc"):
            (commits / name).unlink(missing_ok=True)
