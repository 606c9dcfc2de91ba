"""Groups of copied topics: they exist at the target, and stand where they stand at the source.

Theory of operation. A group is made at the target's first message, and what it acknowledged at the
source is acknowledged there: never a reset, since subscribers may have moved to the target already
and be ahead. Acknowledgements of the same messages in any order have one result, so a group that is
read at the target while it is copied is never moved back, and nothing that its subscribers have not
received is acknowledged but what was acknowledged at the source.

What is not copied yet cannot be acknowledged: it is, by the first call after it was copied. A group
is looked at again when the backlog or the end of a partition changed, or batches were copied since.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from dataclasses import asdict, dataclass, field, replace
from typing import Any, Final, TypeVar

from router.backends import Backend, Start
from router.clocks.backoff import Backoff
from router.errors import (
    BackendTimeoutError,
    BackendUnavailableError,
    RouterError,
    SubscriptionBusyError,
    SubscriptionNotFoundError,
    TopicNotFoundError,
)
from router.model import (
    NOT_PARTITIONED,
    CursorState,
    PartitionStats,
    Position,
    Subscription,
    TopicName,
    TopicStats,
)
from router.services.copying.acknowledged import (
    Done,
    TargetAcknowledgements,
    Translation,
    is_kafka,
    last_of,
)
from router.services.copying.comparing import AFTER_ALL, ComparedMessages, PartitionEnd
from router.services.copying.places import key_of
from router.services.copying.state import CopiedTopic, CopyState
from router.services.copying.unbroken import Unbroken

MAX_CONCURRENT_GROUPS: Final = 8
"""Topics, and groups of them, that are looked at at a time."""
MAX_POSITIONS_PER_CALL: Final = 5_000
RETRY_SECONDS: Final = 10.0
STOP_CONSUMERS: Final = " Stop its consumers at the target, and run the command again."
MARKER_SECONDS: Final = 2.0
"""How long a topic's groups wait for Kafka to mark what was copied last, in each call."""
MARKER_PAUSE_SECONDS: Final = 0.02
MAX_MARKER_PAUSE_SECONDS: Final = 0.25

Name = tuple[TopicName, str]
"""A topic of the source and a group."""
Snapshot = tuple[tuple[int, int, int, int, int], ...]
"""A group as it was found, to see whether it changed.

Of each partition: number, ledger, end, backlog, and the last batch that is copied.
"""

T = TypeVar("T")
R = TypeVar("R")


@dataclass(slots=True)
class GroupReport:
    """What one call did.

    `groups` counts those of the source, `synced` those that were moved at the target, `waiting`
    those that are ahead of what is copied. `failures` has a sentence for each group, or topic, of
    which the target is not where it should be.
    """

    groups: int = 0
    synced: int = 0
    waiting: int = 0
    failures: list[str] = field(default_factory=list)

    def as_json(self) -> dict[str, Any]:
        """Return it as a JSON document."""
        return asdict(self)


@dataclass(slots=True)
class _Group:
    """What is known of a group: where it was found last, and what was done by partition."""

    snapshot: Snapshot | None = None
    made: frozenset[int] = frozenset()
    done: dict[int, Done] = field(default_factory=dict)
    waiting: tuple[int, ...] = ()
    failure: str = ""
    retry_at: float = 0.0


class _TargetTopic:
    """A topic at the target: its partitions, how far they are unbroken, and where they end."""

    def __init__(self, target: Backend, name: TopicName, timeout: float) -> None:
        self.name = name
        self.unbroken: dict[int, Unbroken] = {}
        self._target = target
        self._timeout = timeout
        self._partitioned = target.partitions(name, timeout) > 0
        self._stats: dict[int, PartitionStats] | None = None
        self._marked_by = 0.0

    def partition(self, partition: int) -> int:
        """Return the number at the target of a partition of the source.

        A store may call the only partition of a topic by no number.
        """
        return max(0, partition) if self._partitioned else NOT_PARTITIONED

    def extend(self, state: CopyState, source: TopicName, partition: int) -> None:
        """Look at what was copied since; raise what reading the target raises."""
        if (known := self.unbroken.get(partition)) is None:
            known = Unbroken(self._target, self.name, self.partition(partition))
            self.unbroken[partition] = known
        known.extend(state.batches(source, partition, known.sequence), self._timeout)
        self._stats = None
        self._marked_by = time.monotonic() + MARKER_SECONDS

    def ends_with_marker(self, partition: int, last: Position) -> bool:
        """Return whether only the marker of a transaction is behind the last copied message.

        Kafka writes it some milliseconds after it confirmed the commit, and only then does the
        partition end behind the message: this waits for it.
        """
        number = self.partition(partition)
        pauses = Backoff(MARKER_PAUSE_SECONDS, MAX_MARKER_PAUSE_SECONDS)
        while True:
            found = self._described().get(number)
            if found is None or found.next_entry > last.entry:
                return found is not None and found.next_entry == last.entry + 2
            if not pauses.sleep(self._marked_by):
                return False
            self._stats = None

    def first(self, partition: int) -> tuple[int, int]:
        """Return the ledger of a partition, and the first entry that is kept of it."""
        found = self._described().get(self.partition(partition), PartitionStats(partition))
        return found.ledger, found.first_entry

    def _described(self) -> dict[int, PartitionStats]:
        known = self._stats  # several groups are moved at a time
        if known is None:
            stats = self._target.describe_topic(self.name, self._timeout)
            known = self._stats = {one.partition: one for one in stats.partitions}
        return known


