"""Entries of a partition as Kafka readers are sent them: batches with the offsets of their place.

Theory of operation. A batch that came by Kafka's protocol is sent as it is stored but for its base
offset and leader's epoch, which stand before what its CRC covers. An entry of another format is
transcoded, in a thread, and cached. One that cannot be read keeps its offsets: a batch without
records stands for it, and readers go on behind it. Where damage hides entries a reader is sent what
follows; Kafka's offsets may have gaps.

Entries in memory are read at once (`read_cached`), others in the storage's reader threads, so that
a reader that is far behind holds nothing up.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from struct import Struct
from typing import Final

import structlog

from router.broker.delivery.entry_info import UnreadableEntryError
from router.broker.entries import MAX_JOB_ENTRIES, Transcoder
from router.broker.entries.kafka import TAG, empty
from router.broker.kafka.context import LEADER_EPOCH, KafkaContext
from router.broker.storage import DamagedError, Entry, Ledger
from router.wire.kafka.record_batches import PREFIX_BYTES

MAX_ENTRIES: Final = 2_000
"""Of one partition in one response."""
MAX_POSITIONS: Final = 1_000
"""Places at which a connection's readers are expected next."""
_OFFSET: Final = Struct(">q")
_EPOCH: Final = Struct(">i").pack(LEADER_EPOCH)
_LENGTH_AT: Final = 8
_LENGTH_END: Final = 12

_log = structlog.get_logger(__name__)


@dataclass(slots=True)
class Batches:
    """The bytes of some batches, and the place behind them: the next offset and entry."""

    parts: list[bytes | memoryview] = field(default_factory=list)
    size: int = 0
    offset: int = 0
    entry: int = 0

    def add(self, entry: Entry, payload: bytes) -> None:
        """Add the batch of an entry with the offset that it has."""
        self.parts += (
            _OFFSET.pack(entry.index + 1 - entry.messages),
            payload[_LENGTH_AT:_LENGTH_END],
            _EPOCH,
            memoryview(payload)[PREFIX_BYTES:],
        )
        self.size += len(payload)
        self.offset, self.entry = entry.index + 1, entry.entry_id + 1

    def records(self) -> bytes:
        """Return the bytes as a response carries them."""
        return b"".join(self.parts)


class BatchReader:
    """Reads partitions for one connection; it remembers where its readers go on."""

    def __init__(self, context: KafkaContext) -> None:
        self._transcoder: Transcoder = context.transcoder
        self._tally = context.topics.tally
        self._positions: dict[int, tuple[int, int]] = {}

    def read_cached(self, ledger: Ledger, offset: int, max_bytes: int) -> Batches | None:
        """Return batches from an offset on that are in memory; None: `read` finds them."""
        entry = self._entry(ledger, offset)
        if entry is None:
            return None
        found = Batches(offset=offset, entry=entry)
        if entry >= ledger.durable_entry:
            return found
        entries = ledger.read_cached(entry, MAX_ENTRIES, max_bytes)
        if not entries:
            return None
        for one in entries:
            if one.format == TAG:
                found.add(one, one.payload)
                continue
            payload = self._transcoder.cached(ledger.id, one, TAG)
            if payload is None:
                return found if found.size else None
            if found.size and found.size + len(payload) > max_bytes:
                break
            found.add(one, payload)
        return found

    async def read(self, ledger: Ledger, offset: int, max_bytes: int) -> Batches:
        """Return batches from an offset on; raise OSError."""
        entry = self._entry(ledger, offset)
        if entry is None:
            entry = await ledger.entry_of_number(offset)
        found = Batches(offset=offset, entry=entry)
        entries = await self._read(ledger, entry, max_bytes)
        for place, one in enumerate(entries):
            payload = one.payload
            if one.format != TAG:
                payload = await self._transcoded(ledger, entries[place : place + MAX_JOB_ENTRIES])
            if found.size and found.size + len(payload) > max_bytes:
                break
            found.add(one, payload)
        return found

    def remember(self, ledger: Ledger, batches: Batches) -> None:
        """Note that a reader was sent batches, and goes on behind them."""
        self._positions.pop(ledger.id, None)
        self._positions[ledger.id] = batches.offset, batches.entry
        if len(self._positions) > MAX_POSITIONS:
            del self._positions[next(iter(self._positions))]

    def _entry(self, ledger: Ledger, offset: int) -> int | None:
        known, entry = self._positions.get(ledger.id, (-1, 0))
        if known == offset:
            return max(entry, ledger.first_entry)
        return ledger.cached_entry_of_number(offset)

    async def _read(self, ledger: Ledger, entry: int, max_bytes: int) -> Sequence[Entry]:
        """Return entries; damage is passed over, and counted once something follows it."""
        first, damage = entry, None
        while True:
            try:
                found = await ledger.read(entry, MAX_ENTRIES, max_bytes)
            except DamagedError as error:
                damage, entry = error, error.last + 1
                continue
            if damage is not None and found:
                self._skipped(ledger, first, damage.last, damage)
            return found

    def _skipped(self, ledger: Ledger, first: int, last: int, error: Exception) -> None:
        self._tally.damaged += last + 1 - first
        _log.error(
            "unreadable-entries-skipped",
            ledger=ledger.id,
            first=first,
            last=last,
            reason=str(error),
        )

    async def _transcoded(self, ledger: Ledger, entries: Sequence[Entry]) -> bytes:
        """Return the batch of the first of some entries, which has another format."""
        entry = entries[0]
        try:
            return await self._transcoder.transcoded(ledger.id, entries, TAG)
        except UnreadableEntryError as error:
            self._skipped(ledger, entry.entry_id, entry.entry_id, error)
            made = empty(entry.messages, entry.timestamp_ms)
            self._transcoder.keep(ledger.id, entry, TAG, made)
            return made
