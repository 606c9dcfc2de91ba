"""Entries of a partition as Kafka readers are sent them: batches with the offsets of their place.

Theory of operation. A batch that came by Kafka's protocol is sent as it is stored but for its base
offset and leader's epoch, which stand before what its CRC covers. An entry of another format is
transcoded, in a thread, and cached. One that cannot be read keeps its offsets: a batch without
records stands for it, and readers go on behind it. Where damage hides entries a reader is sent what
follows; Kafka's offsets may have gaps.

A batch of which records are left out is sent with the others, at their offsets (`without_deleted`).
One of which all are left out is not sent; where nothing follows it in a response, a batch without
records stands for it, so that readers know how far they are.

Entries in memory are read at once (`read_cached`), others in the storage's reader threads, so that
a reader that is far behind holds nothing up.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from struct import Struct
from typing import Final

import structlog

from router.broker.consume.entry_info import UnreadableEntryError
from router.broker.consume.visible import Visible
from router.broker.entries import ALL_MESSAGES, MAX_JOB_ENTRIES, Transcoder
from router.broker.entries.kafka import TAG, empty, without_deleted
from router.broker.kafka.context import LEADER_EPOCH, KafkaContext
from router.broker.storage import DamagedError, Entry, Ledger
from router.wire.kafka.record_batches import PREFIX_BYTES

MAX_ENTRIES: Final = 2_000
"""Of one partition in one response."""
MAX_POSITIONS: Final = 1_000
"""Places at which a connection's readers are expected next."""
MAX_EMPTY: Final = (1 << 31) - 1
"""Offsets of one batch without records."""
NO_ENTRY: Final = -1
NO_TIMESTAMP: Final = -1
_OFFSET: Final = Struct(">q")
_EPOCH: Final = Struct(">i").pack(LEADER_EPOCH)
_LENGTH_AT: Final = 8
_LENGTH_END: Final = 12

_log = structlog.get_logger(__name__)


@dataclass(slots=True)
class Batches:
    """The bytes of some batches, and the place behind them: the next offset and entry.

    `sent` is the offset behind the last batch; what lies between is left out. `messages` counts
    those of the batches. `entry` is NO_ENTRY where it is not known.
    """

    parts: list[bytes | memoryview] = field(default_factory=list)
    size: int = 0
    offset: int = 0
    entry: int = 0
    sent: int = 0
    messages: int = 0

    def add(self, entry: Entry, payload: bytes) -> None:
        """Add the batch of an entry with the offset that it has."""
        self._add(entry.index + 1 - entry.messages, payload)
        self.leave_out(entry)
        self.sent = self.offset
        self.messages += entry.messages

    def leave_out(self, entry: Entry) -> None:
        """Go on behind an entry."""
        self.offset, self.entry = entry.index + 1, entry.entry_id + 1

    def finish(self, visible: Visible) -> None:
        """Go on behind what is left out; a batch without records stands for it at the end."""
        if not visible.leaves_out:
            return
        following = min(visible.first_from(self.offset), visible.end_number)
        if following > self.offset:
            self.offset, self.entry = following, NO_ENTRY
        if self.offset > self.sent:
            self._add(self.sent, empty(min(self.offset - self.sent, MAX_EMPTY), NO_TIMESTAMP))
            self.sent = self.offset

    def _add(self, offset: int, payload: bytes) -> None:
        self.parts += (
            _OFFSET.pack(offset),
            payload[_LENGTH_AT:_LENGTH_END],
            _EPOCH,
            memoryview(payload)[PREFIX_BYTES:],
        )
        self.size += len(payload)

    def records(self) -> bytes:
        """Return the bytes as a response carries them."""
        return b"".join(self.parts)


