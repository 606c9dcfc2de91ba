"""The stored formats of entries, a module each, and entries as readers of another format need them.

Theory of operation. An entry is stored as its writer sent it, with the tag of its format, and a
reader of that format is sent the same bytes. A reader of another format gets
`from_messages(to_messages(...))`, made once and cached (`Transcoder`): one entry stays one entry
with as many messages, so that positions and the messages' places in their batch mean the same to
all readers. The alternative, to store one format for all, would cost every message a conversion on
its way in, and what the writer's clients see would depend on it.

A large entry is transcoded beside the event loop (`prepare`), once for all readers that wait for
it; a small one when it is sent.

Only the process that starts the broker and the listeners of a format import this package; storage
and delivery are handed `EntryFormats`.
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import Iterable, Mapping, Sequence
from itertools import islice
from typing import Any, Final, Protocol

from router.broker.consume.dispatch.non_persistent import NOT_STORED
from router.broker.consume.entry_info import (
    OPAQUE_ENTRY,
    EntryFormat,
    EntryInfo,
    MessageKey,
    UnreadableEntryError,
)
from router.broker.entries import kafka, nats, pulsar
from router.broker.entries.workers import EntryWorkers
from router.broker.storage import UNKNOWN_TIME, Entry
from router.model import Message

MAX_CACHED_BYTES: Final = 32 << 20
"""Of transcoded entries."""
CACHED_OVERHEAD_BYTES: Final = 400
"""What a cached entry takes in memory besides its bytes, about."""
MAX_MESSAGES_AT_ONCE: Final = 32
MAX_BYTES_AT_ONCE: Final = 16 << 10
"""Of entries that are transcoded when they are sent: as quick as the answer of a thread."""
MAX_JOB_ENTRIES: Final = 64
MAX_JOB_BYTES: Final = 128 << 10
"""Of entries that are transcoded together because readers go on to them."""

ALL_MESSAGES: Final = -1
_Place = tuple[int, int, int, int]
"""Ledger, entry, the tag of the reader's format, and which messages are left (ALL_MESSAGES)."""


class EntryCodec(EntryFormat, Protocol):
    """A stored format: what delivery asks of it, and its entries as messages and back."""

    def to_messages(self, payload: bytes) -> Sequence[Message]:
        """Return all messages of an entry; raise UnreadableEntryError."""
        ...

    def from_messages(self, messages: Sequence[Message], timestamp_ms: int) -> bytes:
        """Return one entry of these messages that was stored at a time (ms since 1970).

        Raises UnreadableEntryError if no reader of the format could take it.
        """
        ...

    def keep_messages(self, payload: bytes, live: int) -> bytes:
        """Return an entry with some of its messages, for the log; the others take little of it.

        `live` has a bit for each message, the first in the lowest. Every message keeps its place:
        what is gone is among those of `to_messages`, without its content. Raises
        UnreadableEntryError.
        """
        ...

    def keys(self, payload: bytes) -> Sequence[MessageKey]:
        """Return the key of each message of an entry; raise UnreadableEntryError."""
        ...

    def latest_time(self, payload: bytes, stored_ms: int) -> int:
        """Return the latest timestamp that Kafka readers get with a message of an entry.

        `stored_ms` is when it was stored: the timestamp of messages without a time of their own.
        """
        ...


class _UnknownFormat:
    """Stands for a format that this build does not know: its entries are described as opaque."""

    def __init__(self, tag: int) -> None:
        self._tag = tag

    def describe(self, payload: bytes) -> EntryInfo:
        """Return what is known: nothing."""
        del payload
        return OPAQUE_ENTRY

    def describe_special(self, payload: bytes) -> None:
        """Return None: it is like any other until it is to be sent."""

    def to_messages(self, payload: bytes) -> Sequence[Message]:
        """Raise UnreadableEntryError."""
        raise self._error(f"{len(payload)} bytes")

    def from_messages(self, messages: Sequence[Message], timestamp_ms: int) -> bytes:
        """Raise UnreadableEntryError."""
        raise self._error(f"{len(messages)} messages of {timestamp_ms}")

    def keep_messages(self, payload: bytes, live: int) -> bytes:
        """Raise UnreadableEntryError."""
        raise self._error(f"{len(payload)} bytes, of which {live.bit_count()} messages are left")

    def keys(self, payload: bytes) -> Sequence[MessageKey]:
        """Raise UnreadableEntryError."""
        raise self._error(f"{len(payload)} bytes")

    def latest_time(self, payload: bytes, stored_ms: int) -> int:
        """Return the time of storing."""
        del payload
        return stored_ms

    def _error(self, what: str) -> UnreadableEntryError:
        return UnreadableEntryError(
            f"this build does not know the entry format {self._tag}: {what}"
        )


