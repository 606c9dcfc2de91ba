"""What tests of the source share: a store with topics, and the rows of a batch."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from router.backends import Backend, Batch
from router.backends.opening import opened
from router.model import NOT_PARTITIONED, Message, TopicInfo, TopicName
from router.model.policies import Policies
from router.pipelines.source.offsets import Offset
from router.pipelines.source.options import SourceOptions
from router.pipelines.source.planning import BatchPlanner
from router.pipelines.source.reading import batches
from tests.processes import BrokerProcess, wait_until

WAIT = 60.0
# Retention is looked at many times a second rather than once a minute.
EAGER = (
    "from router.broker.topics.maintenance import Maintenance;"
    "Maintenance.run.__defaults__ = (0.1,);"
    "import sys; from router.broker.__main__ import main; sys.exit(main())"
)


class EagerBroker(BrokerProcess):
    """A broker with small segments, whose retention is quick."""

    def __init__(self, folder: Path, port: int, **settings: str) -> None:
        small = {"storage_segment": "64K", "storage_journal": "256K"}
        super().__init__(folder, port, **small, **settings)

    def start(self) -> None:
        """Start and wait until it serves its folder."""
        command = [sys.executable, "-c", EAGER, "--data", str(self.folder), "--stay"]
        self.process = subprocess.Popen(
            [*command, "--pulsar", self._pulsar],
            env=os.environ | self._environ,
            cwd=self.folder.parent,
        )
        wait_until((self.folder / "broker.sock").exists, WAIT)


class Store:
    """A store with a source on it."""

    def __init__(self, stack: ExitStack, url: str, **settings: str) -> None:
        self.url = url
        self.settings = settings
        self.stack = stack
        self.backend: Backend = stack.enter_context(opened(self.options(topics="any").settings))[1]

    def options(self, **texts: str) -> SourceOptions:
        """Return a source's options."""
        return SourceOptions.of_texts({"url": self.url, **self.settings, **texts})

    def source(self, **texts: str) -> Source:
        """Return a source on this store."""
        return Source(self, self.options(**texts))

    def create(self, name: str, partitions: int = 0, policies: Policies | None = None) -> TopicName:
        """Make a topic."""
        topic = TopicName.parse(name)
        self.backend.create_topic(TopicInfo(topic, partitions, policies or Policies()), WAIT)
        return topic

    def publish(self, topic: TopicName, partition: int, *values: bytes) -> None:
        """Publish messages as one entry."""
        messages = [Message(value, b"k" + value[:5]) for value in values]
        self.backend.publish(Batch(topic, partition, messages), WAIT)


class Source:
    """Plans and reads batches as Spark has it done, its offsets through JSON."""

    def __init__(self, store: Store, options: SourceOptions) -> None:
        self.options = options
        self.planner = BatchPlanner(options, store.backend)

    def begin(self) -> Offset:
        """Return where a new stream begins."""
        return kept(self.planner.initial())

    def end(self, start: Offset, max_rows: int = 0, target: Offset | None = None) -> Offset:
        """Return where the next batch ends."""
        return kept(self.planner.latest(start, max_rows, target))

    def rows(self, start: Offset, end: Offset) -> list[dict[str, Any]]:
        """Return the rows of a batch, partition by partition."""
        return [
            row
            for batch in batches(self.options, self.planner.ranges(start, end))
            for row in batch.to_pylist()
        ]

    def all(self) -> list[dict[str, Any]]:
        """Return everything there is."""
        start = self.begin()
        return self.rows(start, self.end(start))


def kept(offset: Offset) -> Offset:
    """Return an offset as a checkpoint gives it back."""
    return Offset.of_json(json.loads(json.dumps(offset.json())))


def values(rows: Sequence[dict[str, Any]]) -> list[bytes]:
    """Return the values of rows."""
    return [row["value"] for row in rows]


def fill(store: Store, topic: TopicName, entries: int, size: int = 1, wide: int = 1) -> list[bytes]:
    """Publish entries of so many messages by turns to the partitions; return their values."""
    partitions = store.backend.partitions(topic, WAIT)
    told = []
    for number in range(entries):
        some = [b"%06d.%03d" % (number, place) + b"." * wide for place in range(size)]
        partition = number % partitions if partitions else NOT_PARTITIONED
        store.publish(topic, partition, *some)
        told += some
    return told
