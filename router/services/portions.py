"""Parts what one request publishes: by partition, and into what fits into an entry."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Final

from router.model import Message
from router.services.partitioning import partition_of

MAX_BYTES: Final = 4 * 1024 * 1024
MAX_MESSAGES: Final = 10_000
# What a message costs in an entry beside its value; a key that is no UTF-8 travels as base64.
_OVERHEAD: Final = 64


class Portion:
    """Messages for one partition, their bytes and those of the largest, what they weigh stored."""

    __slots__ = ("largest", "messages", "size", "weight")

    def __init__(self, messages: Sequence[Message]) -> None:
        size = keys = largest = 0
        for message in messages:
            own = message.size()
            size += own
            largest = max(largest, own)
            if message.key is not None:
                keys += len(message.key)
        self.messages = messages
        self.size = size
        self.largest = largest
        self.weight = size + keys + _OVERHEAD * len(messages)

    def fits(self) -> bool:
        """Return whether it may be one append."""
        return self.weight <= MAX_BYTES and len(self.messages) <= MAX_MESSAGES


def parts(whole: Portion, partitions: int, turn: int) -> list[tuple[int, Portion]]:
    """Part messages by partition, in portions that fit into an entry; order is kept in each."""
    return list(_parts(whole, partitions, turn))


def _parts(whole: Portion, partitions: int, turn: int) -> Iterator[tuple[int, Portion]]:
    if partitions <= 1:
        parted = {partition_of(b"", partitions): whole}
    else:
        found: dict[int, list[Message]] = {}
        for message in whole.messages:
            at = turn % partitions if message.key is None else partition_of(message.key, partitions)
            found.setdefault(at, []).append(message)
        parted = {partition: Portion(found[partition]) for partition in sorted(found)}
    for partition, together in parted.items():
        if together.fits():
            yield partition, together
        else:
            for portion in _portions(together.messages):
                yield partition, portion


def _portions(messages: Sequence[Message]) -> Iterator[Portion]:
    begin = total = 0
    for at, message in enumerate(messages):
        weight = message.size() + len(message.key or b"") + _OVERHEAD
        if at > begin and (total + weight > MAX_BYTES or at - begin == MAX_MESSAGES):
            yield Portion(messages[begin:at])
            begin, total = at, 0
        total += weight
    yield Portion(messages[begin:])