class EntryFormats(dict[int, EntryCodec]):
    """The formats by their tags; of an unknown tag, one that has opaque entries."""

    def __missing__(self, tag: int) -> EntryCodec:
        return _UnknownFormat(tag)


ENTRY_FORMATS: Final[Mapping[int, EntryCodec]] = EntryFormats(
    {pulsar.TAG: pulsar, kafka.TAG: kafka, nats.TAG: nats}
)


def latest_time(entry: Entry) -> int:
    """Return the latest timestamp that Kafka readers get with a message of an entry; see Store."""
    try:
        return ENTRY_FORMATS[entry.format].latest_time(entry.payload, entry.timestamp_ms)
    except Exception:  # noqa: BLE001 - what a client sent must not end the store, which calls this
        return UNKNOWN_TIME


def keep_messages(entry: Entry, live: int) -> bytes | None:
    """Return the payload of an entry with some of its messages; None: it stays; see Store."""
    try:
        return ENTRY_FORMATS[entry.format].keep_messages(entry.payload, live)
    except Exception:  # noqa: BLE001 - what a client sent must not stop the work on the log
        return None


def transcode(formats: Mapping[int, EntryCodec], entry: Entry, tag: int) -> bytes:
    """Return the payload of an entry in the format of a tag; raise UnreadableEntryError."""
    messages = formats[entry.format].to_messages(entry.payload)
    if len(messages) != entry.messages:
        # Positions name messages by their place in the entry.
        raise UnreadableEntryError(
            f"the entry holds {len(messages)} messages, {entry.messages} were stored"
        )
    try:
        return formats[tag].from_messages(messages, entry.timestamp_ms)
    except (ValueError, OverflowError) as error:
        raise UnreadableEntryError(f"the other format has no form for it: {error}") from error


