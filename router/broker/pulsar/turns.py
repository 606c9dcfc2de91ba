"""How much of what a client sent is handled at a time: frames that came wait here for their turn.

One read brings thousands of small frames, and each may ask for megabytes, or for something that has
to wait for a disk. So they are handled in turns. A turn ends when it has lasted SECONDS, for other
connections have theirs, and as soon as there is too much that waits to leave or is under way; then
nothing is read, so that what waits here is what one read brought.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Iterable
from typing import Final

from router.wire.pulsar import Frame

SECONDS: Final = 0.05


class Turns:
    """The frames of one connection that were not handled yet; `take` is called for the next turn.

    `due`: that call is to come in the loop's next round.
    """

    def __init__(self, take: Callable[[], None]) -> None:
        self._loop = asyncio.get_running_loop()
        self._frames: deque[Frame] = deque()
        self._take = take
        self.due = False

    def __len__(self) -> int:
        return len(self._frames)

    def add(self, frames: Iterable[Frame]) -> None:
        """Take in what came, in order."""
        self._frames.extend(frames)

    def handle(self, handle: Callable[[Frame], None], may: Callable[[], bool]) -> None:
        """Handle frames for one turn, each only if it `may` be; what is left when it ends waits."""
        frames, time = self._frames, self._loop.time
        until = time() + SECONDS
        while frames and may():
            handle(frames.popleft())
            if time() > until:
                self.soon()
                return

    def soon(self) -> None:
        """Have another turn in the loop's next round, if there is anything to handle."""
        if self._frames and not self.due:
            self.due = True
            self._loop.call_soon(self._next)

    def clear(self) -> None:
        """Forget all: the connection is gone."""
        self._frames.clear()

    def _next(self) -> None:
        self.due = False
        self._take()
