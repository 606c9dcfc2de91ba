"""Reading of ranges of entries in one of Spark's workers, as Arrow record batches.

A worker opens a connection of its own, asks for entries in bulk, range after range, and closes it
when the last one is done or Spark loses interest. A broker that goes away is waited for,
`TIMEOUT_SECONDS` seconds without progress: reading goes on behind the last entry that came. One
that refuses the credentials is not. The batch is as exactly half-open as it was planned: nothing
behind its last entry is given.

Entries that do not come are gaps. The broker says which of them are a loss: what retention removed
and what a repair gave up. All others were deleted. A bucket or a work queue may have a gap at every
other entry, so gaps are kept, and judged many at once: before the task ends, and so before its rows
count.
"""

from __future__ import annotations

import time
from collections.abc import Generator, Iterator, Sequence
from contextlib import suppress
from typing import Final

import pyarrow as pa

from router.backends.pulsar import PulsarBackend
from router.backends.pulsar.entries import read_columns
from router.backends.pulsar.entry_stream import EntryStream, StreamEntry
from router.backends.pulsar.extents import EntryExtent, EntryPosition, EntryRead
from router.errors import (
    BackendTimeoutError,
    BackendUnavailableError,
    NotServedError,
    NotSupportedError,
    PublishRefusedError,
    ReadFailedError,
    TopicNotFoundError,
)
from router.model import TopicName
from router.pipelines.source.losses import RETENTION, Loss, suffer
from router.pipelines.source.offsets import MessagePoint, RowKey
from router.pipelines.source.options import SourceOptions
from router.pipelines.source.ranges import MissingEntries, Range, gap_losses
from router.pipelines.source_columns import Gathered
from router.wire.nats.headers import SUBJECT
from router.wire.nats.subjects import matches
from router.wire.pulsar import Columns

TIMEOUT_SECONDS: Final = 60.0
QUIET_SECONDS: Final = 1.0
PAUSE_SECONDS: Final = 0.2
BATCH_ROWS: Final = 10_000
BATCH_BYTES: Final = 8 * 1024 * 1024
MAX_GAPS: Final = 10_000
"""Gaps that are kept until the store is asked about them."""


def batches(
    options: SourceOptions, ranges: Sequence[Range]
) -> Generator[pa.RecordBatch, None, None]:
    """Yield the messages of ranges in order, in record batches of bounded size.

    Raises ReadFailedError for damage and for losses that are not to be skipped, and what the store
    raises when it stays away.
    """
    with options.opened() as backend:
        if not isinstance(backend, PulsarBackend):
            raise NotSupportedError("the store has no entries to read")
        for span in ranges:
            yield from _batches(options, backend, span)


def _batches(
    options: SourceOptions, backend: PulsarBackend, span: Range
) -> Generator[pa.RecordBatch, None, None]:
    topic = TopicName.parse(span.part.topic)
    columns = Gathered(
        options.settings.shortest_name(topic), max(0, span.part.partition), options.layout
    )
    # Where a stream starts is said for its first batch; its checkpoint says it afterwards.
    bounds = (span.low, options.ending.row_key(span.part))
    reading = _RangePass(backend, topic, span, skip=options.skip)
    try:
        for place, entry, index in reading.entries():
            rows = chosen(within(entry, place, index, bounds), options.key, options.subject)
            columns.add(rows, str(place), index)
            if columns.rows >= BATCH_ROWS or columns.size >= BATCH_BYTES:
                yield columns.take()
    finally:
        reading.close()
    if columns.rows:
        yield columns.take()


def chosen(entry: Columns, key: bytes | None, subject: str) -> Columns:
    """Return the messages of an entry with a key, None: any, and a subject, empty: any."""
    if key is None and not subject:
        return entry
    return entry.rows(
        [
            number
            for number, (given, properties) in enumerate(
                zip(entry.keys, entry.properties, strict=True)
            )
            if (key is None or key == given)
            and (not subject or _has_subject(properties.get(SUBJECT, ""), subject))
        ]
    )


def _has_subject(given: str, pattern: str) -> bool:
    return bool(given) and matches(pattern, given)


def within(
    entry: Columns, place: EntryPosition, index: int | None, bounds: tuple[RowKey, RowKey]
) -> Columns:
    """Return the messages of an entry from the first bound to before the second one.

    `index` is the number of the entry's first message. Messages that cannot be compared with a
    bound, which is a number where damage hides theirs, are kept.
    """
    low, high = bounds
    if low is None and high is None:
        return entry

    def stop(bound: RowKey, message: int) -> bool:
        number = max(0, message)
        if isinstance(bound, MessagePoint):
            return MessagePoint(place, number) >= bound
        return bound is None or index is None or index + number >= bound

    first = next((i for i, one in enumerate(entry.places) if stop(low, one)), len(entry.places))
    last = len(entry.places)
    if high is not None and (index is not None or isinstance(high, MessagePoint)):
        last = next((i for i, one in enumerate(entry.places) if stop(high, one)), last)
    return entry.rows(range(first, max(first, last)))


