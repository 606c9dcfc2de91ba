"""What one append of a partition holds: messages with their sizes, within limits, by partition."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Final, TypeVar

from router.model import NOT_PARTITIONED, Message
from router.model.publish_source import NO_SOURCE
from router.services.partitioning import partition_of

T = TypeVar("T")

# What a message costs in an entry beside its value; a key that is no UTF-8 travels as base64.
_MESSAGE_OVERHEAD_BYTES: Final = 64


@dataclass(frozen=True, slots=True)
class BatchLimits:
    """What one batch holds at most."""

    max_bytes: int
    max_messages: int


ENTRY_LIMITS: Final = BatchLimits(4 * 1024 * 1024, 10_000)
"""Of a batch that every store keeps as one append."""


class PublishBatch:
    """Messages for one partition, their bytes and those of the largest, what they weigh stored.

    `source`: who publishes them, see `router.model.publish_source`.
    """

    __slots__ = ("largest", "messages", "size", "source", "weight")

    def __init__(self, messages: Sequence[Message], source: bytes = NO_SOURCE) -> None:
        size = keys = largest = 0
        for message in messages:
            value, key, properties = message[:3]
            # `Message.size`, most often without the call.
            own = message.size() if key or properties else len(value)
            size += own
            if own > largest:  # noqa: PLR1730 - `max` takes three times as long
                largest = own
            if key:
                keys += len(key)
        self.messages = messages
        self.source = source
        self.size = size
        self.largest = largest
        self.weight = size + keys + _MESSAGE_OVERHEAD_BYTES * len(messages)

    def fits(self, limits: BatchLimits) -> bool:
        """Return whether it is within limits as a whole."""
        return self.weight <= limits.max_bytes and len(self.messages) <= limits.max_messages


def split(
    messages: Sequence[Message],
    limits: BatchLimits,
    alone: Callable[[Message], bool] | None = None,
    source: bytes = NO_SOURCE,
) -> Iterator[PublishBatch]:
    """Split messages into batches within limits, in order; a larger message is one by itself.

    So is each message for which `alone` is true.
    """
    begin = total = 0
    for at, message in enumerate(messages):
        weight = message.size() + len(message.key or b"") + _MESSAGE_OVERHEAD_BYTES
        single = alone is not None and alone(message)
        full = total + weight > limits.max_bytes or at - begin == limits.max_messages
        if at > begin and (single or full):
            yield PublishBatch(messages[begin:at], source)
            begin, total = at, 0
        total += weight
        if single:
            yield PublishBatch(messages[at : at + 1], source)
            begin, total = at + 1, 0
    if begin < len(messages):
        yield PublishBatch(messages[begin:], source)


def parts(whole: PublishBatch, partitions: int, turn: int) -> list[tuple[int, PublishBatch]]:
    """Part messages by partition, into batches that fit into an entry; order is kept in each."""
    if partitions <= 1:
        parted = [(0 if partitions else NOT_PARTITIONED, whole)]
    else:
        messages = whole.messages
        places = (
            turn % partitions if message.key is None else partition_of(message.key, partitions)
            for message in messages
        )
        parted = [
            (at, PublishBatch(found, whole.source))
            for at, found in sorted(grouped(messages, places))
        ]
    batches = []
    for partition, together in parted:
        if together.fits(ENTRY_LIMITS):
            batches.append((partition, together))
        else:
            found = split(together.messages, ENTRY_LIMITS, source=together.source)
            batches += [(partition, one) for one in found]
    return batches


def grouped(items: Sequence[T], places: Iterable[int]) -> Iterable[tuple[int, list[T]]]:
    """Return items by place, both in the order in which they come."""
    found: dict[int, list[T]] = {}
    for item, place in zip(items, places, strict=True):
        found.setdefault(place, []).append(item)
    return found.items()