class Transcoder:
    """Gives the bytes of entries in a reader's format; what was made last is kept.

    So are the reasons why entries cannot be transcoded. `workers` may be used for other work on
    entries too.
    """

    def __init__(
        self, formats: Mapping[int, EntryCodec], max_cached_bytes: int = MAX_CACHED_BYTES
    ) -> None:
        self.workers = EntryWorkers()
        self._formats = formats
        self._max_cached_bytes = max_cached_bytes
        self._cached: OrderedDict[_Place, bytes | str] = OrderedDict()
        self._cached_bytes = 0
        self._jobs: dict[_Place, asyncio.Task[None]] = {}

    def payload(self, ledger_id: int, entry: Entry, tag: int) -> bytes:
        """Return the payload of an entry in the format of a tag; raise UnreadableEntryError.

        It is made within the call unless it is cached.
        """
        if entry.format == tag:
            return entry.payload
        if entry.index == NOT_STORED:  # all such entries have the same position
            return transcode(self._formats, entry, tag)
        place = (ledger_id, entry.entry_id, tag, ALL_MESSAGES)
        made = self._cached.get(place)
        if made is not None:
            self._cached.move_to_end(place)
        else:
            made = _made(self._formats, entry, tag)
            self._keep(place, made)
        if isinstance(made, str):
            raise UnreadableEntryError(made)
        return made

    def cached(
        self, ledger_id: int, entry: Entry, tag: int, live: int = ALL_MESSAGES
    ) -> bytes | None:
        """Return the payload of a stored entry in the format of a tag if it was made lately.

        `live`: with these messages only, a bit for each.
        """
        place = (ledger_id, entry.entry_id, tag, live)
        made = self._cached.get(place)
        if made is None or isinstance(made, str):
            return None
        self._cached.move_to_end(place)
        return made

    def keep(
        self, ledger_id: int, entry: Entry, tag: int, made: bytes, live: int = ALL_MESSAGES
    ) -> None:
        """Keep what readers of a format are sent for these messages of a stored entry."""
        self._keep((ledger_id, entry.entry_id, tag, live), made)

    def prepare(
        self, ledger_id: int, entries: Sequence[Entry], tag: int
    ) -> asyncio.Future[Any] | None:
        """Transcode entries beside the event loop, so that `payload` finds them.

        None: `payload` may be called at once. All that ask for the same entry meanwhile wait for
        the same work; so the future must not be cancelled.
        """
        missing = [
            entry
            for entry in entries
            if entry.format != tag
            and entry.index != NOT_STORED
            and (ledger_id, entry.entry_id, tag, ALL_MESSAGES) not in self._cached
        ]
        if (
            sum(entry.messages for entry in missing) <= MAX_MESSAGES_AT_ONCE
            and sum(len(entry.payload) for entry in missing) <= MAX_BYTES_AT_ONCE
        ):
            return None
        new = [
            one for one in missing if (ledger_id, one.entry_id, tag, ALL_MESSAGES) not in self._jobs
        ]
        if new:
            job = asyncio.get_running_loop().create_task(self._make(ledger_id, new, tag))
            self._jobs.update(
                ((ledger_id, entry.entry_id, tag, ALL_MESSAGES), job) for entry in new
            )
        jobs = {self._jobs[ledger_id, entry.entry_id, tag, ALL_MESSAGES] for entry in missing}
        return jobs.pop() if len(jobs) == 1 else asyncio.gather(*jobs)

    async def transcoded(self, ledger_id: int, entries: Sequence[Entry], tag: int) -> bytes:
        """Return what `payload` does of the first of some entries, made beside the event loop.

        Some that follow it are made with it, as they will be asked for next.
        """
        first = entries[0]
        if (ledger_id, first.entry_id, tag, ALL_MESSAGES) not in self._cached:
            job = self.prepare(ledger_id, prepared_together(entries), tag)
            if job is not None:
                await asyncio.wait((job,))
        return self.payload(ledger_id, first, tag)

    async def left(self, entry: Entry, payload: bytes, tag: int, live: int) -> bytes:
        """Return an entry of some of the messages of one, for a reader that looks at it alone.

        `payload` is the entry in the format of the tag, `live` has a bit for each message that
        the result has. Raises UnreadableEntryError.
        """
        return await self.workers.run(_left, self._formats[tag], payload, live, entry.timestamp_ms)

    def close(self) -> None:
        """End the threads; what is not made yet is not made."""
        for job in self._jobs.values():
            job.cancel()
        self.workers.close()

    async def _make(self, ledger_id: int, entries: Sequence[Entry], tag: int) -> None:
        try:
            found = await self.workers.run(_all_made, self._formats, entries, tag)
            for entry, made in zip(entries, found, strict=True):
                self._keep((ledger_id, entry.entry_id, tag, ALL_MESSAGES), made)
        finally:
            for entry in entries:
                del self._jobs[ledger_id, entry.entry_id, tag, ALL_MESSAGES]

    def _keep(self, place: _Place, made: bytes | str) -> None:
        replaced = self._cached.pop(place, None)
        if replaced is not None:
            self._cached_bytes -= len(replaced) + CACHED_OVERHEAD_BYTES
        self._cached[place] = made
        self._cached_bytes += len(made) + CACHED_OVERHEAD_BYTES
        while self._cached_bytes > self._max_cached_bytes:
            oldest = self._cached.popitem(last=False)[1]
            self._cached_bytes -= len(oldest) + CACHED_OVERHEAD_BYTES


def prepared_together(entries: Iterable[Entry]) -> list[Entry]:
    """Return the first of some entries, and of those behind it what one job should hold."""
    found: list[Entry] = []
    size = 0
    for entry in islice(entries, MAX_JOB_ENTRIES):
        size += len(entry.payload)
        if found and size > MAX_JOB_BYTES:
            break
        found.append(entry)
    return found


def _left(codec: EntryCodec, payload: bytes, live: int, timestamp_ms: int) -> bytes:
    messages = codec.to_messages(payload)
    kept = [message for place, message in enumerate(messages) if live >> place & 1]
    return codec.from_messages(kept, timestamp_ms)


def _all_made(
    formats: Mapping[int, EntryCodec], entries: Sequence[Entry], tag: int
) -> list[bytes | str]:
    return [_made(formats, entry, tag) for entry in entries]


def _made(formats: Mapping[int, EntryCodec], entry: Entry, tag: int) -> bytes | str:
    """Return an entry in another format, or the reason why there is none."""
    try:
        return transcode(formats, entry, tag)
    except UnreadableEntryError as error:
        return str(error)
