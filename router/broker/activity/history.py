"""The history of what the broker did: the last hour in memory, the last day in a file.

The file is a ring: a record of each minute has its place by the minute, so that it is never larger
than a day. It is neither synced nor guarded: a record that was torn does not fit its checksum, and
is left out, as one of another day.
"""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Iterator, Sequence
from pathlib import Path
from struct import Struct
from typing import Final, NamedTuple
from zlib import crc32

MINUTE_MS: Final = 60_000
DAY_MINUTES: Final = 24 * 60
MAX_RECENT: Final = 360
"""Samples of the last hour."""
MAX_POINTS: Final = 144
"""Of one answer."""


class ActivitySample(NamedTuple):
    """What happened up to a time in ms since 1970.

    Messages, bytes, requests, answers with 5xx, refused logins and damaged entries are those of a
    second; `sync_ms` is what one sync of the journal in a hundred took at least. `lag_seconds` is
    the age of the oldest message that one of the largest groups has not acknowledged.
    """

    at: float
    messages_in: float = 0.0
    messages_out: float = 0.0
    bytes_in: float = 0.0
    lag: float = 0.0
    lag_seconds: float = 0.0
    disk_free: float = 0.0
    log_bytes: float = 0.0
    sync_ms: float = 0.0
    pulsar: float = 0.0
    kafka: float = 0.0
    nats: float = 0.0
    requests: float = 0.0
    errors: float = 0.0
    refused: float = 0.0
    damaged: float = 0.0


_VALUES: Final = Struct(f"<{len(ActivitySample._fields)}d")
_CHECKSUM: Final = Struct("<I")
_FLAGS: Final = os.O_CLOEXEC | os.O_NOFOLLOW
RECORD_BYTES: Final = _VALUES.size + _CHECKSUM.size


def mean(samples: Sequence[ActivitySample]) -> ActivitySample:
    """Return the mean of some samples, at the time of the last one."""
    columns = list(zip(*samples, strict=True))[1:]
    return ActivitySample(samples[-1].at, *(sum(one) / len(samples) for one in columns))


def thinned(samples: Sequence[ActivitySample]) -> Iterator[ActivitySample]:
    """Yield at most MAX_POINTS samples, each the mean of as many that follow one another."""
    step = max(1, -(-len(samples) // MAX_POINTS))
    for begin in range(0, len(samples), step):
        yield mean(samples[begin : begin + step])


class MinuteFile:
    """The records of the last day; calls block, and raise OSError."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def write(self, sample: ActivitySample) -> None:
        """Write the record of a minute in its place."""
        values = _VALUES.pack(*sample)
        record = values + _CHECKSUM.pack(crc32(values))
        place = int(sample.at // MINUTE_MS) % DAY_MINUTES * RECORD_BYTES
        descriptor = os.open(self._path, os.O_WRONLY | os.O_CREAT | _FLAGS, 0o600)
        try:
            os.pwrite(descriptor, record, place)
        finally:
            os.close(descriptor)

    def read(self, now_ms: float) -> list[ActivitySample]:
        """Return the records of the day before a time, in order."""
        try:
            descriptor = os.open(self._path, os.O_RDONLY | _FLAGS)
        except FileNotFoundError:
            return []
        try:
            data = os.pread(descriptor, DAY_MINUTES * RECORD_BYTES, 0)
        finally:
            os.close(descriptor)
        found = []
        for place in range(0, len(data) - RECORD_BYTES + 1, RECORD_BYTES):
            values = data[place : place + _VALUES.size]
            if _CHECKSUM.unpack_from(data, place + _VALUES.size)[0] != crc32(values):
                continue
            sample = ActivitySample(*_VALUES.unpack(values))
            if now_ms - DAY_MINUTES * MINUTE_MS < sample.at <= now_ms:
                found.append(sample)
        return sorted(found)


class History:
    """Samples of the last hour, and minutes of the last day."""

    def __init__(self, minutes: Sequence[ActivitySample]) -> None:
        self.recent: deque[ActivitySample] = deque(maxlen=MAX_RECENT)
        self.minutes = deque(minutes, maxlen=DAY_MINUTES)
        self._minute: list[ActivitySample] = []

    def add(self, sample: ActivitySample) -> ActivitySample | None:
        """Add a sample; return the minute that it ends, None: it ends none."""
        self.recent.append(sample)
        before = self._minute
        self._minute = [sample]
        if not before or before[0].at // MINUTE_MS == sample.at // MINUTE_MS:
            self._minute = [*before, sample]
            return None
        ended = mean(before)
        self.minutes.append(ended)
        return ended

    def span(self, minutes: int) -> list[ActivitySample]:
        """Return the samples of the last minutes, MAX_POINTS at most; more than 60: of minutes."""
        source = self.recent if minutes <= 60 else self.minutes
        if not source:
            return list(self.recent)[-1:]
        since = source[-1].at - minutes * MINUTE_MS
        return list(thinned([sample for sample in source if sample.at > since]))
