"""Owns the journal: one log for all partitions, one write and one sync for all that wait.

A commit group is everything that was appended since the last one began. Commit groups are strictly
serial: one thread writes a group, syncs it, and calls the event loop, which starts the next. While
a group is in flight the loop collects the next one; so under more load each sync covers more.

Files have numbers; a new one starts when one is full, between two commit groups. A file is made
under another name and synced, then renamed and its folder synced: a journal file that can be seen
has a whole header. In relaxed mode the sync happens about once a second, after the
acknowledgements.

A file that is not needed any more is written over by a later one; at most MAX_SPARES are kept for
that. Its blocks are there and its pages in memory, so a sync has no allocation to write down and
costs a third less, and a write half. An end mark tells where the bytes of the earlier file begin;
see commit_groups.

The alternatives, a sync per partition or the segments themselves as the log, cost one sync for each
active partition and commit group.
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
from pathlib import Path
from queue import Empty, SimpleQueue
from typing import Any, Final

from router.broker.disk.faults import StoreError
from router.broker.disk.files import Disk, gather, write_all
from router.broker.storage.append_turns import AppendTurns, PendingGroup
from router.broker.storage.commit_groups import (
    FileHeader,
    pack_end,
    pack_file_header,
    pack_group_header,
)
from router.errors.quoting import failure_text
from router.metrics import Timings, taken

LINGER_SECONDS: Final = 0.005
"""How long acknowledgements that nothing waits for may stay in memory, to share a sync."""
RELAXED_SYNC_SECONDS: Final = 1.0
MAX_SPARES: Final = 3
"""Files that are kept to be written over, at most."""
PLENTY_OF_SPACE_BYTES: Final = 1 << 30
SPACE_CHECK_SECONDS: Final = 0.1
"""With so much free space it is looked at every so many seconds, else with each sync. A look makes
the journal's thread wait for the interpreter once more, and no disk fills up as fast."""

MAX_PARTS: Final = 100_000
"""A file ends with so many pieces: three for an entry, one for its producer, one for an
acknowledgement. A start reads 10 µs for each record, however small it is."""

_NEW: Final = ".new"
_SPARE: Final = ".spare"


