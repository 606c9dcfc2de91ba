"""The assignors of consumer groups (KIP-848): which member is to have which partitions.

Both are pure, and the same members and topics give the same result. `uniform` counts partitions of
all topics together and moves as few as it can; `range` gives each member adjacent partitions of
each topic, so that members have the same numbers of topics with as many partitions.

Differences from Apache Kafka: racks are not looked at, and members with unlike subscriptions are
balanced by single moves until none makes the greater of two loads smaller.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

TopicPartition = tuple[bytes, int]
"""The id of a topic, and the number of one of its partitions."""
Assignment = frozenset[TopicPartition]
NOTHING: Final[Assignment] = frozenset()


@dataclass(frozen=True, slots=True)
class Subscriber:
    """A member: the ids of the topics that it reads, and its partitions by the last assignment."""

    id: str
    instance_id: str | None
    topics: frozenset[bytes]
    owned: Assignment = NOTHING


Assignor = Callable[[Sequence[Subscriber], Mapping[bytes, int]], dict[str, Assignment]]
"""Returns the partitions of each member; topics come with the numbers of their partitions."""


def assign_range(
    members: Sequence[Subscriber], partitions: Mapping[bytes, int]
) -> dict[str, Assignment]:
    """Give each member adjacent partitions of each topic; members come in the order of their ids.

    Those with an instance come first, by its id, and so keep their partitions over restarts.
    """
    ordered = sorted(members, key=lambda one: (one.instance_id is None, one.instance_id or one.id))
    found: dict[str, list[TopicPartition]] = {one.id: [] for one in members}
    for topic, count in partitions.items():
        readers = [one.id for one in ordered if topic in one.topics]
        start = 0
        for place, reader in enumerate(readers):
            end = start + count // len(readers) + (place < count % len(readers))
            found[reader] += [(topic, number) for number in range(start, end)]
            start = end
    return {member: frozenset(owned) for member, owned in found.items()}


def assign_uniform(
    members: Sequence[Subscriber], partitions: Mapping[bytes, int]
) -> dict[str, Assignment]:
    """Give members like numbers of partitions; each keeps what it has as far as that allows."""
    loads = _Loads(members, partitions)
    places = [
        (topic, number) for topic in sorted(partitions) for number in range(partitions[topic])
    ]
    for one in members:
        for place in one.owned:
            if place[0] in one.topics and place[1] < partitions.get(place[0], 0):
                loads.owners.setdefault(place, one.id)
    for owner in loads.owners.values():
        loads.counts[owner] += 1
    loads.begin()
    for place in places:
        if place not in loads.owners and (least := loads.least(place[0])) is not None:
            loads.give(place, least)
    # Each move makes the sum of the squares of the loads smaller, so that the moves end.
    while [place for place in places if loads.improve(place)]:
        pass
    found: dict[str, list[TopicPartition]] = {one.id: [] for one in members}
    for place, owner in loads.owners.items():
        found[owner].append(place)
    return {member: frozenset(owned) for member, owned in found.items()}


class _Loads:
    """Who has which partition, and who of the readers of a topic has fewest.

    Topics with the same readers share a heap of loads. A heap has an entry for each load that a
    member had; entries that are no longer true are dropped when they come up.
    """

    def __init__(self, members: Iterable[Subscriber], topics: Iterable[bytes]) -> None:
        self.owners: dict[TopicPartition, str] = {}
        self.counts = {one.id: 0 for one in members}
        ids = sorted((one.id, one.topics) for one in members)
        readers = {topic: tuple(id for id, read in ids if topic in read) for topic in topics}
        self._heaps: dict[tuple[str, ...], list[tuple[int, str]]] = {
            group: [] for group in readers.values()
        }
        self._heap_of = {topic: self._heaps[group] for topic, group in readers.items()}
        self._heaps_with: dict[str, list[list[tuple[int, str]]]] = {}

    def begin(self) -> None:
        """Take the loads as they are now."""
        for group, heap in self._heaps.items():
            heap += [(self.counts[member], member) for member in group]
            heapq.heapify(heap)
            for member in group:
                self._heaps_with.setdefault(member, []).append(heap)

    def least(self, topic: bytes) -> str | None:
        """Return the reader of a topic with the fewest partitions, None: it has no reader."""
        heap = self._heap_of[topic]
        while heap and heap[0][0] != self.counts[heap[0][1]]:
            heapq.heappop(heap)
        return heap[0][1] if heap else None

    def give(self, place: TopicPartition, member: str) -> None:
        """Have a member own a partition, which may have another owner."""
        if (before := self.owners.get(place)) is not None:
            self._count(before, -1)
        self.owners[place] = member
        self._count(member, 1)

    def improve(self, place: TopicPartition) -> bool:
        """Move a partition to the reader with the fewest if its owner has two more."""
        owner, least = self.owners.get(place), self.least(place[0])
        if owner is None or least is None or self.counts[owner] < self.counts[least] + 2:
            return False
        self.give(place, least)
        return True

    def _count(self, member: str, change: int) -> None:
        self.counts[member] += change
        for heap in self._heaps_with[member]:
            heapq.heappush(heap, (self.counts[member], member))


ASSIGNORS: Final[Mapping[str, Assignor]] = {"uniform": assign_uniform, "range": assign_range}
"""By the names that members give; the first is that of a group whose members name none."""
DEFAULT_ASSIGNOR: Final = "uniform"
