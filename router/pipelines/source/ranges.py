"""What tasks of Spark read: ranges of entries, several small ones to a task.

A task costs tenths of a second, whatever it reads, so a range of its own for each of a thousand
small topics takes minutes. The ranges of a batch are put together in their order up to a share of
the batch; a range is never divided, as the messages of a partition stay in order.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Final

from router.backends.pulsar.extents import Extent, Place
from router.pipelines.source.offsets import Offset, Part, RowKey
from router.pipelines.source.reckoning import entries_between

MAX_SHARED_TASKS: Final = 64
"""About as many tasks as ranges are put together in, where each of them is small."""
MIN_TASK_MESSAGES: Final = 1_000
MIN_TASK_BYTES: Final = 4 * 1024 * 1024
"""What a task reads at least before the next one begins, in messages or in bytes."""


@dataclass(frozen=True, slots=True)
class Range:
    """Entries of one partition: from `start` up to and with `last`.

    `behind` is the place where the batch ends. `index` is the number of the first message, where
    the store counts them. `ledgers` are those between, each with its number of entries; `alone`:
    there is one, and it has no gaps. `messages` and `size`, in bytes, are estimates. `low`: rows
    before it are not wanted.
    """

    part: Part
    start: Place
    last: Place
    behind: Place
    ledgers: tuple[tuple[int, int], ...]
    alone: bool
    index: int | None
    messages: int = 0
    size: int = 0
    low: RowKey = None


def shared_out(ranges: Iterable[Range]) -> Iterator[tuple[Range, ...]]:
    """Yield the ranges of each task, all in their order."""
    ranges = list(ranges)
    most_messages = max(MIN_TASK_MESSAGES, sum(r.messages for r in ranges) // MAX_SHARED_TASKS)
    most_bytes = max(MIN_TASK_BYTES, sum(r.size for r in ranges) // MAX_SHARED_TASKS)
    task: list[Range] = []
    messages = size = 0
    for one in ranges:
        full = messages + one.messages > most_messages or size + one.size > most_bytes
        if task and full:
            yield tuple(task)
            task, messages, size = [], 0, 0
        task.append(one)
        messages += one.messages
        size += one.size
    if task:
        yield tuple(task)


def planned(
    kept: Mapping[Part, Place],
    end: Offset,
    extents: Mapping[Part, Extent],
    indexes: Mapping[Part, int],
) -> Iterator[Range]:
    """Yield the range of each partition from a place to the end of the batch.

    `indexes` are the numbers of the first messages, where they are known.
    """
    for part, place in kept.items():
        extent, index = extents[part], indexes.get(part)
        behind = min(end.next[part], extent.behind)
        last = extent.last(behind)
        if last is None or last < place:
            continue
        held = tuple(one for one in extent.ledgers if place.ledger <= one[0] <= last.ledger)
        entries = entries_between(extent.ledgers, place, behind)
        upto = end.index.get(part)
        messages = entries if index is None or upto is None else upto - index
        size = (
            extent.size
            * entries
            // max(1, entries_between(extent.ledgers, extent.first, extent.behind))
        )
        low = end.low.get(part)
        yield Range(part, place, last, behind, held, extent.alone, index, messages, size, low)