class JournalFiles:
    """The files of the journal; one thread writes them, another may remove them."""

    def __init__(self, disk: Disk, folder: Path, limit: int = 0, *, relaxed: bool = False) -> None:
        self._disk = disk
        self._folder = folder
        self._limit = limit
        self._relaxed = relaxed
        self._descriptor = -1
        self._begun = folder
        self._spares: deque[Path] = deque()
        self._salt = 0
        self._next_group = 1
        self._reused = False
        self._rolling = False
        self.number = 0
        self.size = 0
        self.parts = 0
        self.free = 0
        self._space_checked_at = -math.inf
        self._timings = Timings("router_broker_sync_seconds")
        self._sync_seconds: deque[float] = deque()  # not counted yet

    def start(self, number: int, base: int, *, publish: bool = True) -> None:
        """Begin the file of this number; files below `base` are not needed once it is there."""
        reused = bool(self._spares)
        header = FileHeader(
            number, base, self._next_group, secrets.randbits(64), self._relaxed, reused
        )
        data = pack_file_header(header)
        self.close()
        self._rolling = False
        self._begun = self._spares.popleft() if reused else self.path(number).with_suffix(_NEW)
        flags = os.O_WRONLY if reused else os.O_WRONLY | os.O_CREAT | os.O_TRUNC
        self._descriptor = self._disk.open(self._begun, flags)
        self.number, self.size, self._salt, self._reused = number, 0, header.salt, reused
        self.parts = 0
        self._write([data])
        if publish:
            self.publish()

    def publish(self) -> None:
        """Sync the file that was begun and give it its name."""
        self.sync()
        self._disk.rename(self._begun, self.path(self.number))
        self._disk.sync_folder(self._folder)

    def write(self, parts: Sequence[bytes]) -> None:
        """Write a commit group, whose body is these parts."""
        self.parts += len(parts)
        body = gather(parts)
        header = pack_group_header(self._next_group, self._salt, body)
        self._next_group += 1
        self._write([header, *body])

    def _write(self, parts: Sequence[bytes]) -> None:
        """Write parts behind the last ones, and in a reused file the end mark behind these."""
        self.size += sum(map(len, parts))
        if not self._reused:
            write_all(self._disk, self._descriptor, parts)
            return
        write_all(self._disk, self._descriptor, [*parts, pack_end(self._next_group, self._salt)])
        self._disk.seek(self._descriptor, self.size)

    def sync(self) -> None:
        """Return when all commit groups are on disk."""
        began = time.monotonic()
        self._disk.sync_data(self._descriptor)
        now = time.monotonic()
        self._sync_seconds.append(now - began)
        if self.free < PLENTY_OF_SPACE_BYTES or now - self._space_checked_at >= SPACE_CHECK_SECONDS:
            self.free, self._space_checked_at = self._disk.free(self._folder), now

    def count_syncs(self) -> Timings:
        """Return how long syncs took; to be called now and then, so that few are yet to count.

        Counting is not left to the journal's thread, for which everything waits.
        """
        for seconds in taken(self._sync_seconds):
            self._timings.observe(seconds)
        return self._timings

    @property
    def full(self) -> bool:
        """Whether the next commit group belongs in a new file."""
        return self._rolling or self.size >= self._limit or self.parts >= MAX_PARTS

    def roll(self) -> None:
        """Have the next commit group begin a new file. Any thread may call this."""
        self._rolling = True

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

        On a disk with little space all of them go. The metadata must have it already that they are
        not needed: a power cut may bring them back under their old numbers, whatever was written
        over them.
        """
        limit = MAX_SPARES if self.free > 2 * MAX_SPARES * self._limit else 0
        for number in self.numbers():
            if number < below and len(self._spares) < limit:
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


class WriterThread:
    """Calls a function for each commit group, in a thread of its own, until it returns None.

    The function returns whether bytes are left unsynced. It is then called with an empty group once
    no other came for RELAXED_SYNC_SECONDS. The simulation has another class in place of this one.
    """

    def __init__(self, write: Callable[[PendingGroup], bool | None]) -> None:
        self._write = write
        self._queue: SimpleQueue[PendingGroup | None] = SimpleQueue()
        self._thread = threading.Thread(target=self._run, name="journal", daemon=True)
        self.put = self._queue.put

    def start(self) -> None:
        """Begin to take groups."""
        self._thread.start()

    def stop(self) -> None:
        """Return when the groups that were put are written."""
        self._queue.put(None)
        self._thread.join()

    def _run(self) -> None:
        unsynced: bool | None = False
        while unsynced is not None:
            try:
                group = self._queue.get(timeout=RELAXED_SYNC_SECONDS if unsynced else None)
            except Empty:
                group = PendingGroup()
            if group is None:
                break
            unsynced = self._write(group)


class Journal:
    """The journal as the event loop sees it: collects commit groups, and runs one at a time."""

    def __init__(self, files: JournalFiles, relaxed: bool) -> None:
        self._files = files
        self._relaxed = relaxed
        self._after: Callable[[], None] = lambda: None
        self._report: Callable[[BaseException], None] = self.fail
        self._loop = asyncio.get_running_loop()
        self._scheduled = False
        self._lingering = False
        self._in_flight: PendingGroup | None = None
        self._synced_at = time.monotonic()
        self.pending = PendingGroup()
        self._turns = AppendTurns(self._loop, self._begin)
        self.number = 0
        self.size = 0
        self.free = 0
        self.failed: asyncio.Future[BaseException] = self._loop.create_future()
        self._thread = WriterThread(self._write)

    def start(self, after: Callable[[], None], failed: Callable[[BaseException], None]) -> None:
        """Begin to write into the file that was started.

        `after` is called after each commit group, `failed` with an error of the disk: it calls
        `fail`.
        """
        self._after, self._report = after, failed
        self.number, self.size, self.free = self._files.number, self._files.size, self._files.free
        self._thread.start()

    def count_syncs(self) -> Timings:
        """Return how long syncs took; to be called now and then."""
        return self._files.count_syncs()

    @property
    def unsynced(self) -> int:
        """Bytes that are not on disk yet, and those that wait for a turn to be appended."""
        in_flight = self._in_flight.size if self._in_flight is not None else 0
        return self.pending.size + in_flight + self._turns.size

    def kick(self) -> None:
        """Have what was collected written at once; may be called before it is collected."""
        self.pending.is_due = True
        self._schedule()

    def _schedule(self) -> None:
        if not self._scheduled and self._in_flight is None:
            self._scheduled = True
            self._loop.call_soon(self._begin)

    def append_in_turn(self, append: Callable[[], None], size: int) -> None:
        """Call `append` when it is its turn to append so many bytes; see append_turns."""
        self._turns.wait(append, size, self.pending)
        if self._turns.size:
            self._schedule()

    def kick_later(self) -> None:
        """Have what was collected written soon, though nothing waits for it.

        It goes with the next commit group that something waits for, or after LINGER_SECONDS.
        """
        if not (self._lingering or self.pending.is_due or self._in_flight is not None):
            self._lingering = True
            self._loop.call_later(LINGER_SECONDS, self._end_lingering)

    def after_sync(self, done: Callable[[], object]) -> None:
        """Call when everything collected so far is on disk; at once if it is."""
        if self.pending.parts:
            self.pending.call(done)
            self.kick()
        elif self._in_flight is not None:
            self._in_flight.call(done)
        else:
            done()

    async def synced(self) -> None:
        """Return when all that is collected so far is on disk; raise StoreError if that fails."""
        done: asyncio.Future[None] = self._loop.create_future()

        def end() -> None:
            if not done.done():
                done.set_result(None)

        self.after_sync(end)
        either: set[asyncio.Future[Any]] = {done, self.failed}
        await asyncio.wait(either, return_when=asyncio.FIRST_COMPLETED)
        if self.failed.done():
            error = self.failed.result()
            raise StoreError(f"the store failed: {failure_text(error)}") from error

    async def settle(self) -> None:
        """Return when nothing is on its way; raise StoreError if the disk failed."""
        await self.synced()
        while self.pending.parts or self._in_flight is not None or self._turns.size:
            await self.synced()

    def stop(self) -> None:
        """End the thread; what is collected and not being written is dropped."""
        self._thread.stop()
        self._files.close()

    def fail(self, error: BaseException) -> None:
        """Acknowledge nothing any more."""
        if not self.failed.done():
            self.failed.set_result(error)
            self._turns.end()

    def _begin(self) -> None:
        self._scheduled = False
        if self._in_flight is not None:
            return
        if self._turns.in_use and not self.failed.done():
            self._turns.take(self.pending)
        if not self.pending.parts or self.failed.done():
            self.pending.is_due, self.pending.turn_bytes = False, 0
            return
        self._in_flight, self.pending = self.pending, PendingGroup()
        for ledger in self._in_flight.ledgers:
            ledger.begin()
        self._thread.put(self._in_flight)

    def _end_lingering(self) -> None:
        self._lingering = False
        if self.pending.parts:
            self.kick()

    def _ended(self, state: tuple[int, int, int], error: BaseException | None) -> None:
        group, self._in_flight = self._in_flight, None
        if error is not None:
            self._report(error)
        if group is None or self.failed.done():
            return
        self.number, self.size, self.free = state
        for ledger in group.ledgers:
            ledger.synced()
        if self._turns.in_use:
            self._turns.ended(group, self.pending)
        # The disk works on the next commit group while this one is being announced.
        if self.pending.is_due or self._turns.size or not self.pending.parts:
            self._begin()
        else:
            self.kick_later()
        for call, argument in group.calls:
            try:
                call(argument)
            except Exception as problem:  # noqa: BLE001 - other receipts are still due
                context = {"message": "a receipt could not be delivered", "exception": problem}
                self._loop.call_exception_handler(context)
        for ledger in group.ledgers:
            ledger.announce()
        self._after()

    def _write(self, group: PendingGroup) -> bool | None:
        """Write a commit group; return whether bytes are left unsynced, None: that failed.

        Runs in the writer's thread.
        """
        unsynced: bool | None = None
        error: Exception | None = None
        try:
            unsynced = self._write_and_sync(group)
        except Exception as problem:  # noqa: BLE001 - reported to the event loop
            error = problem
        if group.parts or error is not None:
            self._report_result(error)
        return unsynced

    def _report_result(self, error: Exception | None) -> None:
        try:
            files = self._files
            state = (files.number, files.size, files.free)
            self._loop.call_soon_threadsafe(self._ended, state, error)
        except RuntimeError:
            # The loop is closed, so no call is waiting.
            return

    def _write_and_sync(self, group: PendingGroup) -> bool:
        """Write one commit group; return whether bytes remain unsynced, as relaxed mode allows."""
        files = self._files
        if files.full:
            files.sync()
            files.start(files.number + 1, 0)
        if group.parts:
            files.write(group.parts)
        if (
            self._relaxed
            and group.parts
            and time.monotonic() - self._synced_at < RELAXED_SYNC_SECONDS
        ):
            return True
        files.sync()
        self._synced_at = time.monotonic()
        return False
