"""Faults that a seed chooses: what strikes the running router, and when.

When is counted in operations of the clients, not in time: a fast and a slow machine meet the same
faults in the same part of a history.
"""

from __future__ import annotations

import contextlib
import os
import random
import signal
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from tests.histories.recording import History, Operation
from tests.processes import wait_until
from tests.servers.proxy import TcpProxy
from tests.system.stack import Stack, command_line

KINDS: Final = ("kill", "kill", "kill", "pause", "reset", "reset", "cut", "stall", "full")
HOLD_SECONDS: Final = (0.1, 0.5)
WAIT_SECONDS: Final = 60.0


class Progress:
    """Counts operations; a fault waits for a number of them, or for the end."""

    def __init__(self) -> None:
        self._count = 0
        self._ended = False
        self._changed = threading.Condition()

    def tick(self) -> None:
        """Count one operation."""
        with self._changed:
            self._count += 1
            self._changed.notify_all()

    def end(self) -> None:
        """Say that no more operations come."""
        with self._changed:
            self._ended = True
            self._changed.notify_all()

    def reaches(self, count: int) -> bool:
        """Wait for a number of operations; return False if they have ended before."""
        with self._changed:
            ready = self._changed.wait_for(
                lambda: self._ended or self._count >= count, WAIT_SECONDS
            )
            assert ready, f"{self._count} of {count} operations within {WAIT_SECONDS} s"
            return self._count >= count


@dataclass(frozen=True)
class Fault:
    """A kind of KINDS, after how many operations, and how long it holds where it does."""

    kind: str
    after: int
    seconds: float
    proxy: int = 0


def plan(chance: random.Random, operations: int, count: int, proxies: int) -> list[Fault]:
    """Return faults within so many operations."""
    places = sorted(chance.randint(operations // 10, operations * 9 // 10) for _ in range(count))
    return [
        Fault(chance.choice(KINDS), place, chance.uniform(*HOLD_SECONDS), chance.randrange(proxies))
        for place in places
    ]


@dataclass
class Faults:
    """Strikes a router; histories of a group's messages are told when its broker began again."""

    stack: Stack
    proxies: list[TcpProxy]
    histories: list[History]
    disk: Path
    struck: list[str] = field(default_factory=list)

    def run(self, faults: list[Fault], progress: Progress) -> None:
        """Strike at each time, in turn, until all are done or the operations end."""
        for fault in faults:
            if not progress.reaches(fault.after):
                break
            before, began = self._broker(), time.monotonic_ns()
            self._strike(fault, before)
            after = self._broker()
            self.struck.append(f"{fault.kind} after {fault.after}")
            if after != before:
                self._note_crash(began)

    def _strike(self, fault: Fault, broker: int) -> None:
        if fault.kind == "kill":
            os.kill(broker, signal.SIGKILL)
            wait_until(lambda: not command_line(broker))
        elif fault.kind == "pause":
            os.kill(broker, signal.SIGSTOP)
            time.sleep(fault.seconds)
            os.kill(broker, signal.SIGCONT)
        elif fault.kind == "full":
            with ballast(self.disk):
                time.sleep(fault.seconds)
        elif fault.kind == "reset":
            self.proxies[fault.proxy].reset()
        else:
            proxy = self.proxies[fault.proxy]
            proxy.cut() if fault.kind == "cut" else proxy.stall()
            time.sleep(fault.seconds)
            proxy.heal()

    def _broker(self) -> int:
        """Return the process id of the broker that answers; it may have to be started first."""
        self.stack.wait_ready()
        return self.stack.broker()

    def _note_crash(self, began: int) -> None:
        for history in self.histories:
            if history.model in {"queue", "pool"}:
                # It may have ended several times, as with a disk that is full.
                for _ in range(2):
                    history.add(Operation(0, "crash", began, time.monotonic_ns(), {}, {}))


@contextlib.contextmanager
def ballast(disk: Path) -> Iterator[None]:
    """Leave no space on a disk while the block lasts; what is given back meanwhile stays free."""
    file = disk / "ballast"
    with file.open("wb", buffering=0) as made:
        # Others take space as well: what is left in the end is less than a chunk.
        for size in (1 << 20, 1 << 12):
            with contextlib.suppress(OSError):
                while made.write(bytes(size)) == size:
                    pass
    try:
        yield
    finally:
        file.unlink()
