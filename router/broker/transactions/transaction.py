"""One open transaction: its messages in each partition, and what it will commit and acknowledge."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Final, NamedTuple

from router.broker.consume.cursor.pending_acks import EntryPart
from router.broker.storage import Ack, CommittedPosition, Ledger, Undecided

PART_BYTES: Final = 500
"""What a part takes in memory beside its key and its value, about."""


class PositionKey(NamedTuple):
    """Where a group stands: its subscription on the log of a partition."""

    ledger: int
    name: str


class SubscriptionKey(NamedTuple):
    """A subscription on the log of a partition; a later one with its name has another `number`."""

    ledger: int
    number: int
    name: str


@dataclass(eq=False, slots=True)
class JoinedPartition:
    """The messages of a transaction in one partition.

    `ranges` are their numbers, first to last; between two ranges are messages of others.
    `undecided` is where the first one stands, None: there is none.
    """

    ledger: Ledger
    ranges: dict[int, int] = field(default_factory=dict)
    undecided: Undecided | None = None
    _newest: int = -1

    def add(self, first: int, last: int, entry: int) -> Undecided:
        """Take the messages of an entry that was appended; return where their range begins.

        Only of the first range the entry is the one that it begins with.
        """
        if self.undecided is None:
            self.undecided = Undecided(entry, first)
        if self._newest >= 0 and self.ranges[self._newest] == first - 1:
            first = self._newest
        self.ranges[first] = last
        self._newest = first
        return self.undecided if first == self.undecided.number else Undecided(entry, first)

    def restore(self, begin: Undecided, last: int) -> int | None:
        """Take a range that was stored, in any order; return its last message, None: there is none.

        What the log does not have is left out: a power cut in relaxed mode takes messages whose
        range a checkpoint had stored.
        """
        last = min(last, self.ledger.next_index - 1)
        if begin.number > last:
            return None
        if self.undecided is None or begin.number < self.undecided.number:
            self.undecided = begin
        self.ranges[begin.number] = last
        self._newest = max(self._newest, begin.number)
        return last

    @property
    def messages(self) -> int:
        """Return how many there are."""
        return sum(last + 1 - first for first, last in self.ranges.items())

    @property
    def is_durable(self) -> bool:
        """Return whether all messages are on disk."""
        return not self.ranges or self.ranges[self._newest] < self.ledger.durable_number


@dataclass(eq=False, slots=True)
class Transaction:
    """A transaction that is open, or being decided.

    `key` is its name in the broker: of the dialect, then of the transaction there. `begun_ms` is a
    time (ms since 1970), `deadline` one of the event loop (seconds). `committed` is the decision,
    None: there is none yet. `ranges` counts those of all partitions. `owner` is the name of the
    principal that began it, "": any may have. `acks` are by entry. `size_bytes` is about what it
    takes in memory.
    """

    key: str
    begun_ms: int
    timeout_ms: int
    deadline: float
    partitions: dict[int, JoinedPartition] = field(default_factory=dict)
    positions: dict[PositionKey, CommittedPosition] = field(default_factory=dict)
    acks: dict[SubscriptionKey, dict[int, EntryPart]] = field(default_factory=dict)
    cumulative: dict[SubscriptionKey, Ack] = field(default_factory=dict)
    committed: bool | None = None
    ranges: int = 0
    owner: str = ""
    size_bytes: int = 0

    def ledgers(self) -> Iterator[Ledger]:
        """Yield the logs of the partitions that it joined and that are still there."""
        for joined in self.partitions.values():
            if not joined.ledger.discarded:
                yield joined.ledger


def part_size(key: str, value: bytes | None) -> int:
    """Return what a part takes, by the key and value that are stored of it; None: it is none."""
    return 0 if value is None else PART_BYTES + len(key) + 2 * len(value)
