"""Acknowledging messages of a group from anywhere, beside the consumer that polls it.

Theory of operation. A commit is read, changed and written back, and Kafka writes whatever comes. As
long as only the consumer that has the partition's lease commits, the lease is enough. Once single
messages are acknowledged too, the group's notes say so (`CommitProgress.shared`), and from then on
every commit of that group and partition is made in its *turn*: a lease of its own, which polls of
the node's broker with one consumer id queue for, on whichever node. It is confirmed directly before
the commit, as polls confirm theirs.

The first such change may meet a consumer that looked just before and commits without having read
it: as a reset does, it waits until such commits are over (or has Kafka fence them), looks again,
and says it once more if it was overwritten. What remains is what remains of the lease: a process
that stands still between confirming and committing for longer than the node's session; and a poll
whose acknowledgement falls between the first look and the first commit of the very first such
change, in a millisecond or two, may see its messages again. The alternatives: a transaction for
every commit (four round trips more for each poll), and a topic of acknowledgements.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from hashlib import sha256
from typing import Final

from router.backends import check_positions
from router.backends.kafka.group_progress import CommitProgress, Range
from router.backends.kafka.offsets import (
    EARLIEST,
    LATEST,
    UNCOMMITTED_TOO,
    CommittedOffset,
    GroupPartition,
    Offsets,
    epoch_of,
    new_epoch,
    note_of,
)
from router.clocks import seconds_left
from router.clocks.steps import Event
from router.errors import (
    BackendTimeoutError,
    BackendUnavailableError,
    CoordinationUnavailableError,
    FencedError,
    SubscriptionNotFoundError,
)
from router.model import (
    NOT_PARTITIONED,
    ConsumerId,
    CursorState,
    Grant,
    PollOutcome,
    Position,
    Subscription,
    TopicName,
)
from router.node import Node

POLL_SECONDS: Final = 0.5
_ID: Final = "commit"

Confirm = Callable[[float], None]


@dataclass(frozen=True, slots=True)
class GroupTopic:
    """A group on all partitions of a topic."""

    topic: TopicName
    group: str
    name: str
    partitions: int

    def on(self, number: int) -> GroupPartition:
        """Return the group on one partition."""
        return GroupPartition(self.topic, self.group, self.name, number)

    def shown(self, number: int) -> int:
        """Return a partition's number in the router."""
        return NOT_PARTITIONED if self.partitions == 1 else number

    def by_partition(self, positions: Iterable[Position]) -> dict[int, list[Position]]:
        """Return the positions that there may be, by the partition's number in Kafka."""
        shown = {self.shown(number): number for number in range(self.partitions)}
        found: dict[int, list[Position]] = {}
        for position in positions:
            if position.partition in shown and position.entry >= 0:
                found.setdefault(shown[position.partition], []).append(position)
        return found


@contextmanager
def commit_turn(node: Node, of: GroupPartition, deadline: float) -> Iterator[Confirm]:
    """Wait until no other may change what the group committed; give what confirms it.

    Raises what `Node.claim` raises.
    """
    digest = sha256(f"{of.group}\0{of.name}\0{of.number}".encode()).hexdigest()[:32]
    what, bell = Subscription(of.topic, f"router-commit-{digest}"), Event()
    claim = node.claim(ConsumerId(what, _ID), 0, bell, seconds_left(deadline))
    try:
        while (generation := claim.granted().get(NOT_PARTITIONED)) is None:
            if claim.lost():
                raise BackendUnavailableError("the node's broker went away")
            if time.monotonic() >= deadline:
                if unavailable_reason := claim.unavailable_reason():
                    raise CoordinationUnavailableError(unavailable_reason)
                raise BackendTimeoutError("other acknowledgements take too long")
            bell.wait(min(POLL_SECONDS, seconds_left(deadline)))
        grant = Grant(what, NOT_PARTITIONED, generation)
        yield lambda until: node.confirm(grant, seconds_left(until))
    finally:
        claim.release(PollOutcome.DELIVERED)


