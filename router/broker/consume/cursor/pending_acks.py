"""What open transactions acknowledged of one subscription, which is neither done nor to be sent.

Theory of operation. The cursor has what is acknowledged for good. What a transaction acknowledged
is *held* beside it until the transaction is decided: delivery asks for what is left by these two
together, and everything else (backlogs, retention, positions) by the cursor alone. As in Apache
Pulsar a message is held by one transaction, and a cumulative acknowledgement holds nothing: it only
keeps other transactions from making one. While an abort gives back what was held, in several steps,
nothing new is delivered, so that nothing new comes between what is delivered again.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Final, NamedTuple

from router.broker.storage import Ack, Cursor, bits, words

if TYPE_CHECKING:
    from router.broker.consume.consumer import ClientConsumer

_ALL: Final = -1
_AFTER_ALL: Final = 1 << 62


class AcknowledgedError(Exception):
    """A message is acknowledged already, for good or in a transaction."""


class EntryPart(NamedTuple):
    """What is acknowledged of an entry of so many `messages`: all but those `left`, a bit for each.

    A client that does not say how many messages there are is never in conflict.
    """

    messages: int
    left: int

    @classmethod
    def of(cls, ack_set: Sequence[int], messages: int) -> EntryPart:
        """Return what the protocol names: `ack_set` is left, empty: nothing is."""
        return cls(messages, bits(ack_set))

    @property
    def acked(self) -> int:
        """Return what is acknowledged, a bit for each message."""
        return ((1 << self.messages) - 1) & ~self.left if self.left else _ALL

    def joined(self, other: EntryPart) -> EntryPart:
        """Return the messages of both."""
        return EntryPart(max(self.messages, other.messages), self.left & other.left)


class CumulativeAck(NamedTuple):
    """A cumulative acknowledgement of a transaction; `consumer` made it, None: it is gone."""

    transaction: object
    ack: Ack
    consumer: ClientConsumer | None = None


class PendingAcks:
    """What is held of one subscription; asked like its cursor, it answers what is to be sent."""

    __slots__ = ("_cursor", "aborts", "cumulative", "held")

    def __init__(self, cursor: Cursor) -> None:
        self._cursor = cursor
        self.held: dict[int, list[EntryPart]] = {}
        self.cumulative: CumulativeAck | None = None
        # The transactions of which an abort gives back what was held.
        self.aborts: set[object] = set()

    @property
    def idle(self) -> bool:
        """Return whether nothing is held."""
        return not self.held and self.cumulative is None

    def is_acked(self, entry: int) -> bool:
        """Return whether nothing of an entry is to be sent."""
        return self._cursor.is_acked(entry) or (entry in self.held and not self._left(entry))

    def ack_set(self, entry: int) -> list[int]:
        """Return the indexes of an entry that are to be sent, []: all."""
        return words(self._left(entry)) if entry in self.held else self._cursor.ack_set(entry)

    def next_unacked(self, start: int) -> int:
        """Return the first entry at or after one of which something is to be sent now."""
        if self.aborts:
            return _AFTER_ALL
        found = self._cursor.next_unacked(start)
        while found in self.held and not self._left(found):
            found = self._cursor.next_unacked(found + 1)
        return found

    def holds_next(self, start: int) -> bool:
        """Return whether of the next entry that is not acknowledged for good something is held."""
        return self._cursor.next_unacked(start) in self.held

    def check(self, entry: int, part: EntryPart) -> None:
        """Raise AcknowledgedError if a message is acknowledged, or held by any transaction."""
        cursor = self._cursor
        remaining = cursor.remaining(entry)
        acked = part.acked
        if cursor.is_acked(entry) or (remaining and acked != _ALL and acked & ~remaining):
            raise AcknowledgedError(f"entry {entry} was acknowledged before")
        if any(held.acked & acked for held in self.held.get(entry, ())):
            raise AcknowledgedError(f"entry {entry} is acknowledged in an open transaction")

    def check_cumulative(self, transaction: object, ack: Ack) -> None:
        """Raise AcknowledgedError for what another one, or this one before, reaches."""
        if ack.entry <= self._cursor.mark_delete:
            raise AcknowledgedError(f"entry {ack.entry} was acknowledged before")
        if self.cumulative is not None:
            owner, before, _ = self.cumulative
            if owner is not transaction or _reach(ack) <= _reach(before):
                raise AcknowledgedError(
                    f"entries to {before.entry} are acknowledged in an open transaction"
                )

    def hold(self, entry: int, part: EntryPart) -> None:
        """Hold messages of an entry."""
        self.held.setdefault(entry, []).append(part)

    def release(self, parts: Iterable[tuple[int, EntryPart]]) -> None:
        """Hold messages no longer, as they were held."""
        for entry, part in parts:
            held = self.held[entry]
            held.remove(part)
            if not held:
                del self.held[entry]

    def _left(self, entry: int) -> int:
        left = self._cursor.remaining(entry) or _ALL
        for part in self.held[entry]:
            left &= part.left
        return left


def _reach(ack: Ack) -> tuple[int, int]:
    """Return the last entry that a cumulative acknowledgement reaches, and how far into it."""
    left = bits(ack.ack_set)
    return ack.entry, (left & -left).bit_length() if left else _AFTER_ALL
