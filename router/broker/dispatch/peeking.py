"""Owns a cheap look into entries: only those that may be special to delivery are parsed.

To parse every entry would cost more than all else that delivery does with it. But a field of the
metadata begins with two bytes that are known, so an entry without these bytes does not have it; one
in which they stand by chance is parsed for nothing.
"""

from __future__ import annotations

from typing import Final

from router.wire.pulsar import ProtocolError, read_metadata
from router.wire.pulsar import pulsar_pb2 as pb

# deliver_at_time and num_chunks_from_msg, fields 19 and 27, are numbers, and written by protobuf as
# their own number shifted by three, in groups of seven bits.
_DELIVER_AT: Final = b"\x98\x01"
_CHUNKS: Final = b"\xd8\x01"

_CHECKSUM: Final = b"\x0e\x01"
_HEAD: Final = 10


def special(payload: bytes) -> pb.MessageMetadata | None:
    """Return the metadata of an entry if it may have a time of delivery, or be a chunk."""
    # Checksum and the metadata's size come first; where there is no checksum, it is not worth it.
    end = _HEAD + int.from_bytes(payload[6:_HEAD], "big")
    if (
        payload.find(_DELIVER_AT, _HEAD, end) < 0
        and payload.find(_CHUNKS, _HEAD, end) < 0
        and payload.startswith(_CHECKSUM)
    ):
        return None
    try:
        return read_metadata(payload)
    except ProtocolError:
        # Stored by somebody who knows better: an entry like any other.
        return None
