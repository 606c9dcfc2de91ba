"""Messages to payloads and back: one message as a plain entry, several as a batch."""

from __future__ import annotations

from base64 import b64decode, b64encode
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import lru_cache
from itertools import repeat
from struct import Struct
from typing import Any, Final, NamedTuple

from google.protobuf.unknown_fields import UnknownFieldSet

from router.model import NO_PROPERTIES, Message
from router.wire import ProtocolError
from router.wire.pulsar.compression import compress, decompress
from router.wire.pulsar.payloads import join_payload, split_payload
from router.wire.pulsar.pulsar_pb2 import (
    NONE,
    CompressionType,
    KeyValue,
    MessageMetadata,
    SingleMessageMetadata,
)
from router.wire.pulsar.strict import StrictReader

# A batch is, for each message, [size u32][SingleMessageMetadata][value]; it is compressed as a
# whole. The protobuf runtime takes about 2 microseconds for a SingleMessageMetadata either way, ten
# times what the rest of a message costs. So the two shapes that nearly all messages have, a value
# alone and a key with a value, are written and read by hand; everything else goes through protobuf.
# The tests hold the two ways together: same bytes out, same messages in.

# An entry of a few KB could else unpack to a million messages.
MAX_BATCH: Final = 100_000

_SIZE: Final = Struct(">I")
_KEYED: Final = Struct(">IcB")
KEY_TAG: Final = b"\x12"
_COMPRESSION_FIELD: Final = MessageMetadata.DESCRIPTOR.fields_by_name["compression"].number
_SINGLE: Final = StrictReader(SingleMessageMetadata)

# Heads that say the size of a value and nothing else, as they were met, with that size.
plain_heads: Final[dict[bytes, int]] = {}
_PLAIN_HEADS: Final = 4096

# A tuple class is made through Python code; here it is made in loops that run none.
_new: Final[Callable[..., Any]] = tuple.__new__

_GONE: Final = SingleMessageMetadata(payload_size=0, compacted_out=True).SerializeToString()
_COMPACTED_OUT: Final = _SIZE.pack(len(_GONE)) + _GONE

Described = tuple[bytes | None, Mapping[str, str], int | None]
Row = tuple[bytes, bytes | None, Mapping[str, str], int | None, int]
Header = MessageMetadata | SingleMessageMetadata

# So the producers are called that number their entries, rather than what somebody sends.
OURS: Final = "router-"


class OversizedError(ProtocolError):
    """A body is larger without its compression than it may be."""


class Unpacked(NamedTuple):
    """A message as it came; `batch_index` is -1 outside batches, times are ms since 1970.

    `publish_time` is when the broker stored it, if the broker says so, as `stored_metadata` has it.
    `opaque`: the value is not what was sent, but something that only its consumer can undo: an
    encrypted body, or one chunk of a larger message.
    """

    message: Message
    batch_index: int
    publish_time: int
    opaque: bool = False


def pack(
    messages: Sequence[Message],
    producer_name: str,
    sequence_id: int,
    publish_time_ms: int,
    compression: CompressionType = NONE,
) -> bytes:
    """Return the payload that stores these messages as one entry.

    A key that is UTF-8 is written as text, any other in base64. As official clients do, a batch
    carries the key of its first message. An entry has one time of delivery, one version of a schema
    and one list of clusters: those of its first message, which the others must share
    (`shared_header`).
    """
    metadata = MessageMetadata(
        producer_name=producer_name, sequence_id=sequence_id, publish_time=publish_time_ms
    )
    first = messages[0]
    if first.schema_version:
        metadata.schema_version = first.schema_version
    if first.deliver_at is not None:
        metadata.deliver_at_time = first.deliver_at
    if first.replicate_to:
        metadata.replicate_to.extend(first.replicate_to)
    if is_batch(messages, producer_name):
        metadata.num_messages_in_batch = len(messages)
        _write_key(metadata, first.key)
        body = b"".join(write_batch(messages))
    else:
        _describe(metadata, first)
        body = first.value
    if compression != NONE:
        metadata.compression = compression
        metadata.uncompressed_size = len(body)
        body = compress(compression, body)
    return join_payload(metadata, body)


