"""Offsets: what groups committed, where partitions begin and end, and where a time lies.

Groups are used as Kafka's "simple consumers" do: offsets are committed under the group's id without
a membership, so that Kafka's own tools show them and their lag.

With each offset goes a note, which tells the *epoch* of the group on the partition: a number that
every reset changes, and that whoever acknowledges hands on. So what was received before a reset is
known at any node by the offset that is read anyway. Who commits without a note (another client, a
tool that moves groups) begins an epoch too, which its offset names. Behind the epoch the note tells
what the group acknowledged behind the offset (`progress`).
"""

from __future__ import annotations

import re
import secrets
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from kafka.protocol.admin import ListGroupsRequest
from kafka.protocol.consumer import (
    ListOffsetsRequest,
    OffsetCommitRequest,
    OffsetDeleteRequest,
    OffsetFetchRequest,
)

from router.backends.kafka.cluster import GROUP, Cluster
from router.backends.kafka.failures import GROUP_NOT_FOUND, CodeError, check
from router.backends.kafka.progress import Progress

LATEST: Final = -1
EARLIEST: Final = -2
# Messages of transactions that are not committed are as if they were not there.
COMMITTED_ONLY: Final = 1
_NO_MEMBER: Final = -1
_MOVED: Final = frozenset({14, 15, 16})
# Epochs are numbers of 63 bits; those that were not drawn here are below all that were.
_DRAWN: Final = 1 << 62
_NEVER: Final = 1
_NOTE: Final = re.compile(r"router-epoch ([0-9]{1,19})(?: acked ([A-Za-z0-9_-]*))?")


@dataclass(frozen=True, slots=True)
class Commit:
    """What a group committed on one partition."""

    offset: int
    note: str = ""

    def progress(self) -> Progress:
        """Return what is acknowledged."""
        told = _NOTE.fullmatch(self.note)
        if told is None or told[2] is None:
            return Progress(self.offset)
        return Progress.read(self.offset, told[2])


def new_epoch() -> int:
    """Return a number that no group had as its epoch."""
    return _DRAWN | secrets.randbelow(_DRAWN)


def note_of(epoch: int, progress: Progress | None = None) -> str:
    """Return the note that tells an epoch, and what is acknowledged; raise NotSupportedError."""
    note = f"router-epoch {epoch}"
    return f"{note} acked {progress.text()}" if progress and progress.shared else note


def epoch_of(commit: Commit | None) -> int:
    """Return the epoch that began with a commit or goes on with it; None: with none at all."""
    if commit is None:
        return _NEVER
    told = _NOTE.fullmatch(commit.note)
    return int(told[1]) if told else _NEVER + 1 + commit.offset


