"""Frames of Kafka's protocol: a size of four bytes, then so many bytes of a request or response."""

from __future__ import annotations

from struct import Struct
from typing import Final

from router.wire import ProtocolError

SIZE: Final = Struct(">i")


class KafkaFrameReader:
    """Turns bytes, cut anywhere, into frames without their sizes.

    `expected_bytes` is the size of the frame that has begun to arrive, its head included. After a
    ProtocolError the reader is of no more use.
    """

    def __init__(self, limit: int) -> None:
        self.expected_bytes = SIZE.size
        self._limit: Final = limit
        self._held: list[bytes] = []
        self._held_bytes = 0
        self._begun = False
        """What is held is of a frame whose size is known, and which is not held."""

    def receive(self, data: bytes) -> list[bytes]:
        """Return the frames that these bytes complete; raise ProtocolError."""
        frames: list[bytes] = []
        start, end = 0, len(data)
        if self._held:
            start = self.expected_bytes - SIZE.size - self._held_bytes
            if self._begun and start > end:
                self._hold(data)
                return frames
            if self._begun:
                # Joined once, and without its size: a large frame arrives in many reads.
                frames.append(b"".join([*self._held, data if start == end else data[:start]]))
            else:
                data = b"".join([*self._held, data])
                start, end = 0, len(data)
            self._held, self._held_bytes, self._begun = [], 0, False
        self.expected_bytes = SIZE.size
        while end - start >= SIZE.size:
            begin = start + SIZE.size
            stop = begin + self._size(data, start)
            if stop > end:
                self.expected_bytes = stop - start
                self._begun = True
                start = begin
                break
            frames.append(data[begin:stop])
            start = stop
        if start < end or self._begun:
            self._hold(data[start:])
        return frames

    def _hold(self, data: bytes) -> None:
        self._held.append(data)
        self._held_bytes += len(data)

    def _size(self, data: bytes, start: int) -> int:
        (size,) = SIZE.unpack_from(data, start)
        if not 0 <= size <= self._limit:
            raise ProtocolError(f"a frame of {size} bytes, allowed are {self._limit}")
        return int(size)
