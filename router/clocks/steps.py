"""Coroutine steps: waits that block the caller, or suspend an operation until an event wakes it.

An operation that waits is written as a generator, its *steps*: it yields the event it waits for and
goes on when the next step is taken. `run_blocking` takes all steps in the caller's greenlet or
thread. A server with thousands of operations in progress keeps the generators instead, without a
stack for each: the event calls it back (`Event.call`), and it takes the next step then.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Generator, Iterable, Iterator
from dataclasses import dataclass
from operator import call
from typing import Final, ParamSpec, Protocol, TypeAlias, TypeVar

P = ParamSpec("P")
R = TypeVar("R")
T = TypeVar("T")


class Offload(Protocol):
    """Runs a long computation where it delays no other request, and waits for its result."""

    def __call__(self, function: Callable[P, R], /, *args: P.args, **kwargs: P.kwargs) -> R:
        """Return what the function returns; raise what it raises."""
        ...


run_here: Final[Offload] = call
"""Calls the function in the caller's thread: the `Offload` where nothing else runs in it."""


class Event:
    """Wakes one waiting operation, from any thread or greenlet."""

    __slots__ = ("_callback", "_event", "_woken")

    def __init__(self) -> None:
        self._woken = False
        self._event: threading.Event | None = None
        self._callback: Callable[[], None] | None = None

    def wake(self) -> None:
        """End the present wait, or the next; never waits itself."""
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
        """Call this once when woken, at once if that has happened already; instead of `wait`.

        The callback runs in the thread that wakes, and must not wait.
        """
        self._callback = callback
        if self._woken:
            self.wake()

    def clear(self) -> None:
        """Forget that it was woken, and the callback."""
        self._callback = None
        self._woken = False
        if self._event is not None:
            self._event.clear()


Wait: TypeAlias = tuple[Event, float | None]
"""What to wait for, and for how many seconds at most; None: as long as it takes."""


class _Woken(Event):
    """An event that has always happened, for any number of operations."""

    __slots__ = ()

    def wait(self, timeout: float | None) -> None:
        """Return at once."""

    def call(self, callback: Callable[[], None]) -> None:
        """Call at once."""
        callback()

    def clear(self) -> None:
        """Remain woken."""


YIELD_TO_LOOP: Final = _Woken()
"""The event to wait for so that all operations that can go on do so first."""

Steps: TypeAlias = Generator[Wait, None, T]
"""An operation that waits and returns a value; closing it gives the operation up."""


def run_blocking(steps: Steps[T]) -> T:
    """Take all steps in this thread or greenlet; return what they return, raise what they raise."""
    try:
        while True:
            wakeup, seconds = next(steps)
            wakeup.wait(seconds)
    except StopIteration as stop:
        result: T = stop.value
        return result
    finally:
        steps.close()


DEFERRED: Final = "router.later"
"""In the environment of a request whose server takes a `DeferredResponse` for an answer."""
REPEATED: Final = "router.repeated"
"""There too, if a request from the same address had the same head: `DeferredResponse.prepared`."""
BEGUN: Final = "router.begun"
"""There too: what `Prepared.begin` began of this request. The application goes on with it."""


class StepsClient(Protocol):
    """Is answered what `Prepared.begin` began: by `answered` or `go_on`, once. No call waits."""

    def answered(self, rest: bytes, written: Callable[[bool], None] | None = None) -> None:
        """Send a 200: all of it that is behind the server's own lines of the head.

        `written` is called once, in a greenlet: with True if all of it was written, else with
        False.
        """
        ...

    def soon(self, job: Callable[[], None]) -> None:
        """Run a job, which may wait, in a greenlet soon."""
        ...

    def wait_for(self, wait: Wait, job: Callable[[], None]) -> None:
        """Run a job, which may wait, in a greenlet when the wait is over.

        An end of the connection ends the wait: then the job is not run.
        """
        ...

    def is_closed(self) -> bool:
        """Return whether the client closed its connection."""
        ...

    def go_on(self) -> None:
        """Have the application go on with the request in steps, by BEGUN in its environment."""
        ...


class Begun(Protocol):
    """A request that `Prepared.begin` began."""

    def early(self) -> None:
        """Learn that the client sent something, or left, before it was answered; never waits."""
        ...

    def leave(self) -> None:
        """Give it up, as closing the steps of a request does."""
        ...


class Prepared(Protocol):
    """What follows from a head: it begins the next requests that have it, from the same address.

    `at_once`: the request for which it was made is begun by it, too.
    """

    @property
    def at_once(self) -> bool:
        """Return whether that takes less, as for a request that waits."""
        ...

    def begin(self, body: bytes, client: StepsClient) -> Begun | None:
        """Begin a request; None: nothing is done, the application is to answer it in steps."""
        ...


@dataclass(slots=True, eq=False)
class DeferredResponse:
    """An application's answer that is still to come: its steps return what WSGI's would have been.

    `start_response` is called before they end. `prepared`: what may begin the next requests, if
    REPEATED asked for it and the head allows it.
    """

    steps: Steps[Iterable[bytes]]
    prepared: Prepared | None = None

    def __iter__(self) -> Iterator[bytes]:
        raise TypeError(f"{DEFERRED} was asked for: take the steps")
