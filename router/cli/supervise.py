"""Child processes that are kept alive: started in process groups of their own, restarted, stopped.

`serve` is one small process above two others: the broker and the HTTP server (gunicorn's master
above its workers). It holds no data and serves nothing, so it hardly ever dies; either child may
be killed at any moment and is started again after 0.1 to 5 s. Should this process itself be killed,
the kernel sends its children SIGTERM (PR_SET_PDEATHSIG), and a new `serve` waits for their ports.

SIGHUP never stops it: it is passed on as the signal by which each child reloads its files. Before
there are children, and after them, it is ignored: systemd takes an end by SIGHUP for a wanted one.

It waits for signals with `sigtimedwait` in one thread and forks; no handler runs in between, and
nothing is left half done. The alternative, gunicorn's master as supervisor of the broker, fails on
its `waitpid(-1)`, which swallows the exit status of every child, and with it the reason of its end.
"""

from __future__ import annotations

import ctypes
import os
import signal
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from functools import partial
from typing import Final, NoReturn

from router.clocks.backoff import Backoff
from router.process.systemd import Notifier

STOPS: Final = {signal.SIGTERM, signal.SIGINT}
SIGNALS: Final = STOPS | {signal.SIGHUP, signal.SIGCHLD}
MIN_DELAY_SECONDS: Final = 0.1
MAX_DELAY_SECONDS: Final = 5.0
LONG_LIFE_SECONDS: Final = 10.0
_PR_SET_PDEATHSIG: Final = 1


class RestartDelay:
    """How long to wait before a child starts again: 0.1 s, doubled by early deaths up to 5 s.

    A child that gave up by itself will hardly do better soon, unless it lived long. One that was
    killed may: each second that it lived halves its wait.
    """

    def __init__(self) -> None:
        self._backoff = Backoff(MIN_DELAY_SECONDS, MAX_DELAY_SECONDS)

    def delay(self, status: int, lifetime: float) -> float:
        """Return the wait after a child that ended so (see Exit) after so many seconds."""
        halvings = lifetime if status < 0 or lifetime >= LONG_LIFE_SECONDS else 0.0
        self._backoff.halve(min(halvings, LONG_LIFE_SECONDS))
        return self._backoff.next()


@dataclass(frozen=True, slots=True)
class Exit:
    """How a child ended: its exit status, or minus the signal's number, and what came before."""

    status: int
    lifetime: float
    early_deaths: int


class GaveUpError(Exception):
    """A child ended in a way that a restart does not mend; `status` is for our own exit."""

    def __init__(self, sentence: str, status: int) -> None:
        super().__init__(sentence)
        self.status = status


@dataclass(slots=True)
class Child:
    """One child: `run` is all that it does; `judge` raises GaveUpError where no restart helps.

    `stop_timeout` is for how many seconds it may end before it is killed; `reload` is the signal by
    which it reads its files again.
    """

    name: str
    run: Callable[[], NoReturn]
    judge: Callable[[Exit], None]
    stop_timeout: float
    reload: signal.Signals
    pid: int = 0
    started: float = 0.0
    due: float = 0.0
    early_deaths: int = 0
    restarts: RestartDelay = field(default_factory=RestartDelay)


