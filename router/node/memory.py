"""The node's leases, registry, buckets and counters for one process that has no broker.

It assigns partitions with the broker's own state machine (`sharing.assignment`), so that polls
behave alike on both. One lock guards everything; mailboxes are woken after it is released.
"""

from __future__ import annotations

import threading
import time
from collections import defaultdict
from collections.abc import Callable, Sequence

from router.errors import BackendUnavailableError, CoordinationUnavailableError, FencedError
from router.metrics import Sample, render
from router.model import (
    NOT_PARTITIONED,
    ConsumerId,
    Grant,
    GroupMembers,
    Member,
    PartitionLease,
    PollOutcome,
    Position,
    Subscription,
    TopicName,
)
from router.node import Mailbox
from router.sharing.assignment import Assign, PartitionAssignor
from router.sharing.limits import EmptyPolls, TokenBuckets
from router.sharing.registry import (
    Registry,
    RegistryRecord,
    check_kind,
    check_name,
    check_record,
    check_room,
    check_version,
)

_Poller = tuple[Subscription, str]
"""A subscription, and the id of a consumer."""


class MemoryRegistry:
    """The Registry of a node that runs alone; gone with its process."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._kinds: defaultdict[str, dict[str, RegistryRecord]] = defaultdict(dict)
        self._version = 0

    def get(self, kind: str, name: str, timeout: float) -> RegistryRecord | None:
        """Return a record, None: there is none."""
        check_name(kind, name)
        with self._lock:
            return self._kinds[kind].get(name)

    def put(
        self, kind: str, name: str, value: bytes, expected: int | None, timeout: float
    ) -> RegistryRecord:
        """Write a record, if it has the expected version; 0: only if there is none yet."""
        check_record(kind, name, value)
        with self._lock:
            records = self._kinds[kind]
            found = records.get(name)
            check_version(kind, name, expected, 0 if found is None else found.version)
            if found is None:
                check_room(kind, len(records))
            self._version += 1
            records[name] = RegistryRecord(name, value, self._version)
            return records[name]

    def delete(self, kind: str, name: str, timeout: float) -> bool:
        """Delete a record; return whether there was one."""
        check_name(kind, name)
        with self._lock:
            return self._kinds[kind].pop(name, None) is not None

    def list(self, kind: str, timeout: float) -> list[RegistryRecord]:
        """Return all records of a kind, by name."""
        check_kind(kind)
        with self._lock:
            return [record for _, record in sorted(self._kinds[kind].items())]


class MemoryClaim:
    """A poll's standing request for partitions; see the protocol.

    The node changes its fields, and its lock guards them.
    """

    def __init__(
        self, node: MemoryNode, poller: _Poller, mailbox: Mailbox, limited: float | None
    ) -> None:
        self.subscription, self.consumer = self._poller = poller
        self.mailbox = mailbox
        self.since = node.clock()
        self.grants: dict[int, int] = {}
        self.left: dict[int, Position] = {}
        self.is_revoked: set[int] = set()
        self.is_lost = False
        self.is_retained = self.is_recalled = False
        self._node = node
        self._limited = limited

    def granted(self) -> dict[int, int]:
        """Return the partitions held now, each with its generation."""
        with self._node.lock:
            return dict(self.grants)

    def pending(self) -> dict[int, Position]:
        """Return what this id's last poll left to be acknowledged."""
        with self._node.lock:
            return dict(self.left)

    def revoked(self) -> set[int]:
        """Return held partitions that are assigned to another id now."""
        with self._node.lock:
            return set(self.is_revoked)

    def holder(self) -> str | None:
        """Return who polls under the same id, when this claim waits for that poll."""
        with self._node.lock:
            assignor = self._node.assignors.get(self.subscription)
            first = assignor.poll_before(self) if assignor is not None else None
        return None if first is None else f"consumer {first.consumer} (of this process)"

    def waiting(self) -> bool:
        """Return whether this claim waits for a poll under the same id."""
        return self.holder() is not None

    def limited(self) -> float | None:
        """Return after how many seconds to come back, if there were too many empty polls."""
        return self._limited

    def lost(self) -> bool:
        """Return whether the node was closed."""
        return self.is_lost

    def unavailable_reason(self) -> str | None:
        """Return what keeps the node from holding leases."""
        return self._node.unavailable_reason

    def recalled(self) -> bool:
        """Return whether another needs what this retained claim holds."""
        return self.is_recalled

    def retain(self) -> None:
        """Let the claim stand after its poll, until it is recalled or released."""
        node = self._node
        with node.lock:
            if self not in node.claims or self.is_retained:
                return
            self.is_retained = True
            node.empty_polls.delivered(self._poller)
            waiting = node.assignors[self.subscription].queued(self.consumer)[1:]
            woken = _recall({self} if waiting else set())
        _wake(woken)

    def in_use(self) -> None:
        """Answer a recall: a poll uses the claim, and ends it."""
        with self._node.lock:
            self.is_retained = False
            self._node.claims_changed.notify_all()

    def give_up(self, partitions: Sequence[int]) -> None:
        """Give these partitions back."""
        node = self._node
        with node.lock:
            if self not in node.claims:
                return
            self.drop(partitions)
            assignor = node.assignors[self.subscription]
            assignor.give_up(self, partitions, node.clock())
            woken = node.settle(self.subscription, assignor)
        _wake(woken)

    def release(self, outcome: PollOutcome, pending: Sequence[Position] = ()) -> None:
        """End the claim; the id's next claim is handed `pending` back. Callable twice."""
        node = self._node
        with node.lock:
            if self not in node.claims:
                return
            node.claims.remove(self)
            node.claims_changed.notify_all()
            if outcome is PollOutcome.DELIVERED:
                node.empty_polls.delivered(self._poller)
            elif outcome is PollOutcome.EMPTY:
                node.empty_polls.empty(self._poller, node.limit)
            for position in pending:
                if position.partition in self.grants:
                    node.left[self.subscription, position.partition] = (
                        self.consumer,
                        position,
                    )
            self.drop(list(self.grants))
            assignor = node.assignors[self.subscription]
            assignor.release(self, node.clock())
            woken = node.settle(self.subscription, assignor)
        _wake(woken)

    def drop(self, partitions: Sequence[int]) -> None:
        """Hold these partitions no longer; the node's lock is held."""
        for partition in partitions:
            self.grants.pop(partition, None)
            self.left.pop(partition, None)
            self.is_revoked.discard(partition)


