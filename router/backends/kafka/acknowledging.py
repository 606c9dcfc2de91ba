"""Acknowledging messages of a group from anywhere, beside the consumer that polls it.

Theory of operation. A commit is read, changed and written back, and Kafka writes whatever comes. As
long as only the consumer that has the partition's lease commits, the lease is enough. Once single
messages are acknowledged too, the group's notes say so (`Progress.shared`), and from then on every
commit of that group and partition is made in its *turn*: a lease of its own, which polls of the
node's broker with one consumer id queue for, on whichever node. It is confirmed directly before the
commit, as polls confirm theirs.

Who says so for the first time may meet a consumer that looked just before and commits without
having read it: as a reset does, it waits until such commits are over (or has Kafka fence them),
looks again, and says it once more if it was overwritten. What remains is what remains of the lease:
a process that stands still between confirming and committing for longer than the node's session;
and a poll whose acknowledgement falls between the first look and the first commit of the very first
such change, in a millisecond or two, may see its messages again.
The alternatives: a transaction for every commit (four round trips more for each poll), and a topic
of acknowledgements.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from hashlib import sha256
from typing import Final

from router.backends import Node, Outcome
from router.backends.kafka.offsets import (
    EARLIEST,
    LATEST,
    Commit,
    Offsets,
    epoch_of,
    new_epoch,
    note_of,
)
from router.backends.kafka.progress import Progress, Range
from router.errors import (
    BackendTimeoutError,
    BackendUnavailableError,
    CoordinationUnavailableError,
    FencedError,
    SubscriptionNotFoundError,
)
from router.model import NOT_PARTITIONED, CursorState, Position, Subscription, TopicName

LOOK: Final = 0.5
_ID: Final = "commit"

Confirm = Callable[[float], None]


@dataclass(frozen=True, slots=True)
class Of:
    """A group on one partition: the topic in the router, the names in Kafka, its number there."""

    topic: TopicName
    group: str
    name: str
    number: int


@dataclass(frozen=True, slots=True)
class Whole:
    """A group on all partitions of a topic."""

    topic: TopicName
    group: str
    name: str
    partitions: int

    def on(self, number: int) -> Of:
        """Return the group on one partition."""
        return Of(self.topic, self.group, self.name, number)

    def shown(self, number: int) -> int:
        """Return a partition's number in the router."""
        return NOT_PARTITIONED if self.partitions == 1 else number

    def by_partition(self, positions: Iterable[Position]) -> dict[int, list[Position]]:
        """Return the positions that there may be, by the partition's number in Kafka."""
        shown = {self.shown(number): number for number in range(self.partitions)}
        found: dict[int, list[Position]] = {}
        for position in positions:
            if position.partition in shown and not position.ledger and position.entry >= 0:
                found.setdefault(shown[position.partition], []).append(position)
        return found


class _Bell:
    """A mailbox to wait at."""

    def __init__(self) -> None:
        self._rung = threading.Event()

    def wake(self) -> None:
        """Make the waiting call return."""
        self._rung.set()

    def wait(self, timeout: float) -> None:
        """Wait for a change."""
        self._rung.wait(timeout)
        self._rung.clear()


class Turns:
    """Who may change what a group committed, one at a time over all nodes."""

    def __init__(self, node: Node) -> None:
        self._node = node

    @contextmanager
    def turn(self, of: Of, deadline: float) -> Iterator[Confirm]:
        """Wait for one's turn; give what says that it still is. Raises what `Node.claim` raises."""
        digest = sha256(f"{of.group}\0{of.name}\0{of.number}".encode()).hexdigest()[:32]
        what, bell = Subscription(of.topic, f"router-commit-{digest}"), _Bell()
        claim = self._node.claim(what, _ID, 0, bell, left(deadline))
        try:
            while (generation := claim.granted().get(NOT_PARTITIONED)) is None:
                if claim.lost():
                    raise BackendUnavailableError("the node's broker went away")
                if time.monotonic() >= deadline:
                    if trouble := claim.trouble():
                        raise CoordinationUnavailableError(trouble)
                    raise BackendTimeoutError("other acknowledgements take too long")
                bell.wait(min(LOOK, left(deadline)))
            yield lambda until: self._node.confirm(what, NOT_PARTITIONED, generation, left(until))
        finally:
            claim.release(Outcome.DELIVERED)


