"""What follows the command in SEND and MESSAGE: broker entry metadata, checksum, metadata, body."""

from __future__ import annotations

import re
import struct
from struct import Struct
from typing import Final, NamedTuple

from crc32c import crc32c
from google.protobuf.message import DecodeError

from router.wire import ProtocolError
from router.wire.pulsar.pulsar_pb2 import BrokerEntryMetadata, MessageMetadata
from router.wire.pulsar.strict import (
    SMALL,
    SOUND,
    TEXT_SOUND,
    UNPROVEN,
    StrictReader,
    incomplete,
)

# [0x0e02 u16][size u32][BrokerEntryMetadata] [0x0e01 u16][CRC32-C u32] [size u32][MessageMetadata]
# [body]; the first two groups are optional. The checksum covers all that follows it, so a broker
# passes it on unchanged. A size can not be mistaken for one of the magic numbers: it would have to
# be over 230 MB.

BROKER_ENTRY_MAGIC: Final = 0x0E02
CHECKSUM_MAGIC: Final = 0x0E01

_SIZE: Final = Struct(">I")
_TAGGED: Final = Struct(">HI")
_CHECKED: Final = Struct(">HII")
# What is no longer is copied in less time than it takes to make a view of it.
_SHORT: Final = 4_096

# Of metadata: the tag of the producer's name; the sequence id, the time of publishing, and whatever
# other numbers come next, each a tag and a number, then the version of a schema as brokers have it,
# so that the match ends where a field ends.
_NAME: Final = 0x0A
_NUMBER: Final = rb"[\x80-\xff]{0,9}[\x00-\x7f]"
_NUMBERS: Final = re.compile(
    rb"\x10%b\x18%b(?:[\x20\x28\x30\x38\x40\x48\x50\x58\x60\x68\x70\x78]%b)*"
    rb"(?:\x82\x01\x08.{8})?" % ((_NUMBER,) * 3),
    re.DOTALL,
)


def _prove(data: bytes) -> int:
    """Tell what is certain of metadata whose fields come in order, as all clients write them.

    A name in ASCII and numbers need no search for text that is none. If ASCII alone is left behind
    them, then all text there is text; if nothing is left, then no message in there lacks a field.
    """
    if len(data) < 2 or data[0] != _NAME or data[1] > 0x7F:
        return UNPROVEN
    name_end = 2 + data[1]
    numbers = _NUMBERS.match(data, name_end)
    if numbers is None or not data[2:name_end].isascii():
        return UNPROVEN
    end = numbers.end()
    if end == len(data):
        return SOUND
    return TEXT_SOUND if data[end:].isascii() else UNPROVEN


_METADATA: Final = StrictReader(MessageMetadata, _prove)
_BROKER_ENTRY: Final = StrictReader(BrokerEntryMetadata)


class Payload(NamedTuple):
    """The parts of a payload; `checksum_ok` is None where the sender gave no checksum."""

    broker_entry: BrokerEntryMetadata | None
    checksum_ok: bool | None
    metadata: MessageMetadata
    body: memoryview

    def stored_metadata(self) -> MessageMetadata:
        """Return the metadata with the broker's time of storing as the time of publishing.

        It is the publisher's own time if the broker does not say when it stored the entry.
        """
        found = self.broker_entry
        if found is not None and found.HasField("broker_timestamp"):
            self.metadata.publish_time = found.broker_timestamp
        return self.metadata


def _layout(view: memoryview) -> tuple[int, int | None, int]:
    """Return where broker entry metadata ends, the checksum, and where the metadata's size is."""
    broker_entry_end, start, checksum = 0, 0, None
    try:
        magic, number = _TAGGED.unpack_from(view)
        if magic == BROKER_ENTRY_MAGIC:
            broker_entry_end = start = _TAGGED.size + number
            magic, number = _TAGGED.unpack_from(view, start)
        if magic == CHECKSUM_MAGIC:
            checksum = number
            start += _TAGGED.size
    except struct.error as error:
        raise ProtocolError("payload cut short") from error
    return broker_entry_end, checksum, start


