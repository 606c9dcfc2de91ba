"""Owns reading a stream's messages: entries of any format, taken apart and kept for a while.

Theory of operation. An entry holds many messages, and is taken apart once for all readers that come
to it soon (`EntryCache`, one for all streams). An entry of another format is transcoded first, as
for any reader. The stream gives a message of another dialect its subject. What cannot be read as
messages of NATS (encrypted, a chunk, damage) is passed over: its numbers appear as deleted.
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import Callable, Sequence
from typing import Final, NamedTuple

import structlog

from router.broker.consume.entry_info import UnreadableEntryError
from router.broker.consume.visible import Visible
from router.broker.entries import Transcoder
from router.broker.nats.streams.log.subject_index import stored_size
from router.broker.storage import NATS_FORMAT, DamagedError, Entry
from router.wire import ProtocolError
from router.wire.nats.stored import unpack

MAX_CACHED_BYTES: Final = 16 << 20
MESSAGE_OVERHEAD_BYTES: Final = 300
"""What a message that is kept takes in memory besides its bytes, about."""
READ_BYTES: Final = 256 << 10
READ_ENTRIES: Final = 256
NS_PER_MS: Final = 1_000_000

_log = structlog.get_logger(__name__)


class StoredMessage(NamedTuple):
    """A message of a stream, and where it stands: place `index` of the `entry_messages` of `entry`.

    `headers` is a whole block or empty; `time_ns` counts from 1970. `native`: a NATS client
    published it.
    """

    sequence: int
    subject: str
    headers: bytes
    payload: bytes
    time_ns: int
    entry: int = -1
    index: int = 0  # type: ignore[assignment]  # hides tuple.index, which no message needs
    entry_messages: int = 1
    native: bool = False

    @property
    def size(self) -> int:
        """Return the bytes that the index counts."""
        return stored_size(self.subject, self.headers, self.payload)


class EntryCache:
    """The messages of the entries that were read last, by ledger and entry."""

    def __init__(self) -> None:
        self._bytes = 0
        self._entries: OrderedDict[tuple[int, int], tuple[list[StoredMessage], int]] = OrderedDict()

    def get(self, ledger_id: int, entry_id: int) -> list[StoredMessage] | None:
        """Return all messages of an entry if they are kept."""
        found = self._entries.get((ledger_id, entry_id))
        return None if found is None else found[0]

    def put(self, ledger_id: int, entry_id: int, messages: list[StoredMessage], size: int) -> None:
        """Keep the messages of an entry of so many bytes."""
        cost = size + MESSAGE_OVERHEAD_BYTES * (1 + len(messages))
        if (ledger_id, entry_id) in self._entries or cost > MAX_CACHED_BYTES:
            return
        self._entries[ledger_id, entry_id] = messages, cost
        self._bytes += cost
        while self._bytes > MAX_CACHED_BYTES:
            _, (_, freed) = self._entries.popitem(last=False)
            self._bytes -= freed

    def forget(self, ledger_id: int) -> None:
        """Forget the entries of a ledger."""
        for place in [place for place in self._entries if place[0] == ledger_id]:
            self._bytes -= self._entries.pop(place)[1]


class MessageReader:
    """Reads the messages of one partition that are `visible`.

    `subject_of` returns the subject of a message that names one, "": none; what NATS clients
    published has its own.
    """

    def __init__(
        self,
        visible: Visible,
        transcoder: Transcoder,
        cache: EntryCache,
        subject_of: Callable[[str], str],
    ) -> None:
        self.visible = visible
        self._ledger = visible.ledger
        self._transcoder = transcoder
        self._cache = cache
        self._subject_of = subject_of

    def forget(self) -> None:
        """Take all entries apart again: other subjects are accepted now."""
        self._cache.forget(self._ledger.id)

    def messages(self, entry: Entry) -> list[StoredMessage]:
        """Return all messages of an entry, visible or not; []: it cannot be read."""
        found = self._cache.get(self._ledger.id, entry.entry_id)
        if found is None:
            found = self._take_apart(entry)
            self._cache.put(self._ledger.id, entry.entry_id, found, len(entry.payload))
        return found

    def is_native(self, entry: Entry) -> bool:
        """Return whether an entry holds messages of NATS clients as they were published."""
        return entry.format == NATS_FORMAT

    def is_quick(self, entry: Entry) -> bool:
        """Return whether `messages` takes no longer than the answer of a thread."""
        if entry.format == NATS_FORMAT:
            return True
        return self._cache.get(self._ledger.id, entry.entry_id) is not None or (
            entry.messages <= 32 and len(entry.payload) <= 16 << 10
        )

    async def prepared(self, entries: Sequence[Entry]) -> None:
        """Return when `messages` of all these entries is quick."""
        job = self._transcoder.prepare(self._ledger.id, entries, NATS_FORMAT)
        if job is not None:
            await asyncio.wait((job,))

    def read_now(
        self, sequence: int, max_messages: int, max_bytes: int
    ) -> list[StoredMessage] | None:
        """Return what `read_from` does if that is in memory; None: `read_from` finds out."""
        ledger, visible = self._ledger, self.visible
        number = visible.first_from(max(sequence - 1, ledger.first_number))
        if number >= visible.end_number:
            return []
        entry_id = ledger.cached_entry_of_number(number)
        if entry_id is None:
            return None
        entries = visible.read_cached(entry_id, READ_ENTRIES, min(max_bytes, READ_BYTES))
        if not entries or not all(map(self.is_quick, entries)):
            return None
        return self._select(entries, number, max_messages, max_bytes)

    async def read_from(
        self, sequence: int, max_messages: int, max_bytes: int
    ) -> list[StoredMessage]:
        """Return live messages from a sequence on, in order; the first one whatever its size.

        Fewer may come than there are; []: there are none. Raises OSError.
        """
        found = self.read_now(sequence, max_messages, max_bytes)
        if found is not None:
            return found
        ledger, visible, number = self._ledger, self.visible, sequence - 1
        while (number := visible.first_from(max(number, ledger.first_number))) < visible.end_number:
            entries = await self._entries(number, max_bytes)
            if not entries:
                return []
            found = self._select(entries, number, max_messages, max_bytes)
            if found:
                return found
            number = max(number, entries[-1].index) + 1
        return []

    async def read(self, sequence: int) -> StoredMessage | None:
        """Return a message; None: it is not visible, or there is none. Raises OSError."""
        if not self.visible.contains(sequence - 1):
            return None
        found = await self.read_from(sequence, 1, 1)
        return found[0] if found and found[0].sequence == sequence else None

    async def _entries(self, number: int, max_bytes: int) -> list[Entry]:
        """Return readable entries from the one on that holds a number, ready to be taken apart."""
        ledger = self._ledger
        entry_id = await ledger.entry_of_number(number)
        while entry_id < self.visible.end_entry:
            try:
                entries = await self.visible.read(
                    entry_id, READ_ENTRIES, min(max_bytes, READ_BYTES)
                )
            except DamagedError as damage:
                _log.error("damaged-entries-skipped", ledger=ledger.id, first=damage.first)
                entry_id = damage.last + 1
                continue
            await self.prepared(entries)
            return entries
        return []

    def _select(
        self, entries: Sequence[Entry], number: int, max_messages: int, max_bytes: int
    ) -> list[StoredMessage]:
        found: list[StoredMessage] = []
        for entry in entries:
            messages, left = self.messages(entry), self.visible.messages(entry)
            if messages and (passed := number + 1 - messages[0].sequence) > 0:
                messages = messages[passed:]
            for message in messages:
                if left is not None and not left >> message.index & 1:
                    continue
                max_bytes -= len(message.payload) + len(message.headers)
                if found and max_bytes < 0:
                    return found
                found.append(message)
                if len(found) >= max_messages:
                    return found
        return found

    def _take_apart(self, entry: Entry) -> list[StoredMessage]:
        entry_id, last, timestamp_ms, format_tag, count, payload = entry
        native = format_tag == NATS_FORMAT
        try:
            if not native:
                payload = self._transcoder.payload(self._ledger.id, entry, NATS_FORMAT)
            messages = unpack(payload)
        except (UnreadableEntryError, ProtocolError):
            return []
        if len(messages) != count:
            return []
        first, time_ns = last + 2 - count, timestamp_ms * NS_PER_MS
        found = []
        for place, (subject, _, headers, body) in enumerate(messages):
            if not (native and subject):
                subject = self._subject_of(subject)  # noqa: PLW2901 - that of the stream
            found.append(
                StoredMessage(
                    first + place, subject, headers, body, time_ns, entry_id, place, count, native
                )
            )
        return found