class Together:
    """Changes what groups committed; calls may be made from many threads."""

    def __init__(self, offsets: Offsets, node: Node, outlast: Callable[[Of, float], None]) -> None:
        self.offsets = offsets
        self._turns = Turns(node)
        self._outlast = outlast

    def committed(self, of: Of, deadline: float) -> Commit | None:
        """Return what a group committed."""
        return self.offsets.committed(of.group, of.name, (of.number,), deadline).get(of.number)

    def change(
        self,
        of: Of,
        epoch: int,
        change: Callable[[Progress], Progress],
        commit: Callable[[Progress], None],
        deadline: float,
    ) -> Progress:
        """Commit what the change makes of the progress, and that there are such changes.

        Raises FencedError if the group has another epoch, NotSupportedError.
        """
        with self._turns.turn(of, deadline) as confirm:
            while True:
                found = self.committed(of, deadline)
                if found is None or epoch_of(found) != epoch:
                    raise FencedError("the group's position was moved by somebody else")
                before = found.progress()
                after = replace(change(before), shared=True)
                after.text()  # refused, if at all, before anything is sent
                confirm(deadline)
                commit(after)
                if before.shared:
                    return after
                self._outlast(of, deadline)

    def acknowledge(
        self, whole: Whole, positions: Sequence[Position], cumulative: bool, deadline: float
    ) -> None:
        """Acknowledge messages of a group, each alone or with all before it."""
        commits = self._commits(whole, deadline)
        wanted = whole.by_partition(positions)
        for number, position in ((n, p) for n, some in wanted.items() for p in some):
            if position.epoch not in {0, epoch_of(commits.get(number))}:
                raise FencedError("the subscription was reset since")
        ends = self.offsets.at(whole.name, wanted, LATEST, deadline)
        for number, some in wanted.items():
            stored = sorted({p.entry for p in some if p.entry < ends[number]})
            if stored:
                ranges = [(0, stored[-1] + 1)] if cumulative else _ranges(stored)
                epoch = self._begun(whole, number, commits.get(number), deadline)
                self._acknowledge(whole.on(number), epoch, ranges, deadline)

    def _acknowledge(self, of: Of, epoch: int, ranges: Sequence[Range], deadline: float) -> None:
        def change(progress: Progress) -> Progress:
            return progress.acknowledge(*ranges)

        def commit(progress: Progress) -> None:
            note = note_of(epoch, progress)
            self.offsets.commit(of.group, of.name, {of.number: progress.offset}, note, deadline)

        self.change(of, epoch, change, commit, deadline)

    def _begun(self, whole: Whole, number: int, found: Commit | None, deadline: float) -> int:
        """Return the epoch on a partition; on one that was added it begins at the first message."""
        if found is not None:
            return epoch_of(found)
        first, epoch = self.offsets.at(whole.name, (number,), EARLIEST, deadline), new_epoch()
        self.offsets.commit(whole.group, whole.name, first, note_of(epoch), deadline)
        return epoch

    def states(self, whole: Whole, deadline: float) -> list[CursorState]:
        """Return where a group stands, by partition."""
        commits = self._commits(whole, deadline)
        first = self.offsets.at(whole.name, commits, EARLIEST, deadline)
        end = self.offsets.at(whole.name, commits, LATEST, deadline)
        return [
            _state(whole.shown(number), commit.progress(), first[number], end[number])
            for number, commit in sorted(commits.items())
        ]

    def _commits(self, whole: Whole, deadline: float) -> dict[int, Commit]:
        numbers = range(whole.partitions)
        found = self.offsets.committed(whole.group, whole.name, numbers, deadline)
        if not found:
            raise SubscriptionNotFoundError(f"there is no subscription {whole.group}")
        return found


def _state(partition: int, progress: Progress, first: int, end: int) -> CursorState:
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


def left(deadline: float) -> float:
    """Return the seconds until a deadline, never none at all."""
    return max(0.001, deadline - time.monotonic())
