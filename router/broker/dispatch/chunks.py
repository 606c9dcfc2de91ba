"""Owns which shared consumer gets the chunks of a message: all of them the one that got the first.

Only one that has all chunks can put them together. A chunk whose consumer can not take it now waits
here, by number. Of messages under way KEPT are remembered; of one that was forgotten the next chunk
goes to whoever's turn it is, and its consumer gives up on it, as on any that is incomplete.
"""

from __future__ import annotations

from heapq import heappop, heappush
from typing import Final

from router.broker.dispatch.consumer import Consumer
from router.wire.pulsar import pulsar_pb2 as pb

KEPT: Final = 1_000
WAITING: Final = 1_000


class Chunks:
    """The messages in chunks that are under way to the consumers of one subscription."""

    def __init__(self) -> None:
        # By a hash of the message's uuid, which may be as long as its sender likes.
        self._takers: dict[int, Consumer] = {}
        self._queues: dict[Consumer, list[int]] = {}
        self._waiting = 0

    @property
    def full(self) -> bool:
        """Tell whether no more may wait."""
        return self._waiting >= WAITING

    def taker(self, metadata: pb.MessageMetadata, consumer: Consumer) -> Consumer:
        """Return who is to get an entry: the consumer, but for chunks that belong to another."""
        if metadata.num_chunks_from_msg <= 1:
            return consumer
        message = hash(metadata.uuid)
        taker = self._takers.pop(message, consumer)
        if metadata.chunk_id < metadata.num_chunks_from_msg - 1:
            self._takers[message] = taker
            if len(self._takers) > KEPT:
                del self._takers[next(iter(self._takers))]
        return taker

    def wait(self, consumer: Consumer, entry: int) -> None:
        """Keep a chunk until its consumer can take it."""
        heappush(self._queues.setdefault(consumer, []), entry)
        self._waiting += 1

    def waits_for(self, consumer: Consumer) -> bool:
        """Tell whether chunks wait for this consumer."""
        return consumer in self._queues

    def queues(self) -> list[tuple[Consumer, list[int]]]:
        """Return the chunks that wait, the first of a consumer in front; `sent` takes it out."""
        return list(self._queues.items())

    def sent(self, consumer: Consumer) -> None:
        """Forget the first chunk that waits for a consumer."""
        queue = self._queues[consumer]
        heappop(queue)
        self._waiting -= 1
        if not queue:
            del self._queues[consumer]

    def gone(self, consumer: Consumer) -> list[int]:
        """Forget a consumer; return what waited for it."""
        self._takers = {uuid: who for uuid, who in self._takers.items() if who is not consumer}
        waited = self._queues.pop(consumer, [])
        self._waiting -= len(waited)
        return waited
