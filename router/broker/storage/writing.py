"""Owns the writing of segments behind the journal: appending, starting new ones, syncing them.

All of it runs in one thread. Writes are buffered by the system; they count only after `sync`, when
the metadata stores how far each segment goes. The system begins at once to write them to disk:
left to the sync of a checkpoint, tens of megabytes would go before the journal's next sync. The
files being written are kept open, at most so many; the one used longest ago is closed.

An error of a later write-back is reported only to descriptors that were open when it happened. A
file with unsynced bytes is therefore synced before it is closed, unless the system can sync a whole
file system and report what went wrong on it since a descriptor of ours was opened. Where it can,
one such call also takes the place of many syncs when many partitions are active: ten thousand files
take half a second instead of fifteen. For a few files it is not used, as it would write the data of
other programs too.

The first time a ledger is written in the life of a process its folder is set right (`prepare`):
files that the metadata does not know go, and the last segment is cut to its synced size. That is
recovery's work, done late so that a restart does not touch the folders of ten thousand topics.
"""

from __future__ import annotations

import os
from collections import OrderedDict, deque
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Final, NamedTuple

from router.broker.disk.files import (
    MIN_FILES_FOR_SYNC_ALL,
    Disk,
    gather,
    opened,
    read_all,
    write_all,
)
from router.broker.storage.offset_index import pack_point, pack_points, read_points
from router.broker.storage.records import LatestTime, StoredRecord, unknown_time
from router.broker.storage.removals import Removals
from router.broker.storage.segments import Segment, file_of, folder_of

Segments = tuple[Segment, ...]
_MAX_WRITE_BYTES = 1 << 20
MAX_CACHED_BYTES: Final = 256 << 20
"""Bytes of segments that may stay in memory."""
MIN_ADVISED_BYTES: Final = 256 << 10
"""Fewer bytes at once are left to the system: they are many writes, with little in each."""


@dataclass(slots=True)
class _OpenSegment:
    """The last segment of a ledger, open for writing."""

    path: Path
    segment: Segment
    descriptor: int
    index: int | None = None
    pointed: int = 0
    dirty: bool = False


@dataclass(frozen=True, slots=True)
class SegmentLimits:
    """When a segment ends and how often it is indexed, in bytes; how many files stay open.

    `latest_time` returns the time of an entry's messages that is indexed.
    """

    segment: int
    index_step: int
    open_files: int
    latest_time: LatestTime = unknown_time