class Supervisor:
    """Runs children until a signal, or until one of them cannot be helped."""

    def __init__(
        self,
        children: Sequence[Child],
        report: Callable[[str], None],
        notifier: Notifier,
        forked: Callable[[], None] = lambda: None,
    ) -> None:
        """`forked` is called in each child first: it gives up what is this process's alone."""
        self._children = children
        self._report = partial(_notify, report)
        self._notifier = notifier
        self._forked = forked

    def run(self, watch: Callable[[], float]) -> None:
        """Keep the children alive until SIGTERM or SIGINT, then stop them, last one first.

        `watch` is called again and again and returns for how many seconds it need not be called.
        Raises GaveUpError, after everything was stopped.
        """
        with _blocked():
            try:
                forked = self._keep_alive(watch)
            except BaseException:
                self._stop()
                raise
            if forked is None:
                self._stop()
                return
        forked()

    def _keep_alive(self, watch: Callable[[], float]) -> Callable[[], NoReturn] | None:
        """Return None when told to stop; in a forked child, return what it has to do."""
        while True:
            now = time.monotonic()
            for child in self._children:
                self._reap(child, now)
                if not child.pid and child.due <= now:
                    child.started = now
                    child.pid = self._fork()
                    if not child.pid:
                        return child.run
            waits = [child.due - now for child in self._children if not child.pid]
            received = signal.sigtimedwait(SIGNALS, max(0.0, min([watch(), *waits])))
            if received is not None and received.si_signo == signal.SIGHUP:
                self._reload()
            elif received is not None and received.si_signo != signal.SIGCHLD:
                return None

    def _reload(self) -> None:
        self._notifier.reloading()
        self._report("SIGHUP: users, permissions, certificates and the blacklist are read again")
        for child in self._children:
            if child.pid:
                os.kill(child.pid, child.reload)
        self._notifier.ready()

    def _fork(self) -> int:
        """Fork into a process group of its own that is told when this process dies."""
        library = ctypes.CDLL(None)
        parent = os.getpid()
        sys.stdout.flush()
        sys.stderr.flush()
        if pid := os.fork():
            return pid
        for sibling in self._children:
            sibling.pid = 0  # not ours: nothing here may ever signal them
        self._forked()
        for child in self._children:
            # Until it has its handler: the signal would end it.
            signal.signal(child.reload, signal.SIG_IGN)
        os.setpgid(0, 0)
        library.prctl(_PR_SET_PDEATHSIG, signal.SIGTERM)
        if os.getppid() != parent:
            sys.exit(1)
        return 0

    def _reap(self, child: Child, now: float) -> None:
        if (status := _status(child)) is None:
            return
        lifetime = now - child.started
        child.early_deaths = 0 if lifetime >= LONG_LIFE_SECONDS else child.early_deaths + 1
        child.judge(Exit(status, lifetime, child.early_deaths))
        delay = child.restarts.delay(status, lifetime)
        child.due = now + delay
        self._report(f"{child.name} ended ({meaning(status)}); starting it again in {delay:.1f} s")

    def _stop(self) -> None:
        self._notifier.stopping()
        for child in reversed(self._children):
            if child.pid:
                os.kill(child.pid, signal.SIGTERM)
                self._await_end(child)

    def _await_end(self, child: Child) -> None:
        """Wait for a child that was told to stop; a second signal, or its time limit, kills it."""
        until = time.monotonic() + child.stop_timeout
        while _status(child) is None:
            received = signal.sigtimedwait(SIGNALS, min(1.0, max(0.0, until - time.monotonic())))
            impatient = received is not None and received.si_signo in STOPS
            if impatient or time.monotonic() >= until:
                self._report(f"{child.name} is killed")
                os.killpg(child.pid, signal.SIGKILL)
                os.waitpid(child.pid, 0)
                return


def ignore_hangup() -> None:
    """Ignore SIGHUP until there is something to reload; programs that are started inherit that."""
    signal.signal(signal.SIGHUP, signal.SIG_IGN)


@contextmanager
def _blocked() -> Iterator[None]:
    """Hold the signals back, for `sigtimedwait` to take."""
    mask = signal.pthread_sigmask(signal.SIG_BLOCK, SIGNALS)
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, mask)


def _notify(report: Callable[[str], None], sentence: str) -> None:
    # The terminal may be gone: SIGHUP says so as well.
    with suppress(OSError):
        report(sentence)


def meaning(status: int) -> str:
    """Return in words how a child ended."""
    return f"exit status {status}" if status >= 0 else signal.Signals(-status).name


def _status(child: Child) -> int | None:
    """Return the exit status of a child that ended, once; None while it runs."""
    if not child.pid:
        return None
    pid, status = os.waitpid(child.pid, os.WNOHANG)
    if not pid:
        return None
    child.pid = 0
    return os.waitstatus_to_exitcode(status)
