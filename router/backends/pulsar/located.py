"""Finding a batch by its producer's name and its number, in what a partition holds.

Apache Pulsar says of a duplicate neither where it is nor how many messages it has, and a broker of
ours remembers producers for `dedup.window` only: but each entry says who sent it, under which
number.
"""

from __future__ import annotations

from router.backends import Receipt
from router.backends.pulsar.entry_stream import open_stream
from router.backends.pulsar.extents import EntryPosition
from router.backends.pulsar.routes import Routes
from router.clocks import seconds_left
from router.errors import BackendTimeoutError
from router.model import Position, TopicName
from router.wire.pulsar import ProtocolError, read_metadata


def find_batch(
    routes: Routes,
    topic: TopicName,
    partition: int,
    named: tuple[str, int],
    start: EntryPosition,
    deadline: float,
) -> Receipt | None:
    """Return where a batch is stored, from a place on, which may be in part; None: it is not there.

    `named`: the producer and its number. Raises TopicNotFoundError, BackendUnavailableError,
    BackendTimeoutError.
    """
    stream = open_stream(routes, topic, partition, start, deadline)
    parts: list[Receipt] = []
    try:
        end = stream.end(deadline)
        if end is None or end < start:
            return None
        while True:
            entry = stream.next(seconds_left(deadline))
            if entry is None:
                raise BackendTimeoutError("the entries of the target do not come in time")
            place = entry.place
            part, messages = _part(entry.payload, place, partition, named)
            stream.took(messages, len(entry.payload))
            if part is not None:
                parts.append(part)
            if place >= end:
                return Receipt.joined(parts) if parts else None
    finally:
        stream.close()


def _part(
    payload: bytes, place: EntryPosition, partition: int, named: tuple[str, int]
) -> tuple[Receipt | None, int]:
    """Return the receipt of an entry that is of the batch, and how many messages it has."""
    try:
        metadata = read_metadata(payload)
    except ProtocolError:
        return None, 1
    count = max(1, metadata.num_messages_in_batch)
    name, number = named
    mine = metadata.producer_name == name or metadata.producer_name.startswith(f"{name}/")
    if not mine or metadata.sequence_id != number:
        return None, count
    alone = count == 1 and metadata.HasField("num_messages_in_batch")
    index, size = (0, 1) if alone else (-1, 0)
    return Receipt(Position(place.ledger, place.entry, partition, index, size), count), count
