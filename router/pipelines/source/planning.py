"""What the next batch is: where partitions begin and end, what was lost, and who reads what.

Theory of operation. A batch goes from one offset to the next, both told by the driver before
anything is read. For each partition the driver asks the store what is kept and holds it against
where the stream stands; whatever lies between cannot be read any more and is a loss. Partitions
that were not there before begin with their first message, as do topics that a pattern newly finds.
A bound of rows is shared out by how much each partition has left, one entry at least, so that none
starves; our own broker then tells the entry at which so many messages end. For Apache Pulsar, which
does not count messages, the entries of a share are reckoned from a sample at its beginning.

The alternative to the driver's planning, readers that stop when they have enough, has no ends to
write down before a batch is read, and then no batch that can be read again.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import closing
from dataclasses import dataclass
from typing import Final

import re2

from router.backends import Backend
from router.backends.pulsar import PulsarBackend
from router.backends.pulsar.extents import Extent, Place, Stretch
from router.errors import NotSupportedError, SettingError, TopicNotFoundError
from router.model import Position, TopicName
from router.pipelines.declaration import DEAD_SUFFIX
from router.pipelines.source.losses import Loss, suffer
from router.pipelines.source.offsets import Offset, Part
from router.pipelines.source.options import Options

PATIENCE: Final = 60.0
"""Seconds that a question may take, a restart of the broker included."""
SAMPLE: Final = 1_000
SAMPLE_BYTES: Final = 4 * 1024 * 1024
RETENTION: Final = "retention removed them"
RECREATED: Final = "the topic was deleted and created again"
DELETED: Final = "the topic was deleted, or the source names it no more"
REWOUND: Final = "the partition ends before the place that was read already"


@dataclass(frozen=True, slots=True)
class Range:
    """Entries of one partition that one task reads: from `start` up to and with `last`.

    `behind` is the place where the batch ends. `index` is the number of the first message, where
    the store counts them. `ledgers` are those between, each with its number of entries; `alone`:
    there is one, and it has no gaps.
    """

    part: Part
    start: Place
    last: Place
    behind: Place
    ledgers: tuple[tuple[int, int], ...]
    alone: bool
    index: int | None


class Deaf:
    """A mailbox of nobody: a sample waits for no news."""

    def wake(self) -> None:
        """Wake nobody."""


class Planner:
    """Plans batches of a source over an open connection; for one caller at a time."""

    def __init__(self, options: Options, backend: Backend) -> None:
        if not isinstance(backend, PulsarBackend):
            raise NotSupportedError(
                "the data source `router` reads the embedded broker and Pulsar alone"
            )
        self._options = options
        self._backend = backend
        self._matches = matcher(options)

    def topics(self) -> list[TopicName]:
        """Return the topics to read now: those that are named, or whose names match."""
        if not self._options.pattern:
            return [self._options.topic_named(name) for name in self._options.topics]
        listed = self._backend.list_topics(PATIENCE)
        return [one.topic for one in listed if self._matches(self._options.shown(one.topic))]

    def initial(self) -> Offset:
        """Return where a new stream begins; raise TopicNotFoundError for a topic that is named.

        Spark keeps no first offset: when the first batch is read again, it asks for another one.
        So it says that its places are where a batch `begin`s, and `latest` hands that on.
        """
        begins: dict[Part, Place] = {}
        index: dict[Part, int] = {}
        for topic in self.topics():
            starts = [
                Stretch(one.partition, self._begin(topic, one))
                for one in self._backend.extents(topic, (), PATIENCE)
            ]
            for one in self._backend.extents(topic, starts, PATIENCE):
                part = Part(str(topic), one.partition)
                begins[part] = one.start
                if one.start_index is not None:
                    index[part] = one.start_index
        return Offset(begins, index, begins)

    def ends(self) -> Offset:
        """Return where everything that is stored now ends."""
        found: dict[Part, Place] = {}
        index: dict[Part, int] = {}
        for part, extent in self._extents().items():
            found[part] = extent.behind
            if extent.behind_index is not None:
                index[part] = extent.behind_index
        return Offset(found, index)

    def latest(self, start: Offset, max_rows: int = 0, target: Offset | None = None) -> Offset:
        """Return the end of the batch that begins at `start`, `start` itself if there is nothing.

        `max_rows` 0: no bound. `target`: nothing beyond it. Raises MessagesLostError.
        """
        extents = self._extents(start)
        begins, losses = self._begins(start, extents, target)
        suffer(losses, skip=self._options.skip)
        ends = _ends(begins, extents, target)
        if max_rows:
            ends = self._bounded(begins, ends, extents, max_rows)
        if not losses and begins == start.next == ends:
            return start
        unlike = {
            part: place
            for part, place in begins.items()
            if start.next.get(part) != place or start.begin.get(part) == place
        }
        indexes = self._indexes(ends, extents)
        lost = start.lost + sum(1 if one.messages is None else one.messages for one in losses)
        return Offset(ends, indexes, unlike, lost, start.losses + len(losses))

    def ranges(self, start: Offset, end: Offset) -> list[Range]:
        """Return what is to be read of a batch; raise MessagesLostError for what is not there."""
        starts = start.starts(end)
        extents = self._extents(Offset(starts)) if starts else {}
        found: list[Range] = []
        for topic in sorted({part.topic for part in starts}):
            mine = {part: place for part, place in starts.items() if part.topic == topic}
            found += self._ranges(mine, end, extents)
        return found

    def _ranges(
        self, starts: Mapping[Part, Place], end: Offset, extents: Mapping[Part, Extent]
    ) -> Iterator[Range]:
        kept: dict[Part, Place] = {}
        losses: list[Loss] = []
        for part, place in starts.items():
            extent, upto = extents.get(part), end.next[part]
            found = _missing(part, place, extent, None, upto)
            if found is not None:
                losses.append(found[0])
            elif extent is not None and upto > extent.behind:
                losses.append(Loss(part, extent.behind, upto, REWOUND))
            if extent is not None and max(place, extent.first) < upto:
                kept[part] = max(place, extent.first)
        suffer(losses, skip=self._options.skip)
        indexes = self._indexes(kept, extents)
        for part, place in kept.items():
            extent, behind = extents[part], min(end.next[part], extents[part].behind)
            last = extent.last(behind)
            if last is not None and last >= place:
                held = tuple(one for one in extent.ledgers if place.ledger <= one[0] <= last.ledger)
                index = indexes.get(part)
                yield Range(part, place, last, behind, held, extent.alone, index)

    def _extents(self, start: Offset | None = None) -> dict[Part, Extent]:
        """Return what is kept of the partitions to read; a topic of `start` may be gone."""
        known = set() if start is None else {part.topic for part in start.next}
        found: dict[Part, Extent] = {}
        for topic in self.topics():
            try:
                extents = self._backend.extents(topic, (), PATIENCE)
            except TopicNotFoundError:
                if str(topic) not in known:
                    raise
                continue
            found |= {Part(str(topic), one.partition): one for one in extents}
        return found

    def _begin(self, topic: TopicName, extent: Extent) -> Place:
        """Return where a new stream begins in a partition."""
        starting = self._options.starting
        if starting == "earliest":
            return extent.first
        if starting == "latest":
            return extent.behind
        with closing(
            self._backend.read(topic, extent.partition, int(starting), Deaf(), PATIENCE)
        ) as reader:
            found = reader.receive(1, 1, PATIENCE)
        return _entry(found[0].position) if found else extent.behind

    def _begins(
        self, start: Offset, extents: Mapping[Part, Extent], target: Offset | None
    ) -> tuple[dict[Part, Place], list[Loss]]:
        """Return where the batch begins in each partition, and what was lost before that."""
        begins: dict[Part, Place] = {}
        losses: list[Loss] = []
        for part, place in start.next.items():
            extent = extents.get(part)
            found = _missing(part, place, extent, start.index.get(part))
            if found is not None:
                losses.append(found[0])
            if extent is not None:
                begins[part] = place if found is None else found[1]
        for part, extent in extents.items():
            if part in start.next or (target is not None and part not in target.next):
                continue
            begins[part] = Place(extent.first.ledger, 0) if extent.alone else extent.first
            found = _missing(part, begins[part], extent, 0)
            if found is not None:
                losses.append(found[0])
                begins[part] = found[1]
        return begins, losses

    def _bounded(
        self,
        begins: Mapping[Part, Place],
        ends: Mapping[Part, Place],
        extents: Mapping[Part, Extent],
        max_rows: int,
    ) -> dict[Part, Place]:
        """Return ends that leave no more than so many rows, but one entry of each partition."""
        busy = [part for part in begins if begins[part] < ends[part]]
        sizes = {part: self._entry_size(part, begins[part], extents[part]) for part in busy}
        left = self._left(busy, begins, ends, extents, sizes)
        total = sum(left.values())
        found = dict(ends)
        if total <= max_rows:
            return found
        for topic in sorted({part.topic for part in busy}):
            stretches = [
                Stretch(
                    part.partition,
                    begins[part],
                    max(1, int(max_rows * left[part] / total / sizes[part])),
                )
                for part in busy
                if part.topic == topic
            ]
            asked = {stretch.partition for stretch in stretches}
            for one in self._backend.extents(TopicName.parse(topic), stretches, PATIENCE):
                if one.partition in asked:
                    part = Part(topic, one.partition)
                    found[part] = min(one.end, ends[part])
        return found

    def _left(
        self,
        busy: list[Part],
        begins: Mapping[Part, Place],
        ends: Mapping[Part, Place],
        extents: Mapping[Part, Extent],
        sizes: Mapping[Part, float],
    ) -> dict[Part, float]:
        """Return about how many messages each partition has left."""
        first = self._indexes({part: begins[part] for part in busy}, extents)
        behind = self._indexes({part: ends[part] for part in busy}, extents)
        found = {}
        for part in busy:
            if part in first and part in behind:
                found[part] = float(behind[part] - first[part])
            else:
                entries = _entries(extents[part].ledgers, begins[part], ends[part])
                found[part] = entries * sizes[part]
        return found

    def _entry_size(self, part: Part, begin: Place, extent: Extent) -> float:
        """Return how many messages an entry has about here; 1 where messages are counted."""
        if extent.alone:
            return 1.0
        from_here = extent.first if begin < extent.first else begin
        topic = TopicName.parse(part.topic)
        place = Position(from_here.ledger, from_here.entry, part.partition)
        with closing(self._backend.read(topic, part.partition, place, Deaf(), PATIENCE)) as reader:
            found = reader.receive(SAMPLE, SAMPLE_BYTES, PATIENCE)
        entries = {_entry(one.position) for one in found}
        return max(1.0, len(found) / max(1, len(entries)))

    def _indexes(
        self, places: Mapping[Part, Place], extents: Mapping[Part, Extent]
    ) -> dict[Part, int]:
        """Return how many messages there were before each place, where the store counts them."""
        found = {}
        for topic in sorted({part.topic for part in places if extents[part].alone}):
            stretches = [
                Stretch(part.partition, place, 1)
                for part, place in places.items()
                if part.topic == topic
            ]
            for one in self._backend.extents(TopicName.parse(topic), stretches, PATIENCE):
                part = Part(topic, one.partition)
                if part in places and one.start == places[part] and one.start_index is not None:
                    found[part] = one.start_index
        return found


def _missing(
    part: Part,
    place: Place,
    extent: Extent | None,
    index: int | None,
    end: Place | None = None,
) -> tuple[Loss, Place] | None:
    """Return what cannot be read from a place on, and where to go on; None: all is there.

    `index` counts the messages before the place, if that is known. `end` bounds what was wanted.
    """
    if extent is None:
        return Loss(part, place, end, DELETED), place
    first = extent.first
    upto = first if end is None else min(first, end)
    if extent.alone and place.ledger != first.ledger:
        return Loss(part, place, upto, RECREATED), first
    if place > extent.behind:
        return Loss(part, extent.behind, place, REWOUND), extent.behind
    if extent.alone and place < first:
        counted = extent.first_index is not None and index is not None and upto == first
        messages = (extent.first_index or 0) - (index or 0) if counted else None
        return Loss(part, place, upto, RETENTION, messages), first
    # Of Apache Pulsar's ledgers it is known that one is gone, not whether all of it was read.
    if not extent.alone and place.ledger not in dict(extent.ledgers):
        return Loss(part, place, upto, RETENTION), max(place, first)
    return None


def _ends(
    begins: Mapping[Part, Place], extents: Mapping[Part, Extent], target: Offset | None
) -> dict[Part, Place]:
    """Return where a batch ends that takes everything there is, up to the target."""
    ends = {}
    for part, begin in begins.items():
        behind = extents[part].behind
        if target is not None:
            behind = min(behind, target.next.get(part, begin))
        ends[part] = max(begin, behind)
    return ends


def _entries(ledgers: tuple[tuple[int, int], ...], start: Place, end: Place) -> int:
    """Return how many entries lie between two places."""
    total = 0
    for ledger, entries in ledgers:
        first = start.entry if ledger == start.ledger else 0
        behind = end.entry if ledger == end.ledger else entries
        if start.ledger <= ledger <= end.ledger:
            total += max(0, behind - first)
    return total


def _entry(position: Position) -> Place:
    return Place(position.ledger, position.entry)


def matcher(options: Options) -> Callable[[str], bool]:
    """Return what tells whether a pattern finds a name; raise SettingError for a bad pattern."""
    pattern = options.pattern
    try:
        compiled = re2.compile(pattern)
    except re2.error as error:
        raise SettingError(f"pattern = {pattern!r}: {error}") from error

    def matches(name: str) -> bool:
        if compiled.fullmatch(name) is None:
            return False
        topic = name.removesuffix(DEAD_SUFFIX)
        return not options.skip_dead or topic == name or compiled.fullmatch(topic) is None

    return matches
