"""What the next batch is: where partitions begin and end, what was lost, and who reads what.

Theory of operation. A batch goes from one offset to the next, both told by the driver before
anything is read. For each partition the driver asks the store what is kept and holds it against
where the stream stands; whatever lies between cannot be read any more and is a loss. Partitions
that were not there before begin with their first message, as do topics that a pattern newly finds.
A bound of rows is shared out by how much each partition has left, one entry at least, so that none
starves (`docs/pipelines.md` says what the bound is); our own broker then tells the entry at which
so many messages end. For Apache Pulsar, which does not count messages, the entries of a share are
reckoned from a sample at its beginning.

The store is asked about all topics at once: a pattern may find thousands. What a question has
answered is not asked again, so a batch takes one, and three where a bound of rows cuts it.

The alternative to the driver's planning, readers that stop when they have enough, has no ends to
write down before a batch is read, and then no batch that can be read again.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from contextlib import closing
from dataclasses import replace
from typing import Final

from router.backends import Backend, NullMailbox
from router.backends.pulsar import PulsarBackend
from router.backends.pulsar.extents import EntryExtent, EntryPosition, EntryRead, ExtentRequests
from router.errors import NotSupportedError, SettingError, TopicNotFoundError
from router.model import Position, TopicName
from router.pipelines.declaration import DEAD_SUFFIX, compiled_pattern
from router.pipelines.source.losses import REWOUND, Loss, suffer
from router.pipelines.source.offsets import (
    EARLIEST,
    LATEST,
    TO_LATEST,
    At,
    Bound,
    MessagePoint,
    Offset,
    Part,
)
from router.pipelines.source.options import SourceOptions, history
from router.pipelines.source.ranges import (
    Range,
    batch_ends,
    bound_end,
    bounded_read,
    cuts,
    divided,
    entries_between,
    entry_at,
    first_row,
    known_index,
    missing,
    planned,
    removed_start,
    share,
    shared_out,
)

TIMEOUT_SECONDS: Final = 60.0
"""Seconds that a question may take, a restart of the broker included."""
SAMPLE_MESSAGES: Final = 1_000
SAMPLE_BYTES: Final = 4 * 1024 * 1024


class BatchPlanner:
    """Plans batches of a source over an open connection; for one caller at a time."""

    def __init__(self, options: SourceOptions, backend: Backend) -> None:
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
            return [self._options.settings.topic(name) for name in self._options.topics]
        listed = self._backend.list_topics(TIMEOUT_SECONDS)
        return [
            one.topic
            for one in listed
            if self._matches(self._options.settings.shortest_name(one.topic))
        ]

    def initial(self) -> Offset:
        """Return where a new stream begins; raise TopicNotFoundError for a topic that is named.

        Spark keeps no first offset: when the first batch is read again, it asks for another one.
        So it says that its places are where a batch `begin`s, and `latest` hands that on. Raises
        MessagesLostError where retention removed the first message that is asked for.
        """
        begins: dict[Part, EntryPosition] = {}
        index: dict[Part, int] = {}
        low: dict[Part, int | MessagePoint] = {}
        losses: list[Loss] = []
        for part, (at, extent) in self._bounded_by(self._options.starting).items():
            begins[part] = extent.start
            if extent.start_index is not None:
                index[part] = extent.start_index
            if (loss := removed_start(part, at, extent)) is not None:
                losses.append(loss)
            if (row := first_row(at, extent)) is not None:
                low[part] = row
        suffer(losses, skip=self._options.skip)
        return Offset(begins, index, begins, low=low)

    def target(self) -> Offset | None:
        """Return where a read that is no stream is to end; None: where everything stored ends."""
        ending = self._options.ending
        if ending == TO_LATEST:
            return None
        found = self._bounded_by(ending)
        return Offset({part: bound_end(at, extent) for part, (at, extent) in found.items()})

    def tasks(self, start: Offset, end: Offset) -> list[tuple[Range, ...]]:
        """Return what each task reads of a batch; raise MessagesLostError."""
        ranges, least = self.ranges(start, end), self._options.min_partitions
        if least > len(ranges):
            total = sum(span.messages for span in ranges)
            ranges = [
                part for span in ranges for part in self._divided(span, cuts(span, total, least))
            ]
        return list(shared_out(ranges, least))

    def _divided(self, span: Range, count: int) -> Iterable[Range]:
        """Return a range cut in so many places: by messages where they are counted, or entries."""
        places: list[tuple[EntryPosition, int | None]] = []
        entries = entries_between(span.ledgers, span.start, span.stop)
        for number in range(1, count + 1):
            if span.index is None:
                found: tuple[EntryPosition, int | None] = (
                    entry_at(span, number * entries // (count + 1)),
                    None,
                )
            else:
                index = span.index + number * span.messages // (count + 1)
                (one,) = self._read_extents(
                    [(span.part, EntryRead(span.part.partition, index=index))]
                ).values()
                found = one.start, one.start_index
            if (places[-1][0] if places else span.start) < found[0] < span.stop:
                places.append(found)
        return divided(span, places)

    def broker(self) -> str:
        """Return what names the broker, for `SourceOptions.broker`."""
        return history(self._backend)

    def ends(self) -> Offset:
        """Return where everything that is stored now ends."""
        found: dict[Part, EntryPosition] = {}
        index: dict[Part, int] = {}
        for part, extent in self._extents().items():
            found[part] = extent.stop
            if extent.stop_index is not None:
                index[part] = extent.stop_index
        return Offset(found, index)

    def latest(self, start: Offset, max_rows: int = 0, target: Offset | None = None) -> Offset:
        """Return the end of the batch that begins at `start`, `start` itself if there is nothing.

        `max_rows` 0: no bound. `target`: nothing beyond it. Raises MessagesLostError.
        """
        extents = self._extents(start)
        begins, losses = self._begins(start, extents, target)
        suffer(losses, skip=self._options.skip)
        ends = batch_ends(begins, extents, target)
        if max_rows:
            ends = self._bounded(begins, ends, extents, start, max_rows)
        if not losses and begins == start.next == ends:
            return start
        unlike = {
            part: place
            for part, place in begins.items()
            if start.next.get(part) != place or start.begin.get(part) == place
        }
        indexes = self._indexes(ends, extents)
        lost = start.lost + sum(1 if one.messages is None else one.messages for one in losses)
        low = start.still_low(begins)
        return Offset(ends, indexes, unlike, lost, start.losses + len(losses), low)

    def ranges(self, start: Offset, end: Offset) -> list[Range]:
        """Return what is to be read of a batch; raise MessagesLostError for what is not there."""
        starts = start.starts(end)
        extents = self._located({TopicName.parse(part.topic): () for part in starts})
        kept: dict[Part, EntryPosition] = {}
        losses: list[Loss] = []
        for part, place in sorted(starts.items()):
            extent, upto = extents.get(part), end.next[part]
            found = missing(part, place, extent, None, upto)
            if found is not None:
                losses.append(found[0])
            elif extent is not None and upto > extent.stop:
                losses.append(Loss(part, extent.stop, upto, REWOUND))
            if extent is not None and max(place, extent.first) < upto:
                kept[part] = max(place, extent.first)
        suffer(losses, skip=self._options.skip)
        indexes = self._indexes(kept, extents, start)
        return list(planned(kept, end, extents, indexes))

    def _extents(self, start: Offset | None = None) -> dict[Part, EntryExtent]:
        """Return what is kept of the partitions to read.

        Raises TopicNotFoundError for a topic that is named, unless `start` knows it.
        """
        topics = self.topics()
        known = set() if start is None else {part.topic for part in start.next}
        found = self._located(dict.fromkeys(topics, ()))
        shown = {Part(part.topic, max(0, part.partition)) for part in found}
        if absent := sorted(self._options.assigned - shown):
            raise TopicNotFoundError(f"{absent[0].topic} has no partition {absent[0].partition}")
        if not self._options.pattern:
            known |= {part.topic for part in found}
            if unknown := [topic for topic in topics if str(topic) not in known]:
                raise TopicNotFoundError(f"there is no topic {unknown[0]}")
        return found

    def _located(self, by_topic: ExtentRequests) -> dict[Part, EntryExtent]:
        """Return the extents of topics, which are all asked about at once."""
        if not by_topic:
            return {}
        assigned = self._options.assigned
        return {
            Part(str(topic), one.partition): one
            for topic, extents in self._backend.extents(by_topic, TIMEOUT_SECONDS).items()
            for one in extents
            if not assigned or Part(str(topic), max(0, one.partition)) in assigned
        }

    def _read_extents(self, requests: Iterable[tuple[Part, EntryRead]]) -> dict[Part, EntryExtent]:
        """Return the extents of these reads, of which a partition has one."""
        by_topic: dict[TopicName, list[EntryRead]] = {}
        parts = set()
        for part, read in requests:
            by_topic.setdefault(TopicName.parse(part.topic), []).append(read)
            parts.add(part)
        return {part: one for part, one in self._located(by_topic).items() if part in parts}

    def _bounded_by(self, bound: Bound) -> dict[Part, tuple[At, EntryExtent]]:
        """Return the bound of each partition, and its extent with the bound as its start."""
        extents = self._extents()
        shown = {Part(part.topic, max(0, part.partition)) for part in extents}
        if unknown := [part for part in bound.offsets if part not in shown]:
            raise SettingError(f"{unknown[0].topic} has no partition {unknown[0].partition} here")
        found: dict[Part, tuple[At, EntryExtent]] = {}
        requests: list[tuple[Part, EntryRead]] = []
        for part, extent in extents.items():
            at = bound.at(part)
            if at == EARLIEST:
                found[part] = at, replace(extent, start_index=extent.first_index)
            elif at == LATEST:
                stop, index = extent.stop, extent.stop_index
                found[part] = at, replace(extent, start=stop, start_index=index)
            else:
                requests.append((part, bounded_read(part, at, extent)))
        located = self._read_extents(requests)
        return found | {part: (bound.at(part), one) for part, one in located.items()}

    def _begins(
        self, start: Offset, extents: Mapping[Part, EntryExtent], target: Offset | None
    ) -> tuple[dict[Part, EntryPosition], list[Loss]]:
        """Return where the batch begins in each partition, and what was lost before that."""
        begins: dict[Part, EntryPosition] = {}
        losses: list[Loss] = []
        for part, place in start.next.items():
            extent = extents.get(part)
            found = missing(part, place, extent, start.index.get(part))
            if found is not None:
                losses.append(found[0])
            if extent is not None:
                begins[part] = place if found is None else found[1]
        for part, extent in extents.items():
            if part in start.next or (target is not None and part not in target.next):
                continue
            begins[part] = EntryPosition(extent.first.ledger, 0) if extent.alone else extent.first
            found = missing(part, begins[part], extent, 0)
            if found is not None:
                losses.append(found[0])
                begins[part] = found[1]
        return begins, losses

    def _bounded(
        self,
        begins: Mapping[Part, EntryPosition],
        ends: Mapping[Part, EntryPosition],
        extents: Mapping[Part, EntryExtent],
        start: Offset,
        max_rows: int,
    ) -> dict[Part, EntryPosition]:
        """Return ends that leave about so many rows: whole entries, one of each partition."""
        busy = {part: begins[part] for part in begins if begins[part] < ends[part]}
        sizes = {part: self._entry_size(part, place, extents[part]) for part, place in busy.items()}
        first = self._indexes(busy, extents, start)
        stop = self._indexes({part: ends[part] for part in busy}, extents)
        left: dict[Part, float] = {}
        for part, size in sizes.items():
            if part in first and part in stop:
                left[part] = stop[part] - first[part]
            else:
                left[part] = size * entries_between(extents[part].ledgers, begins[part], ends[part])
        total = sum(left.values())
        found = dict(ends)
        if total <= max_rows:
            return found
        reads = (
            (
                part,
                EntryRead(part.partition, begins[part], share(max_rows, left[part], total, size)),
            )
            for part, size in sizes.items()
        )
        for part, one in self._read_extents(reads).items():
            found[part] = min(one.end, ends[part])
        return found

    def _entry_size(self, part: Part, begin: EntryPosition, extent: EntryExtent) -> float:
        """Return how many messages an entry has about here; 1 where messages are counted."""
        if extent.alone:
            return 1.0
        from_here = extent.first if begin < extent.first else begin
        topic = TopicName.parse(part.topic)
        place = Position(from_here.ledger, from_here.entry, part.partition)
        with closing(
            self._backend.read(topic, part.partition, place, NullMailbox(), TIMEOUT_SECONDS)
        ) as reader:
            found = reader.receive(SAMPLE_MESSAGES, SAMPLE_BYTES, TIMEOUT_SECONDS)
        entries = {(one.position.ledger, one.position.entry) for one in found}
        return max(1.0, len(found) / max(1, len(entries)))

    def _indexes(
        self,
        places: Mapping[Part, EntryPosition],
        extents: Mapping[Part, EntryExtent],
        known: Offset | None = None,
    ) -> dict[Part, int]:
        """Return how many messages there were before each place, where the store counts them."""
        found: dict[Part, int] = {}
        requests: list[tuple[Part, EntryRead]] = []
        for part, place in places.items():
            extent = extents[part]
            index = known_index(part, place, extent, known)
            if index is not None:
                found[part] = index
            elif extent.alone:
                requests.append((part, EntryRead(part.partition, place, 1)))
        for part, one in self._read_extents(requests).items():
            if one.start == places[part] and one.start_index is not None:
                found[part] = one.start_index
        return found


def matcher(options: SourceOptions) -> Callable[[str], bool]:
    """Return what tells whether a pattern finds a name; raise SettingError for a bad pattern."""
    pattern = options.pattern
    try:
        compiled = compiled_pattern(pattern)
    except ValueError as error:
        raise SettingError(f"pattern = {pattern!r}: {error}") from error

    def matches(name: str) -> bool:
        if compiled.fullmatch(name) is None:
            return False
        topic = name.removesuffix(DEAD_SUFFIX)
        return not options.skip_dead or topic == name or compiled.fullmatch(topic) is None

    return matches
