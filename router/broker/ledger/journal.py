"""Owns the journal: one log for all partitions, one write and one sync for all that wait.

A round is everything that was appended since the last round began. Rounds are strictly serial: one
thread writes a round, syncs it, and tells the event loop, which starts the next. While a round is
on its way the loop goes on collecting; so the more there is to do, the more one sync does.

Files have numbers; a new one starts when one is full, between two rounds. A file is made under
another name and synced, then renamed and its folder synced: a journal file that can be seen has a
whole header. In relaxed mode the sync happens about once a second, after the acknowledgements.

A file that nothing needs any more is written over by a later one, up to SPARES of them: its blocks
are there and its pages in memory, so a sync has no allocation to write down and costs a third less,
and a write half. What an earlier file left behind the last round has another salt and is none.

The alternatives, a sync per partition or the segments themselves as the log, cost one sync for each
active partition and round.
"""

from __future__ import annotations

import asyncio
import math
import os
import secrets
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from queue import Empty, SimpleQueue
from typing import Any, Final, Protocol

from router.broker.ledger.disk import Disk, gather, write_all
from router.broker.ledger.faults import StoreError
from router.broker.ledger.rounds import FileHeader, pack_file_header, pack_round
from router.metrics import Timings
from router.quoting import said

RELAXED_SYNC: Final = 1.0
SPARES: Final = 3
"""Files that are kept to be written over, at most."""
PLENTY: Final = 1 << 30
LOOK: Final = 0.1
"""With so much free space it is looked at every so many seconds, else with each sync. A look makes
the journal's thread wait for the interpreter once more, and no disk fills up as fast."""

_NEW: Final = ".new"
_SPARE: Final = ".spare"


class Appender(Protocol):
    """A ledger, as the journal knows it."""

    def begin(self) -> None:
        """Take note that what was appended since the last call is on its way to the disk."""
        ...

    def synced(self) -> None:
        """Take note that what was on its way is on disk."""
        ...

    def announce(self) -> None:
        """Tell those who wait for entries."""
        ...


@dataclass(slots=True)
class Pending:
    """A round: the bytes, whose they are, and who is called when they are on disk."""

    parts: list[bytes] = field(default_factory=list)
    calls: list[tuple[Callable[[Any], object], object]] = field(default_factory=list)
    ledgers: dict[Appender, None] = field(default_factory=dict)
    size: int = 0

    def call(self, done: Callable[[], object]) -> None:
        """Have this called, too."""
        self.calls.append((_without_argument, done))


def _without_argument(done: Callable[[], object]) -> None:
    done()


class JournalFiles:
    """The files of the journal: written by one thread at a time, removed by another perhaps."""

    def __init__(self, disk: Disk, folder: Path, limit: int, relaxed: bool) -> None:
        self._disk = disk
        self._folder = folder
        self._limit = limit
        self._relaxed = relaxed
        self._descriptor = -1
        self._begun = folder
        self._spares: deque[Path] = deque()
        self._salt = 0
        self._round = 1
        self.number = 0
        self.size = 0
        self.free = 0
        self._looked_at = -math.inf
        self.syncs = Timings("router_broker_sync_seconds")

    def start(self, number: int, base: int, *, publish: bool = True) -> None:
        """Begin the file of this number; files below `base` are not needed once it is there."""
        reused = bool(self._spares)
        header = FileHeader(number, base, self._round, secrets.randbits(64), self._relaxed, reused)
        data = pack_file_header(header)
        self.close()
        self._begun = self._spares.popleft() if reused else self.path(number).with_suffix(_NEW)
        flags = os.O_WRONLY if reused else os.O_WRONLY | os.O_CREAT | os.O_TRUNC
        self._descriptor = self._disk.open(self._begun, flags)
        write_all(self._disk, self._descriptor, [data])
        self.number, self.size, self._salt = number, len(data), header.salt
        if publish:
            self.publish()

    def publish(self) -> None:
        """Sync the file that was begun and give it its name."""
        self.sync()
        self._disk.rename(self._begun, self.path(self.number))
        self._disk.sync_folder(self._folder)

    def write(self, parts: Sequence[bytes]) -> None:
        """Write a round, whose body is these parts."""
        body = gather(parts)
        header = pack_round(self._round, self._salt, body)
        write_all(self._disk, self._descriptor, [header, *body])
        self._round += 1
        self.size += len(header) + sum(map(len, body))

    def sync(self) -> None:
        """Return when all rounds are on disk."""
        began = time.monotonic()
        self._disk.sync_data(self._descriptor)
        now = time.monotonic()
        self.syncs.observe(now - began)
        if self.free < PLENTY or now - self._looked_at >= LOOK:
            self.free, self._looked_at = self._disk.free(self._folder), now

    @property
    def full(self) -> bool:
        """Whether the next round belongs in a new file."""
        return self.size >= self._limit

    def path(self, number: int) -> Path:
        """Return the file of a number."""
        return self._folder / f"{number:010d}.log"

    def numbers(self) -> list[int]:
        """Return the numbers of the files that there are."""
        names = [Path(name) for name in self._disk.list(self._folder)]
        return sorted(int(n.stem) for n in names if n.suffix == ".log" and n.stem.isdecimal())

    def remove(self, below: int) -> None:
        """Remove the files below a number, the oldest first."""
        for number in self.numbers():
            if number < below:
                self._disk.unlink(self.path(number))

    def release(self, below: int) -> None:
        """Keep the files below a number as spares, and remove those that are too many.

        On a disk that has little room all of them go. The metadata must say already that they are
        not needed: a power cut may bring them back under their old numbers, whatever was written
        over them.
        """
        most = SPARES if self.free > 2 * SPARES * self._limit else 0
        for number in self.numbers():
            if number < below and len(self._spares) < most:
                path, spare = self.path(number), self.path(number).with_suffix(_SPARE)
                self._disk.rename(path, spare)
                self._spares.append(spare)
        self.remove(below)

    def tidy(self) -> None:
        """Remove spares, and files that never got their name; not while one is being made."""
        self._spares.clear()
        for name in self._disk.list(self._folder):
            if name.endswith((_NEW, _SPARE)):
                self._disk.unlink(self._folder / name)

    def close(self) -> None:
        """Close the file that is being written."""
        if self._descriptor >= 0:
            descriptor, self._descriptor = self._descriptor, -1
            self._disk.close(descriptor)


