"""Where a subscription is to begin, or to go on after a reset."""

from __future__ import annotations

from dataclasses import dataclass

from router.broker.consume.visible import Visible
from router.broker.storage import Ledger, words


@dataclass(frozen=True, slots=True)
class StartPosition:
    """The first entry, the first one stored at a time (ms since 1970) or later, else the end.

    Or a position: ledger and entry; one of another ledger is before or behind everything. The first
    `passed` messages of that entry count as acknowledged.
    """

    earliest: bool = False
    timestamp_ms: int | None = None
    position: tuple[int, int] | None = None
    passed: int = 0

    async def entry(self, ledger: Ledger) -> int:
        """Return the entry; raises DamagedError, OSError where its file cannot be read."""
        if self.position is not None:
            ledger_id, entry = self.position
            if ledger_id != ledger.id:
                return ledger.first_entry if ledger_id < ledger.id else Visible(ledger).end_entry
            return min(max(entry, ledger.first_entry), ledger.durable_entry)
        if self.timestamp_ms is not None:
            return await ledger.find_time(self.timestamp_ms)
        return ledger.first_entry if self.earliest else Visible(ledger).end_entry

    async def place(self, ledger: Ledger) -> tuple[int, tuple[int, ...]]:
        """Return the entry, and the `ack_set` of what is left of its batch, empty: all of it.

        Raises as `entry` does.
        """
        entry = await self.entry(ledger)
        if self.passed <= 0 or self.position != (ledger.id, entry):
            return entry, ()
        found = await ledger.entry(entry)
        if found is None:
            return entry, ()
        count = found.messages
        left = words((1 << count) - (1 << min(self.passed, count)))
        return (entry, tuple(left)) if left else (entry + 1, ())
