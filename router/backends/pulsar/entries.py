"""Decodes stored entries into messages; an entry that cannot be decoded is a message of bytes.

An entry that cannot be taken apart becomes one message of its bytes, with the property UNDECODED.
Failing was not taken: it would hold up the group for ever, over what one foreign producer wrote.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from typing import Final

from router.errors import ReadFailedError
from router.model import OVERSIZED, UNDECODED, Message
from router.wire.pulsar import (
    Columns,
    OversizedError,
    ProtocolError,
    Unpacked,
    index_of_first,
    read_broker_entry,
    read_metadata,
    split_payload,
    unpack,
    unpack_columns,
)

MAX_UNPACKED_BYTES: Final = 64 * 1024 * 1024

_OVERSIZED: Final = {UNDECODED: OVERSIZED}


def read_entry(
    payload: bytes, ack_set: Sequence[int], place: tuple[int, int], limit: int = MAX_UNPACKED_BYTES
) -> tuple[list[Unpacked], int]:
    """Return the messages of an entry, and for how many permits the broker sent it.

    One that is larger than the limit without its compression is one message, as `is_oversized`
    tells, and is not inflated. Raises ReadFailedError if it is not what its sender's checksum
    covers: asked again, the broker may have it whole.
    """
    try:
        unpacked = unpack(payload, limit, ack_set)
    except OversizedError:
        return _oversized(payload)
    except ProtocolError as error:
        return _undecoded(payload, place, error)
    size = unpacked[-1].batch_index + 1 if unpacked else 1
    opaque = unpacked and unpacked[0].opaque
    if ack_set or not unpacked or opaque:
        metadata = read_metadata(payload)
        size = max(size, metadata.num_messages_in_batch)
        if opaque:
            why = "encrypted" if metadata.encryption_keys else "chunk"
            unpacked = [_marked(one, why) for one in unpacked]
    return unpacked, max(1, size)


def is_oversized(unpacked: Sequence[Unpacked]) -> bool:
    """Return whether these are the one message that stands for an entry larger than the limit."""
    first = unpacked[0] if unpacked else None
    return first is not None and first.opaque and first.message.properties is _OVERSIZED


def _oversized(payload: bytes) -> tuple[list[Unpacked], int]:
    entry = split_payload(payload)
    message = Message(bytes(entry.body), None, _OVERSIZED)
    found = Unpacked(message, -1, entry.stored_metadata().publish_time, opaque=True)
    return [found], max(1, entry.metadata.num_messages_in_batch)


def read_columns(payload: bytes, ack_set: Sequence[int], place: tuple[int, int]) -> Columns:
    """Return the messages of an entry as `read_entry` does, column by column, nulls as None."""
    try:
        found = unpack_columns(payload, MAX_UNPACKED_BYTES)
    except ProtocolError:
        found = None  # what is said of it is said below
    if found is not None:
        return found.unacknowledged(ack_set)
    unpacked, size = read_entry(payload, ack_set, place)
    messages = [one.message for one in unpacked]
    return Columns(
        [one.batch_index for one in unpacked],
        [message.key for message in messages],
        [None if message.null else message.value for message in messages],
        [message.properties for message in messages],
        [message.event_time for message in messages],
        unpacked[0].publish_time if unpacked else 0,
        size,
        index_of_first(read_broker_entry(payload), size),
        messages[0].schema_version if messages else b"",
    )


def _undecoded(
    payload: bytes, place: tuple[int, int], reason: ProtocolError
) -> tuple[list[Unpacked], int]:
    """Return an entry as one message of its bytes: its body where that is known, else all of it."""
    size = 1
    found = Unpacked(Message(bytes(payload), None, {UNDECODED: "entry"}), -1, 0, opaque=True)
    with suppress(ProtocolError):
        entry = split_payload(payload)
        if entry.checksum_ok is False:
            raise ReadFailedError(f"a stored entry cannot be read: {reason}") from reason
        size = max(1, entry.metadata.num_messages_in_batch)
        body = Message(bytes(entry.body), None, {UNDECODED: "body"})
        found = Unpacked(body, -1, entry.stored_metadata().publish_time, opaque=True)
    # Takes a third of the time in which Spark's workers import all of this; damage is rare.
    import structlog  # noqa: PLC0415

    log = structlog.get_logger(__name__)
    log.warning("entry-undecoded", ledger=place[0], entry=place[1], reason=str(reason))
    return [found], size


def _marked(one: Unpacked, why: str) -> Unpacked:
    """Return a message that says why its value is not what was sent."""
    properties = {**one.message.properties, UNDECODED: why}
    return one._replace(message=one.message._replace(properties=properties))