def is_batch(messages: Sequence[Message], producer_name: str) -> bool:
    """Return whether these are stored as a batch: several, or one that has a number of its own.

    So is one by a producer whose numbers would be taken for the sender's.
    """
    one = len(messages) == 1 and messages[0].sequence is None
    return not (one and producer_name.startswith(OURS))


def shared_header(message: Message) -> tuple[int | None, bytes, tuple[str, ...]]:
    """Return what all messages of an entry have in common: messages that differ are apart."""
    return message.deliver_at, message.schema_version, message.replicate_to


def unpack(payload: bytes | memoryview, limit: int, ack_set: Sequence[int] = ()) -> list[Unpacked]:
    """Return the messages of an entry, without those that `ack_set` says are acknowledged.

    `ack_set` is the protocol's: 64-bit words, lowest message first, whose set bits are not yet
    acknowledged; empty means that none is. A body that would exceed `limit` bytes when decompressed
    is refused with OversizedError. A null key becomes none. Entries that are no batch carry the
    number of their message as their own, but for those of the router's producers.
    Raises ProtocolError for all that is not a whole entry, a wrong checksum included.
    """
    entry = split_payload(payload)
    metadata = entry.stored_metadata()
    if entry.checksum_ok is False:
        raise ProtocolError("checksum mismatch")
    if metadata.encryption_keys or metadata.num_chunks_from_msg > 1:
        return [_plain(metadata, bytes(entry.body), opaque=True)]
    body = inflate(metadata, entry.body, limit)
    if not metadata.HasField("num_messages_in_batch"):
        return [_plain(metadata, body, opaque=False)]
    unpacked = read_batch(body, metadata)
    return _left_over(unpacked, ack_set)


def keep_messages(payload: bytes, live: int, limit: int) -> bytes:
    """Return a batch with some of its messages; each other one is marked as compacted out.

    `live` has a bit for each message, the first in the lowest. Places and compression stay. Raises
    ProtocolError if it is no batch that can be taken apart, or a body would exceed `limit` bytes.
    """
    entry = split_payload(payload)
    metadata = entry.metadata
    opaque = metadata.encryption_keys or metadata.num_chunks_from_msg > 1
    if opaque or entry.broker_entry is not None or entry.checksum_ok is False:
        raise ProtocolError("no entry that can be taken apart")
    body = inflate(metadata, entry.body, limit)
    kept, at = [], 0
    for index in range(metadata.num_messages_in_batch):
        begin = at
        start = begin + _SIZE.size
        if start > len(body):
            raise ProtocolError("batch cut short")
        value_at = start + _SIZE.unpack_from(body, begin)[0]
        at = value_at + read_head(body[start:value_at])[0]
        kept.append(body[begin:at] if live >> index & 1 else _COMPACTED_OUT)
    if not kept or at != len(body):
        raise ProtocolError("a batch is not of the size of its messages")
    body = b"".join(kept)
    if metadata.compression != NONE:
        metadata.uncompressed_size = len(body)
        body = compress(metadata.compression, body)
    return join_payload(metadata, body)


def write_batch(messages: Iterable[Message]) -> Iterator[bytes]:
    """Yield the pieces of a batch's body: a head and a value for each message."""
    for message in messages:
        value, key, properties, event_time, _, sequence, _, null, _ = message
        if properties or event_time is not None or sequence is not None or null:
            yield _timed_head(message)
        elif key is None:
            yield _value_head(len(value))
        elif len(key) < 0x80 and key.isascii():
            tail = _value_size(len(value))
            yield _KEYED.pack(2 + len(key) + len(tail), KEY_TAG, len(key)) + key + tail
        else:
            yield write_single(message)
        yield value


