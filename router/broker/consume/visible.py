"""Decides which messages of a partition may be delivered: to before which end, and past which.

Theory of operation. The log keeps entries as they were written. What of them a reader may have is
decided here for all dialects: all that is durable and stands before the first entry of an open
transaction, but for the messages that were deleted one by one, which are *left out*: by clients,
by compaction, or with their transaction, which was aborted. Readers, counts of what is left and
descriptions ask a `Visible`, and no other module looks at the deletions of a ledger
(`tests/unit/broker/consume/test_visible.py`). `VisibleUncommitted` is for Kafka's readers that ask
for what is not decided yet.

A `Visible` keeps nothing: what decides stands in the ledger, which journals and restores it. Where
nothing is left out, as usual, one test of an attribute says so.
"""

from __future__ import annotations

from collections.abc import Iterator

from router.broker.storage import Entry, Ledger


class Visible:
    """What may be delivered of the partition whose log is `ledger`.

    Numbers are those of messages, `Entry.index`; ranges of them include both ends.
    """

    __slots__ = ("ledger",)

    def __init__(self, ledger: Ledger) -> None:
        self.ledger = ledger

    @property
    def end_entry(self) -> int:
        """The first entry that may not be delivered yet."""
        ledger = self.ledger
        if (undecided := ledger.undecided) is None:
            return ledger.durable_entry
        return min(ledger.durable_entry, max(undecided.entry, ledger.first_entry))

    @property
    def end_number(self) -> int:
        """The number of the first message that may not be delivered yet."""
        ledger = self.ledger
        if (undecided := ledger.undecided) is None:
            return ledger.durable_number
        return min(ledger.durable_number, max(undecided.number, ledger.first_number))

    @property
    def first_number(self) -> int:
        """The number of the first message that is not left out, whether it is durable or not."""
        return self.first_from(self.ledger.first_number)

    @property
    def leaves_out(self) -> int:
        """How many messages of those that the ledger keeps are left out."""
        return self.ledger.deleted_numbers.count

    def messages(self, entry: Entry) -> int | None:
        """Return which messages of an entry are not left out, a bit for each; None: all.

        The first message has the lowest bit.
        """
        deleted = self.ledger.deleted_numbers
        if not deleted.count:
            return None
        _, last, _, _, messages, _ = entry
        first = last + 1 - messages
        return deleted.live_between(first, last) if deleted.overlaps(first, last) else None

    def contains(self, number: int) -> bool:
        """Return whether a message may be delivered now."""
        ledger, deleted = self.ledger, self.ledger.deleted_numbers
        kept = ledger.first_number <= number < self.end_number
        return kept and not (deleted.count and deleted.contains(number))

    def is_left_out(self, number: int) -> bool:
        """Return whether a message of those that the ledger keeps is left out."""
        deleted = self.ledger.deleted_numbers
        return deleted.count > 0 and deleted.contains(number)

    def first_from(self, number: int) -> int:
        """Return the first number at or after one that is not left out, durable or not."""
        deleted = self.ledger.deleted_numbers
        return deleted.first_live(number) if deleted.count else number

    def last_to(self, number: int) -> int:
        """Return the last number at or before one that is not left out; less than any: none."""
        return self.ledger.deleted_numbers.last_live(number)

    def between(self, first: int, last: int) -> int:
        """Return which of the numbers from `first` to `last` are not left out, a bit for each."""
        return self.ledger.deleted_numbers.live_between(first, last)

    def count(self, first: int, end: int) -> int:
        """Return how many numbers from `first` to before `end` are not left out."""
        deleted, count = self.ledger.deleted_numbers, max(0, end - first)
        return count - deleted.count_between(first, end - 1) if deleted.count else count

    def left_out(self, first: int = 0, last: int | None = None) -> Iterator[tuple[int, int]]:
        """Yield the ranges that are left out between two numbers, in order.

        Not while messages are deleted.
        """
        return self.ledger.deleted_numbers.ranges(first, last)

    def read_cached(self, start: int, max_entries: int, max_bytes: int) -> list[Entry]:
        """Return entries as `read` does if they are in memory; []: `read` finds them."""
        max_entries = min(max_entries, self.end_entry - start)
        return self.ledger.read_cached(start, max_entries, max_bytes)

    async def read(self, start: int, max_entries: int, max_bytes: int) -> list[Entry]:
        """Return entries that may be delivered, as `Ledger.read` does; what is left out with them.

        Raises DamagedError, OSError.
        """
        found = await self.ledger.read(start, max_entries, max_bytes)
        while found and found[-1].entry_id >= self.end_entry:
            found.pop()
        return found


class VisibleUncommitted(Visible):
    """What may be delivered to readers that do not wait until transactions are decided."""

    __slots__ = ()

    @property
    def end_entry(self) -> int:
        """The first entry that is not durable."""
        return self.ledger.durable_entry

    @property
    def end_number(self) -> int:
        """The number of the first message that is not durable."""
        return self.ledger.durable_number
