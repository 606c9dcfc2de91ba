"""Recalls of claims that workers retain between polls, and who waits for their end.

Workers of other nodes are reached by their leases: this node queues for each that another node
holds, which makes that node recall its retained claims, and lets it go as soon as it has it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Final

from router.broker.consume.membership.leases.polls import ClaimUpdate, PollClaim, PollGroup
from router.coordination import Coordinator, Lease

MAX_RECALL_SECONDS: Final = 2.0
"""How long an administrator waits for a worker that stands still: its commits are compared."""


MAX_QUEUE_SECONDS: Final = 0.5
"""How long this node queues for a lease of another, which a poll there may use for longer."""


class Recalls:
    """The recalled claims that are not released yet; `update` returns what a poll is sent next."""

    def __init__(
        self, coordinator: Coordinator, update: Callable[[PollClaim], ClaimUpdate]
    ) -> None:
        self._coordinator = coordinator
        self._update = update
        self._queued: dict[Lease, asyncio.Event] = {}
        self._ends: dict[PollClaim, asyncio.Event] = {}

    def recall(self, poll: PollClaim) -> None:
        """Have the worker end a claim, if it retains it; once for each."""
        if poll.is_retained and not poll.is_recalled:
            poll.is_recalled = True
            self._ends[poll] = asyncio.Event()
            self._update(poll).recalled = True

    def ended(self, poll: PollClaim) -> None:
        """Note that a claim has ended, or has a poll and ends with it."""
        if (end := self._ends.pop(poll, None)) is not None:
            end.set()

    async def wait(self, topic: str, subscription: str | None) -> None:
        """Return when recalled claims of a subscription, None: of a topic, are ended or in use."""
        waiting = [
            end.wait() for poll, end in self._ends.items() if poll.group.is_of(topic, subscription)
        ]
        try:
            async with asyncio.timeout(MAX_RECALL_SECONDS):
                await asyncio.gather(*waiting)
        except TimeoutError:
            return

    async def wait_for_nodes(self, topic: str, subscription: str, group: PollGroup | None) -> None:
        """Return when other nodes hold no lease of a subscription without a poll, or too late.

        `group` is what this node knows of it: leases that it asks for are not queued for again.
        """
        requested = group.requested() if group is not None else set()
        remote = await self._coordinator.remote_group(topic, subscription)
        leases = [Lease(topic, subscription, p) for p, nodes in remote.queues.items() if any(nodes)]
        ends = {lease: self._queue(lease) for lease in leases if lease not in requested}
        try:
            async with asyncio.timeout(MAX_QUEUE_SECONDS):
                await asyncio.gather(*(end.wait() for end in ends.values()))
        except TimeoutError:
            for lease, end in ends.items():
                if self._queued.get(lease) is end:
                    del self._queued[lease]
                    end.set()
                    self._coordinator.release(lease)

    def _queue(self, lease: Lease) -> asyncio.Event:
        if (end := self._queued.get(lease)) is None:
            end = self._queued[lease] = asyncio.Event()
            self._coordinator.acquire(lease)
        return end

    def held(self, lease: Lease, note: bytes) -> bool:
        """Let a lease go that this node queued for to recall claims; False: it did not."""
        if (end := self._queued.pop(lease, None)) is None:
            return False
        end.set()
        self._coordinator.release(lease, note)
        return True

    def acquire(self, lease: Lease) -> None:
        """Ask for a lease for a poll: it takes the place of a recall that queues for it."""
        if (end := self._queued.pop(lease, None)) is None:
            self._coordinator.acquire(lease)
        else:
            end.set()
