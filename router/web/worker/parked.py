"""A connection that has a greenlet only while it has something to do.

What it waits for calls back: the event loop, when its client sent something or left; a wake-up,
when that for which the application waits is there; a timer, when it waited for long enough.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from gevent import get_hub

from router.waiting import LULL, Wait, Wakeup
from router.web.worker.connection import Connection
from router.web.worker.runners import Runners

_READ = 1


class Parked:
    """Takes the steps of one connection, each in a runner; `ended` is called at their end."""

    __slots__ = (
        "_ended",
        "_idle",
        "_log",
        "_lull",
        "_runners",
        "_steps",
        "_timer",
        "_wakeup",
        "_watched",
        "_watcher",
    )

    def __init__(
        self,
        client: Any,
        connection: Connection,
        runners: Runners,
        log: Any,
        ended: Callable[[], None],
    ) -> None:
        self._steps = connection.serve()
        self._runners = runners
        self._log = log
        self._ended = ended
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
            self._log.debug("The connection is lost: %s", error)
            self.end()
        except Exception:  # noqa: BLE001 - the rim of a connection
            self._log.exception("A connection failed")
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
            self._steps.close()
        finally:
            self._ended()

    def _park(self, wait: Wait | None) -> None:
        if self._watcher is None:
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
            self._runners.add(self.go_on)
        else:
            # The next request came early, or the client left; the loop would say so all the time.
            self._watcher.stop()
            self._watched = False

    def _called(self) -> None:
        """Go on, for what was waited for is there, or late."""
        if self._wakeup is not None:
            self._forget()
            self._runners.add(self.go_on)

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
