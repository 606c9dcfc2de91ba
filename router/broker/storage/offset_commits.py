"""Owns what a client stored with a subscription's position: the number of a message and a note."""

from __future__ import annotations

import struct
from typing import NamedTuple

_HEAD = struct.Struct(">qiqqiI")


class Commit(NamedTuple):
    """A position as a client gave it: the number of the message that comes next.

    The cursor says what is acknowledged; this says what was asked for, where the log does not reach
    so far or not so far back, and the client's `metadata`. `leader_epoch` -1: the client has none.
    `cursor` is the entry, and the index in it, that the cursor had next then.
    """

    number: int
    leader_epoch: int = -1
    metadata: str = ""
    time_ms: int = 0
    cursor: tuple[int, int] = (-1, 0)

    def dump(self) -> bytes:
        """Return the commit as bytes that `read` understands."""
        text = self.metadata.encode("utf-8", "surrogatepass")
        numbers = self.number, self.leader_epoch, self.time_ms, *self.cursor
        return _HEAD.pack(*numbers, len(text)) + text

    @classmethod
    def read(cls, data: bytes, start: int = 0) -> tuple[Commit, int]:
        """Return the commit that stands in bytes, and the place after it.

        Raises struct.error, ValueError if these are not its bytes.
        """
        number, leader_epoch, time_ms, *cursor, size = _HEAD.unpack_from(data, start)
        end = start + _HEAD.size + size
        if end > len(data):
            raise ValueError("the metadata of a commit is cut short")
        text = data[end - size : end].decode("utf-8", "surrogatepass")
        entry, index = cursor
        return cls(number, leader_epoch, text, time_ms, (entry, index)), end
