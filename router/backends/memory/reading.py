"""Consumers and readers of the memory backend: a place in a partition each."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from router.backends import Mailbox
from router.backends.memory.log import Cursor, Log, take
from router.errors import ConsumerClosedError, FencedError
from router.model import Position, Stored

if TYPE_CHECKING:
    from router.backends.memory.store import MemoryBackend


class MemoryConsumer:
    """An exclusive reader of one partition of a subscription, open while its claim stands."""

    __slots__ = (
        "_backend",
        "_closed",
        "_cursor",
        "_epoch",
        "_log",
        "_next",
        "generation",
        "mailbox",
        "partition",
    )

    def __init__(
        self, backend: MemoryBackend, log: Log, cursor: Cursor, generation: int, mailbox: Mailbox
    ) -> None:
        self.partition = log.partition
        self.generation = generation
        self.mailbox = mailbox
        self._backend = backend
        self._log = log
        self._cursor = cursor
        self._next = cursor.acked
        self._epoch = cursor.epoch
        self._closed = False

    def receive(self, limit: int, max_bytes: int, timeout: float) -> list[Stored]:
        """Return what is stored and was not received yet; see the protocol."""
        del timeout
        with self._backend.lock:
            if self._closed:
                raise ConsumerClosedError("this consumer is closed")
            messages, apart = self._log.messages, self._cursor.apart
            places = range(max(self._next, self._cursor.acked), len(messages))
            left = (place for place in places if place not in apart)
            found, following = take(messages, left, limit, max_bytes)
            self._next = following or self._next
            epoch = self._epoch
            return [replace(s, position=replace(s.position, epoch=epoch)) for s in found]

    def acknowledge(self, upto: Position, timeout: float) -> None:
        """Acknowledge everything up to and including this message; see the protocol."""
        del timeout
        with self._backend.lock:
            stale = upto.epoch and upto.epoch != self._epoch
            if self._closed or stale or self.generation < self._cursor.generation:
                raise FencedError
            self._cursor.acknowledge(0, self._log.span(upto)[1])

    def close(self) -> None:
        """Let go; see the protocol."""
        with self._backend.lock:
            self.end()

    def end(self) -> Mailbox:
        """Let go, with the backend's lock held; return the mailbox to be woken."""
        self._closed = True
        if self._cursor.consumer is self:
            self._cursor.consumer = None
        return self.mailbox


class MemoryReader:
    """A reader of one partition that leaves no trace."""

    __slots__ = ("_backend", "_closed", "_from", "_log", "_next", "mailbox")

    def __init__(
        self,
        backend: MemoryBackend,
        log: Log,
        place: int,
        first: Position | None,
        mailbox: Mailbox,
    ) -> None:
        self.mailbox = mailbox
        self._backend = backend
        self._log = log
        self._next = place
        self._from = first
        self._closed = False

    def receive(self, limit: int, max_bytes: int, timeout: float) -> list[Stored]:
        """Return what comes next; see the protocol."""
        del timeout
        with self._backend.lock:
            if self._closed:
                raise ConsumerClosedError("this reader is closed")
            if self._from is not None:
                # It may lie behind all that was stored when this reader opened.
                self._next = max(self._next, self._log.behind(self._from))
            messages = self._log.messages
            places = range(self._next, len(messages))
            found, following = take(messages, places, limit, max_bytes)
            self._next = following or self._next
            return found

    def close(self) -> None:
        """Let go; see the protocol."""
        with self._backend.lock:
            self.end()

    def end(self) -> Mailbox:
        """Let go, with the backend's lock held; return the mailbox to be woken."""
        self._closed = True
        self._log.readers.discard(self)
        return self.mailbox
