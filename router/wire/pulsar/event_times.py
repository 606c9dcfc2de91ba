"""The latest event time of an entry, for what indexes entries: no object is made for a message."""

from __future__ import annotations

import re
import struct
from struct import Struct
from typing import Final

from router.wire import ProtocolError
from router.wire.pulsar.batches import KEY_TAG, MAX_BATCH, inflate, plain_heads, read_head
from router.wire.pulsar.payloads import split_payload
from router.wire.pulsar.pulsar_pb2 import MessageMetadata

_SIZE: Final = Struct(">I")
_KEY: Final = KEY_TAG[0]
_TAG: Final = b"\x28"
"""What an event time begins with in a batch; most batches have no such byte at all."""
_NUMBER: Final = rb"[\x80-\xff]{0,8}[\x00-\x7f]"
_TIMED: Final = re.compile(rb"\x18(%b)\x28(%b)" % ((_NUMBER,) * 2))
"""The head of a message, behind its key, that has a size and an event time."""
_MAX_TIME: Final = (1 << 63) - 1


def latest_event_time(payload: bytes, default: int, limit: int) -> int:
    """Return the latest event time of the messages of an entry; one without has the default.

    An entry whose messages only its consumer can read has the default, too. A body that would
    exceed `limit` bytes when decompressed is refused. Raises ProtocolError.
    """
    entry = split_payload(payload)
    metadata = entry.metadata
    if metadata.encryption_keys or metadata.num_chunks_from_msg > 1 or entry.checksum_ok is False:
        return default
    if not metadata.HasField("num_messages_in_batch"):
        return _time(metadata.event_time, default)
    body = inflate(metadata, entry.body, limit)
    if _TAG not in body:
        return default
    try:
        return _latest(body, metadata, default)
    except struct.error as error:
        raise ProtocolError("batch cut short") from error


def _latest(body: bytes, metadata: MessageMetadata, default: int) -> int:
    count, end, at, latest = metadata.num_messages_in_batch, len(body), 0, 0
    if not 0 < count <= MAX_BATCH:
        raise ProtocolError(f"batch of {count} messages")
    known, read_size = plain_heads.get, _SIZE.unpack_from
    for _ in range(count):
        start = at + 4
        value_at = start + read_size(body, at)[0]
        head = body[start:value_at]
        size, time = known(head), default
        if size is None:
            size, time = _read(head, default)
        at = value_at + size
        if not value_at <= at <= end:
            raise ProtocolError("message larger than its batch")
        if time > latest:  # noqa: PLR1730 - `max` takes three times as long
            latest = time
    return latest


def _read(head: bytes, default: int) -> tuple[int, int]:
    """Return the size of a message's value, and its time: 0 if compaction took it out."""
    start = 2 + head[1] if len(head) > 1 and head[0] == _KEY and head[1] < 0x80 else 0
    found = _TIMED.fullmatch(head, start)
    if found is not None:
        return _number(found[1]), _time(_number(found[2]), default)
    size, _key, single = read_head(head)
    if single is None:
        return size, default
    return size, 0 if single.compacted_out else _time(single.event_time, default)


def _time(event_time: int, default: int) -> int:
    return event_time if 0 < event_time <= _MAX_TIME else default


def _number(data: bytes) -> int:
    value = 0
    for byte in reversed(data):
        value = value << 7 | byte & 0x7F
    return value
