"""Recalls of claims that workers retain between polls, and who waits for their end."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Final

from router.broker.consume.leases.polls import ClaimUpdate, Poll

MAX_RECALL_SECONDS: Final = 2.0
"""How long an administrator waits for a worker that stands still: its commits are compared."""


class Recalls:
    """The recalled claims that are not released yet; `update` returns what a poll is sent next."""

    def __init__(self, update: Callable[[Poll], ClaimUpdate]) -> None:
        self._update = update
        self._ends: dict[Poll, asyncio.Event] = {}

    def recall(self, poll: Poll) -> None:
        """Have the worker end a claim, if it retains it; once for each."""
        if poll.is_retained and not poll.is_recalled:
            poll.is_recalled = True
            self._ends[poll] = asyncio.Event()
            self._update(poll).recalled = True

    def ended(self, poll: Poll) -> None:
        """Note that a claim has ended, or has a poll and ends with it."""
        if (end := self._ends.pop(poll, None)) is not None:
            end.set()

    async def wait(self, topic: str, subscription: str | None) -> None:
        """Return when recalled claims of a subscription, None: of a topic, are ended or in use."""
        waiting = [
            end.wait()
            for poll, end in self._ends.items()
            if poll.group.topic == topic and subscription in {None, poll.group.subscription}
        ]
        try:
            async with asyncio.timeout(MAX_RECALL_SECONDS):
                await asyncio.gather(*waiting)
        except TimeoutError:
            return