class MemoryNode:
    """The node as one process sees it that runs alone; see the protocol."""

    def __init__(
        self,
        *,
        idle: float = 5.0,
        empty_polls_per_minute: int = 10,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.lock = threading.Lock()
        self.claims_changed = threading.Condition(self.lock)
        self.registry: Registry = MemoryRegistry()
        self.clock = clock
        self._idle = idle
        self.limit = empty_polls_per_minute
        self.empty_polls = EmptyPolls(clock)
        self._buckets = TokenBuckets(clock)
        self._closed = False
        # Nothing, unless a test says so: there are no other nodes.
        self.unavailable_reason: str | None = None
        self._generation = 0
        self.assignors: dict[Subscription, PartitionAssignor[MemoryClaim]] = {}
        self._timers: dict[Subscription, threading.Timer] = {}
        self.claims: set[MemoryClaim] = set()
        self.left: dict[tuple[Subscription, int], tuple[str, Position]] = {}
        self._counters: dict[tuple[str, tuple[tuple[str, str], ...]], float] = defaultdict(float)
        self._gauges: dict[tuple[str, tuple[tuple[str, str], ...]], float] = {}

    def claim(
        self, consumer: ConsumerId, partitions: int, mailbox: Mailbox, timeout: float
    ) -> MemoryClaim:
        """Queue for the partitions; answer at once with what is free."""
        indexes = tuple(range(partitions)) if partitions else (NOT_PARTITIONED,)
        subscription, poller = consumer.subscription, (consumer.subscription, consumer.name)
        with self.lock:
            self._check_open()
            claim = MemoryClaim(self, poller, mailbox, self.empty_polls.wait(poller, self.limit))
            assignor = self.assignors.setdefault(
                subscription, PartitionAssignor(indexes, self._idle)
            )
            if assignor.partitions != indexes:
                assignor.resize(indexes)
            self.claims.add(claim)
            assignor.claim(consumer.name, claim, self.clock())
            woken = self.settle(subscription, assignor)
            if (first := assignor.poll_before(claim)) is not None:
                woken |= _recall({first})
        _wake(woken - {claim})
        return claim

    def recall(self, topic: TopicName, subscription: str | None, timeout: float) -> None:
        """Return when claims that are retained are released; see the protocol."""
        with self.lock:
            found = {
                claim
                for claim in self.claims
                if claim.is_retained
                and claim.subscription.topic == topic
                and subscription in {None, claim.subscription.name}
            }
            woken = _recall(found)
        _wake(woken)
        with self.lock:
            self.claims_changed.wait_for(
                lambda: not any(one.is_retained for one in found & self.claims), timeout
            )

    def confirm(self, grant: Grant, timeout: float) -> None:
        """Return if this grant of the partition stands."""
        with self.lock:
            self._check_open()
            if not self._stands(grant):
                raise FencedError

    def confirm_all(self, grants: Sequence[Grant], timeout: float) -> list[bool]:
        """Return for each grant whether it stands."""
        with self.lock:
            self._check_open()
            return list(map(self._stands, grants))

    def _stands(self, grant: Grant) -> bool:
        return any(
            claim.subscription == grant.subscription
            and claim.grants.get(grant.partition) == grant.generation
            for claim in self.claims
        )

    def members(self, subscription: Subscription, timeout: float) -> GroupMembers:
        """Return who polls a group, and who holds its partitions."""
        with self.lock:
            self._check_open()
            assignor = self.assignors.get(subscription)
            if assignor is None:
                return GroupMembers()
            now = self.clock()
            assignor.tick(now)
            holders = {p: assignor.holder(p) for p in assignor.partitions}
            return GroupMembers(
                tuple(_member(assignor, consumer, now) for consumer in sorted(assignor.live())),
                tuple(
                    PartitionLease(partition, "", holder.consumer)
                    for partition, holder in holders.items()
                    if holder is not None
                ),
                unavailable_reason=self.unavailable_reason,
            )

    def ready(self, timeout: float) -> None:
        """Return if leases can be had; see the protocol."""
        if self.unavailable_reason is not None:
            raise CoordinationUnavailableError(self.unavailable_reason)

    def take_token(
        self, bucket: str, per_minute: float, burst: int, timeout: float, *, look_only: bool = False
    ) -> float | None:
        """Take one token, or only look for one; None when there is one, else the seconds until."""
        with self.lock:
            self._check_open()
            return self._buckets.take(bucket, per_minute, burst, look_only=look_only)

    def push_metrics(
        self, counters: Sequence[Sample], gauges: Sequence[Sample], timeout: float
    ) -> None:
        """Add what was counted since the last push."""
        with self.lock:
            self._check_open()
            for name, labels, value in counters:
                self._counters[name, labels] += value
            for name, labels, value in gauges:
                self._gauges[name, labels] = value

    def metrics(self, timeout: float) -> str:
        """Return the counters in the Prometheus text format."""
        with self.lock:
            self._check_open()
            samples = [*self._counters.items(), *self._gauges.items()]
        return render((name, labels, value) for (name, labels), value in samples)

    def close(self) -> None:
        """End: claims that stand are lost."""
        with self.lock:
            self._closed = True
            claims, self.claims = self.claims, set()
            for claim in claims:
                claim.drop(list(claim.grants))
                claim.is_lost = True
            for timer in self._timers.values():
                timer.cancel()
            self._timers.clear()
            self.assignors.clear()
        _wake(claims)

    def _check_open(self) -> None:
        if self._closed:
            raise BackendUnavailableError("the node is closed")

    def settle(
        self, subscription: Subscription, assignor: PartitionAssignor[MemoryClaim]
    ) -> set[MemoryClaim]:
        """Take over what was assigned; return whose mailboxes to wake. The lock is held."""
        woken = set()
        for change in assignor.changes():
            woken.add(change.holder)
            if isinstance(change, Assign):
                self._generation += 1
                of, position = self.left.pop((subscription, change.partition), ("", None))
                change.holder.grants[change.partition] = self._generation
                if position is not None and of == change.consumer:
                    change.holder.left[change.partition] = position
            else:
                change.holder.is_revoked.add(change.partition)
        self._watch(subscription, assignor)
        return woken

    def _watch(self, subscription: Subscription, assignor: PartitionAssignor[MemoryClaim]) -> None:
        """Keep a timer for the next time at which a waiting poll may get what an id left."""
        deadline = assignor.next_deadline() if assignor.polls() else None
        if deadline is None or subscription in self._timers or self._closed:
            return
        wait = max(0.0, deadline - self.clock())
        timer = threading.Timer(wait, self._tick, (subscription,))
        timer.daemon = True
        self._timers[subscription] = timer
        timer.start()

    def _tick(self, subscription: Subscription) -> None:
        with self.lock:
            self._timers.pop(subscription, None)
            assignor = self.assignors.get(subscription)
            if assignor is None:
                return
            assignor.tick(self.clock())
            woken = self.settle(subscription, assignor)
        _wake(woken)


def _member(assignor: PartitionAssignor[MemoryClaim], consumer: str, now: float) -> Member:
    polls, ended = assignor.queued(consumer), assignor.ended(consumer)
    return Member(
        consumer,
        polls=len(polls),
        polling_ms=_ms(now - polls[0].since) if polls else None,
        idle_ms=None if ended is None else _ms(now - ended),
    )


def _ms(seconds: float) -> int:
    return max(0, round(seconds * 1000))


def _recall(claims: set[MemoryClaim]) -> set[MemoryClaim]:
    """Recall those of the claims that are retained; return them. The node's lock is held."""
    recalled = {claim for claim in claims if claim.is_retained}
    for claim in recalled:
        claim.is_recalled = True
    return recalled


def _wake(claims: set[MemoryClaim]) -> None:
    for claim in claims:
        claim.mailbox.wake()