@dataclass(eq=False)
class SharedCommits:
    """Changes what groups committed; calls may be made from many threads."""

    offsets: Offsets
    _node: Node
    _outlast: Callable[[GroupPartition, float], None]

    def committed(self, of: GroupPartition, deadline: float) -> CommittedOffset | None:
        """Return what a group committed, once no transaction would change it."""
        return self.offsets.settled(of.group, of.name, (of.number,), deadline).get(of.number)

    def change(
        self,
        of: GroupPartition,
        epoch: int,
        change: Callable[[CommitProgress], CommitProgress],
        commit: Callable[[CommitProgress], None],
        deadline: float,
    ) -> CommitProgress:
        """Commit what the change makes of the progress, and that there are such changes.

        Raises FencedError if the group has another epoch, NotSupportedError.
        """
        with commit_turn(self._node, of, deadline) as confirm:
            while True:
                found = self.committed(of, deadline)
                if found is None or epoch_of(found) != epoch:
                    raise FencedError("the group's position was moved by another client")
                before = found.progress()
                after = replace(change(before), shared=True)
                after.text()  # refused, if at all, before anything is sent
                confirm(deadline)
                commit(after)
                if before.shared:
                    return after
                self._outlast(of, deadline)

    def acknowledge(
        self, whole: GroupTopic, positions: Sequence[Position], cumulative: bool, deadline: float
    ) -> None:
        """Acknowledge messages of a group, each alone or with all before it."""
        numbers = range(whole.partitions)
        commits = self.offsets.settled(whole.group, whole.name, numbers, deadline)
        _check_known(whole, commits)
        by_partition_number = whole.by_partition(positions)
        for number, position in ((n, p) for n, some in by_partition_number.items() for p in some):
            if position.epoch not in {0, epoch_of(commits.get(number))}:
                raise FencedError("the subscription was reset since")
        ends = self.offsets.at(whole.name, by_partition_number, LATEST, deadline, UNCOMMITTED_TOO)
        for number, some in by_partition_number.items():
            check_positions(some, {0: ends[number]}, whole.name)
        for number, some in by_partition_number.items():
            stored = sorted({position.entry for position in some})
            ranges = [(0, stored[-1] + 1)] if cumulative else _ranges(stored)
            epoch = self._begun(whole, number, commits.get(number), deadline)
            self._acknowledge(whole.on(number), epoch, ranges, deadline)

    def _acknowledge(
        self, of: GroupPartition, epoch: int, ranges: Sequence[Range], deadline: float
    ) -> None:
        def change(progress: CommitProgress) -> CommitProgress:
            return progress.acknowledge(*ranges)

        def commit(progress: CommitProgress) -> None:
            note = note_of(epoch, progress)
            self.offsets.commit(of.group, of.name, {of.number: progress.offset}, note, deadline)

        self.change(of, epoch, change, commit, deadline)

    def _begun(
        self, whole: GroupTopic, number: int, found: CommittedOffset | None, deadline: float
    ) -> int:
        """Return the epoch on a partition; on one that was added it begins at the first message."""
        if found is not None:
            return epoch_of(found)
        first, epoch = self.offsets.at(whole.name, (number,), EARLIEST, deadline), new_epoch()
        self.offsets.commit(whole.group, whole.name, first, note_of(epoch), deadline)
        return epoch

    def states(self, whole: GroupTopic, deadline: float) -> list[CursorState]:
        """Return where a group stands, by partition."""
        numbers = range(whole.partitions)
        commits = self.offsets.committed(whole.group, whole.name, numbers, deadline)
        _check_known(whole, commits)
        first = self.offsets.at(whole.name, commits, EARLIEST, deadline)
        end = self.offsets.at(whole.name, commits, LATEST, deadline)
        return [
            _state(whole.shown(number), commit.progress(), first[number], end[number])
            for number, commit in sorted(commits.items())
        ]


def _check_known(whole: GroupTopic, commits: Mapping[int, CommittedOffset]) -> None:
    if not commits:
        raise SubscriptionNotFoundError(f"there is no subscription {whole.group}")


def _state(partition: int, progress: CommitProgress, first: int, end: int) -> CursorState:
    offset = progress.offset

    def at(number: int) -> Position:
        return Position(0, number, partition)

    return CursorState(
        partition,
        at(offset - 1) if offset > first else None,
        tuple((at(low), at(high - 1)) for low, high in progress.apart),
        progress.backlog(first, end),
    )


def _ranges(numbers: Sequence[int]) -> list[Range]:
    """Return the ranges of numbers in order, from the first to before the end."""
    found: list[Range] = []
    for number in numbers:
        if found and found[-1][1] == number:
            found[-1] = found[-1][0], number + 1
        else:
            found.append((number, number + 1))
    return found
