"""Bounds the memory that the requests in progress in one worker take together.

Reservations are granted in the order in which they were asked for, so that a large one is not
passed by small ones for ever. What waits holds something already, such as a body as it was sent:
that is bounded too, and beyond it a request is refused at once.
"""

from __future__ import annotations

from _thread import RLock
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field

from router.clocks.steps import Event, Steps
from router.errors import OverloadedError

RETRY_AFTER_SECONDS = 1.0


class MemoryBudget:
    """Grants reservations of `limit` bytes in all; calls may be made from many threads.

    What waits may hold as many bytes once more.
    """

    def __init__(self, limit: int, clock: Callable[[], float]) -> None:
        self.limit = limit
        self._clock = clock
        # Held for a few operations, never over a wait: native, which costs a third of gevent's.
        self._lock = RLock()
        self._used = 0
        self._held = 0
        self._waiting: deque[_Waiter] = deque()
        self._stopping = False

    def used(self) -> int:
        """Return how many bytes are reserved now."""
        return self._used

    def reserve(self, size: int, held: int, deadline: float) -> Steps[Reservation]:
        """Return a reservation once that much memory is free; the caller releases it.

        What is larger than the whole budget gets all of it. `held`: what the request holds while it
        waits. Raises OverloadedError if too much waits already, or the memory is not free in time.
        """
        size = min(size, self.limit)
        with self._lock:
            if not self._waiting and self._used + size <= self.limit:
                self._used += size
                return Reservation(self, size)
            if self._held + held > self.limit:
                raise self.overloaded()
            waiter = _Waiter(size)
            self._waiting.append(waiter)
            self._held += held
        try:
            while not (waiter.granted or self._stopping):
                if (left := deadline - self._clock()) <= 0:
                    break
                yield waiter.wakeup, left
        except BaseException:
            self._leave(waiter, held)
            if waiter.granted:
                self.give_back(size)
            raise
        self._leave(waiter, held)
        if not waiter.granted:
            raise self.overloaded()
        return Reservation(self, size)

    def try_reserve(self, size: int) -> Reservation | None:
        """Return a reservation if that much memory is free now and nothing waits, else None."""
        size = min(size, self.limit)
        with self._lock:
            if self._waiting or self._used + size > self.limit:
                return None
            self._used += size
        return Reservation(self, size)

    def stop(self) -> None:
        """Have what waits, now or later, wait no longer: it is refused."""
        with self._lock:
            self._stopping = True
            waiting = list(self._waiting)
        for waiter in waiting:
            waiter.wakeup.wake()

    def give_back(self, size: int) -> None:
        """Take back reserved bytes, and grant what waits and now fits."""
        with self._lock:
            self._used -= size
            granted = self._grant() if self._waiting else ()
        for waiter in granted:
            waiter.wakeup.wake()

    def _leave(self, waiter: _Waiter, held: int) -> None:
        with self._lock:
            self._held -= held
            granted = []
            if not waiter.granted:
                self._waiting.remove(waiter)
                granted = self._grant()  # a smaller one behind it may fit
        for other in granted:
            other.wakeup.wake()

    def _grant(self) -> list[_Waiter]:
        granted = []
        while self._waiting and self._used + self._waiting[0].size <= self.limit:
            waiter = self._waiting.popleft()
            waiter.granted = True
            self._used += waiter.size
            granted.append(waiter)
        return granted

    def overloaded(self) -> OverloadedError:
        """Return the failure that says which memory is used up."""
        return OverloadedError(
            f"Requests under way hold the {self.limit} bytes that one worker has for them.",
            retry_after=RETRY_AFTER_SECONDS,
        )


@dataclass(eq=False, slots=True)
class Reservation:
    """A share of a budget; its holder releases it, best as a context manager."""

    _budget: MemoryBudget
    _size: int

    def shrink(self, size: int) -> bool:
        """Keep so many bytes; return False if it is less, which then remains."""
        size = min(size, self._budget.limit)
        if size > self._size:
            return False
        surplus, self._size = self._size - size, size
        if surplus:
            self._budget.give_back(surplus)
        return True

    def release(self) -> None:
        """Give all of it back; callable twice."""
        size, self._size = self._size, 0
        if size:
            self._budget.give_back(size)

    def __enter__(self) -> Reservation:
        return self

    def __exit__(self, *_failure: object) -> None:
        self.release()


@dataclass(eq=False, slots=True)
class _Waiter:
    """A request for a reservation that waits its turn."""

    size: int
    granted: bool = field(default=False, init=False)
    wakeup: Event = field(default_factory=Event, init=False)