def _timed_head(message: Message) -> bytes:
    """Return the head of a message with an event time, as Kafka's producers give all of theirs."""
    value, key, properties, event_time, _, sequence, _, null, _ = message
    if event_time is None or properties or null or sequence is not None:
        return write_single(message)
    tail = _value_size(len(value)) + _event_time(event_time)
    if key is None:
        return _SIZE.pack(len(tail)) + tail
    if len(key) < 0x80 and key.isascii():
        return _KEYED.pack(2 + len(key) + len(tail), KEY_TAG, len(key)) + key + tail
    return write_single(message)


def write_single(message: Message) -> bytes:
    """Return the head of one message in a batch, by way of protobuf."""
    single = SingleMessageMetadata(payload_size=len(message.value))
    _describe(single, message)
    if message.sequence is not None:
        single.sequence_id = message.sequence
    head = single.SerializeToString()
    return _SIZE.pack(len(head)) + head


@lru_cache(4096)
def _value_head(size: int) -> bytes:
    tail = _value_size(size)
    return _SIZE.pack(len(tail)) + tail


@lru_cache(4096)
def _value_size(size: int) -> bytes:
    return SingleMessageMetadata(payload_size=size).SerializeToString()


@lru_cache(4096)
def _event_time(when: int) -> bytes:
    return SingleMessageMetadata(payload_size=0, event_time=when).SerializeToString()[2:]


def _describe(header: Header, message: Message) -> None:
    _write_key(header, message.key)
    if message.properties:
        header.properties.extend(KeyValue(key=k, value=v) for k, v in message.properties.items())
    if message.event_time is not None:
        header.event_time = message.event_time
    if message.null:
        header.null_value = True


def _write_key(header: Header, key: bytes | None) -> None:
    if key is None:
        return
    try:
        header.partition_key = key.decode()
    except UnicodeDecodeError:
        header.partition_key = b64encode(key).decode()
        header.partition_key_b64_encoded = True


def read_batch(body: bytes, metadata: MessageMetadata) -> list[Unpacked]:
    """Return the messages of a batch's body, without those that compaction took out."""
    count = metadata.num_messages_in_batch
    if not 0 < count <= MAX_BATCH:
        raise ProtocolError(f"batch of {count} messages")
    rows: list[Row] = []
    numbered: dict[int, tuple[int | None, bool]] = {}
    at, end = 0, len(body)
    for index in range(count):
        start = at + _SIZE.size
        if start > end:
            raise ProtocolError("batch cut short")
        value_at = start + _SIZE.unpack_from(body, at)[0]
        head = body[start:value_at]
        key = single = None
        size = plain_heads.get(head)
        if size is None:
            size, key, single = read_head(head)
        at = value_at + size
        if not value_at <= at <= end:
            raise ProtocolError("message larger than its batch")
        if single is None:
            rows.append((body[value_at:at], key, NO_PROPERTIES, None, index))
        elif not single.compacted_out:
            if single.null_value or single.HasField("sequence_id"):
                numbered[len(rows)] = _number(single), single.null_value
            rows.append((body[value_at:at], *described(single), index))
    if at != end:
        raise ProtocolError("bytes after the last message of a batch")
    return _build(rows, numbered, metadata)


def _build(
    rows: list[Row], numbered: Mapping[int, tuple[int | None, bool]], metadata: MessageMetadata
) -> list[Unpacked]:
    """Return Unpacked(Message(...), ...) for each row, at a quarter of what saying so costs."""
    if not rows:
        return []
    *columns, indexes = zip(*rows, strict=True)
    sequences: Iterable[int | None] = repeat(None)
    nulls: Iterable[bool] = repeat(False)
    if numbered:
        sequences, nulls = zip(
            *(numbered.get(place, (None, False)) for place in range(len(rows))), strict=True
        )
    deliver_at, version = repeat(_deliver_at(metadata)), repeat(metadata.schema_version)
    clusters = repeat(_clusters(metadata))
    columns_of_all = zip(*columns, deliver_at, sequences, version, nulls, clusters, strict=False)
    messages = map(_new, repeat(Message), columns_of_all)
    unpacked = zip(messages, indexes, repeat(metadata.publish_time), repeat(False), strict=False)
    return list(map(_new, repeat(Unpacked), unpacked))


