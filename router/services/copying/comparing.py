"""Comparing the batches of one partition with what source and target hold now.

Both stores are read by ranges of batches, forwards, and each message is held against the place
that the state says. A message that the source holds and the target does not is a difference:
whether it was never copied, is new at the source, or was deleted at the target. What both stores
deleted before their first message is none: retention goes on. What the target holds besides is
counted, and named where it is a batch that is stored twice.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, field
from itertools import islice
from typing import Final

from router.backends import Backend, NullMailbox, Reader, Start
from router.model import Message, Position, Stored, TopicName
from router.services.copying.fidelity import StoreKind, checksum, held
from router.services.copying.places import Key, key_of
from router.services.copying.state import CopiedBatch

READ_MESSAGES: Final = 5_000
MAX_COUNTED: Final = 100_000
"""Messages that were not copied are counted up to this number, at each end of a partition."""
READ_BYTES: Final = 4 * 1024 * 1024
EMPTY_READS: Final = 3
"""Answers without messages after which a partition has no more."""

AFTER_ALL: Final[Key] = (1 << 62, 0, 0)
BEFORE_ALL: Final[Key] = (-1, -1, -1)


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

    def reader(self, start: Start | int | Position) -> Reader:
        """Open a reader; raise what `Backend.read` raises."""
        return self.backend.read(self.topic, self.number, start, NullMailbox(), self.timeout)

    def first(self) -> Key | None:
        """Return where the first message is that is kept, None: there is none."""
        with closing(self.reader(Start.EARLIEST)) as reader:
            for _ in range(EMPTY_READS):
                if found := reader.receive(1, 1, self.timeout):
                    return key_of(found[0].position)
        return None


class ComparedMessages:
    """The messages of a partition from a place on; closes its reader at the end."""

    def __init__(self, end: PartitionEnd, start: Start | int | Position) -> None:
        if isinstance(start, Position):
            start = Position(start.ledger, start.entry, end.number)
        self._reader = end.reader(start)
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
    """What was found of one partition; numbers are of messages, None: unknown.

    `copied` are those of the state, `compared` those that were read at the target. `lacking` are
    those that the source holds from the begin of the copy on and the target does not, as far as
    batches were compared, up to MAX_COUNTED at each end. The others are known where all batches are
    compared: `gone` are those of the state that the source deleted since, `expired` those that the
    target did, `others` those that the target holds besides.
    """

    topic: str
    target: str
    partition: int
    batches: int = 0
    copied: int = 0
    compared: int = 0
    lacking: int = 0
    gone: int | None = None
    expired: int | None = None
    others: int | None = None


@dataclass(eq=False)
class Comparison:
    """Compares batches of one partition; `differ` takes each difference.

    `since`: the source is compared from there on.
    """

    _source: PartitionEnd
    _target: PartitionEnd
    _found: PartitionComparison
    _differ: Callable[[Difference], None]
    _since: Start | int = Start.EARLIEST
    gone: int = field(default=0, init=False)
    expired: int = field(default=0, init=False)
    others: int = field(default=0, init=False)

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
        there = ComparedMessages(self._target, start)
        here = ComparedMessages(self._source, begin.first() if previous is None else begin.last())
        with closing(there), closing(here):
            for batch in batches:
                missing = self._at_target(batch, previous, there)
                held = self._at_source(batch, previous, here)
                if missing:
                    self._miss(batch, missing, held)
                previous = batch
                progress(batch.count)

    def compare_ends(self, first: CopiedBatch | None, last: CopiedBatch | None) -> None:
        """Name messages of the source before the first batch and behind the last one."""
        if first is None or last is None:
            if more := counted(self._source, self._since):
                self._lack(more, "the source holds {}, and none is copied")
            return
        begin, at = key_of(first.first()), last.last()
        if more := counted(self._source, self._since, upto=begin):
            self._lack(more, "the source holds {} before the first that was copied")
        if more := counted(self._source, at, after=key_of(at)):
            self._lack(more, "the source holds {} behind the last that was copied")

    def count_others(self, first: CopiedBatch | None, last: CopiedBatch | None) -> None:
        """Count the messages of the target before the first batch and behind the last one."""
        if first is None or last is None:
            self.others += counted(self._target, Start.EARLIEST)
            return
        begin, at = min(first.targets(), key=key_of), max(last.targets(), key=key_of)
        self.others += counted(self._target, Start.EARLIEST, upto=key_of(begin))
        self.others += counted(self._target, at, after=key_of(at))

    def _lack(self, count: int, sentence: str) -> None:
        self._found.lacking += count
        least = "at least " if count == MAX_COUNTED else ""
        what = sentence.format(f"{least}{count:,} message{'s' * (count != 1)}")
        self._differ(Difference(self._found.topic, self._found.partition, -1, "", what))

    def _at_target(
        self, batch: CopiedBatch, previous: CopiedBatch | None, there: ComparedMessages
    ) -> set[int]:
        """Return which messages of a batch the target has not, by number."""
        numbers = {key_of(position): n for n, position in enumerate(batch.targets())}
        before = min(numbers) if previous is None else max(map(key_of, previous.targets()))
        found, others = _parted(there, numbers, before)
        self._found.compared += len(found)
        self.others += len(others)
        if previous is not None and len(others) == previous.count:
            self._check_twice(others, previous)
        if len(found) == batch.count and checksum(found.values()) != batch.checksum:
            self._report_difference(batch, "the target holds other messages than were copied")
        return set(numbers.values()) - found.keys()

    def _check_twice(self, others: list[Message], previous: CopiedBatch) -> None:
        if checksum(others) == previous.checksum:
            self._report_difference(previous, f"{previous.count} messages are at the target twice")

    def _miss(self, batch: CopiedBatch, missing: set[int], held: set[int]) -> None:
        """Name messages that the target has not, but those that both stores deleted in time."""
        kept_from = self._target.first()
        expired = kept_from is None or min(map(key_of, batch.targets())) < kept_from
        self._found.lacking += len(missing & held)
        if expired:
            self.expired += len(missing)
            missing &= held
        if missing:
            why = ": it deleted them, and the source holds them" if expired else ""
            self._report_difference(
                batch, f"{len(missing)} of {batch.count} messages are not at the target{why}"
            )

    def _at_source(
        self, batch: CopiedBatch, previous: CopiedBatch | None, here: ComparedMessages
    ) -> set[int]:
        """Return which messages of a batch the source holds, by number."""
        numbers = {key_of(position): n for n, position in enumerate(batch.sources())}
        before = min(numbers) if previous is None else key_of(previous.last())
        found, left_out = _parted(here, numbers, before)
        if left_out:
            self._found.lacking += len(left_out)
            self._report_difference(
                batch, f"{len(left_out)} messages of the source before it are not copied"
            )
        messages = found.values()
        if len(found) < batch.count:
            self.gone += batch.count - len(found)
        # A target of Kafka's holds no times of delivery.
        elif batch.checksum not in {
            checksum(messages),
            checksum(held(m, StoreKind.KAFKA) for m in messages),
        }:
            self._report_difference(batch, "the source holds other messages than were copied")
        return set(found)

    def _report_difference(self, batch: CopiedBatch, what: str) -> None:
        first = batch.first()
        place = f"{batch.count} messages from {first.ledger}:{first.entry} on"
        self._differ(
            Difference(self._found.topic, self._found.partition, batch.sequence, place, what)
        )


def counted(
    end: PartitionEnd,
    start: Start | int | Position,
    *,
    after: Key = BEFORE_ALL,
    upto: Key = AFTER_ALL,
) -> int:
    """Return how many messages a partition has from a start on, between two places, ends excluded.

    At most MAX_COUNTED.
    """
    with closing(ComparedMessages(end, start)) as compared:
        keys = (key_of(one.position) for one in compared.upto(upto))
        return sum(1 for _ in islice((key for key in keys if after < key < upto), MAX_COUNTED))


def _parted(
    compared: ComparedMessages, numbers: Mapping[Key, int], before: Key
) -> tuple[dict[int, Message], list[Message]]:
    """Return the messages at these places, and the others behind a place and up to the last one."""
    found: dict[int, Message] = {}
    others: list[Message] = []
    for one in compared.upto(max(numbers)):
        key = key_of(one.position)
        if (number := numbers.get(key)) is not None:
            found[number] = one.message
        elif key > before:
            others.append(one.message)
    return found, others
