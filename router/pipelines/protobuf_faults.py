"""Which field of a Protobuf message cannot be read, of which the parser says nothing.

The fields of a message stand one after the other, and each is a message by itself: the first that
the parser does not take is the one. Only what is bad already is looked at.
"""

from __future__ import annotations

from typing import Final

from google.protobuf.descriptor import Descriptor
from google.protobuf.message import DecodeError
from google.protobuf.message_factory import GetMessageClass

# As Protobuf has it.
MAX_DEPTH: Final = 100
_VARINT: Final = 0
_LENGTH_DELIMITED: Final = 2
_FIXED: Final = {1: 8, 5: 4}
_MAX_VARINT_BYTES: Final = 10


def unreadable_field(kind: Descriptor, data: bytes, depth: int = MAX_DEPTH) -> str:
    """Return the first field that cannot be read, as in `order.price`; nothing: it is none."""
    parse = GetMessageClass(kind).FromString
    at = 0
    while at < len(data):
        tag, within = _varint(data, at)
        field = kind.fields_by_number.get(tag >> 3)
        name = "" if field is None else field.name
        content, end = _content(tag & 7, data, within)
        if end > len(data):
            return name
        try:
            parse(data[at:end])
        except DecodeError:
            if field is None or field.message_type is None or content == end or not depth:
                return name
            inner = unreadable_field(field.message_type, data[content:end], depth - 1)
            return f"{name}.{inner}" if inner else name
        at = end
    return ""


def _content(wire_type: int, data: bytes, at: int) -> tuple[int, int]:
    """Return where the content of a field begins and ends, behind the data: it is cut short."""
    if wire_type == _VARINT:
        return at, _varint(data, at)[1]
    if wire_type == _LENGTH_DELIMITED:
        size, at = _varint(data, at)
        return at, at + size
    # Groups, which have no length, go to the end.
    return at, at + _FIXED[wire_type] if wire_type in _FIXED else len(data)


def _varint(data: bytes, at: int) -> tuple[int, int]:
    """Return a number and where it ends, behind the data: it is cut short."""
    number = 0
    for place, byte in enumerate(data[at : at + _MAX_VARINT_BYTES]):
        number |= (byte & 0x7F) << 7 * place
        if byte < 0x80:
            return number, at + place + 1
    return number, len(data) + 1
