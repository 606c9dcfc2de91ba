"""Assignment of one subscription's partitions to its live consumer ids: a pure state machine.

Theory of operation. A *consumer id* is live while one of its polls claims, and for `idle` seconds
after its last poll ended. Each partition is owned by one live id, found by rendezvous hashing, so
that every node and every worker finds the same owner without communication. Plain rendezvous
hashing is uneven when there are few ids (of two ids one often gets both of two partitions),
therefore each id takes its floor(P / N) and P mod N ids take one more; partitions are assigned in
their order to the best-scoring id below its quota.

An owner is not a holder. A *holder* is one poll. The first poll of an id holds what the id owns;
further polls of the same id queue behind it in the order of their arrival. When the owner changes
while a poll holds the partition, that poll is asked to give it up (Revoke), and the new owner's
poll gets it (Assign) only then: there are never two holders, and a poll that has messages may
answer first. The alternative, taking the partition away at once and fencing the old poll, would
turn every change of the group into messages delivered twice.

*Remote members*, ids that are live on other nodes, own their share like all others but are granted
nothing here: nodes that know the same ids find the same owners. The lease between the nodes, not
this assignment, keeps two nodes from reading one partition at once.

There is no clock and no I/O here: the time is an argument, and `changes()` returns the grants and
revocations since its last call.

Most groups have one id, and there may be tens of thousands of them: an id without others is not
ranked, and what is empty is as small as can be.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Hashable, Iterable, Sequence, Set
from dataclasses import dataclass
from hashlib import blake2b
from itertools import takewhile
from typing import Generic, TypeVar

H = TypeVar("H", bound=Hashable)


@dataclass(frozen=True, slots=True)
class Assign(Generic[H]):
    """The poll `holder` of this consumer id holds the partition from now on."""

    holder: H
    consumer: str
    partition: int


@dataclass(frozen=True, slots=True)
class Revoke(Generic[H]):
    """The poll `holder` is to give the partition up as soon as it is empty-handed."""

    holder: H
    consumer: str
    partition: int


class PartitionAssignor(Generic[H]):
    """Assigns the partitions of one subscription to its live consumer ids."""

    __slots__ = (
        "_changes",
        "_consumer_of",
        "_holder_of",
        "_idle",
        "_idle_until",
        "_owners",
        "_queues",
        "_ranks",
        "_remote_members",
        "_revoked",
        "partitions",
    )

    def __init__(self, partitions: Sequence[int], idle: float) -> None:
        self.partitions = tuple(partitions)
        self._idle = idle
        # Of each id that polls, its polls; with the ids that are idle, these are the live ones.
        self._queues: dict[str, list[H]] = {}
        # In the order of its times, because `idle` is the same for all and `now` never goes back.
        self._idle_until: dict[str, float] = {}
        self._remote_members: frozenset[str] = frozenset()
        # Best last, for each partition: all members, so that one more costs no sorting of all.
        # Empty as long as there is one at most.
        self._ranks: dict[int, list[tuple[int, str]]] = {}
        self._owners: dict[int, str] = {}
        self._consumer_of: dict[H, str] = {}
        self._holder_of: dict[int, H] = {}
        # The holders that were asked to give a partition up.
        self._revoked: dict[int, H] = {}
        self._changes: list[Assign[H] | Revoke[H]] = []

    def claim(self, consumer: str, holder: H, now: float) -> None:
        """Queue a new poll of this id; a holder claims once."""
        self.tick(now)
        if holder in self._consumer_of:
            raise ValueError("this holder claims already")
        self._consumer_of[holder] = consumer
        was_live = self._idle_until.pop(consumer, None) is not None or consumer in self._queues
        self._queues.setdefault(consumer, []).append(holder)
        if not was_live and consumer not in self._remote_members:
            self._rank(consumer)
            self._assign()
        self._settle()

    def give_up(self, holder: H, partitions: Iterable[int], now: float) -> None:
        """Take back those of the partitions that this poll holds; it keeps the others."""
        self._release(holder, partitions)
        self.tick(now)
        self._settle()

    def release(self, holder: H, now: float) -> None:
        """End a poll: what it holds is free, and its id is idle unless another poll of it waits."""
        consumer = self._consumer_of.pop(holder, None)
        if consumer is None:
            return
        queue = self._queues[consumer]
        queue.remove(holder)
        if not queue:
            del self._queues[consumer]
            self._idle_until[consumer] = now + self._idle
        self._release(holder, self.held(holder))
        self.tick(now)
        self._settle()

    def tick(self, now: float) -> None:
        """Forget the ids whose idle time is over, and assign their partitions to the others."""
        gone = list(takewhile(lambda c: self._idle_until[c] <= now, self._idle_until))
        for consumer in gone:
            del self._idle_until[consumer]
            if consumer not in self._remote_members:
                self._unrank(consumer)
        if gone:
            self._assign()
            self._settle()

    def set_remote_members(self, consumers: frozenset[str]) -> None:
        """Learn which ids are live on other nodes; an id may be live there and here."""
        live = self.live()
        came = consumers - self._remote_members - live
        went = self._remote_members - consumers - live
        self._remote_members = consumers
        if not self._ranks:
            self._rank_all()
        else:
            for consumer in came:
                self._rank(consumer)
            for consumer in went:
                self._unrank(consumer)
        if came or went:
            self._assign()
            self._settle()

    def resize(self, partitions: Sequence[int]) -> None:
        """Assign another set of partitions: the topic has grown, or was created again."""
        self.partitions = tuple(partitions)
        self._rank_all()
        self._assign()
        self._settle()

    def changes(self) -> list[Assign[H] | Revoke[H]]:
        """Return the grants and revocations since the last call, in their order."""
        changes, self._changes = self._changes, []
        return changes

    def next_deadline(self) -> float | None:
        """Return the time at which `tick` has something to do, if there is one."""
        return next(iter(self._idle_until.values()), None)

    def poll_before(self, holder: H) -> H | None:
        """Return the poll of the same id that this one waits for, if it waits for one."""
        consumer = self._consumer_of.get(holder)
        first = None if consumer is None else self.first(consumer)
        return None if first == holder else first

    def first(self, consumer: str) -> H | None:
        """Return the poll of this id whose turn it is, if any polls."""
        queue = self._queues.get(consumer)
        return queue[0] if queue else None

    def queued(self, consumer: str) -> Sequence[H]:
        """Return the polls of this id, the one whose turn it is first."""
        return tuple(self._queues.get(consumer, ()))

    def ended(self, consumer: str) -> float | None:
        """Return when the last poll of an idle id ended; None: it polls, or is not known."""
        until = self._idle_until.get(consumer)
        return None if until is None else until - self._idle

    def held(self, holder: H) -> set[int]:
        """Return the partitions that this poll holds."""
        return {partition for partition, other in self._holder_of.items() if other == holder}

    def holder(self, partition: int) -> H | None:
        """Return the poll that holds a partition."""
        return self._holder_of.get(partition)

    def owner(self, partition: int) -> str | None:
        """Return the live id that owns a partition, None: there is no live id."""
        return self._owners.get(partition)

    def owned(self) -> Set[int]:
        """Return the partitions that have an owner."""
        return self._owners.keys()

    def is_revoked(self, partition: int) -> bool:
        """Return whether the holder of a partition was asked to give it up."""
        return partition in self._revoked

    def is_live(self, consumer: str) -> bool:
        """Return whether an id is live here."""
        return consumer in self._queues or consumer in self._idle_until

    def live(self) -> set[str]:
        """Return the ids that are live here."""
        return self._queues.keys() | self._idle_until.keys()

    def members(self) -> set[str]:
        """Return the ids that own partitions: those live here or on other nodes."""
        return self.live() | self._remote_members

    def is_remote(self, consumer: str) -> bool:
        """Return whether an id is live on other nodes."""
        return consumer in self._remote_members

    def polls(self) -> int:
        """Return how many polls claim."""
        return len(self._consumer_of)

    def _release(self, holder: H, partitions: Iterable[int]) -> None:
        for partition in partitions:
            if self._holder_of.get(partition) == holder:
                del self._holder_of[partition]
                self._revoked.pop(partition, None)

    def _rank_all(self) -> None:
        known = self.members()
        self._ranks = {}
        if len(known) > 1:
            self._ranks = {p: sorted((_score(c, p), c) for c in known) for p in self.partitions}

    def _rank(self, consumer: str) -> None:
        if not self._ranks:
            self._rank_all()
            return
        for partition, rank in self._ranks.items():
            insort(rank, (_score(consumer, partition), consumer))

    def _unrank(self, consumer: str) -> None:
        for partition, rank in self._ranks.items():
            del rank[bisect_left(rank, (_score(consumer, partition), consumer))]
            if len(rank) < 2:
                self._ranks = {}
                return

    def _assign(self) -> None:
        known = self.members()
        if len(known) < 2:
            self._owners = dict.fromkeys(self.partitions, *known) if known else {}
            return
        self._owners = {}
        floor, extra = divmod(len(self.partitions), len(known))
        taken: dict[str, int] = {}
        for partition in self.partitions:
            limit = floor + (extra > 0)
            best_first = reversed(self._ranks[partition])
            # Some id is below its quota: the quotas leave exactly as much as is left to assign.
            consumer = next(c for _, c in best_first if taken.get(c, 0) < limit)
            taken[consumer] = taken.get(consumer, 0) + 1
            extra -= taken[consumer] > floor
            self._owners[partition] = consumer

    def _settle(self) -> None:
        for partition, holder in self._holder_of.items():
            consumer = self._consumer_of[holder]
            if self._owners.get(partition) != consumer and partition not in self._revoked:
                self._revoked[partition] = holder
                self._changes.append(Revoke(holder, consumer, partition))
        for partition, owner in self._owners.items():
            queue = self._queues.get(owner)
            if queue and partition not in self._holder_of:
                self._holder_of[partition] = queue[0]
                self._changes.append(Assign(queue[0], owner, partition))


def _score(consumer: str, partition: int) -> int:
    digest = blake2b(f"{partition} {consumer}".encode(), digest_size=8).digest()
    return int.from_bytes(digest, "big")
