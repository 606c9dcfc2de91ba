"""Offsets: what groups committed, where partitions begin and end, and where a time lies.

Groups are used as Kafka's "simple consumers" do: offsets are committed under the group's id without
a membership, so that Kafka's own tools show them and their lag.

With each offset goes a note, which tells the *epoch* of the group on the partition: a number that
every reset changes, and that each acknowledgement keeps. So what was received before a reset is
known at any node by the offset that is read anyway. A commit without a note (of another client, or
a tool that moves groups) begins an epoch too, which its offset names. Behind the epoch the note
tells what the group acknowledged behind the offset (`progress`).
"""

from __future__ import annotations

import re
import secrets
import time
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from router.backends.kafka import apis
from router.backends.kafka.cluster import GROUP, Cluster, partition_codes
from router.backends.kafka.failures import CodeError, NoAnswerError, check
from router.backends.kafka.group_progress import CommitProgress
from router.model import TopicName
from router.wire.kafka.error_codes import ErrorCode

LATEST: Final = -1
EARLIEST: Final = -2
# Messages of transactions that are not committed are as if they were not there.
COMMITTED_ONLY: Final = 1
# All that is stored. Kafka marks a transaction as committed in its partitions some milliseconds
# after it confirmed the commit: until then only this end covers the messages.
UNCOMMITTED_TOO: Final = 0
MARKER_SECONDS: Final = 1.0
"""How long a reader waits for Kafka to mark what is committed; a transaction may be open longer."""
MARKER_PAUSE_SECONDS: Final = 0.02
# Epochs are numbers of 63 bits; those that were not drawn here are below all that were.
_DRAWN: Final = 1 << 62
_NEVER: Final = 1
_NOTE: Final = re.compile(r"router-epoch ([0-9]{1,19})(?: acked ([A-Za-z0-9_-]*))?")


@dataclass(frozen=True, slots=True)
class CommittedOffset:
    """What a group committed on one partition."""

    offset: int
    note: str = ""

    def progress(self) -> CommitProgress:
        """Return what is acknowledged."""
        note_match = _NOTE.fullmatch(self.note)
        if note_match is None or note_match[2] is None:
            return CommitProgress(self.offset)
        return CommitProgress.read(self.offset, note_match[2])


@dataclass(frozen=True, slots=True)
class GroupPartition:
    """A group on one partition: the topic in the router, the names in Kafka, its number there."""

    topic: TopicName
    group: str
    name: str
    number: int


@dataclass(frozen=True, slots=True)
class GroupCommit:
    """What a group commits on one partition of a topic, by the names in Kafka."""

    group: str
    topic: str
    number: int
    offset: int
    note: str


def new_epoch() -> int:
    """Return a number that no group had as its epoch."""
    return _DRAWN | secrets.randbelow(_DRAWN)


def note_of(epoch: int, progress: CommitProgress | None = None) -> str:
    """Return the note that tells an epoch, and what is acknowledged; raise NotSupportedError."""
    note = f"router-epoch {epoch}"
    return f"{note} acked {progress.text()}" if progress and progress.shared else note


def epoch_of(commit: CommittedOffset | None) -> int:
    """Return the epoch that began with a commit or goes on with it; None: with none at all."""
    if commit is None:
        return _NEVER
    note_match = _NOTE.fullmatch(commit.note)
    return int(note_match[1]) if note_match else _NEVER + 1 + commit.offset