@dataclass(eq=False)
class GroupSync:
    """Moves groups of the target to where they are at the source; one call at a time.

    `timeout` bounds each request, in seconds.
    """

    _source: Backend
    _target: Backend
    _state: CopyState
    _copied_topics: Callable[[], Iterable[CopiedTopic]]
    _timeout: float
    _groups: dict[Name, _Group] = field(default_factory=dict, init=False)
    _topics: dict[TopicName, _TargetTopic] = field(default_factory=dict, init=False)

    def sync(self, *, last: bool = False) -> GroupReport:
        """Look at all groups of the topics that are copied, and move those that changed.

        Failures of a topic or group are in the report, and are tried again by later calls: those
        that do not pass by themselves after RETRY_SECONDS, or if it is the `last` call. Raises what
        the file of the state raises.
        """
        report, now = GroupReport(), time.monotonic()
        topics = [one for one in self._copied_topics() if one.done]
        with ThreadPoolExecutor(MAX_CONCURRENT_GROUPS, "copy-groups") as pool:
            work: list[tuple[TopicName, str, Snapshot]] = []
            for topic, found in _each(pool, topics, self.look):
                if isinstance(found, RouterError):
                    report.failures.append(f"groups of topic {topic.source.local}: {found}")
                    continue
                report.groups += len(found)
                work += [(topic.source, name, snapshot) for name, snapshot in found.items()]
            due = [one for one in work if self._is_due(*one, now, last=last)]
            moved = _each(pool, due, lambda one: self._move(*one))
        failed = {}
        for (source, name, _), outcome in moved:
            if isinstance(outcome, RouterError):
                busy = isinstance(outcome, SubscriptionBusyError)
                failed[source, name] = f"{outcome}{STOP_CONSUMERS if busy else ''}"
            else:
                report.synced += outcome
        for source, name, _ in work:
            group = self._group(source, name)
            report.waiting += any(self._has_more(source, p, last=last) for p in group.waiting)
            if failure := failed.get((source, name), group.failure):
                report.failures.append(f"group {name} of topic {source.local}: {failure}")
        return report

    def _is_due(
        self, source: TopicName, name: str, snapshot: Snapshot, now: float, *, last: bool
    ) -> bool:
        group = self._group(source, name)
        return group.snapshot != snapshot or bool(group.failure and (last or now >= group.retry_at))

    def _group(self, topic: TopicName, name: str) -> _Group:
        return self._groups.setdefault((topic, name), _Group())

    def look(self, copied: CopiedTopic) -> dict[str, Snapshot]:
        """Return the groups of a topic with their snapshots, none if it was deleted."""
        source = copied.source
        try:
            stats = self._source.describe_topic(source, self._timeout)
        except TopicNotFoundError:
            return {}
        if not any(one.durable for one in stats.subscriptions):
            return {}
        if (topic := self._topics.get(source)) is None:
            topic = self._topics[source] = _TargetTopic(self._target, copied.target, self._timeout)
        sequences = {}
        for one in stats.partitions:
            topic.extend(self._state, source, one.partition)
            last = self._state.last_copied(source, one.partition)
            sequences[one.partition] = -1 if last is None else last.sequence
        return snapshots_of(stats, sequences)

    def _move(self, source: TopicName, name: str, snapshot: Snapshot) -> bool:
        """Move a group of the target; return whether there was something to acknowledge."""
        group = self._group(source, name)
        try:
            states = self._source.cursors(Subscription(source, name), self._timeout)
        except SubscriptionNotFoundError:
            return False  # deleted meanwhile, or it has committed nothing
        if any(state.owner for state in states):
            group.snapshot = snapshot
            return False  # it is not of subscribers: see `CursorState.owner`
        try:
            self._make(group, self._topics[source].name, name, snapshot)
            moved = [self._move_partition(source, name, group, state) for state in states]
            ahead = (one.partition for one in states if self._is_ahead(source, one))
            group.waiting = tuple(ahead)
        except (SubscriptionNotFoundError, TopicNotFoundError):
            self._groups.pop((source, name), None)  # deleted at the target: made again next time
            self._topics.pop(source, None)
            raise
        except RouterError as error:
            if not _may_pass_soon(error):
                group.snapshot, group.failure = snapshot, str(error)
                group.retry_at = time.monotonic() + RETRY_SECONDS
            raise
        group.snapshot, group.failure = snapshot, ""
        return any(moved)

    def _make(self, group: _Group, topic: TopicName, name: str, snapshot: Snapshot) -> None:
        partitions = frozenset(number for number, *_ in snapshot)
        if group.made != partitions:
            self._target.subscribe(Subscription(topic, name), Start.EARLIEST, self._timeout)
            group.made = partitions

    def _move_partition(
        self, source: TopicName, name: str, group: _Group, state: CursorState
    ) -> bool:
        topic = self._topics[source]
        acks, after = self.translated(source, state, group.done.get(state.partition, Done()))
        partition, subscription = topic.partition(state.partition), Subscription(topic.name, name)
        if acks.upto is not None:
            upto = replace(acks.upto, partition=partition)
            self._target.acknowledge(subscription, [upto], True, self._timeout)
        alone = [replace(one, partition=partition) for one in acks.alone]
        for at in range(0, len(alone), MAX_POSITIONS_PER_CALL):
            some = alone[at : at + MAX_POSITIONS_PER_CALL]
            self._target.acknowledge(subscription, some, False, self._timeout)
        group.done[state.partition] = after
        return bool(acks)

    def first_kept(self, source: TopicName, partition: int) -> tuple[int, int]:
        """Return the ledger that the target writes to, and the first entry that it keeps of it."""
        return self._topics[source].first(partition)

    def _is_ahead(self, source: TopicName, state: CursorState) -> bool:
        """Return whether a group is ahead of what is copied."""
        last = self._state.last_copied(source, state.partition)
        if last is None or state.mark_delete is None:
            return False
        return key_of(state.mark_delete) > key_of(last.last())

    def _has_more(self, source: TopicName, partition: int, *, last: bool) -> bool:
        """Return whether the source has messages that are not copied, as far as it matters.

        A group of Kafka may stand behind the marker of a transaction, ahead of the last message. It
        is read in the `last` call only, whose report is shown.
        """
        batch = self._state.last_copied(source, partition) if last else None
        if batch is None:
            return True
        known, end = (
            key_of(batch.last()),
            PartitionEnd(self._source, source, partition, self._timeout),
        )
        try:
            with closing(ComparedMessages(end, batch.last())) as compared:
                return any(key_of(one.position) > known for one in compared.upto(AFTER_ALL))
        except RouterError:
            return True

    def translated(
        self, source: TopicName, state: CursorState, done: Done
    ) -> tuple[TargetAcknowledgements, Done]:
        """Return what a group's state means at the target, without what is done already.

        Positions are of the source's partition.
        """
        topic, partition = self._topics[source], state.partition
        unbroken = topic.unbroken.get(partition)
        sequence = -1 if unbroken is None else unbroken.sequence
        acks, after = Translation(self._state, source, partition, sequence).acks(state, done)
        last = self._state.last_copied(source, partition)
        if acks and last is not None and last.receipt is not None and is_kafka(last.receipt):
            at = last_of(last.receipt)
            if after.sequence == last.sequence and topic.ends_with_marker(partition, at):
                acks.alone.append(replace(at, entry=at.entry + 1))
        return acks, after


def snapshots_of(stats: TopicStats, copied: dict[int, int]) -> dict[str, Snapshot]:
    """Return the groups that stay when their consumers are gone, each with its snapshot."""
    ends = {one.partition: (one.ledger, one.next_entry) for one in stats.partitions}
    found: dict[str, list[tuple[int, int, int, int, int]]] = {}
    for one in stats.subscriptions:
        if one.durable and one.partition in ends:
            number = one.partition
            state = (number, *ends[number], one.backlog, copied.get(number, -1))
            found.setdefault(one.name, []).append(state)
    return {name: tuple(sorted(states)) for name, states in found.items()}


def _each(
    pool: ThreadPoolExecutor, given: Sequence[T], do: Callable[[T], R]
) -> list[tuple[T, R | RouterError]]:
    """Return each argument with the result of its call, or its failure."""

    def attempt(one: T) -> tuple[T, R | RouterError]:
        try:
            return one, do(one)
        except RouterError as error:
            return one, error

    return list(pool.map(attempt, given))


def _may_pass_soon(error: RouterError) -> bool:
    """Return whether the next round is to try a group again, whatever its snapshot is then."""
    return isinstance(error, BackendUnavailableError | BackendTimeoutError | SubscriptionBusyError)