def read_head(head: bytes) -> tuple[int, bytes | None, SingleMessageMetadata | None]:
    """Return the size of the value with its key, or with all else that there is to say."""
    if head[:1] == KEY_TAG and len(head) > 2:
        end = 2 + head[1]
        size = plain_heads.get(head[end:])
        key = head[2:end]
        if size is not None and head[1] < 0x80 and key.isascii():
            return size, key, None
    single = _SINGLE.read(head)
    size = single.payload_size
    if len(plain_heads) >= _PLAIN_HEADS:
        plain_heads.clear()
    # True of any message with a value of this size, whatever else this one's head says.
    plain_heads[_value_size(size)] = size
    return size, None, single


def _plain(metadata: MessageMetadata, value: bytes, *, opaque: bool) -> Unpacked:
    message = Message(
        value,
        *described(metadata),
        _deliver_at(metadata),
        # Our own producers count entries: what a message's sender counted is in a batch.
        None if metadata.producer_name.startswith(OURS) else metadata.sequence_id,
        metadata.schema_version,
        metadata.null_value,
        _clusters(metadata),
    )
    return Unpacked(message, -1, metadata.publish_time, opaque)


def _deliver_at(metadata: MessageMetadata) -> int | None:
    return metadata.deliver_at_time if metadata.HasField("deliver_at_time") else None


def _clusters(metadata: MessageMetadata) -> tuple[str, ...]:
    return tuple(metadata.replicate_to) if metadata.replicate_to else ()


def _number(single: SingleMessageMetadata) -> int | None:
    return single.sequence_id if single.HasField("sequence_id") else None


def _left_over(unpacked: list[Unpacked], ack_set: Sequence[int]) -> list[Unpacked]:
    if not ack_set:
        return unpacked
    return [one for one in unpacked if is_set(ack_set, one.batch_index)]


def is_set(ack_set: Sequence[int], index: int) -> bool:
    """Return whether an ack set has the bit of a message: it is not acknowledged."""
    return index < 64 * len(ack_set) and bool(ack_set[index >> 6] >> (index & 63) & 1)


def inflate(metadata: MessageMetadata, body: memoryview, limit: int) -> bytes:
    """Return a body as it was before compression; raise ProtocolError, also above the limit."""
    kind = metadata.compression
    if kind == NONE:
        # A compression of the future is an unknown value, and the field then reads as absent.
        unknown = UnknownFieldSet(metadata)
        count = len(unknown)
        if count and any(unknown[i].field_number == _COMPRESSION_FIELD for i in range(count)):
            raise ProtocolError("compression is unknown")
        return bytes(body)
    size = metadata.uncompressed_size
    if size > limit:
        raise OversizedError(f"body of {size} bytes, allowed are {limit}")
    plain = decompress(kind, body, size)
    if len(plain) != size:
        raise ProtocolError("body is not of the size that its metadata promises")
    return plain


def described(header: Header) -> Described:
    """Return what a message has besides its value, in the order of Message's fields."""
    properties: Mapping[str, str] = NO_PROPERTIES
    if header.properties:
        properties = {item.key: item.value for item in header.properties}
    event_time = header.event_time if header.HasField("event_time") else None
    return _key(header), properties, event_time


def _key(header: Header) -> bytes | None:
    if not header.HasField("partition_key") or header.null_partition_key:
        return None
    key = header.partition_key
    if not header.partition_key_b64_encoded:
        return key.encode()
    try:
        return b64decode(key, validate=True)
    except ValueError as error:
        raise ProtocolError("key is not the base64 that it should be") from error