class Offsets:
    """Asks and moves offsets; all calls raise RouterError, what the protocol of backends lists."""

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster

    def committed(
        self, group: str, topic: str, partitions: Iterable[int], deadline: float
    ) -> dict[int, CommittedOffset]:
        """Return what a group has committed on these partitions, where it did."""
        return self.all_committed((group,), topic, partitions, deadline)[group]

    def settled(
        self, group: str, topic: str, partitions: Iterable[int], deadline: float
    ) -> dict[int, CommittedOffset]:
        """Return what a group committed once no transaction that would change it is open."""
        return self._committed((group,), topic, partitions, deadline, stable=True)[group]

    def all_committed(
        self, groups: Sequence[str], topic: str, partitions: Iterable[int], deadline: float
    ) -> dict[str, dict[int, CommittedOffset]]:
        """Return what each of these groups has committed on these partitions, where it did."""
        return self._committed(groups, topic, partitions, deadline, stable=False)

    def _committed(
        self,
        groups: Sequence[str],
        topic: str,
        partitions: Iterable[int],
        deadline: float,
        *,
        stable: bool,
    ) -> dict[str, dict[int, CommittedOffset]]:
        numbers = list(partitions)
        by_group = {group: {topic: numbers} for group in groups}
        found = self._cluster.persist(lambda: self._fetch(by_group, deadline, stable), deadline)
        return {
            group: {number: commit for (_, number), commit in commits.items()}
            for group, commits in found.items()
        }

    def settled_by(
        self, partitions: Sequence[GroupPartition], deadline: float
    ) -> dict[GroupPartition, CommittedOffset]:
        """Return what groups committed, each on its partition, as `settled` does."""
        by_group: defaultdict[str, defaultdict[str, list[int]]] = defaultdict(
            lambda: defaultdict(list)
        )
        for of in partitions:
            by_group[of.group][of.name].append(of.number)
        found = self._cluster.persist(lambda: self._fetch(by_group, deadline, True), deadline)
        commits = ((of, found[of.group].get((of.name, of.number))) for of in partitions)
        return {of: commit for of, commit in commits if commit is not None}

    def _fetch(
        self, by_group: Mapping[str, Mapping[str, list[int]]], deadline: float, stable: bool
    ) -> dict[str, dict[tuple[str, int], CommittedOffset]]:
        """Return what groups committed by topic and number, of the partitions of topics.

        `stable`: Kafka refuses where an open transaction would change it.
        """
        found: dict[str, dict[tuple[str, int], CommittedOffset]] = {}
        for groups in self._by_coordinator(by_group, deadline).values():
            requests = [
                {
                    "group_id": group,
                    "topics": [
                        {"name": topic, "partition_indexes": numbers}
                        for topic, numbers in by_group[group].items()
                    ],
                }
                for group in groups
            ]
            request = apis.OFFSET_FETCH(groups=requests, require_stable=stable)
            answer = self._cluster.ask_coordinator(GROUP, groups[0], request, deadline)
            found |= {one.group_id: self._commits(one) for one in answer.groups}
        return found

    def _by_coordinator(
        self, groups: Iterable[str], deadline: float
    ) -> defaultdict[int, list[str]]:
        together: defaultdict[int, list[str]] = defaultdict(list)
        for group, node in self._cluster.coordinators(GROUP, list(groups), deadline).items():
            together[node].append(group)
        return together

    def _commits(self, answer: Any) -> dict[tuple[str, int], CommittedOffset]:
        for code in (answer.error_code, *partition_codes(answer)):
            self._cluster.check_coordinator(GROUP, answer.group_id, code)
        return {
            (topic.name, p.partition_index): CommittedOffset(p.committed_offset, p.metadata or "")
            for topic in answer.topics
            for p in topic.partitions
            if p.committed_offset >= 0
        }

    def commit(
        self, group: str, topic: str, offsets: Mapping[int, int], note: str, deadline: float
    ) -> None:
        """Commit offsets of a group, all with one note, whatever it committed before."""
        if not offsets:
            return
        partitions = [_partition(number, offset, note) for number, offset in offsets.items()]
        topics = [{"name": topic, "partitions": partitions}]
        request = apis.OFFSET_COMMIT(group_id=group, topics=topics)
        self._cluster.ask_until_done(GROUP, group, request, partition_codes, deadline)

    def commit_all(self, commits: Sequence[GroupCommit], deadline: float) -> set[str]:
        """Try once to commit for many groups, one behind the other; return for which it is done."""
        by_group: defaultdict[str, defaultdict[str, list[dict[str, Any]]]] = defaultdict(
            lambda: defaultdict(list)
        )
        for one in commits:
            by_group[one.group][one.topic].append(_partition(one.number, one.offset, one.note))
        done: set[str] = set()
        try:
            for node, groups in self._by_coordinator(by_group, deadline).items():
                done |= self._commit_at(node, {g: by_group[g] for g in groups}, deadline)
        except (CodeError, NoAnswerError):
            pass  # the groups that are left commit by themselves, and meet it then
        return done

    def _commit_at(
        self, node: int, groups: Mapping[str, Mapping[str, list[dict[str, Any]]]], deadline: float
    ) -> set[str]:
        requests = [
            apis.OFFSET_COMMIT(
                group_id=group,
                topics=[{"name": topic, "partitions": found} for topic, found in topics.items()],
            )
            for group, topics in groups.items()
        ]
        with self._cluster.lent(node, deadline) as connection:
            answers = connection.ask_all(requests, deadline)
        return {
            group
            for group, answer in zip(groups, answers, strict=True)
            if not any(partition_codes(answer))
        }

    def delete(self, group: str, topic: str, partitions: Iterable[int], deadline: float) -> None:
        """Forget what a group committed on these partitions."""
        topics = [{"name": topic, "partitions": [{"partition_index": p} for p in partitions]}]
        request = apis.OFFSET_DELETE(group_id=group, topics=topics)

        def codes_of(answer: Any) -> Iterable[int]:
            if answer.error_code == ErrorCode.GROUP_ID_NOT_FOUND:
                return ()
            return (answer.error_code, *partition_codes(answer))

        self._cluster.ask_until_done(GROUP, group, request, codes_of, deadline)

    def groups(self, deadline: float) -> list[str]:
        """Return the ids of all groups of all brokers."""

        def attempt() -> list[str]:
            found: set[str] = set()
            for node in self._cluster.brokers(deadline):
                answer = self._cluster.ask(apis.LIST_GROUPS(), deadline, node)
                check(answer.error_code, "groups")
                found.update(group.group_id for group in answer.groups)
            return sorted(found)

        return self._cluster.persist(attempt, deadline)

    def at(
        self,
        topic: str,
        partitions: Iterable[int],
        time_ms: int,
        deadline: float,
        isolation: int = COMMITTED_ONLY,
    ) -> dict[int, int]:
        """Return the first offset stored at a time or later: LATEST, EARLIEST, or milliseconds.

        Where nothing was stored since, it is the end.
        """
        partition_numbers = list(partitions)
        found = self._cluster.persist(
            lambda: self._at(topic, partition_numbers, time_ms, deadline, isolation), deadline
        )
        late = [partition for partition, offset in found.items() if offset < 0]
        if late and time_ms >= 0:
            found |= self.at(topic, late, LATEST, deadline, isolation)
        return found

    def _at(
        self, topic: str, partitions: list[int], time_ms: int, deadline: float, isolation: int
    ) -> dict[int, int]:
        by_leader: defaultdict[int, list[dict[str, int]]] = defaultdict(list)
        for partition in partitions:
            leader = self._cluster.leader(topic, partition, deadline)
            by_leader[leader].append({"partition_index": partition, "timestamp": time_ms})
        found: dict[int, int] = {}
        for entries in by_leader.values():
            request = apis.LIST_OFFSETS(
                replica_id=-1,
                isolation_level=isolation,
                topics=[{"name": topic, "partitions": entries}],
            )
            first = entries[0]["partition_index"]
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

    def settled_end(self, topic: str, partition: int, deadline: float) -> int:
        """Return where a partition ends for readers once it is marked what was committed so far.

        A transaction that is open is waited for MARKER_SECONDS.
        """
        everything = self.at(topic, (partition,), LATEST, deadline, UNCOMMITTED_TOO)[partition]
        until = min(deadline, time.monotonic() + MARKER_SECONDS)
        while (end := self.end(topic, partition, deadline)) < everything:
            if time.monotonic() >= until:
                break
            time.sleep(MARKER_PAUSE_SECONDS)
        return end


def _partition(number: int, offset: int, note: str) -> dict[str, Any]:
    return {"partition_index": number, "committed_offset": offset, "committed_metadata": note}
