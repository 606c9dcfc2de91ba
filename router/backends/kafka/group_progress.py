"""How far a group is on a partition: its offset, and what it acknowledged behind it; pure.

The ranges behind the offset travel in the note of the commit, as the lengths of what is left and
what is acknowledged in turn, from the offset on: varints in base64, so that what the broker takes
(`offset.metadata.max.bytes`, 4096 by default) holds about 1,500 gaps. The alternative, a topic of
single acknowledgements, has no bound, but would have to be read whole to open a consumer.

Once single messages of a group were acknowledged on a partition its notes say so from then on, be
there ranges or not: its commits are then made in turns (`acknowledging`).
"""

from __future__ import annotations

from base64 import urlsafe_b64decode, urlsafe_b64encode
from binascii import Error as Base64Error
from bisect import bisect_right
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

from router.errors import NotSupportedError
from router.wire.kafka.primitives import uvarint

MAX_NOTE_BYTES: Final = 4096

Range = tuple[int, int]


@dataclass(frozen=True, slots=True)
class CommitProgress:
    """All before `offset` is acknowledged, and the ranges `apart` behind it.

    Each range goes from its first message to before its end; they are in order, with gaps between
    them and the offset. `shared`: single messages are or were acknowledged.
    """

    offset: int
    apart: tuple[Range, ...] = ()
    shared: bool = False

    def acknowledge(self, *ranges: Range) -> CommitProgress:
        """Return the progress with these messages acknowledged too, in one pass over all ranges."""
        offset, apart = self.offset, list[Range]()
        for first, end in sorted([*self.apart, *ranges]):
            if end <= max(first, offset):
                continue
            if first <= offset:
                offset = end
            elif apart and first <= apart[-1][1]:
                apart[-1] = apart[-1][0], max(apart[-1][1], end)
            else:
                apart.append((first, end))
        return CommitProgress(offset, tuple(apart), self.shared)

    def covers(self, offset: int) -> bool:
        """Tell whether a message is acknowledged."""
        if offset < self.offset:
            return True
        place = bisect_right(self.apart, (offset, 1 << 63)) - 1
        return place >= 0 and offset < self.apart[place][1]

    def backlog(self, first: int, end: int) -> int:
        """Return how many messages are not acknowledged of those from `first` to before `end`."""
        begin = max(self.offset, first)
        done = sum(max(0, min(high, end) - max(low, begin)) for low, high in self.apart)
        return max(0, end - begin - done)

    def text(self) -> str:
        """Return the ranges as the end of a note; raise NotSupportedError if there are too many."""
        data = bytearray()
        at = self.offset
        for low, high in self.apart:
            data += uvarint(low - at) + uvarint(high - low)
            at = high
        found = urlsafe_b64encode(data).rstrip(b"=").decode()
        if len(found) > MAX_NOTE_BYTES - 64:
            raise NotSupportedError(
                f"there are {len(self.apart)} gaps between the acknowledged messages of a "
                "partition, more than Kafka keeps with an offset: acknowledge the first ones"
            )
        return found

    @classmethod
    def read(cls, offset: int, text: str) -> CommitProgress:
        """Return the progress of an offset and such an end of a note."""
        ranges: list[Range] = []
        try:
            numbers = list(_numbers(urlsafe_b64decode(text + "=" * (-len(text) % 4))))
        except Base64Error:
            numbers = []  # of another client; what is not known to be acknowledged comes again
        at = offset
        for left, done in zip(numbers[::2], numbers[1::2], strict=False):
            if not left or not done:
                break  # as above
            ranges.append((at + left, at + left + done))
            at += left + done
        return cls(offset, tuple(ranges), shared=True)


def _numbers(data: bytes) -> Iterator[int]:
    value = shift = 0
    for byte in data:
        value |= (byte & 0x7F) << shift
        shift += 7
        if byte < 0x80:
            yield value
            value = shift = 0
