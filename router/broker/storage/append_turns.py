"""Owns what waits for the disk: the commit group that is collected, and turns to append much.

Theory of operation. All that is appended while a commit group is written shares the next one, and
waits for its last byte. A publisher of megabytes would have all others wait for them, in the group
that is being written and in the next. So appends of much wait for a turn: they are made when a
commit group begins, one publisher's after another's, MAX_TURN_BYTES in a group, or
SHARED_TURN_BYTES while others publish.

If something else was appended since the last turn, the next one comes as late as the group of the
last took, at most MAX_HOLD_SECONDS: so the disk and the event loop are the others' for half of the
time, and a publisher that waits for each answer is back before the next turn.

Turns are taken in their order, and each group that has one takes at least one, so none waits for
ever. The alternative, a second commit group for large appends, would make what is journalled of one
partition depend on the order of two groups.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Final, Protocol

MAX_TURN_BYTES: Final = 4 << 20
SHARED_TURN_BYTES: Final = 1 << 20
MAX_HOLD_SECONDS: Final = 0.008


class Appender(Protocol):
    """A ledger, as the journal knows it."""

    def begin(self) -> None:
        """Put in flight what was appended since the last call."""
        ...

    def synced(self) -> None:
        """Make durable what was in flight."""
        ...

    def announce(self) -> None:
        """Call the listeners for new entries."""
        ...


@dataclass(slots=True)
class PendingGroup:
    """A commit group: its bytes, their ledgers, and the calls to make when it is on disk.

    `is_due`: it begins as soon as the disk is free, because something waits for it. `turns_at`: the
    time at which turns were taken in it, None: it has none.
    """

    parts: list[bytes] = field(default_factory=list)
    calls: list[tuple[Callable[[Any], object], object]] = field(default_factory=list)
    ledgers: dict[Appender, None] = field(default_factory=dict)
    size: int = 0
    is_due: bool = False
    turns_at: float | None = None

    def call(self, done: Callable[[], object]) -> None:
        """Add a call without an argument."""
        self.calls.append((_without_argument, done))


def _without_argument(done: Callable[[], object]) -> None:
    done()


class AppendTurns:
    """Who waits to append much, in their order; `begin` begins a commit group if the disk is free.

    `size` is what they have to append, in bytes.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop, begin: Callable[[], None]) -> None:
        self.size = 0
        self._loop = loop
        self._begin = begin
        self._waiting: deque[tuple[Callable[[], None], int]] = deque()
        self._held_until = 0.0
        self._others = False
        self._timer: asyncio.TimerHandle | None = None

    def __bool__(self) -> bool:
        return bool(self._waiting)

    def wait(self, append: Callable[[], None], size: int) -> None:
        """Call `append` once, at its turn; it appends about so many bytes, and may not raise."""
        self._waiting.append((append, size))
        self.size += size

    def take(self, group: PendingGroup) -> None:
        """Have those append into a group that is about to begin whose turn it is."""
        if not self._waiting:
            return
        now = self._loop.time()
        if now < self._held_until:
            if not group.is_due:
                self._begin_at(self._held_until)
            return
        # Due, so that what is appended begins no other group.
        group.is_due, group.turns_at = True, now
        left = SHARED_TURN_BYTES if self._held_until else MAX_TURN_BYTES
        while self._waiting:
            append, size = self._waiting.popleft()
            self.size -= size
            left -= size
            append()
            if not self._waiting or self._waiting[0][1] > left:
                break

    def ended(self, group: PendingGroup, *, others: bool) -> None:
        """Note that a group is on disk; `others`: something that took no turn waits already."""
        self._others = self._others or others or group.turns_at is None
        if group.turns_at is not None:
            now = self._loop.time()
            hold = min(MAX_HOLD_SECONDS, now - group.turns_at)
            self._held_until = now + hold if self._others else 0.0
            self._others = others

    def end(self) -> None:
        """Have all append that wait, who find that the store takes no more entries."""
        while self._waiting:
            append, size = self._waiting.popleft()
            self.size -= size
            append()

    def _begin_at(self, time: float) -> None:
        if self._timer is None:
            self._timer = self._loop.call_at(time, self._end_hold)

    def _end_hold(self) -> None:
        self._timer = None
        self._begin()
