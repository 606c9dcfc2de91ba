"""A connection that has a greenlet only while it has something to do.

What it waits for calls back: the event loop, when its client sent something or left; a wake-up,
when that for which the application waits is there; a timer, when it waited for long enough.
"""

from __future__ import annotations

from collections.abc import Generator
from inspect import GEN_RUNNING, getgeneratorstate
from typing import TYPE_CHECKING, Any, Final

from gevent import get_hub

from router.waiting import LULL, Wait, Wakeup

if TYPE_CHECKING:
    from router.web.worker.llhttp import Worker

_READ: Final = 1


class Parked:
    """Takes the steps of one connection, each in a runner, and tells the worker of their end."""

    __slots__ = (
        "_idle",
        "_lull",
        "_steps",
        "_timer",
        "_wakeup",
        "_watched",
        "_watcher",
        "_worker",
        "client",
        "seat",
    )

    def __init__(
        self, worker: Worker, client: Any, seat: str, steps: Generator[Wait | None, None, None]
    ) -> None:
        self.client = client
        self.seat = seat
        self._worker = worker
        self._steps = steps
        self._watcher: Any = get_hub().loop.io(client.fileno(), _READ)
        self._watched = False
        self._idle = False
        self._wakeup: Wakeup | None = None
        self._timer: Any = None
        self._lull: Any = None

    def go_on(self) -> None:
        """Take the next step; it may wait in this greenlet. Raises nothing."""
        try:
            wait = next(self._steps)
        except StopIteration:
            self.end()
        except OSError as error:
            self._worker.log.debug("The connection is lost: %s", error)
            self.end()
        except Exception:
            self._worker.log.exception("A connection failed")
            self.end()
        else:
            self._park(wait)

    def end(self) -> None:
        """Wait for nothing any more; callable twice."""
        watcher, self._watcher = self._watcher, None
        if watcher is None:
            return
        self._forget()
        watcher.stop()
        watcher.close()
        try:
            # A step under way fails as its socket is closed; `_park` then closes the rest.
            if getgeneratorstate(self._steps) != GEN_RUNNING:
                self._steps.close()
        finally:
            self._worker.ended(self)

    def _park(self, wait: Wait | None) -> None:
        if self._watcher is None:
            self._steps.close()
            return
        if wait is None:
            self._idle = True
            # It goes on being watched while a request is served: there is nothing to be seen then.
            if not self._watched:
                self._watched = True
                self._watcher.start(self._readable)
            return
        self._wakeup, seconds = wait
        if seconds is not None:
            self._timer = get_hub().loop.timer(max(0.0, seconds))
            self._timer.start(self._called)
        if self._wakeup is LULL:
            self._lull = get_hub().loop.idle()
            self._lull.start(self._called)
        else:
            self._wakeup.call(self._called)

    def _readable(self) -> None:
        """Go on if that was waited for; called by the event loop."""
        if self._idle:
            self._idle = False
            self._worker.runners.add(self.go_on)
        else:
            # The next request came early, or the client left; the loop would say so all the time.
            self._watcher.stop()
            self._watched = False

    def _called(self) -> None:
        """Go on, for what was waited for is there, or late."""
        if self._wakeup is not None:
            self._forget()
            self._worker.runners.add(self.go_on)

    def _forget(self) -> None:
        wakeup, self._wakeup = self._wakeup, None
        if wakeup is not None:
            wakeup.clear()
        timer, self._timer = self._timer, None
        if timer is not None:
            timer.stop()
            timer.close()
        lull, self._lull = self._lull, None
        if lull is not None:
            lull.stop()
            lull.close()
