"""The node's leases, buckets and counters for one process that has no broker.

It deals partitions with the broker's own state machine (`router.deal`), so that polls behave alike
on both. One lock guards everything; mailboxes are woken after it is released.
"""

from __future__ import annotations

import threading
import time
from collections import defaultdict, deque
from collections.abc import Callable, Sequence

from router.backends import (
    GroupMembers,
    Mailbox,
    Member,
    Outcome,
    PartitionLease,
    Registry,
)
from router.backends.memory.registry import MemoryRegistry
from router.deal import Deal, Grant
from router.errors import BackendUnavailableError, CoordinationUnavailableError, FencedError
from router.metrics import Sample, render
from router.model import NOT_PARTITIONED, Position, Subscription

MINUTE = 60.0


class MemoryClaim:
    """A poll's standing request for partitions; see the protocol."""

    __slots__ = (
        "_granted",
        "_limited",
        "_lost",
        "_node",
        "_pending",
        "_revoked",
        "consumer",
        "mailbox",
        "since",
        "subscription",
    )

    def __init__(
        self, node: MemoryNode, subscription: Subscription, consumer: str, mailbox: Mailbox
    ) -> None:
        self.subscription = subscription
        self.consumer = consumer
        self.mailbox = mailbox
        self.since = node.now()
        self._node = node
        self._granted: dict[int, int] = {}
        self._pending: dict[int, Position] = {}
        self._revoked: set[int] = set()
        self._limited: float | None = None
        self._lost = False

    def granted(self) -> dict[int, int]:
        """Return the partitions held now, each with its generation."""
        with self._node.lock:
            return dict(self._granted)

    def pending(self) -> dict[int, Position]:
        """Return what this id's last poll left to be acknowledged."""
        with self._node.lock:
            return dict(self._pending)

    def revoked(self) -> set[int]:
        """Return held partitions now dealt to another id."""
        with self._node.lock:
            return set(self._revoked)

    def holder(self) -> str | None:
        """Return who polls under the same id, when this claim waits for that poll."""
        return self._node.holder(self)

    def waiting(self) -> bool:
        """Return whether this claim waits for a poll under the same id."""
        return self.holder() is not None

    def limited(self) -> float | None:
        """Return after how many seconds to come back, if there were too many empty polls."""
        return self._limited

    def lost(self) -> bool:
        """Return whether the node was closed."""
        return self._lost

    def trouble(self) -> str | None:
        """Return what keeps the node from holding leases."""
        return self._node.trouble

    def give_up(self, partitions: Sequence[int]) -> None:
        """Give these partitions back."""
        self._node.give_up(self, partitions)

    def release(self, outcome: Outcome, pending: Sequence[Position] = ()) -> None:
        """End the claim; the id's next claim is handed `pending` back."""
        self._node.release(self, outcome, pending)

    def limit(self, seconds: float | None) -> None:
        """Note that there were too many empty polls."""
        self._limited = seconds

    def grant(self, partition: int, generation: int, pending: Position | None) -> None:
        """Hold a partition from now on; the node's lock is held."""
        self._granted[partition] = generation
        if pending is not None:
            self._pending[partition] = pending

    def revoke(self, partition: int) -> None:
        """Be asked for a partition; the node's lock is held."""
        self._revoked.add(partition)

    def held(self) -> list[int]:
        """Return the partitions held now; the node's lock is held."""
        return list(self._granted)

    def holds(self, partition: int, generation: int) -> bool:
        """Return whether this grant stands; the node's lock is held."""
        return self._granted.get(partition) == generation

    def drop(self, partitions: Sequence[int]) -> None:
        """Hold these partitions no longer; the node's lock is held."""
        for partition in partitions:
            self._granted.pop(partition, None)
            self._pending.pop(partition, None)
            self._revoked.discard(partition)

    def lose(self) -> None:
        """Hold nothing any more, the node went; its lock is held."""
        self.drop(self.held())
        self._lost = True


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
        self.registry: Registry = MemoryRegistry()
        self._idle = idle
        self._limit = empty_polls_per_minute
        self._clock = clock
        self._closed = False
        # Nothing, unless a test says so: there are no other nodes.
        self.trouble: str | None = None
        self._generation = 0
        self._deals: dict[Subscription, Deal[MemoryClaim]] = {}
        self._timers: dict[Subscription, threading.Timer] = {}
        self._claims: set[MemoryClaim] = set()
        self._pending: dict[tuple[Subscription, int], tuple[str, Position]] = {}
        self._empty: dict[tuple[Subscription, str], deque[float]] = {}
        self._buckets: dict[str, tuple[float, float]] = {}
        self._counters: dict[tuple[str, tuple[tuple[str, str], ...]], float] = defaultdict(float)
        self._gauges: dict[tuple[str, tuple[tuple[str, str], ...]], float] = {}

    def claim(
        self,
        subscription: Subscription,
        consumer: str,
        partitions: int,
        mailbox: Mailbox,
        timeout: float,
    ) -> MemoryClaim:
        """Queue for the partitions; answer at once with what is free."""
        del timeout
        wanted = tuple(range(partitions)) if partitions else (NOT_PARTITIONED,)
        claim = MemoryClaim(self, subscription, consumer, mailbox)
        with self.lock:
            self._check_open()
            deal = self._deals.setdefault(subscription, Deal(wanted, self._idle))
            if deal.partitions != wanted:
                deal.resize(wanted)
            claim.limit(self._limited(subscription, consumer))
            self._claims.add(claim)
            deal.claim(consumer, claim, self._clock())
            woken = self._settle(subscription, deal)
        _wake(woken - {claim})
        return claim

    def now(self) -> float:
        """Return the time of the node's clock, in seconds."""
        return self._clock()

    def holder(self, claim: MemoryClaim) -> str | None:
        """Say who polls under the same id, when this claim waits for that poll."""
        with self.lock:
            deal = self._deals.get(claim.subscription)
            first = deal.waiting_behind(claim) if deal is not None else None
        return None if first is None else f"consumer {first.consumer} (of this process)"

    def give_up(self, claim: MemoryClaim, partitions: Sequence[int]) -> None:
        """Take partitions back from a claim that stands."""
        with self.lock:
            if claim not in self._claims:
                return
            claim.drop(partitions)
            deal = self._deals[claim.subscription]
            deal.give_up(claim, partitions, self._clock())
            woken = self._settle(claim.subscription, deal)
        _wake(woken)

    def release(self, claim: MemoryClaim, outcome: Outcome, pending: Sequence[Position]) -> None:
        """End a claim; callable twice."""
        with self.lock:
            if claim not in self._claims:
                return
            self._claims.remove(claim)
            self._count(claim, outcome)
            held = claim.held()
            for position in pending:
                if position.partition in held:
                    key = claim.subscription, position.partition
                    self._pending[key] = claim.consumer, position
            claim.drop(held)
            deal = self._deals[claim.subscription]
            deal.release(claim, self._clock())
            woken = self._settle(claim.subscription, deal)
        _wake(woken)

    def confirm(
        self, subscription: Subscription, partition: int, generation: int, timeout: float
    ) -> None:
        """Return if this grant of the partition stands."""
        del timeout
        with self.lock:
            self._check_open()
            if not any(
                claim.subscription == subscription and claim.holds(partition, generation)
                for claim in self._claims
            ):
                raise FencedError

    def members(self, subscription: Subscription, timeout: float) -> GroupMembers:
        """Return who polls a group, and who holds its partitions."""
        del timeout
        with self.lock:
            self._check_open()
            deal = self._deals.get(subscription)
            if deal is None:
                return GroupMembers()
            now = self._clock()
            deal.tick(now)
            holders = {p: deal.holder(p) for p in deal.partitions}
            return GroupMembers(
                tuple(_member(deal, consumer, now) for consumer in sorted(deal.live())),
                tuple(
                    PartitionLease(partition, "", holder.consumer)
                    for partition, holder in holders.items()
                    if holder is not None
                ),
                trouble=self.trouble,
            )

    def ready(self, timeout: float) -> None:
        """Return if leases can be had; see the protocol."""
        del timeout
        if self.trouble is not None:
            raise CoordinationUnavailableError(self.trouble)

    def take_token(
        self, bucket: str, per_minute: float, burst: int, timeout: float, *, look_only: bool = False
    ) -> float | None:
        """Take one token, or only look for one; None when there is one, else the seconds until."""
        del timeout
        with self.lock:
            self._check_open()
            now = self._clock()
            tokens, since = self._buckets.get(bucket, (float(burst), now))
            tokens = min(float(burst), tokens + (now - since) * per_minute / MINUTE)
            granted = tokens >= 1
            self._buckets[bucket] = tokens - (granted and not look_only), now
            return None if granted else (1 - tokens) * MINUTE / per_minute

    def push_metrics(
        self, counters: Sequence[Sample], gauges: Sequence[Sample], timeout: float
    ) -> None:
        """Add what was counted since the last push."""
        del timeout
        with self.lock:
            self._check_open()
            for name, labels, value in counters:
                self._counters[name, labels] += value
            for name, labels, value in gauges:
                self._gauges[name, labels] = value

    def metrics(self, timeout: float) -> str:
        """Return the counters in the Prometheus text format."""
        del timeout
        with self.lock:
            self._check_open()
            samples = [*self._counters.items(), *self._gauges.items()]
        return render((name, labels, value) for (name, labels), value in samples)

    def close(self) -> None:
        """End: claims that stand are lost."""
        with self.lock:
            self._closed = True
            claims, self._claims = self._claims, set()
            for claim in claims:
                claim.lose()
            for timer in self._timers.values():
                timer.cancel()
            self._timers.clear()
            self._deals.clear()
        _wake(claims)

    def _check_open(self) -> None:
        if self._closed:
            raise BackendUnavailableError("the node is closed")

    def _count(self, claim: MemoryClaim, outcome: Outcome) -> None:
        poller = claim.subscription, claim.consumer
        if outcome is Outcome.DELIVERED:
            self._empty.pop(poller, None)
        elif outcome is Outcome.EMPTY and self._limit:
            self._empty.setdefault(poller, deque(maxlen=self._limit)).append(self._clock())

    def _limited(self, subscription: Subscription, consumer: str) -> float | None:
        times = self._empty.get((subscription, consumer))
        if not times or not self._limit:
            return None
        now = self._clock()
        if times[-1] <= now - MINUTE:
            del self._empty[subscription, consumer]
            return None
        if len(times) < self._limit:
            return None
        wait = min(times[0] + MINUTE, times[-1] + MINUTE / self._limit) - now
        return wait if wait > 0 else None

    def _settle(self, subscription: Subscription, deal: Deal[MemoryClaim]) -> set[MemoryClaim]:
        woken = set()
        for change in deal.changes():
            woken.add(change.holder)
            if isinstance(change, Grant):
                self._generation += 1
                of, position = self._pending.pop((subscription, change.partition), ("", None))
                known = position if of == change.consumer else None
                change.holder.grant(change.partition, self._generation, known)
            else:
                change.holder.revoke(change.partition)
        self._watch(subscription, deal)
        return woken

    def _watch(self, subscription: Subscription, deal: Deal[MemoryClaim]) -> None:
        """Keep a timer for the next time at which a waiting poll may get what an id left."""
        deadline = deal.next_deadline() if deal.polls() else None
        if deadline is None or subscription in self._timers or self._closed:
            return
        wait = max(0.0, deadline - self._clock())
        timer = threading.Timer(wait, self._tick, (subscription,))
        timer.daemon = True
        self._timers[subscription] = timer
        timer.start()

    def _tick(self, subscription: Subscription) -> None:
        with self.lock:
            self._timers.pop(subscription, None)
            deal = self._deals.get(subscription)
            if deal is None:
                return
            deal.tick(self._clock())
            woken = self._settle(subscription, deal)
        _wake(woken)


def _member(deal: Deal[MemoryClaim], consumer: str, now: float) -> Member:
    polls, ended = deal.queued(consumer), deal.ended(consumer)
    return Member(
        consumer,
        polls=len(polls),
        polling_ms=_ms(now - polls[0].since) if polls else None,
        idle_ms=None if ended is None else _ms(now - ended),
    )


def _ms(seconds: float) -> int:
    return max(0, round(seconds * 1000))


def _wake(claims: set[MemoryClaim]) -> None:
    for claim in claims:
        claim.mailbox.wake()
