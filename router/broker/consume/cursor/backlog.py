"""How many messages of a partition one subscription has not acknowledged yet.

Every entry carries the number of its last message, so what lies between two entries is counted
without looking at any in between. The numbers at the ends of segments and of what memory holds are
known; for others an entry is read, at most MAX_READS of them for one count. Beyond that, and where
an entry cannot be read, its place is estimated between the ends of its segment. Of what lies
between two numbers what is not visible is taken off; it is no backlog. The alternative, to
keep a count with each cursor, would have to be journaled with every acknowledgement.
"""

from __future__ import annotations

import asyncio
from bisect import bisect_right
from typing import Final

from router.broker.consume.visible import Visible
from router.broker.storage import Cursor, DamagedError, Ledger, bits

MAX_READS: Final = 64
STEPS_PER_YIELD: Final = 500


class BacklogCounter:
    """One count over any number of ledgers: how often it may still read."""

    def __init__(self, reads: int = MAX_READS) -> None:
        self._reads = reads
        self._steps = 0

    async def backlog(self, visible: Visible, cursor: Cursor, end: int | None = None) -> int:
        """Return how many messages the cursor has not acknowledged of what may be delivered.

        Of the entries before `end`, None: of all.
        """
        ledger, visible_end = visible.ledger, visible.end_entry
        end = visible_end if end is None else min(end, visible_end)
        start = max(cursor.mark_delete + 1, ledger.first_entry)
        # Taken before the first read: the cursor moves on meanwhile.
        whole = [(max(a, start), min(b + 1, end)) for a, b in cursor.ranges()]
        parts = [
            (entry, bits(cursor.ack_set(entry)))
            for entry, _ in cursor.partials()
            if start <= entry < end
        ]
        total = await self._between(visible, start, end)
        for first, after in whole:
            total -= await self._between(visible, first, after)
        for entry, left in parts:
            first, after = await self._before(ledger, entry), await self._before(ledger, entry + 1)
            live = visible.between(first, max(first, after) - 1)
            total -= (live & ~left).bit_count()
        return max(0, total)

    async def _between(self, visible: Visible, first: int, after: int) -> int:
        """Return how many messages the entries from `first` to before `after` have left."""
        self._steps += 1
        if self._steps % STEPS_PER_YIELD == 0:
            await asyncio.sleep(0)
        if first >= after:
            return 0
        ledger = visible.ledger
        end, start = await self._before(ledger, after), await self._before(ledger, first)
        return visible.count(start, end)

    async def _before(self, ledger: Ledger, entry: int) -> int:
        """Return how many messages were ever stored before this entry."""
        previous = ledger.cached(entry - 1)
        if previous is not None:
            return previous.index + 1
        segments = ledger.segments
        place = bisect_right(segments, entry, key=lambda segment: segment.first_entry)
        if not place:
            return segments[0].first_index if segments else ledger.flushed_index
        segment = segments[place - 1]
        entries = segment.next_entry - segment.first_entry
        messages = segment.next_index - segment.first_index
        into = min(entry - segment.first_entry, entries)
        if 0 < into < entries != messages and self._reads:
            self._reads -= 1
            found = await _number_after(ledger, entry - 1)
            if found is not None:
                return found
        return segment.first_index + into * messages // max(1, entries)


async def _number_after(ledger: Ledger, entry: int) -> int | None:
    """Return the number of the first message behind an entry; None: it cannot be read.

    If the entry is gone, that is the first message which is not.
    """
    try:
        found = await ledger.read(entry, 1, 1)
    except (DamagedError, OSError):
        # Where delivery meets it, it is reported.
        return None
    if not found:
        return None
    first = found[0]
    return first.index + 1 - (first.messages if first.entry_id > entry else 0)