class Journal:
    """The journal as the event loop sees it: collects rounds, and runs them one after another."""

    def __init__(self, files: JournalFiles, relaxed: bool) -> None:
        self._files = files
        self._relaxed = relaxed
        self._after: Callable[[], None] = lambda: None
        self._report: Callable[[BaseException], None] = self.fail
        self._loop = asyncio.get_running_loop()
        self._queue: SimpleQueue[Pending | None] = SimpleQueue()
        self._scheduled = False
        self._flying: Pending | None = None
        self._idle: list[asyncio.Future[None]] = []
        self._synced_at = time.monotonic()
        self.round = Pending()
        self.number = 0
        self.size = 0
        self.free = 0
        self.failed: asyncio.Future[BaseException] = self._loop.create_future()
        self._thread = threading.Thread(target=self._run, name="journal", daemon=True)

    def start(self, after: Callable[[], None], failed: Callable[[BaseException], None]) -> None:
        """Begin to write into the file that was started.

        `after` is called after each round, `failed` with an error of the disk: it calls `fail`.
        """
        self._after, self._report = after, failed
        self.number, self.size, self.free = self._files.number, self._files.size, self._files.free
        self._thread.start()

    @property
    def syncs(self) -> Timings:
        """How long syncs took."""
        return self._files.syncs

    @property
    def unsynced(self) -> int:
        """Bytes that are not on disk yet."""
        return self.round.size + (self._flying.size if self._flying is not None else 0)

    def kick(self) -> None:
        """See to it that what was collected gets written."""
        if not self._scheduled and self._flying is None:
            self._scheduled = True
            self._loop.call_soon(self._begin)

    def after_sync(self, done: Callable[[], object]) -> None:
        """Call when everything collected so far is on disk; at once if it is."""
        if self.round.parts:
            self.round.call(done)
        elif self._flying is not None:
            self._flying.call(done)
        else:
            done()

    async def settle(self) -> None:
        """Return when nothing is on its way; raise StoreError if the disk failed."""
        while (self._flying is not None or self._scheduled) and not self.failed.done():
            future: asyncio.Future[None] = self._loop.create_future()
            self._idle.append(future)
            await future
        if self.failed.done():
            error = self.failed.result()
            raise StoreError(f"the store failed: {said(error)}") from error

    def stop(self) -> None:
        """End the thread; what is collected and not on its way is dropped."""
        self._queue.put(None)
        self._thread.join()
        self._files.close()

    def fail(self, error: BaseException) -> None:
        """Acknowledge nothing any more."""
        if not self.failed.done():
            self.failed.set_result(error)
        self._wake()

    def _wake(self) -> None:
        idle, self._idle = self._idle, []
        for future in idle:
            if not future.done():
                future.set_result(None)

    def _begin(self) -> None:
        self._scheduled = False
        if not self.round.parts or self.failed.done():
            self._wake()
            return
        self._flying, self.round = self.round, Pending()
        for ledger in self._flying.ledgers:
            ledger.begin()
        self._queue.put(self._flying)

    def _ended(self, state: tuple[int, int, int], error: BaseException | None) -> None:
        round_, self._flying = self._flying, None
        if error is not None:
            self._report(error)
        if round_ is None or self.failed.done():
            return
        self.number, self.size, self.free = state
        for ledger in round_.ledgers:
            ledger.synced()
        # The disk works on the next round while this one is being announced.
        self._begin()
        for call, argument in round_.calls:
            try:
                call(argument)
            except Exception as problem:  # noqa: BLE001 - one receiver's fault must not cost others their receipts
                context = {"message": "a receipt could not be delivered", "exception": problem}
                self._loop.call_exception_handler(context)
        for ledger in round_.ledgers:
            ledger.announce()
        self._after()

    def _run(self) -> None:
        """Write rounds until told to stop, or until that fails; runs in its own thread."""
        unsynced = False
        error: Exception | None = None
        while error is None:
            try:
                round_ = self._queue.get(timeout=RELAXED_SYNC if unsynced else None)
            except Empty:
                round_ = Pending()
            if round_ is None:
                break
            try:
                unsynced = self._write(round_)
            except Exception as problem:  # noqa: BLE001 - the rim of a thread: who waits for it must hear
                error = problem
            if round_.parts or error is not None:
                self._tell(error)

    def _tell(self, error: Exception | None) -> None:
        try:
            files = self._files
            state = (files.number, files.size, files.free)
            self._loop.call_soon_threadsafe(self._ended, state, error)
        except RuntimeError:
            # The loop is closed: nobody is left to be told.
            return

    def _write(self, round_: Pending) -> bool:
        """Write one round; return whether bytes remain to be synced, as relaxed mode allows."""
        files = self._files
        if files.full:
            files.sync()
            files.start(files.number + 1, 0)
        if round_.parts:
            files.write(round_.parts)
        if self._relaxed and round_.parts and time.monotonic() - self._synced_at < RELAXED_SYNC:
            return True
        files.sync()
        self._synced_at = time.monotonic()
        return False
