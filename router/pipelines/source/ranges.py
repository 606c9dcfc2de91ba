"""What tasks of Spark read: ranges of entries, what of them is missing, where they end.

A task costs tenths of a second, whatever it reads, so a range of its own for each of a thousand
small topics takes minutes. The ranges of a batch are put together in their order up to a share of
the batch. A range is divided only where a number of tasks is asked for: the messages of a partition
are in order within a task.

All of it is pure functions of what the store has answered; `planning` asks it.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Final

from router.backends.pulsar.extents import EntryExtent, EntryPosition, EntryRead
from router.errors import SettingError
from router.pipelines.source.losses import DAMAGED, DELETED, RECREATED, RETENTION, REWOUND, Loss
from router.pipelines.source.offsets import At, MessagePoint, Offset, Part, RowKey

MAX_SHARED_TASKS: Final = 64
"""About as many tasks as ranges are put together in, where each of them is small."""
MIN_TASK_MESSAGES: Final = 10_000
MIN_TASK_BYTES: Final = 4 * 1024 * 1024
"""What a task reads at least before the next one begins, in messages or in bytes."""
RANGE_MESSAGES: Final = 30
"""What a range counts as besides its messages: a reader is opened for it."""


@dataclass(frozen=True, slots=True)
class Range:
    """Entries of one partition: from `start` up to and with `last`.

    `stop` is the place where the batch ends. `index` is the number of the first message, where
    the store counts them. `ledgers` are those between, each with its number of entries; `alone`:
    there is one, and it has no gaps. `messages` and `size`, in bytes, are estimates. `low`: rows
    before it are not wanted.
    """

    part: Part
    start: EntryPosition
    last: EntryPosition
    stop: EntryPosition
    ledgers: tuple[tuple[int, int], ...]
    alone: bool
    index: int | None
    messages: int = 0
    size: int = 0
    low: RowKey = None


@dataclass(frozen=True, slots=True)
class MissingEntries:
    """Entries that did not come: from `start` to before `end`.

    The indexes are those of the first messages at both places, where they are known.
    """

    start: EntryPosition
    end: EntryPosition
    start_index: int | None
    end_index: int | None


def gap_losses(part: Part, gap: MissingEntries, extent: EntryExtent) -> Iterator[Loss]:
    """Yield what of a gap is lost; all else of it was deleted."""
    start, end = gap.start, gap.end
    if start.ledger != extent.first.ledger:
        yield Loss(part, start, end, RECREATED)
        return
    known = gap.start_index is not None and gap.end_index is not None
    messages = (gap.end_index or 0) - (gap.start_index or 0) if known else None
    lost = [(start, extent.removed, RETENTION), *((*one, DAMAGED) for one in extent.given_up)]
    for begin, finish, why in lost:
        first, stop = max(begin, start), min(finish, end)
        if first < stop:
            whole = (first, stop) == (start, end)
            yield Loss(part, first, stop, why, messages if whole else None)


def cuts(span: Range, total: int, tasks: int) -> int:
    """Return in how many places to cut a range, for so many tasks of `total` messages."""
    pieces = round(span.messages * tasks / max(1, total))
    entries = entries_between(span.ledgers, span.start, span.stop)
    return max(0, min(pieces, entries) - 1)


def divided(span: Range, places: Iterable[tuple[EntryPosition, int | None]]) -> Iterator[Range]:
    """Yield the parts of a range between places, which are in order and have a message's number."""
    ends = [*places, (span.stop, None)]
    share_size, begin, index = span.size // len(ends), span.start, span.index
    for end, number in ends:
        counted = 0 if number is None or index is None else number - index
        yield replace(
            span,
            start=begin,
            last=_before(span, end),
            stop=end,
            index=index,
            messages=counted or span.messages // len(ends),
            size=share_size,
        )
        begin, index = end, number


def entry_at(span: Range, number: int) -> EntryPosition:
    """Return the place of an entry of a range by its number in the range."""
    for ledger, entries in span.ledgers:
        first = span.start.entry if ledger == span.start.ledger else 0
        if number < entries - first:
            return EntryPosition(ledger, first + number)
        number -= entries - first
    return span.stop


def _before(span: Range, end: EntryPosition) -> EntryPosition:
    """Return the last entry of a range before a place."""
    if end == span.stop:
        return span.last
    return entry_at(span, entries_between(span.ledgers, span.start, end) - 1)