class Offsets:
    """Asks and moves offsets; all calls raise RouterError, what the protocol of backends lists."""

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster

    def committed(
        self, group: str, topic: str, partitions: Iterable[int], deadline: float
    ) -> dict[int, Commit]:
        """Return what a group committed on these partitions, where it did."""
        return self.all_committed((group,), topic, partitions, deadline)[group]

    def all_committed(
        self, groups: Sequence[str], topic: str, partitions: Iterable[int], deadline: float
    ) -> dict[str, dict[int, Commit]]:
        """Return what each of these groups committed on these partitions, where it did."""
        wanted = list(partitions)
        return self._cluster.persist(lambda: self._fetch(groups, topic, wanted, deadline), deadline)

    def _fetch(
        self, groups: Sequence[str], topic: str, partitions: list[int], deadline: float
    ) -> dict[str, dict[int, Commit]]:
        of = OffsetFetchRequest.OffsetFetchRequestGroup
        topics = [of.OffsetFetchRequestTopics(name=topic, partition_indexes=partitions)]
        together: defaultdict[int, list[str]] = defaultdict(list)
        for group, node in self._cluster.coordinators(GROUP, groups, deadline).items():
            together[node].append(group)
        found: dict[str, dict[int, Commit]] = {}
        for some in together.values():
            request = OffsetFetchRequest(
                groups=[of(group_id=group, topics=topics) for group in some],
                require_stable=True,
                min_version=8,
                max_version=8,
            )
            for answer in self._ask(some[0], request, deadline).groups:
                self._check(answer.group_id, answer.error_code)
                found[answer.group_id] = self._commits(answer)
        return found

    def _commits(self, answer: Any) -> dict[int, Commit]:
        found: dict[int, Commit] = {}
        for topic in answer.topics:
            for p in topic.partitions:
                self._check(answer.group_id, p.error_code)
                if p.committed_offset >= 0:
                    found[p.partition_index] = Commit(p.committed_offset, p.metadata or "")
        return found

    def commit(
        self, group: str, topic: str, offsets: Mapping[int, int], note: str, deadline: float
    ) -> None:
        """Commit offsets of a group, all with one note, whatever it committed before."""
        if not offsets:
            return
        of = OffsetCommitRequest.OffsetCommitRequestTopic
        partitions = [
            of.OffsetCommitRequestPartition(
                partition_index=partition,
                committed_offset=offset,
                committed_leader_epoch=-1,
                committed_metadata=note,
            )
            for partition, offset in offsets.items()
        ]

        def attempt() -> None:
            request = OffsetCommitRequest(
                group_id=group,
                generation_id_or_member_epoch=_NO_MEMBER,
                member_id="",
                group_instance_id=None,
                topics=[of(name=topic, partitions=partitions)],
                max_version=8,
            )
            answer = self._ask(group, request, deadline)
            for found in answer.topics:
                for p in found.partitions:
                    self._check(group, p.error_code)

        self._cluster.persist(attempt, deadline)

    def delete(self, group: str, topic: str, partitions: Iterable[int], deadline: float) -> None:
        """Forget what a group committed on these partitions."""
        of = OffsetDeleteRequest.OffsetDeleteRequestTopic
        wanted = [of.OffsetDeleteRequestPartition(partition_index=p) for p in partitions]

        def attempt() -> None:
            request = OffsetDeleteRequest(
                group_id=group, topics=[of(name=topic, partitions=wanted)]
            )
            answer = self._ask(group, request, deadline)
            if answer.error_code == GROUP_NOT_FOUND:
                return
            self._check(group, answer.error_code)
            for found in answer.topics:
                for p in found.partitions:
                    self._check(group, p.error_code)

        self._cluster.persist(attempt, deadline)

    def groups(self, deadline: float) -> list[str]:
        """Return the ids of all groups of all brokers."""

        def attempt() -> list[str]:
            found: set[str] = set()
            for node in self._cluster.brokers(deadline):
                answer = self._cluster.ask(
                    ListGroupsRequest(states_filter=[], types_filter=[]), deadline, node
                )
                check(answer.error_code, "groups")
                found.update(group.group_id for group in answer.groups)
            return sorted(found)

        return self._cluster.persist(attempt, deadline)

    def at(
        self, topic: str, partitions: Iterable[int], time_ms: int, deadline: float
    ) -> dict[int, int]:
        """Return the first offset stored at a time or later: LATEST, EARLIEST, or milliseconds.

        Where nothing was stored since, it is the end.
        """
        wanted = list(partitions)
        found = self._cluster.persist(lambda: self._at(topic, wanted, time_ms, deadline), deadline)
        late = [partition for partition, offset in found.items() if offset < 0]
        if late and time_ms >= 0:
            found |= self.at(topic, late, LATEST, deadline)
        return found

    def _at(
        self, topic: str, partitions: list[int], time_ms: int, deadline: float
    ) -> dict[int, int]:
        of = ListOffsetsRequest.ListOffsetsTopic
        by_leader: defaultdict[int, list[Any]] = defaultdict(list)
        for partition in partitions:
            by_leader[self._cluster.leader(topic, partition, deadline)].append(
                of.ListOffsetsPartition(
                    partition_index=partition, current_leader_epoch=-1, timestamp=time_ms
                )
            )
        found: dict[int, int] = {}
        for asked in by_leader.values():
            request = ListOffsetsRequest(
                replica_id=-1,
                isolation_level=COMMITTED_ONLY,
                topics=[of(name=topic, partitions=asked)],
                min_version=2,
                max_version=7,
            )
            first = asked[0].partition_index
            answer = self._cluster.ask_leader(topic, first, request, deadline)
            for answered in answer.topics:
                for p in answered.partitions:
                    about = f"offsets of {topic}, partition {p.partition_index}"
                    self._cluster.check(topic, p.error_code, about, deadline)
                    found[p.partition_index] = p.offset
        return found

    def end(self, topic: str, partition: int, deadline: float) -> int:
        """Return where a partition ends for readers at this moment."""
        return self.at(topic, (partition,), LATEST, deadline)[partition]

    def _ask(self, group: str, request: Any, deadline: float) -> Any:
        return self._cluster.ask_coordinator(GROUP, group, request, deadline)

    def _check(self, group: str, code: int) -> None:
        if code in _MOVED:
            self._cluster.forget_coordinator(GROUP, group)
        if code:
            raise CodeError(code, f"group {group}")
