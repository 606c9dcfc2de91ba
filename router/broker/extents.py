"""Where messages are, for who reads a stretch of a partition: entries, and messages counted.

A ledger counts its messages as they come, and writes the number of the last one with each entry; so
the entry at which a number of messages ends is found by halving, with about twenty reads of one
entry. A table of counts beside each segment was not taken: nobody else needs it.
"""

from __future__ import annotations

import asyncio
from typing import Final

from router.broker.dispatch import Partition
from router.broker.dispatch.feed import batch_size
from router.broker.ledger import DamagedError, Entry, Ledger
from router.broker.topics import Topics
from router.errors import BadRequestError, TopicNotFoundError
from router.wire.pulsar import pulsar_pb2 as pb

MAX_ANSWERED_PARTITIONS: Final = 1_000
"""In one answer, but for those of its last topic."""


class Extents:
    """Answers where partitions begin and end."""

    def __init__(self, topics: Topics) -> None:
        self._topics = topics

    async def locate(self, asked: pb.LocateMessages, response: pb.CommandAdminResponse) -> None:
        """Answer the extents of topics in the order of the question, or the first of them.

        Each answer has the first topic at least, so that the asker gets on. A topic that does not
        exist is answered as missing. Raises BadRequestError for a partition that does not exist.
        """
        partitions = 0
        for topic in asked.topics:
            if partitions >= MAX_ANSWERED_PARTITIONS:
                response.more = True
                return
            found = response.located.add()
            try:
                await self._locate(topic, found)
            except TopicNotFoundError:
                found.missing = True
            partitions += max(1, len(found.extents))
            # The ledgers of an idle topic answer from memory, so nothing above suspends.
            await asyncio.sleep(0)

    async def _locate(self, asked: pb.TopicStretches, found: pb.TopicExtents) -> None:
        partitions = self._topics.pieces(self._topics.parse(asked.topic))
        wanted = {stretch.partition: stretch for stretch in asked.stretch}
        if unknown := wanted.keys() - {partition.index for partition in partitions}:
            raise BadRequestError(f"there is no partition {min(unknown)} of {asked.topic}")
        for partition in partitions:
            found.extents.append(await _extent(partition, wanted.get(partition.index)))


async def _extent(partition: Partition, wanted: pb.Stretch | None) -> pb.Extent:
    ledger = partition.ledger
    first, behind = ledger.first_entry, ledger.durable_entry
    found = pb.Extent(
        partition=partition.index,
        ledger_id=ledger.id,
        first_entry=first,
        first_index=await index_at(ledger, first),
        next_entry=behind,
        next_index=await index_at(ledger, behind),
        size=ledger.size_bytes,
    )
    if wanted is not None:
        start = min(max(await _start(ledger, wanted, behind), first), behind)
        index = await index_at(ledger, start)
        end = behind
        if wanted.HasField("messages") and index is not None:
            end = await entry_at(ledger, start, index + wanted.messages, behind)
        found.start_entry, found.end_entry = start, end
        end_index = await index_at(ledger, end)
        if index is not None:
            found.start_index = index
        if end_index is not None:
            found.end_index = end_index
    return found


async def _start(ledger: Ledger, wanted: pb.Stretch, behind: int) -> int:
    """Return the entry where a stretch begins, which may not be kept any more."""
    if wanted.HasField("index"):
        return await entry_holding(ledger, wanted.index, behind)
    if wanted.HasField("time_ms"):
        return await ledger.find_time(wanted.time_ms)
    return wanted.entry


async def entry_holding(ledger: Ledger, index: int, behind: int) -> int:
    """Return the entry that holds the message of a number; the first kept, or `behind`, if none."""
    first = ledger.first_entry
    total = await index_at(ledger, behind)
    if total is not None and index >= total:
        return behind
    second = min(first + 1, behind)
    before = await index_at(ledger, second)
    if before is not None and index < before:
        return first
    return await entry_at(ledger, first, index, behind)


async def index_at(ledger: Ledger, entry: int) -> int | None:
    """Return how many messages there were before an entry; None: damage hides it."""
    if entry <= ledger.first_entry:
        return ledger.next_index - ledger.messages
    for segment in ledger.segments:
        if segment.next_entry == entry:
            return segment.next_index
    before = await _read(ledger, entry - 1)
    if before is not None:
        return before.index + 1
    if entry >= ledger.next_entry:
        return ledger.next_index
    here = await _read(ledger, entry)
    return None if here is None else here.index + 1 - (batch_size(here) or 1)


async def entry_at(ledger: Ledger, start: int, index: int, behind: int) -> int:
    """Return the last entry not above `behind` that has at most `index` messages before it.

    The one after `start` at least, where there is one.
    """
    low, high = min(start + 1, behind), behind
    for segment in ledger.segments:
        if segment.next_entry <= low or segment.next_entry > high:
            continue
        if segment.next_index <= index:
            low = segment.next_entry
        else:
            high = segment.next_entry - 1
            break
    while low < high:
        middle = (low + high + 1) // 2
        found = await index_at(ledger, middle)
        if found is not None and found <= index:
            low = middle
        else:
            high = middle - 1
    return low


async def _read(ledger: Ledger, entry: int) -> Entry | None:
    """Return one entry; None: it cannot be read."""
    cached = ledger.cached(entry)
    if cached is not None:
        return cached
    try:
        found = await ledger.read(entry, 1, 1)
    except (DamagedError, OSError):
        return None  # whoever reads the messages is told of it
    return found[0] if found and found[0].entry_id == entry else None
