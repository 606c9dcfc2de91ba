"""What a copy remembers of a topic and of a batch of messages."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from router.backends import Receipt
from router.model import Position, TopicName
from router.services.copying.places import Run, end_key_of


@dataclass(frozen=True, slots=True)
class CopiedTopic:
    """A topic of the copy; `partitions` are those of the source, 0: not partitioned.

    `done`: the target's topic was made or accepted, so that messages may be copied.
    """

    source: TopicName
    target: TopicName
    partitions: int
    done: bool = False


@dataclass(frozen=True, slots=True)
class CopiedBatch:
    """A batch: where its messages were read (`runs`), how many they are and their checksum.

    `size` is the bytes of its messages; `receipt` is where the target stores them, None: it is in
    flight, and the target may have it or not.
    """

    partition: int
    sequence: int
    runs: tuple[Run, ...]
    count: int
    size: int
    checksum: bytes
    started_ms: int
    receipt: Receipt | None = None

    def sources(self) -> Iterator[Position]:
        """Yield where its messages were read, in order."""
        for run in self.runs:
            yield from run.positions(self.partition)

    def first(self) -> Position:
        """Return where its first message was read."""
        return next(self.runs[0].positions(self.partition))

    def last(self) -> Position:
        """Return where its last message was read."""
        ledger, entry, entries, begin, messages, size = self.runs[-1]
        index = begin + messages - 1 if begin >= 0 else -1
        return Position(ledger, entry + entries - 1, self.partition, index, size)

    def upto(self, position: Position) -> int:
        """Return how many of its messages lie at a source position or before it.

        A position without an index in its batch is the whole batch.
        """
        key = end_key_of(position)
        return sum(run.upto(key) for run in self.runs)

    def targets(self) -> Iterator[Position]:
        """Yield where its messages are stored, in the order of `sources`; none while in flight."""
        if self.receipt is not None:
            yield from map(self.receipt.at, range(self.count))
