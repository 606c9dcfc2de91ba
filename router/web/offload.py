"""What depends on how the worker runs requests: native threads for heavy work, watching a client.

Under gunicorn's gevent worker one thread serves all requests, so work that computes for long goes
to a native thread, and the event loop reports when a client closes its connection. Under gthread
each request has a thread of its own: it does its work there, and a waiting request checks the
socket itself now and then. This is one of the three modules that may import gevent, and it does so
only when gevent runs the worker already.
"""

from __future__ import annotations

import math
import select
import socket
import sys
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from typing import Any, Final, ParamSpec, TypeVar, cast

P = ParamSpec("P")
R = TypeVar("R")

CHECK_SECONDS: Final = 0.5
# A peer that only sends no more counts as closed: HTTP clients that wait for an answer keep both
# directions open, and a poll for a peer that left would take messages from those that stay.
_CLOSED: Final = getattr(select, "POLLRDHUP", 0) | select.POLLHUP | select.POLLERR | select.POLLNVAL


def under_gevent() -> bool:
    """Return whether this process runs requests in greenlets."""
    monkey = sys.modules.get("gevent.monkey")
    return monkey is not None and bool(monkey.is_module_patched("threading"))


def run(function: Callable[P, R], *args: P.args, **kwargs: P.kwargs) -> R:
    """Call the function where it does not hold up other requests; raise what it raises."""
    if not under_gevent():
        return function(*args, **kwargs)
    from gevent import get_hub  # noqa: PLC0415 - see the module's opening comment

    # Failures travel as values: raised in the pool, gevent would write each one to stderr.
    done, failure = get_hub().threadpool.apply(_outcome, (function, args, kwargs))
    if failure is not None:
        raise failure
    return cast("R", done)


class NativeThreadPool:
    """Native threads for one kind of heavy work, which so waits for its own kind alone.

    Python code gets one thread: several contend with the event loop for the interpreter's lock.
    """

    def __init__(self, threads: int) -> None:
        self._threads = threads
        self._pool: Any = None

    def __call__(self, function: Callable[P, R], /, *args: P.args, **kwargs: P.kwargs) -> R:
        """Call the function as `run` does; calls beyond the number of threads wait their turn."""
        if not under_gevent():
            return function(*args, **kwargs)
        if self._pool is None:
            from gevent.threadpool import ThreadPool  # noqa: PLC0415 - see the opening comment

            self._pool = ThreadPool(self._threads)
        done, failure = self._pool.apply(_outcome, (function, args, kwargs))
        if failure is not None:
            raise failure
        return cast("R", done)


class DeadlinePool:
    """Native threads for one kind of work, which waits for them in the order of its calls.

    What others hand to `run`, and their requests, are not behind it.
    """

    def __init__(self, threads: int, name: str) -> None:
        self._size = threads
        self._greenly: Any = None
        # Starts a thread with the first call, so under gevent it has none.
        self._executor = ThreadPoolExecutor(threads, thread_name_prefix=name)

    def run(self, seconds: float, function: Callable[P, R], *args: P.args, **kwargs: P.kwargs) -> R:
        """Call the function in one of the threads; raise what it raises.

        Raises TimeoutError if it has not returned in time; it may still be called, or go on.
        """
        if under_gevent():
            done, failure = self._apply_greenly(seconds, function, args, kwargs)
        else:
            done, failure = self._apply(seconds, function, args, kwargs)
        if failure is not None:
            raise failure
        return cast("R", done)

    def _apply_greenly(self, seconds: float, *call: Any) -> tuple[Any, Any]:
        from gevent import Timeout  # noqa: PLC0415 - see the module's opening comment
        from gevent.threadpool import ThreadPool  # noqa: PLC0415 - as above

        if self._greenly is None:
            self._greenly = ThreadPool(self._size)
        with Timeout(seconds, TimeoutError):
            found: tuple[Any, Any] = self._greenly.apply(_outcome, call)
        return found

    def _apply(self, seconds: float, *call: Any) -> tuple[Any, Any]:
        task = self._executor.submit(_outcome, *call)
        try:
            found: tuple[Any, Any] = task.result(seconds)
        finally:
            task.cancel()
        return found


def pause(seconds: float) -> None:
    """Let an answer wait where that costs no thread; elsewhere return at once."""
    if under_gevent():
        from gevent import sleep  # noqa: PLC0415 - see the module's opening comment

        sleep(seconds)


def is_closed(client: socket.socket | None) -> bool:
    """Return whether a client closed its connection; never waits, callable from any thread."""
    if client is None:
        return False
    descriptor = client.fileno()
    if descriptor < 0:
        return True
    poll = _poll()
    poll.register(descriptor, _CLOSED)
    return bool(poll.poll(0))


def _outcome(function: Callable[..., R], args: Any, kwargs: Any) -> tuple[R | None, Any]:
    try:
        return function(*args, **kwargs), None
    except Exception as error:  # noqa: BLE001 - raised again in the caller's greenlet
        return None, error


def _wake_none() -> None:
    pass


class Watch:
    """Watches a client's connection while a request waits; `wake` is called if it may be closed."""

    def __init__(self, client: socket.socket | None, wake: Callable[[], None]) -> None:
        self._client = client
        self._wake = wake
        self._timeout: float | None = None
        self._bounded = False
        self._watcher: Any = None
        if client is not None and client.fileno() >= 0 and under_gevent():
            from gevent import get_hub  # noqa: PLC0415 - see the module's opening comment

            self._watcher = get_hub().loop.io(client.fileno(), 1)
            self._watcher.start(self._readable)

    def check_seconds(self) -> float:
        """Return after how many seconds to check again; infinite where `wake` is called."""
        return math.inf if self._client is None or self._watcher is not None else CHECK_SECONDS

    def is_closed(self) -> bool:
        """Return whether the client closed its connection; never waits."""
        return is_closed(self._client)

    def bound_write(self, seconds: float) -> None:
        """Have a write to the client fail when it takes longer, until `close`."""
        if self._client is not None:
            self._timeout = self._client.gettimeout()
            self._client.settimeout(seconds)
            self._bounded = True

    def close(self) -> None:
        """Watch no longer; callable twice."""
        self._stop()
        self._wake = _wake_none  # who waits may have this watch
        if self._bounded and self._client is not None and self._client.fileno() >= 0:
            self._client.settimeout(self._timeout)
        self._bounded = False

    def _readable(self) -> None:
        # Called by the event loop. Readable for good: either the end, or the client's next request
        # came early, behind which the loop cannot see the end any more (`check_seconds`).
        self._stop()
        self._wake()

    def _stop(self) -> None:
        watcher, self._watcher = self._watcher, None
        if watcher is not None:
            watcher.stop()
            watcher.close()


def _poll() -> select.poll:
    return _unpatched_poll()() if under_gevent() else select.poll()


@cache
def _unpatched_poll() -> Callable[[], select.poll]:
    """Return the system's poll: gevent's would switch greenlets, and this never waits."""
    monkey: Any = sys.modules["gevent.monkey"]
    return cast("Callable[[], select.poll]", monkey.get_original("select", "poll"))
