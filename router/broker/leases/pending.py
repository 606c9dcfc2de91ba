"""Positions that polls left for the next poll of their id to acknowledge."""

from __future__ import annotations

from collections import OrderedDict
from typing import Final

from google.protobuf.message import DecodeError

from router.coordination import Lease
from router.wire.pulsar import pulsar_pb2 as pb

MAX_PENDING: Final = 100_000
LENGTH: Final = 2


class Pending:
    """One position a partition at most; of too many the oldest go, and are delivered again."""

    def __init__(self) -> None:
        self._positions: OrderedDict[Lease, tuple[str, pb.MessageIdData]] = OrderedDict()

    def leave(self, lease: Lease, consumer: str, position: pb.MessageIdData) -> None:
        """Keep what this id was given up to."""
        self._positions[lease] = (consumer, position)
        self._positions.move_to_end(lease)
        while len(self._positions) > MAX_PENDING:
            self._positions.popitem(last=False)

    def take(self, lease: Lease, consumer: str) -> pb.MessageIdData | None:
        """Return what this id left.

        Whoever gets the partition, the position is used up: by its id, or by the change of ids.
        """
        left, position = self._positions.pop(lease, ("", None))
        return position if left == consumer else None

    def drop(self, lease: Lease) -> None:
        """Forget a partition's position: another node may have read on from there."""
        self._positions.pop(lease, None)

    def hand_over(self, lease: Lease) -> bytes:
        """Forget a partition's position, and return it as a note for another node."""
        consumer, position = self._positions.pop(lease, ("", None))
        if position is None:
            return b""
        who = consumer.encode()
        return len(who).to_bytes(LENGTH) + who + position.SerializeToString()

    def take_over(self, lease: Lease, note: bytes) -> None:
        """Keep the position that another node noted; of a note that is not understood nothing."""
        size = LENGTH + int.from_bytes(note[:LENGTH])
        try:
            position = pb.MessageIdData.FromString(note[size:])
            self.leave(lease, note[LENGTH:size].decode(), position)
        except (DecodeError, UnicodeDecodeError):
            return

    def forget(self, topic: str, subscription: str | None) -> None:
        """Forget a subscription's positions; None: those of all of the topic's."""
        stale = [
            lease
            for lease in self._positions
            if lease.topic == topic and subscription in {None, lease.subscription}
        ]
        for lease in stale:
            del self._positions[lease]

    def __len__(self) -> int:
        return len(self._positions)
