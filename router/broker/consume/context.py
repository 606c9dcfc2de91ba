"""What all partitions of a broker share, and what is counted of them together."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from itertools import count
from operator import attrgetter

from router.broker.consume.entry_info import EntryFormat
from router.broker.consume.membership.live_members import LiveMembers
from router.broker.storage import Store, TopicRecord
from router.model.policies import Policies


@dataclass(slots=True)
class Tally:
    """What the broker counted since its start."""

    entries: int = 0
    messages: int = 0
    bytes: int = 0
    dispatched: int = 0
    delivered: int = 0
    """Messages, to clients of any protocol but JetStream's consumers, which count their own."""
    damaged: int = 0


@dataclass(frozen=True, slots=True)
class DeliveryContext:
    """What all partitions share; `now_ms` counts milliseconds since 1970.

    `formats` has the formats of entries by their tags, and for an unknown tag one whose entries are
    opaque. `policies` returns what holds for a topic: its own policies or inherited ones.
    """

    store: Store
    tally: Tally
    max_groups: int
    now_ms: Callable[[], int]
    formats: Mapping[int, EntryFormat]
    policies: Callable[[TopicRecord], Policies] = attrgetter("policies")
    live_members: LiveMembers = field(default_factory=LiveMembers)
    _epochs: Iterator[int] = field(default_factory=lambda: count(1))

    def new_epoch(self) -> int:
        """Return a number that no subscription had as its epoch, over restarts too."""
        return (self.store.boot << 32) + next(self._epochs)