def shared_out(ranges: Iterable[Range], tasks: int = 0) -> Iterator[tuple[Range, ...]]:
    """Yield the ranges of each task, all in their order; at least about so many tasks."""
    ranges = list(ranges)
    messages = sum(r.messages + RANGE_MESSAGES for r in ranges)
    size = sum(r.size for r in ranges)
    max_messages = max(MIN_TASK_MESSAGES, messages // MAX_SHARED_TASKS)
    max_bytes = max(MIN_TASK_BYTES, size // MAX_SHARED_TASKS)
    if tasks:
        max_messages = min(max_messages, messages // tasks)
    task: list[Range] = []
    messages = size = 0
    for one in ranges:
        more = one.messages + RANGE_MESSAGES
        full = messages + more > max_messages or size + one.size > max_bytes
        if task and full:
            yield tuple(task)
            task, messages, size = [], 0, 0
        task.append(one)
        messages += more
        size += one.size
    if task:
        yield tuple(task)


def planned(
    kept: Mapping[Part, EntryPosition],
    end: Offset,
    extents: Mapping[Part, EntryExtent],
    indexes: Mapping[Part, int],
) -> Iterator[Range]:
    """Yield the range of each partition from a place to the end of the batch.

    `indexes` are the numbers of the first messages, where they are known.
    """
    for part, place in kept.items():
        extent, index = extents[part], indexes.get(part)
        stop = min(end.next[part], extent.stop)
        last = extent.last(stop)
        if last is None or last < place:
            continue
        held = tuple(one for one in extent.ledgers if place.ledger <= one[0] <= last.ledger)
        entries = entries_between(extent.ledgers, place, stop)
        upto = end.index.get(part)
        messages = entries if index is None or upto is None else upto - index
        size = (
            extent.size
            * entries
            // max(1, entries_between(extent.ledgers, extent.first, extent.stop))
        )
        low = end.low.get(part)
        yield Range(part, place, last, stop, held, extent.alone, index, messages, size, low)


def missing(
    part: Part,
    place: EntryPosition,
    extent: EntryExtent | None,
    index: int | None,
    end: EntryPosition | None = None,
) -> tuple[Loss, EntryPosition] | None:
    """Return what cannot be read from a place on, and where to go on; None: all is there.

    `index` counts the messages before the place, if that is known. `end` bounds what was wanted.
    """
    if extent is None:
        return Loss(part, place, end, DELETED), place
    first = extent.first
    upto = first if end is None else min(first, end)
    if extent.alone and place.ledger != first.ledger:
        return Loss(part, place, upto, RECREATED), first
    if place > extent.stop:
        return Loss(part, extent.stop, place, REWOUND), extent.stop
    # All else that is not there was deleted.
    if extent.alone and place < (removed := min(extent.removed, end or extent.removed)):
        counted = extent.first_index is not None and index is not None and removed == first
        messages = (extent.first_index or 0) - (index or 0) if counted else None
        return Loss(part, place, removed, RETENTION, messages), first
    # Of Apache Pulsar's ledgers it is known that one is gone, not whether all of it was read.
    if not extent.alone and place.ledger not in dict(extent.ledgers):
        return Loss(part, place, upto, RETENTION), max(place, first)
    return None


def batch_ends(
    begins: Mapping[Part, EntryPosition], extents: Mapping[Part, EntryExtent], target: Offset | None
) -> dict[Part, EntryPosition]:
    """Return where a batch ends that takes everything there is, up to the target."""
    ends = {}
    for part, begin in begins.items():
        stop = extents[part].stop
        if target is not None:
            stop = min(stop, target.next.get(part, begin))
        ends[part] = max(begin, stop)
    return ends


def known_index(
    part: Part, place: EntryPosition, extent: EntryExtent, known: Offset | None
) -> int | None:
    """Return how many messages are before a place if that was answered before."""
    if place == extent.first:
        return extent.first_index
    if place == extent.stop:
        return extent.stop_index
    if known is not None and known.next.get(part) == place:
        return known.index.get(part)
    return None


def bounded_read(part: Part, at: At, extent: EntryExtent) -> EntryRead:
    """Return the question for a bound that is a time, a message's number or a position."""
    if isinstance(at, int):
        return EntryRead(part.partition, index=at)
    if isinstance(at, str):
        return EntryRead(part.partition, time_ms=int(at))
    if extent.alone and at.place.ledger != extent.first.ledger:
        raise SettingError(f"{at} is no position of {part.topic}: {RECREATED}")
    return EntryRead(part.partition, at.place)


def removed_start(part: Part, at: At, extent: EntryExtent) -> Loss | None:
    """Return what retention removed between the start that is asked for and what is kept."""
    first, removed = extent.first, extent.removed if extent.alone else extent.first
    if isinstance(at, int) and extent.first_index is not None and at < extent.first_index:
        messages = extent.first_index - at if removed == first else None
        start = EntryPosition(first.ledger, 0)
        return Loss(part, start, removed, RETENTION, messages) if start < removed else None
    if isinstance(at, MessagePoint) and at.place < removed:
        return Loss(part, at.place, removed, RETENTION)
    return None


def first_row(at: At, extent: EntryExtent) -> int | MessagePoint | None:
    """Return the first message to be given, None: it is the first one of the entry at the start."""
    if isinstance(at, MessagePoint):
        return at if at > MessagePoint(extent.start, 0) else None
    if isinstance(at, str):
        return None
    return at if extent.start_index is None or at > extent.start_index else None


def bound_end(at: At, extent: EntryExtent) -> EntryPosition:
    """Return where the entries of a bounded read end: behind the entry that the bound is in."""
    start = extent.start
    inside = at.within > 0 if isinstance(at, MessagePoint) else False
    if isinstance(at, int):
        inside = extent.start_index is not None and extent.start_index < at
    return min(EntryPosition(start.ledger, start.entry + 1), extent.stop) if inside else start


def share(max_rows: int, left: float, total: float, size: float) -> int:
    """Return how many entries of so many messages are a partition's share of a batch."""
    return max(1, int(max_rows * left / total / size))


def entries_between(
    ledgers: tuple[tuple[int, int], ...], start: EntryPosition, end: EntryPosition
) -> int:
    """Return how many entries lie between two places."""
    total = 0
    for ledger, entries in ledgers:
        first = start.entry if ledger == start.ledger else 0
        stop = end.entry if ledger == end.ledger else entries
        if start.ledger <= ledger <= end.ledger:
            total += max(0, stop - first)
    return total
