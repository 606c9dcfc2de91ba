"""A connection's producers, or its consumers, by the client's numbers for them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Final, Generic, TypeVar

from router.wire.pulsar import Frame, ProtocolError

MAX_WAITING: Final = 256

T = TypeVar("T")


class Slots(Generic[T]):
    """What is open, and what is being opened with the frames that came for it meanwhile.

    Opening may have to wait for the disk. A client that sends on without waiting for its answer
    then finds its frames handled in order, and the other producers and consumers of the connection
    are not held up: the alternative, to stop reading, would let one new topic delay them all.
    """

    def __init__(self, limit: int, handle: Callable[[Frame], None]) -> None:
        self.found: dict[int, T] = {}
        self._opening: dict[int, list[Frame]] = {}
        self._limit = limit
        self._handle = handle

    def __len__(self) -> int:
        return len(self.found)

    def __iter__(self) -> Iterator[T]:
        return iter(list(self.found.values()))

    @property
    def full(self) -> bool:
        """Tell whether there is no room for one more."""
        return len(self.found) + len(self._opening) >= self._limit

    def defer(self, number: int, frame: Frame) -> bool:
        """Keep a frame for later if its addressee is being opened; tell whether it is."""
        waiting = self._opening.get(number)
        if waiting is None:
            return False
        if len(waiting) >= MAX_WAITING:
            raise ProtocolError("too many commands for a producer or consumer that is being opened")
        waiting.append(frame)
        return True

    def begin(self, number: int) -> None:
        """Note that one is being opened."""
        self._opening[number] = []

    def settle(self, number: int) -> None:
        """Handle what came while it was being opened, whether it now is in `found` or not."""
        for frame in self._opening.pop(number, ()):
            self._handle(frame)

    def clear(self) -> None:
        """Forget everything: the connection is gone."""
        self.found.clear()
        self._opening.clear()
