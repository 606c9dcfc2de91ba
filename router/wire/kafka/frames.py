"""Frames of Kafka's protocol: a size of four bytes, then so many bytes of a request or response."""

from __future__ import annotations

from struct import Struct
from typing import Final

from router.wire import ProtocolError

SIZE: Final = Struct(">i")
MIN_FRAME_BYTES: Final = 8
"""A request begins with its API, version and correlation id."""


class FrameReader:
    """Turns bytes, cut anywhere, into frames without their sizes.

    `expected_bytes` is the size of the frame that has begun to arrive, its head included. After a
    ProtocolError the reader is of no more use.
    """

    def __init__(self, limit: int) -> None:
        self.expected_bytes = SIZE.size
        self._limit: Final = limit
        self._held: list[bytes] = []
        self._held_bytes = 0

    def receive(self, data: bytes) -> list[bytes]:
        """Return the frames that these bytes complete; raise ProtocolError."""
        if self._held:
            self._held.append(data)
            self._held_bytes += len(data)
            if self._held_bytes < self.expected_bytes:
                return []
            # Joined once: a large frame arrives in many reads.
            data = b"".join(self._held)
            self._held = []
            self._held_bytes = 0
        frames = []
        start, end = 0, len(data)
        self.expected_bytes = SIZE.size
        while end - start >= SIZE.size:
            stop = start + SIZE.size + self._size(data, start)
            if stop > end:
                self.expected_bytes = stop - start
                break
            frames.append(data[start + SIZE.size : stop])
            start = stop
        if start < end:
            self._held = [data[start:]]
            self._held_bytes = end - start
        return frames

    def _size(self, data: bytes, start: int) -> int:
        (size,) = SIZE.unpack_from(data, start)
        if not MIN_FRAME_BYTES <= size <= self._limit:
            raise ProtocolError(f"a frame of {size} bytes, allowed are {self._limit}")
        return int(size)