class BatchReader:
    """Reads partitions for one connection; it remembers where its readers go on."""

    def __init__(self, context: KafkaContext) -> None:
        self._transcoder: Transcoder = context.transcoder
        self._tally = context.topics.tally
        self._positions: dict[int, tuple[int, int]] = {}

    def read_cached(self, visible: Visible, offset: int, max_bytes: int) -> Batches | None:
        """Return batches from an offset on that are in memory; None: `read` finds them."""
        found = self._begin(visible, offset)
        if found.entry == NO_ENTRY:
            return None
        if found.entry >= visible.end_entry:
            found.finish(visible)
            return found
        entries = visible.read_cached(found.entry, MAX_ENTRIES, max_bytes)
        if not entries:
            return None
        for one in entries:
            live = visible.messages(one)
            if live == 0:
                found.leave_out(one)
                continue
            if one.format == TAG and live is None:
                found.add(one, one.payload)
                continue
            left = ALL_MESSAGES if live is None else live
            payload = self._transcoder.cached(visible.ledger.id, one, TAG, left)
            if payload is None:
                return found if found.size else None
            if found.size and found.size + len(payload) > max_bytes:
                return found
            found.add(one, payload)
        found.finish(visible)
        return found

    async def read(self, visible: Visible, offset: int, max_bytes: int) -> Batches:
        """Return batches from an offset on; raise OSError."""
        ledger, found = visible.ledger, self._begin(visible, offset)
        if found.entry == NO_ENTRY:
            found.entry = await ledger.entry_of_number(found.offset)
        entries = await self._read(visible, found.entry, max_bytes)
        for place, one in enumerate(entries):
            live = visible.messages(one)
            if live == 0:
                found.leave_out(one)
                continue
            payload = one.payload
            if one.format != TAG:
                payload = await self._transcoded(ledger, entries[place : place + MAX_JOB_ENTRIES])
            if live is not None:
                payload = await self._without_deleted(ledger, one, payload, live)
            if found.size and found.size + len(payload) > max_bytes:
                return found
            found.add(one, payload)
        found.finish(visible)
        return found

    def remember(self, ledger: Ledger, batches: Batches) -> None:
        """Note that a reader was sent batches, and goes on behind them."""
        self._positions.pop(ledger.id, None)
        if batches.entry != NO_ENTRY:
            self._positions[ledger.id] = batches.offset, batches.entry
        if len(self._positions) > MAX_POSITIONS:
            del self._positions[next(iter(self._positions))]

    def _begin(self, visible: Visible, offset: int) -> Batches:
        """Return no batches yet, with the first offset from one on that is not left out.

        Its entry is NO_ENTRY if it has to be looked up on disk.
        """
        ledger = visible.ledger
        first = min(visible.first_from(offset), visible.end_number)
        if first == visible.end_number:
            return Batches(offset=first, entry=visible.end_entry, sent=offset)
        known, entry = self._positions.get(ledger.id, (-1, 0))
        if known == first:
            return Batches(offset=first, entry=max(entry, ledger.first_entry), sent=offset)
        cached = ledger.cached_entry_of_number(first)
        return Batches(offset=first, entry=NO_ENTRY if cached is None else cached, sent=offset)

    async def _read(self, visible: Visible, entry: int, max_bytes: int) -> Sequence[Entry]:
        """Return entries; damage is passed over, and counted once something follows it."""
        first, damage = entry, None
        while True:
            try:
                found = await visible.read(entry, MAX_ENTRIES, max_bytes)
            except DamagedError as error:
                damage, entry = error, error.last + 1
                continue
            if damage is not None and found:
                self._skipped(visible.ledger, first, damage.last, damage)
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

    async def _without_deleted(
        self, ledger: Ledger, entry: Entry, payload: bytes, live: int
    ) -> bytes:
        """Return a batch with those of its records that are visible, made in a thread."""
        made = self._transcoder.cached(ledger.id, entry, TAG, live)
        if made is None:
            try:
                made = await self._transcoder.workers.run(without_deleted, payload, live)
            except UnreadableEntryError as error:
                self._skipped(ledger, entry.entry_id, entry.entry_id, error)
                made = empty(entry.messages, entry.timestamp_ms)
            self._transcoder.keep(ledger.id, entry, TAG, made, live)
        return made
