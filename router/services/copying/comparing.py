"""Comparing the batches of one partition with what source and target hold now.

Both stores are read by stretches of batches, forwards, and each message is held against the place
that the state says. What a store deleted before its first message is not a difference: retention
goes on. What lies between copied messages at the target and is none of them is counted, and named
where it is a batch that is stored twice.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass
from itertools import islice
from typing import Final

from router.backends import Backend, NullMailbox, Reader, Start
from router.model import Message, Position, Stored, TopicName
from router.services.copying.fidelity import Kind, checksum, held
from router.services.copying.places import Key, key_of
from router.services.copying.state import CopiedBatch

READ_MESSAGES: Final = 5_000
MAX_BEHIND: Final = 100_000
READ_BYTES: Final = 4 * 1024 * 1024
EMPTY_READS: Final = 3
"""Answers without messages after which a partition has no more."""

BEHIND_ALL: Final[Key] = (1 << 62, 0, 0)


@dataclass(frozen=True, slots=True)
class Difference:
    """What is not as it should be: which batch of which partition, where at the source, and what.

    `topic` is the source's name. A difference of a group has no batch: `sequence` is -1.
    """

    topic: str
    partition: int
    sequence: int
    place: str
    what: str

    def sentence(self) -> str:
        """Return it for people."""
        where = f"topic {self.topic}, partition {max(0, self.partition)}"
        return f"{where}, {self.place}: {self.what}" if self.place else f"{where}: {self.what}"


@dataclass(frozen=True, slots=True)
class PartitionEnd:
    """A partition at the source or at the target; `timeout` bounds each request."""

    backend: Backend
    topic: TopicName
    number: int
    timeout: float

    def reader(self, start: Start | Position) -> Reader:
        """Open a reader; raise what `Backend.read` raises."""
        return self.backend.read(self.topic, self.number, start, NullMailbox(), self.timeout)

    def first(self) -> Key | None:
        """Return where the first message is that is kept, None: there is none."""
        with closing(self.reader(Start.EARLIEST)) as reader:
            for _ in range(EMPTY_READS):
                if found := reader.receive(1, 1, self.timeout):
                    return key_of(found[0].position)
        return None


class Stretch:
    """The messages of a partition from a place on; closes its reader at the end."""

    def __init__(self, end: PartitionEnd, start: Position) -> None:
        self._reader = end.reader(Position(start.ledger, start.entry, end.number))
        self._timeout = end.timeout
        self._left: deque[Stored] = deque()

    def upto(self, last: Key) -> Iterator[Stored]:
        """Yield what comes next up to a place."""
        while self._left or self._receive():
            while self._left:
                if key_of(self._left[0].position) > last:
                    return
                yield self._left.popleft()

    def _receive(self) -> bool:
        for _ in range(EMPTY_READS):
            if some := self._reader.receive(READ_MESSAGES, READ_BYTES, self._timeout):
                self._left.extend(some)
                return True
        return False

    def close(self) -> None:
        """Let go of the reader."""
        self._reader.close()


@dataclass(slots=True)
class PartitionComparison:
    """What was found of one partition; numbers are of messages.

    `copied` are those of the state, `compared` those that were read at the target. `gone` are those
    of the state that the source deleted since, `expired` those that the target did. `others` lie
    at the target between copied ones, `behind` at the source behind the last copied one: both are
    known where all batches are compared.
    """

    topic: str
    target: str
    partition: int
    batches: int = 0
    copied: int = 0
    compared: int = 0
    gone: int = 0
    expired: int = 0
    others: int = 0
    behind: int = 0


class Comparison:
    """Compares batches of one partition; `differ` takes each difference."""

    def __init__(
        self,
        source: PartitionEnd,
        target: PartitionEnd,
        found: PartitionComparison,
        differ: Callable[[Difference], None],
    ) -> None:
        self._source = source
        self._target = target
        self._found = found
        self._differ = differ

    def compare(
        self,
        batches: Sequence[CopiedBatch],
        progress: Callable[[int], None],
        previous: CopiedBatch | None = None,
    ) -> None:
        """Compare batches that follow one another, and `previous`, which was compared already."""
        if not batches:
            return
        begin = batches[0] if previous is None else previous
        places = list(begin.targets())
        start = places[0 if previous is None else -1]
        there = Stretch(self._target, start)
        here = Stretch(self._source, begin.first() if previous is None else begin.last())
        with closing(there), closing(here):
            for batch in batches:
                self._at_target(batch, previous, there)
                self._at_source(batch, previous, here)
                previous = batch
                progress(batch.count)

    def behind(self, last: CopiedBatch) -> int:
        """Return how many messages the source has behind a batch, at most MAX_BEHIND."""
        end = key_of(last.last())
        with closing(Stretch(self._source, last.last())) as stretch:
            later = (one for one in stretch.upto(BEHIND_ALL) if key_of(one.position) > end)
            return sum(1 for _ in islice(later, MAX_BEHIND))

    def _at_target(self, batch: CopiedBatch, previous: CopiedBatch | None, there: Stretch) -> None:
        wanted = {key_of(position) for position in batch.targets()}
        begin = min(wanted)
        before = begin if previous is None else max(map(key_of, previous.targets()))
        found, others = _parted(there, wanted, before)
        self._found.compared += len(found)
        self._found.others += len(others)
        if previous is not None and len(others) == previous.count:
            self._check_twice(others, previous)
        if len(found) < batch.count:
            self._check_missing(batch, batch.count - len(found), begin)
        elif checksum(found) != batch.checksum:
            self._say(batch, "the target holds other messages than were copied")

    def _check_twice(self, others: list[Message], previous: CopiedBatch) -> None:
        if checksum(others) == previous.checksum:
            self._say(previous, f"{previous.count} messages are at the target twice")

    def _check_missing(self, batch: CopiedBatch, missing: int, begin: Key) -> None:
        """Name messages that the target has not, unless it has none so old any more."""
        kept_from = self._target.first()
        if kept_from is None or begin < kept_from:
            self._found.expired += missing
        else:
            self._say(batch, f"{missing} of {batch.count} messages are not at the target")

    def _at_source(self, batch: CopiedBatch, previous: CopiedBatch | None, here: Stretch) -> None:
        wanted = {key_of(position) for position in batch.sources()}
        before = min(wanted) if previous is None else key_of(previous.last())
        found, left_out = _parted(here, wanted, before)
        if left_out:
            self._say(batch, f"{len(left_out)} messages of the source before it are not copied")
        if len(found) < batch.count:
            self._found.gone += batch.count - len(found)
        # A target of Kafka's holds no times of delivery.
        elif batch.checksum not in {checksum(found), checksum(held(m, Kind.KAFKA) for m in found)}:
            self._say(batch, "the source holds other messages than were copied")

    def _say(self, batch: CopiedBatch, what: str) -> None:
        first = batch.first()
        place = f"{batch.count} messages from {first.ledger}:{first.entry} on"
        self._differ(
            Difference(self._found.topic, self._found.partition, batch.sequence, place, what)
        )


def _parted(stretch: Stretch, wanted: set[Key], before: Key) -> tuple[list[Message], list[Message]]:
    """Return the messages at these places, and the others behind a place and up to the last one."""
    found: list[Message] = []
    others: list[Message] = []
    for one in stretch.upto(max(wanted)):
        key = key_of(one.position)
        if key in wanted:
            found.append(one.message)
        elif key > before:
            others.append(one.message)
    return found, others
