"""Owns what waits for the disk: the commit group that is collected, and turns to append much.

Theory of operation. All that is appended while a commit group is written shares the next one, and
waits for its last byte. A publisher of megabytes would have all others wait for them, in the group
that is being written and in the next. So appends of much wait for a turn if anything
else is appended: they are made when a commit group begins, one publisher's after another's, and
have SHARED_TURN_BYTES of it. Alone they are made at once, up to MAX_TURN_BYTES in a group.

If something else was appended since the last turn, the next one is held up for OTHERS_SHARE times
as long as the group of the last took, at most MAX_HOLD_SECONDS: the disk and the event loop are the
others' meanwhile. It comes earlier if nothing is written for QUIET_SECONDS, within which a
publisher that waits for each answer is back.

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
OTHERS_SHARE: Final = 4
"""Of the time, for each part of it that turns take while others publish."""
MAX_HOLD_SECONDS: Final = 0.012
QUIET_SECONDS: Final = 0.003
IDLE_SECONDS: Final = 1.0


class JournaledLedger(Protocol):
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

    `is_due`: it begins as soon as the disk is free, because something waits for it. Of its bytes
    and calls `turn_bytes` and `turn_calls` were appended in turns; `began_at` is when it began.
    """

    parts: list[bytes] = field(default_factory=list)
    calls: list[tuple[Callable[[Any], object], object]] = field(default_factory=list)
    ledgers: dict[JournaledLedger, None] = field(default_factory=dict)
    size: int = 0
    is_due: bool = False
    turn_bytes: int = 0
    turn_calls: int = 0
    began_at: float = 0.0

    @property
    def has_others(self) -> bool:
        """Whether something waits for it that took no turn."""
        return len(self.calls) > self.turn_calls

    def call(self, done: Callable[[], object]) -> None:
        """Add a call without an argument."""
        self.calls.append((_without_argument, done))


def _without_argument(done: Callable[[], object]) -> None:
    done()


class AppendTurns:
    """Who waits to append much, in their order; `begin` begins a commit group if the disk is free.

    `size` is what they have to append, in bytes; 0: nothing waits. `in_use`: `take` and `ended` are
    to be called, since there were turns within IDLE_SECONDS.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop, begin: Callable[[], None]) -> None:
        self.size = 0
        self.in_use = False
        self._turn_at = 0.0
        self._loop = loop
        self._begin = begin
        self._waiting: deque[tuple[Callable[[], None], int]] = deque()
        self._held_until = self._quiet_at = 0.0
        self._others = False
        self._timer: asyncio.TimerHandle | None = None

    def wait(self, append: Callable[[], None], size: int, group: PendingGroup) -> None:
        """Call `append` once, at its turn; it appends about so many bytes, and may not raise.

        That is now, into the group that is collected, as long as nothing else was appended lately.
        """
        if not self.in_use:
            # What was appended until now is not known.
            self.in_use = self._others = True
        alone = not (self._waiting or self._held_until or self._others or group.has_others)
        if alone and group.turn_bytes + size <= MAX_TURN_BYTES:
            self._append(append, size, group)
            return
        self._waiting.append((append, size))
        self.size += size

    def take(self, group: PendingGroup) -> None:
        """Have those append into a group that is about to begin whose turn it is."""
        now = group.began_at = self._loop.time()
        self._others = self._others or group.has_others
        if not self._waiting:
            return
        held_until = self._held_until if group.is_due else min(self._held_until, self._quiet_at)
        if now < held_until:
            if not group.is_due:
                self._begin_at(held_until)
            return
        group.is_due = True  # so that what is appended begins no other group
        limit = SHARED_TURN_BYTES if self._held_until or group.has_others else MAX_TURN_BYTES
        while self._waiting:
            append, size = self._waiting[0]
            if group.turn_bytes and group.turn_bytes + size > limit:
                break
            self._waiting.popleft()
            self.size -= size
            self._append(append, size, group)

    def ended(self, group: PendingGroup, following: PendingGroup) -> None:
        """Note that a group is on disk; `following` was collected meanwhile."""
        now = self._loop.time()
        self._quiet_at = now + QUIET_SECONDS
        self._others = self._others or following.has_others
        if group.turn_bytes:
            self._turn_at = now
            hold = min(MAX_HOLD_SECONDS, OTHERS_SHARE * (now - group.began_at))
            self._held_until = now + hold if self._others else 0.0
            self._others = following.has_others
        elif now > self._turn_at + IDLE_SECONDS and not (self._waiting or following.turn_bytes):
            self.in_use = False

    def _append(self, append: Callable[[], None], size: int, group: PendingGroup) -> None:
        # Within `append` another turn may be taken, whose calls are among these.
        others = len(group.calls) - group.turn_calls
        group.turn_bytes += size
        append()
        group.turn_calls = len(group.calls) - others

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
