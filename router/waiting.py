"""Waits that whoever called may do its own way: by standing still, or by coming back when called.

What waits for others is written as a generator, its *steps*: it yields what it waits for and goes
on when asked for the next step. `finish` takes the steps one after the other in the caller's
greenlet or thread. A server that has thousands of them under way keeps the generators instead, and
no stack for each: it has itself called (`Wakeup.call`) and takes the next step then.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Generator
from typing import Final, ParamSpec, Protocol, TypeAlias, TypeVar

P = ParamSpec("P")
R = TypeVar("R")
T = TypeVar("T")


class Offload(Protocol):
    """Calls what computes for long where it does not hold up others, and waits for its result."""

    def __call__(self, function: Callable[P, R], *args: P.args, **kwargs: P.kwargs) -> R:
        """Return what the function returns; raise what it raises."""
        ...


def run_here(function: Callable[P, R], *args: P.args, **kwargs: P.kwargs) -> R:
    """Call the function in the caller's thread: the `Offload` where nothing else runs in it."""
    return function(*args, **kwargs)


class Wakeup:
    """Wakes one that waits, from any thread or greenlet."""

    __slots__ = ("_callback", "_event", "_woken")

    def __init__(self) -> None:
        self._woken = False
        self._event: threading.Event | None = None
        self._callback: Callable[[], None] | None = None

    def wake(self) -> None:
        """Have the present wait end, or the next; never waits itself."""
        # In this order, and `wait` and `call` in the other: one of the two sees what the other did.
        self._woken = True
        if self._event is not None:
            self._event.set()
        callback, self._callback = self._callback, None
        if callback is not None:
            callback()

    def wait(self, timeout: float | None) -> None:
        """Wait until woken, or for so many seconds."""
        if self._event is None:
            self._event = threading.Event()
        if not self._woken:
            self._event.wait(timeout)
        self.clear()

    def call(self, callback: Callable[[], None]) -> None:
        """Have this called once when woken, at once if that is so already; instead of `wait`.

        It is called by whoever wakes, in the thread of that one, and must not wait.
        """
        self._callback = callback
        if self._woken:
            self.wake()

    def clear(self) -> None:
        """Forget that it was woken, and whom to call."""
        self._callback = None
        self._woken = False
        if self._event is not None:
            self._event.clear()


Wait: TypeAlias = tuple[Wakeup, float | None]
"""What to wait for, and for how many seconds at most; None: as long as it takes."""


class _Woken(Wakeup):
    """Is woken already, for any number that ask."""

    __slots__ = ()

    def wait(self, timeout: float | None) -> None:
        """Return at once."""

    def call(self, callback: Callable[[], None]) -> None:
        """Call at once."""
        callback()

    def clear(self) -> None:
        """Remain woken."""


LULL: Final = _Woken()
"""What to wait for so that all others who could go on already do so before."""

Steps: TypeAlias = Generator[Wait, None, T]
"""What waits, and returns something; closing it gives up."""


def finish(steps: Steps[T]) -> T:
    """Take all steps here and now; return what they return."""
    try:
        while True:
            wakeup, seconds = next(steps)
            wakeup.wait(seconds)
    except StopIteration as stop:
        result: T = stop.value
        return result
    finally:
        steps.close()
