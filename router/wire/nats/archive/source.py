"""Owns the bytes of an archive that is read: what was fed, uncompressed as far as it is needed."""

from __future__ import annotations

from collections.abc import Generator
from typing import Final, TypeVar

from router.wire.nats.archive.parts import Part, damaged
from router.wire.nats.archive.s2 import S2Reader

T = TypeVar("T")


class Pause:
    """What steps yield where others may have their turn."""


PAUSE: Final = Pause()
Steps = Generator[Part | Pause | None, None, T]
"""Yields what an archive holds, PAUSE, and None where more bytes are needed; returns a value."""

MAX_NUMBER_BYTES: Final = 10
"""A number of 64 bits with 7 in each byte."""
MAX_PADDING_BYTES: Final = 64 << 10
"""What may follow the end of an archive: a tar is filled up with zeros."""


class ArchiveSource:
    """Reads from an archive; its steps yield until they can go on."""

    def __init__(self) -> None:
        self.compressed = S2Reader()
        self._data = bytearray()
        self._at = 0

    def wait(self, size: int) -> Steps[None]:
        """Return when so many bytes are there."""
        while len(self._data) - self._at < size:
            block = self.compressed.block()
            if block is None:
                yield None
                continue
            del self._data[: self._at]
            self._at = 0
            self._data += block
            yield PAUSE

    def take(self, size: int) -> Steps[bytes]:
        """Return so many bytes."""
        yield from self.wait(size)
        at, self._at = self._at, self._at + size
        return bytes(self._data[at : self._at])

    def skip(self, size: int) -> Steps[None]:
        """Pass over so many bytes, which need not fit into memory."""
        while size:
            yield from self.wait(1)
            passed = min(size, len(self._data) - self._at)
            self._at += passed
            size -= passed

    def unread(self, size: int) -> None:
        """Have the bytes that were just taken come once more."""
        self._at -= size

    def number(self) -> Steps[int]:
        """Return an unsigned number of 7 bits in each byte."""
        value = 0
        for place in range(MAX_NUMBER_BYTES):
            yield from self.wait(1)
            byte = self._data[self._at]
            self._at += 1
            value |= (byte & 0x7F) << 7 * place
            if byte < 0x80:
                return value
        raise damaged("a number is too long")

    def rest(self) -> Steps[None]:
        """Pass over what follows the end; never return."""
        yield from self.wait(MAX_PADDING_BYTES)
        raise damaged("more follows its end")


def signed(number: int) -> int:
    """Return the number that was written with its sign in the lowest bit."""
    return number >> 1 ^ -(number & 1)
