"""The assignors of consumer groups (KIP-848): which member is to have which partitions.

Both are pure, and the same members and topics give the same result. `uniform` counts partitions of
all topics together and moves as few as it can; `range` gives each member adjacent partitions of
each topic, so that members have the same numbers of topics with as many partitions.

Differences from Apache Kafka: racks are not looked at, and members with unlike subscriptions are
balanced by single moves until none makes the greater of two loads smaller.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

TopicPartition = tuple[bytes, int]
"""The id of a topic, and the number of one of its partitions."""
Assignment = frozenset[TopicPartition]
NOTHING: Final[Assignment] = frozenset()


@dataclass(frozen=True, slots=True)
class AssignedMember:
    """A member: the ids of the topics that it reads, and its partitions by the last assignment."""

    id: str
    instance_id: str | None
    topics: frozenset[bytes]
    owned: Assignment = NOTHING


Assignor = Callable[[Sequence[AssignedMember], Mapping[bytes, int]], dict[str, Assignment]]
"""Returns the partitions of each member; topics come with the numbers of their partitions."""


def assign_range(
    members: Sequence[AssignedMember], partitions: Mapping[bytes, int]
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
    members: Sequence[AssignedMember], partitions: Mapping[bytes, int]
) -> dict[str, Assignment]:
    """Give members like numbers of partitions; each keeps what it has as far as that allows."""
    loads = _Loads(members, partitions)
    for one in members:
        for place in sorted(one.owned):
            if place[0] in one.topics and place[1] < partitions.get(place[0], 0):
                loads.keep(place, one.id)
    loads.begin()
    for topic in sorted(partitions):
        for number in range(partitions[topic]):
            loads.give((topic, number))
    # Each move makes the sum of the squares of the loads smaller, so that the moves end.
    while loads.balance():
        pass
    return {
        member: frozenset((topic, number) for topic, numbers in owned.items() for number in numbers)
        for member, owned in loads.owned.items()
    }


class _Loads:
    """Who has which partition, and who of the readers of a topic has fewest.

    Topics with the same readers share a heap of loads. For each of them it has an entry that is not
    above the load: one that is below is mended when it comes up, so that a load that grows, as
    almost all do, costs nothing in heaps where the member is not the least.
    """

    def __init__(self, members: Iterable[AssignedMember], topics: Iterable[bytes]) -> None:
        ids = sorted((one.id, one.topics) for one in members)
        self.owned: dict[str, dict[bytes, list[int]]] = {member: {} for member, _ in ids}
        self._counts = dict.fromkeys(self.owned, 0)
        self._taken: set[TopicPartition] = set()
        readers = {topic: tuple(id for id, read in ids if topic in read) for topic in topics}
        self._heaps: dict[tuple[str, ...], list[tuple[int, str]]] = {
            group: [] for group in readers.values()
        }
        self._heap_of = {topic: self._heaps[group] for topic, group in readers.items()}
        self._heaps_with: dict[str, list[list[tuple[int, str]]]] = {}

    def keep(self, place: TopicPartition, member: str) -> None:
        """Have a member own a partition, unless another one does; before `begin`."""
        if place not in self._taken:
            self._taken.add(place)
            self.owned[member].setdefault(place[0], []).append(place[1])
            self._counts[member] += 1

    def begin(self) -> None:
        """Take the loads as they are now."""
        for group, heap in self._heaps.items():
            heap += [(self._counts[member], member) for member in group]
            heapq.heapify(heap)
            for member in group:
                self._heaps_with.setdefault(member, []).append(heap)

    def give(self, place: TopicPartition) -> None:
        """Have the reader with the fewest own a partition that has no owner, if it has readers."""
        if place not in self._taken and (least := self._least(place[0])) is not None:
            self.owned[least].setdefault(place[0], []).append(place[1])
            self._count(least, 1)

    def balance(self) -> bool:
        """Move partitions, from members with most first; return whether there was one to move."""
        moved = False
        most = [(-count, member) for member, count in self._counts.items()]
        heapq.heapify(most)
        while most:
            count, member = heapq.heappop(most)
            if -count != self._counts[member]:
                continue
            least = min(self._lighter(member), default=None)
            if least is None:
                continue
            moved, (_, topic, reader) = True, least
            number = self.owned[member][topic].pop()
            self.owned[reader].setdefault(topic, []).append(number)
            self._count(member, -1)
            self._count(reader, 1)
            for one in (member, reader):
                heapq.heappush(most, (-self._counts[one], one))
        return moved

    def _lighter(self, member: str) -> Iterator[tuple[int, bytes, str]]:
        """Yield readers of a member's topics that have fewer by two, with their loads."""
        for topic, numbers in self.owned[member].items():
            least = self._least(topic) if numbers else None
            if least is not None and self._counts[least] + 2 <= self._counts[member]:
                yield self._counts[least], topic, least

    def _least(self, topic: bytes) -> str | None:
        """Return the reader of a topic with the fewest partitions, None: it has no reader."""
        heap = self._heap_of[topic]
        while heap and heap[0][0] != (count := self._counts[heap[0][1]]):
            heapq.heapreplace(heap, (count, heap[0][1]))
        return heap[0][1] if heap else None

    def _count(self, member: str, change: int) -> None:
        self._counts[member] += change
        for heap in self._heaps_with[member] if change < 0 else ():
            heapq.heappush(heap, (self._counts[member], member))


ASSIGNORS: Final[Mapping[str, Assignor]] = {"uniform": assign_uniform, "range": assign_range}
"""By the names that members give; the first is that of a group whose members name none."""
DEFAULT_ASSIGNOR: Final = "uniform"
