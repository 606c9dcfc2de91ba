"""Groups as a whole: where they begin, moving and forgetting them, and which consumers are open.

A group whose topic was deleted in Kafka, not through the router, begins at the first message of the
topic that has the name now, whatever it asks for (`known`): what was acknowledged to publishers
before its next poll would otherwise never be delivered.

A reset closes the group's consumers in this worker first, and none opens until the group is moved.
Those of other workers and nodes meet the new epoch when they acknowledge.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from threading import Condition
from typing import Final

import structlog

from router.backends.kafka.acknowledging import GroupTopic
from router.backends.kafka.consumer import KafkaConsumer
from router.backends.kafka.known_topics import KnownTopics
from router.backends.kafka.offsets import (
    EARLIEST,
    LATEST,
    CommittedOffset,
    Offsets,
    epoch_of,
    new_epoch,
    note_of,
)
from router.backends.kafka.reader_pool import ReaderKey, ReaderPool
from router.errors import (
    BackendTimeoutError,
    BackendUnavailableError,
    BadRequestError,
    ConsumerClosedError,
    SubscriptionBusyError,
    SubscriptionNotFoundError,
)
from router.model import Position

# Longer than an acknowledgement takes from its look at the group's epoch to its commit.
SETTLE_SECONDS: Final = 0.1

_log = structlog.get_logger(__name__)

Fence = Callable[[ReaderKey, float], object]
"""Has Kafka refuse the commits of consumers that opened a partition before."""


@dataclass(eq=False)
class KafkaGroups:
    """The groups of a worker's backend; `fence` is None where Kafka does not fence commits."""

    _offsets: Offsets
    _known: KnownTopics
    _pool: ReaderPool
    _fence: Fence | None
    _changed: Condition = field(default_factory=Condition, init=False)
    """Guards the two below, and is never held over I/O."""
    _open: dict[ReaderKey, KafkaConsumer] = field(default_factory=dict, init=False)
    _resetting: set[tuple[str, str]] = field(default_factory=set, init=False)

    def resume(self, whole: GroupTopic, topic_id: str | None, deadline: float) -> None:
        """Have a group that read an earlier topic of the name begin at the first message.

        Commits that are there are of the earlier topic: Kafka deletes them a little after it.
        """
        name, group = whole.name, whole.group
        if topic_id is None or self._known.is_noted(name, topic_id, group):
            return
        if not self._known.is_owed(name, topic_id, group, deadline):
            return
        begin = self._offsets.at(name, range(whole.partitions), EARLIEST, deadline)
        self._offsets.commit(group, name, begin, note_of(new_epoch()), deadline)
        _log.info("group-begins-on-replaced-topic", topic=name, group=group)
        self._known.joined(name, topic_id, group, deadline)

    def subscribe(
        self, whole: GroupTopic, topic_id: str | None, start: int, deadline: float
    ) -> None:
        """Make a group exist on all partitions.

        On partitions that were added since it was made it begins at the first message.
        """
        name, group, partitions = whole.name, whole.group, range(whole.partitions)
        # Where it begins is found out before what there is: should another make it meanwhile, what
        # is published after that lies behind both.
        begin = self._offsets.at(name, partitions, start, deadline)
        have = self._offsets.committed(group, name, partitions, deadline)
        missing = [partition for partition in partitions if partition not in have]
        if missing:
            if have:
                begin = self._offsets.at(name, missing, EARLIEST, deadline)
            # A transaction may be about to commit there for the first time.
            have = self._offsets.settled(group, name, missing, deadline)
            missing = [partition for partition in missing if partition not in have]
        note = note_of(new_epoch())
        self._offsets.commit(group, name, {p: begin[p] for p in missing}, note, deadline)
        if topic_id is not None and not self._known.is_noted(name, topic_id, group):
            self._known.joined(name, topic_id, group, deadline)

    def reset(self, whole: GroupTopic, to: int | tuple[Position, ...], deadline: float) -> None:
        """Move an existing group on all partitions, or to positions on their partitions alone.

        Raises SubscriptionNotFoundError, BadRequestError.
        """
        name, group, partitions = whole.name, whole.group, range(whole.partitions)
        before = self._offsets.committed(group, name, partitions, deadline)
        if not before:
            raise SubscriptionNotFoundError(f"there is no subscription {group}")
        if isinstance(to, tuple):
            offsets = self._within(whole, to, deadline)
        else:
            offsets = self._offsets.at(name, partitions, to, deadline)
        with self._closed_to_consumers(group, name, deadline):
            self._move(whole, before, offsets, deadline)

    def _within(self, whole: GroupTopic, to: Sequence[Position], deadline: float) -> dict[int, int]:
        """Return the offsets of positions, within what the partitions keep."""
        offset_of = {n: some[0].entry for n, some in whole.by_partition(to).items()}
        if len(offset_of) < len(to):
            raise BadRequestError("a position is 0:OFFSET:PARTITION, one for each partition")
        first = self._offsets.at(whole.name, offset_of, EARLIEST, deadline)
        end = self._offsets.at(whole.name, offset_of, LATEST, deadline)
        return {n: min(max(offset, first[n]), end[n]) for n, offset in offset_of.items()}

    @contextmanager
    def _closed_to_consumers(self, group: str, name: str, deadline: float) -> Iterator[None]:
        """Close the consumers of a group here, and let none open meanwhile."""
        with self._changed:
            self._wait_for_resets(group, name, deadline)
            self._resetting.add((group, name))
            opened = [c for k, c in self._open.items() if (k.group, k.topic) == (group, name)]
        try:
            for consumer in opened:
                consumer.end(deadline)
            self._pool.end(name, group, ConsumerClosedError("the subscription was reset"))
            yield
        finally:
            with self._changed:
                self._resetting.discard((group, name))
                self._changed.notify_all()

    def _wait_for_resets(self, group: str, name: str, deadline: float) -> None:
        left = max(0.001, deadline - time.monotonic())
        if not self._changed.wait_for(lambda: (group, name) not in self._resetting, left):
            raise BackendTimeoutError(f"A reset of {group} on {name} takes too long.")

    def _move(
        self,
        whole: GroupTopic,
        before: Mapping[int, CommittedOffset],
        offsets: Mapping[int, int],
        deadline: float,
    ) -> None:
        """Commit where a group stands from now on, under a new epoch.

        Kafka cannot refuse the commit of a worker that looked at the epoch just before. So it looks
        again when those are over, or fenced if Kafka does that, and says it once more where one of
        them, under the epoch of before, came after.
        """
        group, name, note = whole.group, whole.name, note_of(new_epoch())
        self._offsets.commit(group, name, offsets, note, deadline)
        self.outlast(group, name, offsets, deadline)
        after = self._offsets.settled(group, name, offsets, deadline)
        undone = [p for p, c in after.items() if epoch_of(c) == epoch_of(before.get(p))]
        self._offsets.commit(group, name, {p: offsets[p] for p in undone}, note, deadline)

    def outlast(self, group: str, name: str, partitions: Iterable[int], deadline: float) -> None:
        """Return when commits of consumers that looked before are over, or fenced."""
        if self._fence is not None:
            for partition in partitions:
                self._fence(ReaderKey(group, name, partition), deadline)
        else:
            time.sleep(max(0.0, min(SETTLE_SECONDS, deadline - time.monotonic())))

    def unsubscribe(
        self, whole: GroupTopic, subscription: str, topic_id: str | None, deadline: float
    ) -> None:
        """Forget a group on all partitions; raise SubscriptionBusyError."""
        name, group = whole.name, whole.group
        if self._pool.in_use(group, name):
            raise SubscriptionBusyError(f"a consumer reads {name} as {subscription}")
        self._pool.end(name, group, BackendUnavailableError("the subscription is forgotten"))
        self._offsets.delete(group, name, range(whole.partitions), deadline)
        if topic_id is not None:
            self._known.left(name, topic_id, group, deadline)

    def opened(self, key: ReaderKey, consumer: KafkaConsumer, deadline: float) -> None:
        """Note an open consumer, when no reset is under way: a reset from now on ends it."""
        with self._changed:
            self._wait_for_resets(key.group, key.topic, deadline)
            self._open[key] = consumer

    def closed(self, key: ReaderKey) -> None:
        """Forget a consumer."""
        with self._changed:
            self._open.pop(key, None)
