"""Where the stored entries of partitions begin and end, and ranges of them, from the broker.

Our own broker counts messages and finds the entry where a number of them ends. Apache Pulsar tells
its ledgers through the administration over HTTP, and counts entries: how many messages an entry
has is known only to who reads it. There a range is bounded by entries, as many messages to an
entry as a sample at its beginning had.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, NamedTuple

from router.errors import BackendUnavailableError
from router.errors.quoting import failure_text
from router.model import TopicName
from router.node.requests import ask
from router.pulsar_client.link import PulsarLink
from router.wire.node import node_pb2 as pb


class EntryPosition(NamedTuple):
    """An entry, or the end behind the last one; those of a partition are in order."""

    ledger: int
    entry: int

    @classmethod
    def parse(cls, text: str) -> EntryPosition:
        """Read `ledger:entry`; raise ValueError."""
        ledger, entry = text.split(":")
        return cls(int(ledger), int(entry))

    def __str__(self) -> str:
        return f"{self.ledger}:{self.entry}"


BEGINNING: Final = EntryPosition(0, 0)
MAX_TOPICS_PER_REQUEST: Final = 1_000


@dataclass(frozen=True, slots=True)
class EntryRead:
    """A range of a partition: entries from a start on, of so many messages at most.

    The start is a place, or the entry that holds the message of number `index`, or the first entry
    that was published at `time_ms` or later.
    """

    partition: int
    start: EntryPosition = BEGINNING
    messages: int | None = None
    index: int | None = None
    time_ms: int | None = None


ExtentRequests = Mapping[TopicName, Sequence[EntryRead]]
"""Topics, each with the ranges of its partitions that are to be located."""


@dataclass(frozen=True, slots=True)
class EntryExtent:
    """What is kept of a partition: entries from `first` to before `stop`; indexes where counted.

    `start` and `end` are the range that was requested, within what is kept, else all of it.
    `ledgers` are those that hold something, each with its number of entries, in order. `alone`: all
    that the partition ever had is in its one ledger, and the store tells what of it is lost. All
    before `removed` is gone, and retention or a limit of a stream took some of it; `given_up` are
    entries, from a first to before a second place, that a repair gave up. All else that is not
    there was deleted. `size` is about how many bytes the entries have.
    """

    partition: int
    first: EntryPosition
    stop: EntryPosition
    start: EntryPosition
    end: EntryPosition
    ledgers: tuple[tuple[int, int], ...]
    alone: bool
    first_index: int | None = None
    start_index: int | None = None
    end_index: int | None = None
    stop_index: int | None = None
    size: int = 0
    removed: EntryPosition = BEGINNING
    given_up: tuple[tuple[EntryPosition, EntryPosition], ...] = ()

    def last(self, end: EntryPosition) -> EntryPosition | None:
        """Return the last entry before a place; None: there is none that is kept."""
        for ledger, entries in reversed(self.ledgers):
            if ledger > end.ledger or not entries:
                continue
            entry = min(entries, end.entry) - 1 if ledger == end.ledger else entries - 1
            found = EntryPosition(ledger, entry)
            if entry >= 0:
                return found if found >= self.first else None
        return None


def located(
    link: PulsarLink, requests: ExtentRequests, deadline: float
) -> dict[TopicName, list[EntryExtent]]:
    """Return the extents of topics, as a broker of ours tells them; missing topics are left out.

    Raises BackendUnavailableError, BackendTimeoutError.
    """
    found: dict[TopicName, list[EntryExtent]] = {}
    waiting = list(requests)
    while waiting:
        some = waiting[:MAX_TOPICS_PER_REQUEST]
        command = pb.LocateMessages()
        for topic in some:
            command.topics.append(_ranges(topic, requests[topic]))
        answer = ask(link, pb.CommandAdmin(locate_messages=command), deadline)
        if not answer.located:
            raise BackendUnavailableError("the broker's answer has none of the topics")
        for topic, one in zip(some, answer.located, strict=False):
            if not one.missing:
                ranges = {one.partition: one for one in requests[topic]}
                found[topic] = [_located(e, ranges.get(e.partition)) for e in one.extents]
        del waiting[: len(answer.located)]
    return found


def _ranges(topic: TopicName, reads: Sequence[EntryRead]) -> pb.TopicRanges:
    command = pb.TopicRanges(topic=str(topic))
    for one in reads:
        command.ranges.add(
            partition=one.partition,
            entry=one.start.entry,
            messages=one.messages,
            index=one.index,
            time_ms=one.time_ms,
        )
    return command


def _located(one: pb.Extent, requested: EntryRead | None) -> EntryExtent:
    ledger = one.ledger_id
    first, stop = EntryPosition(ledger, one.first_entry), EntryPosition(ledger, one.next_entry)
    start, end = first, stop
    start_index, end_index = _index(one, "first_index"), _index(one, "next_index")
    # Places of a topic that was deleted and created again mean nothing in the new ledger.
    if requested is not None and (_by_content(requested) or requested.start.ledger >= ledger):
        start, end = EntryPosition(ledger, one.start_entry), EntryPosition(ledger, one.end_entry)
        start_index, end_index = _index(one, "start_index"), _index(one, "end_index")
    return EntryExtent(
        one.partition,
        first,
        stop,
        start,
        end,
        ((ledger, one.next_entry),),
        True,
        _index(one, "first_index"),
        start_index,
        end_index,
        _index(one, "next_index"),
        one.size,
        EntryPosition(ledger, one.removed_entry),
        tuple(
            (EntryPosition(ledger, e.first), EntryPosition(ledger, e.last + 1))
            for e in one.given_up
        ),
    )


def _by_content(read: EntryRead) -> bool:
    """Return whether a range begins at a message or a time, and not at a place."""
    return read.index is not None or read.time_ms is not None


def _index(one: pb.Extent, name: str) -> int | None:
    return getattr(one, name) if one.HasField(name) else None


def extents_from_stats(
    partition: int,
    stats: Mapping[str, Any],
    requested: EntryRead | None,
    at: EntryPosition | None = None,
) -> EntryExtent:
    """Return the extent that Apache Pulsar's internal statistics of a topic say.

    `messages` of the requested range are entries here; `at` is its start where that is not a place.
    Raises BackendUnavailableError for an answer without positions.
    """
    try:
        last = EntryPosition.parse(str(stats["lastConfirmedEntry"]))
        ledgers = [(int(one["ledgerId"]), int(one["entries"])) for one in stats["ledgers"]]
    except (KeyError, TypeError, ValueError) as error:
        raise BackendUnavailableError(
            f"Pulsar's statistics lack positions: {failure_text(error)}"
        ) from error
    stop = EntryPosition(last.ledger, last.entry + 1)
    # The ledger that is written to has its number of entries told elsewhere.
    kept = {ledger: entries for ledger, entries in ledgers if ledger < stop.ledger}
    kept[stop.ledger] = stop.entry
    held = tuple(sorted(kept.items()))
    first = next((EntryPosition(ledger, 0) for ledger, entries in held if entries), stop)
    start = first if requested is None else min(max(at or requested.start, first), stop)
    end = stop
    if requested is not None and requested.messages is not None:
        end = _ahead(held, start, max(1, requested.messages), stop)
    size = stats.get("totalSize")
    size = size if isinstance(size, int) else 0
    return EntryExtent(partition, first, stop, start, end, held, False, size=size)


def position_from_stats(message_id: Any) -> EntryPosition:
    """Return the place of a message id as Apache Pulsar's administration writes one.

    Raises BackendUnavailableError for anything else.
    """
    try:
        return EntryPosition(int(message_id["ledgerId"]), int(message_id["entryId"]))
    except (KeyError, TypeError, ValueError) as error:
        raise BackendUnavailableError(
            f"Pulsar's message id lacks a position: {failure_text(error)}"
        ) from error


def _ahead(
    ledgers: Sequence[tuple[int, int]], start: EntryPosition, entries: int, stop: EntryPosition
) -> EntryPosition:
    """Return the place so many entries ahead, within what there is."""
    for ledger, held in ledgers:
        if ledger < start.ledger:
            continue
        at = start.entry if ledger == start.ledger else 0
        if at + entries <= held:
            return min(EntryPosition(ledger, at + entries), stop)
        entries -= max(0, held - at)
    return stop