def _body_start(view: memoryview, start: int) -> int:
    if len(view) - start < _SIZE.size:
        raise ProtocolError("payload cut short")
    body: int = start + _SIZE.size + _SIZE.unpack_from(view, start)[0]
    if body > len(view):
        raise ProtocolError("metadata larger than its payload")
    return body


def read_sound(payload: bytes) -> MessageMetadata | None:
    """Return the metadata of a payload that is checksum, metadata and body, and nothing else.

    None of any other, and if the checksum does not fit: `split_payload` tells what there is. Raises
    ProtocolError if what fits its checksum is not what it should be.
    """
    if len(payload) < _CHECKED.size:
        return None
    magic, checksum, size = _CHECKED.unpack_from(payload)
    body = _CHECKED.size + size
    if magic != CHECKSUM_MAGIC or body > len(payload):
        return None
    # A short payload is copied in less time than a view is made.
    covered = (
        payload[_TAGGED.size :] if len(payload) < _SHORT else memoryview(payload)[_TAGGED.size :]
    )
    if crc32c(covered) != checksum:
        return None
    metadata = payload[_CHECKED.size : body]
    # Most of what clients send is proven, and is not read by way of the strict reader.
    proof = _prove(metadata) if len(metadata) <= SMALL else UNPROVEN
    if proof == UNPROVEN:
        return _METADATA.read(metadata)
    try:
        found = MessageMetadata.FromString(metadata)
    except DecodeError as error:
        raise ProtocolError("MessageMetadata cannot be parsed") from error
    if proof < SOUND and not found.IsInitialized():
        raise incomplete(found)
    return found


def split_payload(payload: bytes | memoryview) -> Payload:
    """Take a payload apart without copying the body; raise ProtocolError."""
    view = memoryview(payload)
    broker_entry_end, checksum, start = _layout(view)
    body = _body_start(view, start)
    return Payload(
        _read_broker_entry(view, broker_entry_end) if broker_entry_end else None,
        None if checksum is None else crc32c(view[start:]) == checksum,
        _METADATA.read(view[start + _SIZE.size : body]),
        view[body:],
    )


def read_broker_entry(payload: bytes | memoryview) -> BrokerEntryMetadata | None:
    """Return what a broker put in front of the entry, if it did."""
    view = memoryview(payload)
    return _read_broker_entry(view, _layout(view)[0])


def _read_broker_entry(view: memoryview, end: int) -> BrokerEntryMetadata | None:
    return _BROKER_ENTRY.read(view[_TAGGED.size : end]) if end else None


def read_metadata(payload: bytes | memoryview) -> MessageMetadata:
    """Return the metadata of a payload, whose checksum is not looked at."""
    view = memoryview(payload)
    _, _, start = _layout(view)
    return _METADATA.read(view[start + _SIZE.size : _body_start(view, start)])


def verify_checksum(payload: bytes | memoryview) -> bool:
    """Return whether the checksum fits; True where the sender gave none, as Pulsar has it.

    What the checksum covers is not looked at: damage there is a wrong checksum, no ProtocolError.
    """
    view = memoryview(payload)
    _, checksum, start = _layout(view)
    return checksum is None or crc32c(view[start:]) == checksum


def join_payload(
    metadata: MessageMetadata, body: bytes, broker_entry: BrokerEntryMetadata | None = None
) -> bytes:
    """Return the payload with its checksum."""
    head = metadata.SerializeToString()
    size = _SIZE.pack(len(head))
    # Three short runs of the checksum cost less than joining the pieces once more for a single one.
    checksum = crc32c(body, crc32c(head, crc32c(size)))
    prefix = b"" if broker_entry is None else broker_entry_prefix(broker_entry)
    return b"".join((prefix, _TAGGED.pack(CHECKSUM_MAGIC, checksum), size, head, body))


def broker_entry_prefix(broker_entry: BrokerEntryMetadata) -> bytes:
    """Return what a broker puts in front of a stored payload for clients that understand it."""
    head = broker_entry.SerializeToString()
    return _TAGGED.pack(BROKER_ENTRY_MAGIC, len(head)) + head