class SegmentWriter:
    """Writes the entries of all ledgers into their segments."""

    def __init__(
        self, disk: Disk, ledgers: Path, limits: SegmentLimits, removals: Removals | None = None
    ) -> None:
        self._disk = disk
        self._removals = removals or Removals()
        self._ledgers = ledgers
        self._limits = limits
        self._files: OrderedDict[int, _OpenSegment] = OrderedDict()
        self._prepared: set[int] = set()
        self._folders: set[Path] = set()
        self._lost: set[Path] = set()
        self._root = -1
        self._closed_unsynced = False
        self._page_cache = PageCacheAdvisor(disk)

    def append(
        self, ledger: int, segments: Segments, records: Sequence[StoredRecord], roll_ms: int
    ) -> Segments:
        """Write records behind the segments and return the segments as they are then."""
        if self._root < 0 and self._disk.syncs_all:
            self._root = self._disk.open(self._ledgers, os.O_RDONLY | os.O_DIRECTORY)
        self.prepare(ledger, segments)
        file = self._files.pop(ledger, None)
        if file is not None:
            self._files[ledger] = file
        done = list(segments)
        at = 0
        while at < len(records):
            first = records[at]
            if file is None and done and self._may_reopen(ledger, done[-1], first, roll_ms):
                file = self._reopen(ledger, done[-1])
            elif file is None or not self._continues(file.segment, first, roll_ms):
                file = self._start(ledger, first)
                done.append(file.segment)
            at = self._fill(file, records, at, roll_ms)
            done[-1] = file.segment
        return tuple(done)

    def sync(self) -> None:
        """Return when everything written is on disk, names included."""
        dirty = [file for file in self._files.values() if file.dirty]
        if self._closed_unsynced or (self._disk.syncs_all and len(dirty) > MIN_FILES_FOR_SYNC_ALL):
            self._disk.sync_all(self._root)
            self._closed_unsynced = False
            self._folders.clear()
            for file in dirty:
                file.dirty = False
        for file in dirty:
            self._sync_file(file)
        for folder in sorted(self._folders):
            self._disk.sync_folder(folder)
        self._folders.clear()
        self._page_cache.synced()

    def remove(self, ledger: int, segments: Sequence[Segment]) -> None:
        """Remove the files of segments that the metadata no longer names."""
        for segment in segments:
            file = self._files.get(ledger)
            if file is not None and file.segment.first_entry == segment.first_entry:
                self._close(self._files.pop(ledger))
            path = file_of(self._ledgers, ledger, segment)
            for file_path in (path.with_suffix(".idx"), path):
                self._removals.run(file_path, partial(self._disk.unlink, file_path))

    def remove_ledger(self, ledger: int) -> None:
        """Remove the folder of a ledger that the metadata no longer names."""
        if (file := self._files.pop(ledger, None)) is not None:
            self._close(file)
        self._prepared.discard(ledger)
        folder = folder_of(self._ledgers, ledger)
        self._removals.run(folder, partial(self._remove_folder, folder))

    def _remove_folder(self, folder: Path) -> None:
        for name in self._disk.list(folder):
            self._disk.unlink(folder / name)
        self._disk.remove_folder(folder)
        self._folders.discard(folder)

    def close(self) -> None:
        """Close all files; what was not synced may be lost."""
        while self._files:
            self._close(self._files.popitem()[1])
        if self._root >= 0:
            root, self._root = self._root, -1
            self._disk.close(root)

    def _may_reopen(
        self, ledger: int, segment: Segment, record: StoredRecord, roll_ms: int
    ) -> bool:
        # A file that lost bytes is left as it is, to be reported: behind it a new one begins.
        lost = file_of(self._ledgers, ledger, segment) in self._lost
        return not lost and self._continues(segment, record, roll_ms)

    def _continues(self, segment: Segment, record: StoredRecord, roll_ms: int) -> bool:
        return (
            segment.size < self._limits.segment
            and record.entry.entry_id == segment.next_entry
            and record.entry.timestamp_ms - segment.first_ms < roll_ms
        )

    def _fill(
        self, file: _OpenSegment, records: Sequence[StoredRecord], at: int, roll_ms: int
    ) -> int:
        """Write records until the segment ends; return the place of the first not written."""
        segment, step = file.segment, self._limits.index_step
        begin, size, max_ms, latest_ms = at, segment.size, segment.max_ms, segment.latest_ms
        latest_time = self._limits.latest_time
        expected = records[at].entry.entry_id
        end = min(self._limits.segment, segment.size + _MAX_WRITE_BYTES)
        parts: list[bytes] = []
        points: list[bytes] = []
        while at < len(records):
            head, entry = records[at]
            entry_id, index, timestamp_ms, _format, messages, payload = entry
            late = timestamp_ms - segment.first_ms >= roll_ms
            if at > begin and (size >= end or late or entry_id != expected):
                break
            if size - file.pointed >= step:
                number = index + 1 - messages
                points.append(pack_point(entry_id, size, number, max_ms, latest_ms))
                file.pointed = size
            parts += (head, payload)
            size += len(head) + len(payload)
            if timestamp_ms > max_ms:  # noqa: PLR1730 - `max` takes three times as long
                max_ms = timestamp_ms
            if (latest := latest_time(entry)) > latest_ms:
                latest_ms = latest
            expected += 1
            at += 1
        file.dirty = True
        write_all(self._disk, file.descriptor, gather(parts))
        if size - segment.size >= MIN_ADVISED_BYTES:
            self._disk.begin_write_back(file.descriptor, segment.size, size - segment.size)
        self._page_cache.wrote(file.path, segment.size, size - segment.size)
        if points:
            self._write_points(file, b"".join(points))
        file.segment = replace(
            segment,
            next_entry=expected,
            next_index=records[at - 1].entry.index + 1,
            size=size,
            max_ms=max_ms,
            latest_ms=latest_ms,
        )
        return at

    def _write_points(self, file: _OpenSegment, data: bytes) -> None:
        if file.index is None:
            flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND
            file.index = self._disk.open(file.path.with_suffix(".idx"), flags)
            self._folders.add(file.path.parent)
        write_all(self._disk, file.index, [data])

    def _start(self, ledger: int, first: StoredRecord) -> _OpenSegment:
        old = self._files.pop(ledger, None)
        if old is not None:
            self._close_synced(old)
        entry = first.entry
        flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_APPEND
        index, time_ms = entry.index + 1 - entry.messages, entry.timestamp_ms
        segment = Segment(entry.entry_id, index, entry.entry_id, index, 0, time_ms, time_ms, 0)
        path = file_of(self._ledgers, ledger, segment)
        self._folders.add(path.parent)
        return self._keep(ledger, _OpenSegment(path, segment, self._disk.open(path, flags)))

    def _reopen(self, ledger: int, segment: Segment) -> _OpenSegment:
        path = file_of(self._ledgers, ledger, segment)
        file = _OpenSegment(path, segment, self._disk.open(path, os.O_WRONLY | os.O_APPEND))
        file.pointed = segment.size
        return self._keep(ledger, file)

    def _keep(self, ledger: int, file: _OpenSegment) -> _OpenSegment:
        self._files[ledger] = file
        # Each file may have its index open beside it.
        while len(self._files) > max(1, self._limits.open_files // 2):
            self._close_synced(self._files.popitem(last=False)[1])
        return file

    def _close_synced(self, file: _OpenSegment) -> None:
        try:
            if self._disk.syncs_all:
                self._closed_unsynced = self._closed_unsynced or file.dirty
            else:
                self._sync_file(file)
        finally:
            self._close(file)

    def _sync_file(self, file: _OpenSegment) -> None:
        if file.dirty:
            self._disk.sync_data(file.descriptor)
            if file.index is not None:
                self._disk.sync_data(file.index)
            file.dirty = False

    def _close(self, file: _OpenSegment) -> None:
        self._disk.close(file.descriptor)
        if file.index is not None:
            self._disk.close(file.index)

    def prepare(self, ledger: int, segments: Segments) -> None:
        """Set the ledger's folder right, once; see above."""
        if ledger in self._prepared:
            return
        folder = folder_of(self._ledgers, ledger)
        self._disk.make_folder(folder)
        if not segments:
            # It may be there and not be on disk: from a process that ended before its checkpoint.
            self._folders.add(self._ledgers)
        known = {file_of(self._ledgers, ledger, segment).stem for segment in segments}
        names = self._disk.list(folder)
        for name in names:
            # A backup still needs those whose removal waits.
            if Path(name).stem not in known and not self._removals.is_waiting(folder / name):
                self._disk.unlink(folder / name)
        if segments:
            path = file_of(self._ledgers, ledger, segments[-1])
            if path.name not in names or not self._cut(path, segments[-1]):
                self._lost.add(path)
            elif path.with_suffix(".idx").name in names:
                self._cut_index(path.with_suffix(".idx"), segments[-1])
        self._prepared.add(ledger)

    def _cut(self, path: Path, segment: Segment) -> bool:
        """Cut the file to its synced size; return whether it has that much at all."""
        with opened(self._disk, path, os.O_RDWR) as descriptor:
            size = self._disk.size(descriptor)
            if size > segment.size:
                self._disk.truncate(descriptor, segment.size)
        return size >= segment.size

    def _cut_index(self, path: Path, segment: Segment) -> None:
        """Leave only the points that lie inside the segment; none if the disk cannot read them."""
        with opened(self._disk, path, os.O_RDWR) as descriptor:
            kept = b""
            with suppress(OSError):
                data = read_all(self._disk, descriptor, self._disk.size(descriptor), 0)
                kept = pack_points(read_points(data, segment))
                if data == kept:
                    return
            self._disk.truncate(descriptor, 0)
        with opened(self._disk, path, os.O_WRONLY | os.O_APPEND) as descriptor:
            write_all(self._disk, descriptor, [kept])


class _WrittenRange(NamedTuple):
    """Bytes that were written to a file."""

    path: Path
    start: int
    size: int


class PageCacheAdvisor:
    """Asks the system to keep only the newest bytes of segments in its page cache.

    Without this, segments that are not read soon would fill the machine's memory, and each byte
    written would take a new page, which costs more than the write itself. Consumers that follow
    find the entries in the tails, those a little behind in the page cache, and others on disk.
    O_DIRECT was not taken: it leaves nothing in memory, and some file systems do not have it.
    """

    def __init__(
        self, disk: Disk, kept: int = MAX_CACHED_BYTES, least: int = MIN_ADVISED_BYTES
    ) -> None:
        self._disk = disk
        self._kept = kept
        self._least = least
        self._size = 0
        self._written: list[_WrittenRange] = []
        self._synced: deque[_WrittenRange] = deque()

    def wrote(self, path: Path, start: int, size: int) -> None:
        """Remember bytes that were written."""
        if size >= self._least:
            self._written.append(_WrittenRange(path, start, size))

    def synced(self) -> None:
        """Count them as on disk, and drop the oldest from the page cache if there are too many."""
        for written in self._written:
            self._size += written.size
            self._synced.append(written)
        self._written.clear()
        while self._size > self._kept:
            oldest = self._synced.popleft()
            self._size -= oldest.size
            self._disk.drop_cached(*oldest)
