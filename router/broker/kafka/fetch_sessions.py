"""Fetch sessions (KIP-227): a client names the partitions that changed, and is answered such only.

A session is of one connection, which answers requests in their order, and ends with it. A client
that comes back is answered that there is no such session, and begins another one with all its
partitions. Apache Kafka's sessions outlive connections, so it has to choose whose it keeps.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final

from router.broker.consume import Partition
from router.broker.consume.visible import Visible
from router.broker.kafka.batch_reader import Batches

MAX_PARTITIONS: Final = 10_000
"""Of one session; a client with more names all of them in each request."""
MAX_KEPT_PARTITIONS: Final = 200_000
"""Of all sessions of a broker: 50 MB, or 95 MB with the longest names that requests hold."""
FIRST_EPOCH: Final = 1
"""The epoch of the first request that goes on with a session."""
LAST_EPOCH: Final = (1 << 31) - 1
UNKNOWN: Final = -1

PartitionPlace = tuple[str | bytes, int]
"""A topic, by its name or id, and the number of its partition."""


@dataclass(slots=True, eq=False)
class FetchedPartition:
    """One partition of a fetch: where it is read from, and what is found.

    `topic` is a name, or an id. `visible` has what its reader may have, by its isolation level.
    `high` and `start` are the newest offsets that a session answered, UNKNOWN: none.
    """

    topic: str | bytes
    index: int
    offset: int
    max_bytes: int
    leader_epoch: int
    code: int = 0
    partition: Partition | None = None
    visible: Visible | None = None
    batches: Batches | None = None
    high: int = UNKNOWN
    start: int = UNKNOWN

    def changes(self, high: int, start: int) -> bool:
        """Return whether an answer has something that the client of a session does not know."""
        found = self.batches is not None and self.batches.size > 0
        return bool(self.code) or found or (high, start) != (self.high, self.start)

    def answered(self, high: int, start: int) -> None:
        """Note what a client knows; behind a failure it is answered in any case."""
        self.high, self.start = (UNKNOWN, UNKNOWN) if self.code else (high, start)


@dataclass(slots=True, eq=False)
class FetchSession:
    """The partitions that a client reads; `epoch` is that of its next request.

    The partitions stand in the order in which they are read: those that were answered with batches
    go to the end, so that none keeps others from being read. `committed`: by the isolation level.
    `by_id`: topics have ids, not names. `rights` is the version of the client's rights by which
    its partitions were looked up.
    """

    id: int
    committed: bool
    by_id: bool
    rights: object = None
    epoch: int = FIRST_EPOCH
    partitions: dict[PartitionPlace, FetchedPartition] = field(default_factory=dict)

    def advance(self) -> None:
        """Expect the next request."""
        self.epoch = FIRST_EPOCH if self.epoch == LAST_EPOCH else self.epoch + 1

    def put(self, one: FetchedPartition) -> None:
        """Read a partition from now on, or read it from elsewhere."""
        place = one.topic, one.index
        if (known := self.partitions.get(place)) is not None:
            one.high, one.start = known.high, known.start
        self.partitions[place] = one

    def rotate(self) -> None:
        """Read those that were answered with batches behind the others; keep no batches."""
        for place, one in list(self.partitions.items()):
            if one.batches is not None and one.batches.size:
                self.partitions[place] = self.partitions.pop(place)
            one.batches = None
