"""The entries of a partition for one subscription: from memory where they are, else from disk.

Damage stays until somebody repairs it. What else keeps a file from being opened, such as that the
process has too many, may pass: it is tried again after a while, for no client would ask for it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Final, Protocol

import structlog

from router.broker.cursors import Cursor
from router.broker.ledger import DamagedError, Entry, Ledger
from router.wire.pulsar import ProtocolError, read_metadata

READ_ENTRIES: Final = 256
READ_BYTES: Final = 1 << 20
RETRY: Final = 2.0

_log = structlog.get_logger(__name__)


class Source(Protocol):
    """What a feed needs of its subscription."""

    ledger: Ledger
    cursor: Cursor

    def skip(self, first: int, end: int) -> None:
        """Take the entries from `first` to before `end`, which are no more, as acknowledged."""
        ...


class Feed:
    """Supplies entries without ever waiting; `ready` is called when a read from disk has ended.

    One read is under way at most. What it brought is kept until asked for, READ_BYTES of it.
    """

    def __init__(self, source: Source, ready: Callable[[], None]) -> None:
        self.position = 0
        self.failure: Exception | None = None
        self._source = source
        self._ready = ready
        self._ahead: dict[int, Entry] = {}
        self._read: asyncio.Task[None] | None = None
        self._retry: asyncio.TimerHandle | None = None
        self._counted = (-1, -1)
        self._idle: list[Callable[[], None]] = []

    @property
    def reading(self) -> bool:
        """Tell whether a read from disk is under way."""
        return self._read is not None

    def wanted(self) -> int | None:
        """Return the next entry in order that is not acknowledged, if there is one."""
        source = self._source
        entry = source.cursor.next_unacked(self.position)
        return entry if entry < source.ledger.durable_entry else None

    def take(self) -> Entry | None:
        """Return the next entry in order and go on; None: there is none, or not yet."""
        wanted = self.wanted()
        if wanted is None:
            return None
        entry = self.look(wanted, READ_ENTRIES)
        if entry is not None:
            self.position = wanted + 1
        return entry

    def look(self, number: int, ahead: int) -> Entry | None:
        """Return one entry if it is here; else fetch it, and up to `ahead` from it on."""
        entry = self._ahead.pop(number, None) or self._source.ledger.cached(number)
        if entry is None and self._read is None and self.failure is None:
            reading = self._fetch(number, ahead)
            self._read = asyncio.get_running_loop().create_task(reading)
        return entry

    def messages(self, entry: Entry) -> int:
        """Return how many messages an entry holds."""
        before, index = self._counted
        self._counted = (entry.entry_id, entry.index)
        if before == entry.entry_id - 1:
            return entry.index - index
        return batch_size(entry) or 1

    def rewind(self, position: int) -> None:
        """Go on from another entry; a failed read may be tried again."""
        self.close()
        self.position = position
        self.failure = None

    def when_idle(self, told: Callable[[], None]) -> None:
        """Call `told` when no read is under way: at once, or after what it brought was sent."""
        if self._read is None:
            told()
        else:
            self._idle.append(told)

    def close(self) -> None:
        """Stop the read that is under way; who waits for its end is told."""
        if self._read is not None:
            self._read.cancel()
            self._read = None
        if self._retry is not None:
            self._retry.cancel()
            self._retry = None
        self._ahead.clear()
        self._tell_idle()

    async def _fetch(self, number: int, ahead: int) -> None:
        ledger = self._source.ledger
        durable = ledger.durable_entry
        try:
            entries = await ledger.read(number, ahead, READ_BYTES)
        except (DamagedError, OSError) as error:
            self._fail(error)
        else:
            found = entries[0].entry_id if entries else durable
            if found > number:
                self._source.skip(number, found)
            self._ahead = {entry.entry_id: entry for entry in entries}
        self._read = None
        self._ready()
        if self._read is None:
            self._tell_idle()

    def _fail(self, error: Exception) -> None:
        self.failure = error
        _log.error("reading-failed", ledger=self._source.ledger.id, reason=str(error))
        if isinstance(error, OSError):
            self._retry = asyncio.get_running_loop().call_later(RETRY, self._read_again)

    def _read_again(self) -> None:
        self._retry = self.failure = None
        self._ready()

    def _tell_idle(self) -> None:
        waiting, self._idle = self._idle, []
        for told in waiting:
            told()


def batch_size(entry: Entry) -> int | None:
    """Return the number of messages of a batch entry, None for an entry that is no batch."""
    try:
        metadata = read_metadata(entry.payload)
    except ProtocolError:
        # Stored by somebody who knows better; for flow control it is one message.
        return None
    if not metadata.HasField("num_messages_in_batch"):
        return None
    return max(1, metadata.num_messages_in_batch)
