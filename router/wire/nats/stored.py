"""Owns the payload of a stored entry of format `nats`: messages with subject, headers and payload.

A byte that says how the rest is written, then for each message the sizes of its three parts
(unsigned, 2, 4 and 4 bytes, big-endian) and the parts. Who the answer was for is not stored. A
message without a subject has the one of the topic that holds it.
"""

from __future__ import annotations

from collections.abc import Sequence
from struct import Struct
from typing import Any, Final

from router.wire import ProtocolError
from router.wire.nats.message import NatsMessage

_FORM: Final = b"\x01"
_SIZES: Final = Struct(">HII")
_SIZES_BYTES: Final = _SIZES.size
_new: Final[Any] = tuple.__new__


def pack(messages: Sequence[NatsMessage]) -> bytes:
    """Return the payload of an entry; raise ValueError for a subject of 65,536 bytes or more."""
    parts = [_FORM]
    size = _SIZES.pack
    for text, _, headers, payload in messages:
        subject = text.encode()
        if len(subject) > 0xFFFF:
            raise ValueError(f"a subject of {len(subject)} bytes")
        parts += (size(len(subject), len(headers), len(payload)), subject, headers, payload)
    return b"".join(parts)


def unpack(data: bytes) -> list[NatsMessage]:
    """Return the messages of an entry, at least one; raise ProtocolError."""
    found: list[NatsMessage] = []
    at, end = 1, len(data)
    while at < end or not found:
        message, at = _message(data, at)
        found.append(message)
    return found


def first(data: bytes) -> NatsMessage:
    """Return the first message of an entry; raise ProtocolError."""
    return _message(data, 1)[0]


def count(data: bytes) -> int:
    """Return how many messages an entry holds; raise ProtocolError as `unpack` does."""
    if data[:1] != _FORM:
        raise ProtocolError("no messages of NATS")
    number = 0
    at, end = 1, len(data)
    while at < end or not number:
        if at + _SIZES_BYTES > end:
            raise ProtocolError("an entry of NATS is cut short")
        at += _SIZES_BYTES + sum(_SIZES.unpack_from(data, at))
        number += 1
    if at != end:
        raise ProtocolError("an entry of NATS is cut short")
    return number


def _message(data: bytes, at: int) -> tuple[NatsMessage, int]:
    """Return the message that begins at a place, and where it ends; raise ProtocolError."""
    start = at + _SIZES_BYTES
    if start > len(data) or data[0] != _FORM[0]:
        raise ProtocolError("no messages of NATS")
    subject_size, headers_size, payload_size = _SIZES.unpack_from(data, at)
    headers = start + subject_size
    payload = headers + headers_size
    end = payload + payload_size
    if end > len(data):
        raise ProtocolError("an entry of NATS is cut short")
    try:
        subject = str(data[start:headers], "utf-8")
    except UnicodeDecodeError as error:
        raise ProtocolError("a subject is no UTF-8") from error
    return _new(NatsMessage, (subject, "", data[headers:payload], data[payload:end])), end
