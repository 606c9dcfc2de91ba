"""What one fetch takes: only what is not in flight, and it is in flight from then on.

Theory of operation. A fetch is a poll that acknowledges nothing (`services/consume`). Of each
partition that it opens it reads which messages are in flight (`in_flight`), and passes over those.
If it finds something, what it takes is written down, while it holds the claim and before the answer
is made: a client that is answered twice is answered different messages. A message that comes due
while the fetch waits is found by opening its partition once more, as a consumer hands out each
message once.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Final

from router.errors import ConflictError, RouterError, SubscriptionBusyError, TooManyRequestsError
from router.model import NOT_PARTITIONED, Stored, Subscription
from router.services.consume import OpenPartitionReader, OpenPartitions
from router.services.fetch.consumers import FetchConsumers, FetchMember, FetchOptions
from router.services.fetch.in_flight import KIND, InFlightTracker
from router.sharing.registry import Registry

MIN_RECEIVE_MESSAGES: Final = 100
"""Messages that are passed over are read in pieces of at least so many."""
LIVE_CONSUMERS_SECONDS: Final = 1.0
"""How long a fetch goes by the consumers that existed when it asked."""


@dataclass(eq=False, slots=True)
class _OpenPartition:
    """What is in flight of an open partition, and the version of the record that says so."""

    tracker: InFlightTracker
    version: int
    taken: bool = field(default=False, init=False)


@dataclass(eq=False, slots=True)
class FetchReader(OpenPartitionReader):
    """Takes what is not in flight for one consumer; used by one poll."""

    _registry: Registry
    _consumers: FetchConsumers
    _options: FetchOptions
    _subscription: Subscription
    _member: FetchMember
    _live: frozenset[str]
    _wall_ms: Callable[[], int]
    _live_at: int = field(init=False)
    _now_ms: int = field(init=False)
    _opened: dict[int, _OpenPartition] = field(default_factory=dict, init=False)

    def __post_init__(self) -> None:
        self._live_at = self._now_ms = self._wall_ms()

    def record(self) -> None:
        """Write down what was taken.

        Raises SubscriptionBusyError if another fetch took something meanwhile.
        """
        for partition, opened in self._opened.items():
            if not opened.taken:
                continue
            name, value = self._record_name(partition), opened.tracker.dump()
            try:
                self._registry.put(KIND, name, value, opened.version, self._options.backend_timeout)
            except ConflictError as error:
                raise SubscriptionBusyError(
                    "Another consumer received the same messages meanwhile.", retry_after=1
                ) from error

    def opened(self, partition: int) -> None:
        """Read what is in flight of a partition; raise what the registry raises."""
        timeout = self._options.backend_timeout
        record = self._registry.get(KIND, self._record_name(partition), timeout)
        # The consumers that came while this fetch waited: what they have is theirs.
        now = self._wall_ms()
        if not 0 <= now - self._live_at < LIVE_CONSUMERS_SECONDS * 1000:
            self._live = self._consumers.live(self._subscription)
            self._live_at = now
        tracker = InFlightTracker() if record is None else InFlightTracker.load(record.value)
        self._opened[partition] = _OpenPartition(tracker, 0 if record is None else record.version)

    def closed(self, partition: int) -> None:
        """Forget what is in flight of a partition."""
        self._opened.pop(partition, None)

    def begin(self, partitions: OpenPartitions) -> None:
        """Open the partitions once more in which something came due since they were read."""
        # The same for all of one answer: what is taken together comes due together.
        self._now_ms = self._wall_ms()
        for partition, opened in list(self._opened.items()):
            if (due := opened.tracker.next_due) and due <= self._now_ms:
                partitions.reopen(partition)

    def take(
        self, partitions: OpenPartitions, partition: int, limit: int, room: int, *, first: bool
    ) -> tuple[Sequence[Stored], int]:
        """Return messages that are not in flight; a first one may be larger than the room.

        Raises TooManyRequestsError if too many are, and what receiving raises.
        """
        opened = self._opened[partition]
        found: list[Stored] = []
        taken = 0
        while len(found) < limit:
            try:
                some = partitions.receive(partition, max(limit, MIN_RECEIVE_MESSAGES), max(1, room))
            except RouterError:
                if found:
                    break
                raise
            if not some and not found:
                self._tidy(partition, opened)
            for stored in some:
                size = stored.message.size()
                if len(found) == limit or (taken + size > room and (found or not first)):
                    return found, taken
                if self._give(opened, stored):
                    found.append(stored)
                    taken += size
            if not some:
                break
            if not found:
                self._check_passed_over(partition, opened.tracker.passed_over)
        return found, taken

    def seconds_until_due(self) -> float:
        """Return after how many seconds the next message in flight comes due."""
        due = [at for one in self._opened.values() if (at := one.tracker.next_due) is not None]
        return (min(due) - self._wall_ms()) / 1000 if due else math.inf

    def _give(self, opened: _OpenPartition, stored: Stored) -> bool:
        """Give a message to this consumer, unless it is in flight or is to come later."""
        if not opened.tracker.may_give(stored, self._now_ms, self._live):
            return False
        # In steps of a tenth, so that what is given at about the same time becomes one span.
        step = max(1, round(self._options.ack_timeout * 100))
        due = (self._now_ms // step + 11) * step
        opened.tracker.give(stored, due, self._member.id)
        opened.taken = True
        return True

    def _tidy(self, partition: int, opened: _OpenPartition) -> None:
        """Delete the record of a partition of which nothing is to be remembered any more."""
        tracker = opened.tracker
        if opened.version and not tracker.passed_over and tracker.over(self._wall_ms(), self._live):
            name = self._record_name(partition)
            self._registry.delete(KIND, name, self._options.backend_timeout)
            opened.version = 0

    def _check_passed_over(self, partition: int, passed_over: int) -> None:
        if passed_over > self._options.max_unacknowledged:
            raise TooManyRequestsError(
                f"{passed_over} messages of partition {max(partition, 0)} wait to be acknowledged"
                " (pip64.max_unacknowledged).",
                retry_after=1,
            )

    def _record_name(self, partition: int) -> str:
        topic, name = self._subscription.topic, self._subscription.name
        return f"{topic}|{name}|{max(partition, NOT_PARTITIONED)}"
