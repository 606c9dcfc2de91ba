"""Where partitions and ranges of them begin and end: entries, and the numbers of messages."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from router.broker.consume import Partition
from router.broker.storage import Ledger
from router.broker.topics.topics import Topics
from router.errors import BadRequestError
from router.model.administration import EntryRange


@dataclass(frozen=True, slots=True)
class PartitionRange:
    """A part of one partition, as it is requested.

    It begins at an entry, or at the entry that holds the message number `index`, or at the first
    that was published at `time_ms` or later; it has `messages` at most, None: all there are.
    """

    partition: int
    entry: int = 0
    messages: int | None = None
    index: int | None = None
    time_ms: int | None = None


@dataclass(slots=True)
class PartitionExtent:
    """What is kept of a partition, from its first entry to before the next, and a range of it.

    Indexes count the messages before an entry. `size` is in bytes. Retention or a limit of a
    stream removed messages before `removed_entry`, and a repair gave up the entries of `given_up`.
    """

    partition: int
    ledger_id: int
    first_entry: int
    first_index: int
    next_entry: int
    next_index: int
    size: int
    removed_entry: int = 0
    given_up: tuple[EntryRange, ...] = ()
    start_entry: int | None = None
    start_index: int | None = None
    end_entry: int | None = None
    end_index: int | None = None


class Extents:
    """Answers where partitions begin and end."""

    def __init__(self, topics: Topics) -> None:
        self._topics = topics

    async def of(self, topic: str, ranges: Iterable[PartitionRange]) -> list[PartitionExtent]:
        """Return the extents of a topic's partitions, with the ranges of those that are named.

        Raises TopicNotFoundError, and BadRequestError for a partition that does not exist.
        """
        partitions = self._topics.pieces(self._topics.parse(topic))
        range_of = {one.partition: one for one in ranges}
        if unknown := range_of.keys() - {partition.index for partition in partitions}:
            raise BadRequestError(f"there is no partition {min(unknown)} of {topic}")
        return [await _extent(partition, range_of.get(partition.index)) for partition in partitions]


async def _extent(partition: Partition, requested: PartitionRange | None) -> PartitionExtent:
    ledger, visible = partition.ledger, partition.visible
    first, end_entry, first_index = ledger.first_entry, visible.end_entry, ledger.first_number
    if ledger.removed_entry > first:
        first = min(ledger.removed_entry, end_entry)
        first_index = await ledger.number_before(first)
    found = PartitionExtent(
        partition=partition.index,
        ledger_id=ledger.id,
        first_entry=first,
        first_index=first_index,
        next_entry=end_entry,
        next_index=visible.end_number,
        size=ledger.size_bytes,
        removed_entry=ledger.removed_entry,
        given_up=tuple(EntryRange(hole.first, hole.last) for hole in ledger.holes),
    )
    if requested is not None:
        start = min(max(await _start(ledger, requested), first), end_entry)
        number, end = await ledger.number_before(start), end_entry
        if requested.messages is not None:
            end = await ledger.entry_of_number(number + requested.messages)
            # A range has the entry at its start at least, where there is one.
            end = min(max(end, start + 1), end_entry)
        found.start_entry, found.start_index = start, number
        found.end_entry, found.end_index = end, await ledger.number_before(end)
    return found


async def _start(ledger: Ledger, requested: PartitionRange) -> int:
    """Return the entry where a range begins, which may not be kept any more."""
    if requested.index is not None:
        return await ledger.entry_of_number(requested.index)
    if requested.time_ms is not None:
        return await ledger.find_time(requested.time_ms)
    return requested.entry
