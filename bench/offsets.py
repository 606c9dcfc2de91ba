"""What a lookup in a partition costs: by the offset index, and by the halving that it replaced."""

from __future__ import annotations

import asyncio
import random
import tempfile
import time
from collections.abc import Awaitable, Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from router.broker.disk.files import Disk
from router.broker.storage import PULSAR_FORMAT, Entry, Ledger, Store, StoreOptions
from router.broker.storage.reading import ReadRequest, SegmentReader
from router.model.policies import Policies

ENTRIES = 100_000
SIZES = (100, 1024)
TIME_MS = 1_700_000_000_000


class CountingDisk(Disk):
    """Counts the reads of files."""

    reads = 0

    def pread(self, descriptor: int, size: int, start: int) -> bytes:
        """Read and count."""
        self.reads += 1
        return super().pread(descriptor, size, start)


def offsets(seconds: float) -> None:
    """Look up random numbers, entries and times of a partition none of which is in memory."""
    for size in SIZES:
        with tempfile.TemporaryDirectory() as folder:
            asyncio.run(_measure(Path(folder), size, seconds / len(SIZES) / 4))


async def _measure(folder: Path, size: int, seconds: float) -> None:
    disk, chosen = CountingDisk(), random.Random(1)
    options = StoreOptions(cache=0, reserve=0)
    store = await Store.open(folder, options, lambda: TIME_MS / 1000, disk)
    topic = await store.create_topic("persistent://public/default/t", 0, Policies(), {})
    await _fill(store, store.ledger(topic.ledger_ids[0]), chosen.randbytes(size), chosen)
    await store.close()
    store = await Store.open(folder, options, lambda: TIME_MS / 1000, disk)
    ledger = store.ledger(topic.ledger_ids[0])
    halving = Halving(disk, folder / "ledgers", ledger)
    last = ledger.durable_number - 1
    # The first turn of each fills the caches of the system, and the index's own.
    for title, look, end in (
        ("message number to entry, index", ledger.entry_of_number, last),
        ("message number to entry, halving", halving.entry_of_number, last),
        ("entry to message number, index", ledger.number_before, ENTRIES - 1),
        ("time to entry, index", lambda ms: ledger.find_time(TIME_MS + ms), ENTRIES - 1),
    ):
        await _turn(disk, look, [chosen.randint(0, end) for _ in range(50)], seconds / 4)
        asked = [chosen.randint(0, end) for _ in range(20_000)]
        reads, spent = await _turn(disk, look, asked, seconds)
        print(
            f"{ENTRIES:,} entries of {size} bytes in {len(ledger.segments)} segments: {title}:"
            f" {reads:.1f} reads, {spent * 1e6:,.0f} µs of processor time"
        )
    for number in range(0, last, last // 50):
        assert await halving.entry_of_number(number) == await ledger.entry_of_number(number)
    halving.close()
    await store.close()


async def _fill(store: Store, ledger: Ledger, payload: bytes, chosen: random.Random) -> None:
    for start in range(0, ENTRIES, 1000):
        for entry in range(start, start + 1000):
            messages = chosen.randint(1, 10)
            ledger.append(payload, PULSAR_FORMAT, messages, TIME_MS + entry, lambda _entry: None)
        done = asyncio.Event()
        store.after_sync(done.set)
        await done.wait()


async def _turn(
    disk: CountingDisk, look: Callable[[int], Awaitable[int]], asked: list[int], seconds: float
) -> tuple[float, float]:
    """Return reads and processor time for each lookup, of as many as fit into the time."""
    reads, began, spent = disk.reads, time.monotonic(), time.process_time()
    count = 0
    for count, what in enumerate(asked, 1):  # noqa: B007 - how many there were
        await look(what)
        if time.monotonic() - began > seconds:
            break
    return (disk.reads - reads) / count, (time.process_time() - spent) / count


class Halving:
    """The search as it was: reads of one entry each, whose index file is read each time."""

    def __init__(self, disk: Disk, ledgers: Path, ledger: Ledger) -> None:
        self._disk, self._ledgers, self._ledger = disk, ledgers, ledger
        self._readers = ThreadPoolExecutor(1)

    def close(self) -> None:
        """End the thread."""
        self._readers.shutdown()

    async def entry_of_number(self, number: int) -> int:
        """Return the entry that holds a message."""
        low, high = self._ledger.first_entry, self._ledger.durable_entry
        for segment in self._ledger.segments:
            if segment.next_index <= number:
                low = segment.next_entry
            else:
                high = segment.next_entry - 1
                break
        while low < high:
            middle = (low + high + 1) // 2
            before = await self._read(middle - 1)
            if before.index + 1 <= number:
                low = middle
            else:
                high = middle - 1
        return low

    async def _read(self, entry: int) -> Entry:
        segment = next(s for s in self._ledger.segments if s.next_entry > entry)
        reader = SegmentReader(self._disk, self._ledgers)
        wanted = ReadRequest(entry, 1, 1)
        answer = await asyncio.get_running_loop().run_in_executor(
            self._readers, reader.read, self._ledger.id, segment, wanted
        )
        return answer.entries[0]
