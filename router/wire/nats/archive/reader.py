"""Owns reading an archive of either form: bytes in, messages and consumers out, in their order."""

from __future__ import annotations

from typing import Final

from router.wire.nats.archive.blocks import read_tar
from router.wire.nats.archive.entries import MAGIC, read_entries
from router.wire.nats.archive.parts import Part, damaged
from router.wire.nats.archive.source import ArchiveSource, Pause, Steps

MAX_PARTS: Final = 1_000
"""Of one `take`: a block may hold a million messages."""


class ArchiveReader:
    """Reads what is fed: `take` until it returns None, and in the end `finish`.

    A message of more than `max_message` bytes is refused. All raise ProtocolError.
    """

    def __init__(self, max_message: int) -> None:
        self._source = ArchiveSource()
        self._max_message = max_message
        self._steps = self._read()
        self._ended = False

    def feed(self, data: bytes) -> None:
        """Take bytes of the archive."""
        self._source.compressed.feed(data)

    def take(self) -> list[Part] | None:
        """Return some of what comes next, perhaps nothing; None: more bytes are needed."""
        found: list[Part] = []
        for part in self._steps:
            if isinstance(part, Pause):
                break
            if part is None:
                return found or None
            found.append(part)
            if len(found) >= MAX_PARTS:
                break
        return found

    def finish(self) -> None:
        """Check that the archive is whole."""
        if not (self._ended and self._source.compressed.is_complete):
            raise damaged("it is cut short")

    def _read(self) -> Steps[None]:
        magic = yield from self._source.take(len(MAGIC))
        if magic == MAGIC:
            yield from read_entries(self._source, self._max_message)
        else:
            self._source.unread(len(MAGIC))
            yield from read_tar(self._source, self._max_message)
        self._ended = True
        yield from self._source.rest()