class _RangePass:
    """One pass over a range."""

    def __init__(self, backend: PulsarBackend, topic: TopicName, span: Range, *, skip: bool):
        self._backend = backend
        self._topic = topic
        self._span = span
        self._skip = skip
        self._stream: EntryStream | None = None
        self._at = self._opened_at = span.start
        self._index = span.index
        self._gaps: list[MissingEntries] = []

    def entries(self) -> Iterator[tuple[EntryPosition, Columns, int | None]]:
        """Yield each entry's place, messages and the number of its first message."""
        span, timeout = self._span, time.monotonic() + TIMEOUT_SECONDS
        while self._at <= span.last:
            try:
                found = self._next(timeout)
            except NotServedError:
                raise
            except (BackendUnavailableError, BackendTimeoutError):
                self.close()
                if time.monotonic() >= timeout:
                    raise
                time.sleep(PAUSE_SECONDS)
                continue
            if found is None or found.place > span.last:
                break
            place = found.place
            stream = self._stream
            entry = self._columns(found)
            if stream is not None:
                stream.took(entry.size, len(found.payload))
            if place < self._at:
                continue
            self._passed(place, entry.first_index)
            if entry.values:
                yield place, entry, self._index
            # Not before: Spark may take its time with what it was given.
            timeout = time.monotonic() + TIMEOUT_SECONDS
            self._at = EntryPosition(place.ledger, place.entry + 1)
            if self._index is not None:
                self._index += entry.size
        self._passed(span.stop, None)
        self._judge()

    def close(self) -> None:
        stream, self._stream = self._stream, None
        if stream is not None:
            with suppress(BackendUnavailableError):
                stream.close()

    def _next(self, timeout: float) -> StreamEntry | None:
        """Return the next entry, None: nothing is stored here that could still come."""
        stream = self._stream or self._open(timeout)
        while (found := stream.next(QUIET_SECONDS)) is None:
            if self._opened_at != self._at:
                # Damage behind what a stream delivered is the answer to one that begins there.
                self.close()
                stream = self._open(timeout)
                continue
            try:
                end = stream.end(timeout)
            except (PublishRefusedError, ReadFailedError) as error:
                raise ReadFailedError(
                    self._failure(f"{self._at} cannot be read: {error}")
                ) from error
            if end is None or end < self._at:
                # It may have come while the question was on its way.
                return stream.next(0)
            if time.monotonic() >= timeout:
                raise BackendTimeoutError(self._failure(f"{self._at} does not come"))
        return found

    def _open(self, timeout: float) -> EntryStream:
        left = max(PAUSE_SECONDS, timeout - time.monotonic())
        self._opened_at = self._at
        self._stream = self._backend.stream(self._topic, self._span.part.partition, self._at, left)
        return self._stream

    def _columns(self, found: StreamEntry) -> Columns:
        try:
            return read_columns(found.payload, found.ack_set, found.place)
        except ReadFailedError as error:
            raise ReadFailedError(
                self._failure(f"{found.place} cannot be read: {error}")
            ) from error

    def _failure(self, what: str) -> str:
        span = self._span
        return (
            f"{span.part.topic} partition {span.part.partition},"
            f" of {span.start} to before {span.stop}: entry {what}"
        )

    def _passed(self, place: EntryPosition, index: int | None) -> None:
        """Come to a place; `index` is the number of its first message, None: it is not known.

        Raises MessagesLostError if messages between are lost, or notes the gap for `_judge`.
        """
        before = self._index
        if self._span.alone:
            self._index = index if place > self._at or index is not None else before
            if place > self._at:
                self._gaps.append(MissingEntries(self._at, place, before, index))
            if len(self._gaps) >= MAX_GAPS:
                self._judge()
            return
        due = self._due()
        # Inside of a ledger of Apache Pulsar there are entries that no client receives: markers of
        # transactions, and what compaction or transactions took away. Whole ledgers go otherwise.
        if due is not None and place.ledger > due.ledger:
            first = self._extent(due).first
            if first > due:
                loss = Loss(self._span.part, self._at, min(place, first), RETENTION)
                suffer([loss], skip=self._skip)

    def _judge(self) -> None:
        """Raise MessagesLostError if messages of the gaps are lost; else forget the gaps."""
        gaps, self._gaps = self._gaps, []
        if gaps:
            extent = self._extent(gaps[-1].start)
            found = (loss for gap in gaps for loss in gap_losses(self._span.part, gap, extent))
            suffer(list(found), skip=self._skip)

    def _due(self) -> EntryPosition | None:
        """Return the next entry that there was when the range was planned."""
        for ledger, entries in self._span.ledgers:
            at = self._at.entry if ledger == self._at.ledger else 0
            if ledger >= self._at.ledger and at < entries:
                return EntryPosition(ledger, at)
        return None

    def _extent(self, place: EntryPosition) -> EntryExtent:
        partition = self._span.part.partition
        reads = {self._topic: [EntryRead(partition, place, 1)]}
        found = self._backend.extents(reads, TIMEOUT_SECONDS).get(self._topic, [])
        for one in found:
            if one.partition == partition:
                return one
        raise TopicNotFoundError(self._failure(f"{place} cannot be read: the topic was deleted"))
