"""One run of a pipeline at a time: a lease between nodes, and a lock on a checkpoint here.

The lease is a claim of the node's broker process, as a poll's is, so that with ZooKeeper it holds
between nodes. When the broker goes away it is claimed again; meanwhile the lock keeps other runs of
this machine out. If another node takes it over before that, this run ends: topics drop what two
runs repeat, and Spark's commit protocol lets one of two writers of a checkpoint win.
"""

from __future__ import annotations

import fcntl
import json
import os
import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Final

from router.clocks.steps import Event
from router.errors import BackendTimeoutError, BackendUnavailableError, ConflictError, RouterError
from router.model import NOT_PARTITIONED, ConsumerId, PollOutcome, Subscription
from router.node import Claim, Node
from router.services.pipelines import LEASES, LOCK, holder

CONSUMER: Final = "run"
# A run that ended a moment ago, here or on another node, may still be letting go.
HANDOVER_SECONDS: Final = 3.0
REGAIN_SECONDS: Final = 60.0
LOCK_SECONDS: Final = 0.5
POLL_SECONDS: Final = 0.5


class RunningError(ConflictError):
    """The pipeline is running already; the sentence says who runs it."""


class Lock:
    """A lock on a folder, which the kernel takes back from a process that dies.

    Who only asks for its `holder` has it for a moment, which is waited out.
    """

    def __init__(self, folder: Path, pipeline: str) -> None:
        self._folder = folder
        self._pipeline = pipeline
        self._file: IO[str] | None = None

    def acquire(self) -> None:
        """Take the lock; raise RunningError with who holds it."""
        self._folder.mkdir(parents=True, exist_ok=True)
        file = (self._folder / LOCK).open("a+", encoding="utf-8")
        until = time.monotonic() + LOCK_SECONDS
        while not _locked(file):
            if time.monotonic() >= until:
                file.close()
                owner = holder(self._folder) or "another process of this machine"
                raise RunningError(f"pipeline {self._pipeline} is running already: {owner}")
            time.sleep(0.02)
        file.truncate(0)
        file.write(json.dumps({"pid": os.getpid(), "host": socket.gethostname()}))
        file.flush()
        self._file = file

    def release(self) -> None:
        """Let go; callable twice."""
        if self._file is not None:
            self._file.close()
            self._file = None


def _locked(file: IO[str]) -> bool:
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


@dataclass(eq=False)
class PipelineLease:
    """The lease of one pipeline: `acquire` it, `check` it again and again, `release` it."""

    _node: Node
    _pipeline: str
    _timeout: float
    _clock: Callable[[], float] = time.monotonic
    _mailbox: Event = field(default_factory=Event, init=False)
    _claim: Claim | None = field(default=None, init=False)
    _lost_at: float | None = field(default=None, init=False)

    def acquire(self) -> None:
        """Take the lease within a few seconds; raise RunningError, BackendUnavailableError."""
        self._claim = self._node.claim(
            ConsumerId(Subscription(LEASES, self._pipeline), CONSUMER),
            0,
            self._mailbox,
            self._timeout,
        )
        until = self._clock() + HANDOVER_SECONDS
        while not self._held() and (left := until - self._clock()) > 0:
            self._mailbox.wait(left)
        if not self._held():
            owner = (
                self._claim.holder()
                or self._claim.unavailable_reason()
                or "the lease is not to be had"
            )
            self.release()
            raise RunningError(f"pipeline {self._pipeline} is running already: {owner}")
        self._lost_at = None

    def check(self) -> None:
        """Claim again what was lost; raise RunningError when it is another's, or not to be had."""
        if self._held():
            self._lost_at = None
            return
        self._lost_at = self._clock() if self._lost_at is None else self._lost_at
        if self._claim is not None and not self._claim.lost():
            # The coordination is in trouble, or gave the lease away: the claim is still queued.
            self._check_late("the lease is another's now, or nobody can say whose")
            return
        try:
            self.acquire()
        except (BackendUnavailableError, BackendTimeoutError) as error:
            self._check_late(str(error))

    def release(self) -> None:
        """Let go; callable twice."""
        claim, self._claim = self._claim, None
        if claim is not None:
            # Refused polls do not count among the empty ones.
            claim.release(PollOutcome.REFUSED)

    def _held(self) -> bool:
        claim = self._claim
        return claim is not None and not claim.lost() and NOT_PARTITIONED in claim.granted()

    def _check_late(self, reason: str) -> None:
        if self._lost_at is not None and self._clock() - self._lost_at > REGAIN_SECONDS:
            raise RunningError(f"pipeline {self._pipeline} lost its lease: {reason}")


@contextmanager
def watched(lease: PipelineLease, stop: threading.Event) -> Iterator[None]:
    """Set `stop` when a lease is lost while something else runs, and raise RunningError then."""
    done, lost = threading.Event(), list[RouterError]()

    def watch() -> None:
        while not done.wait(POLL_SECONDS):
            try:
                lease.check()
            except RouterError as error:
                lost.append(error)
                stop.set()
                return

    watching = threading.Thread(target=watch, name="lease")
    watching.start()
    try:
        yield
    finally:
        done.set()
        watching.join()
    if lost:
        raise lost[0]
