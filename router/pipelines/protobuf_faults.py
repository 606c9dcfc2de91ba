"""Which field of a Protobuf message cannot be read, of which the parser says nothing.

The fields of a message stand one after the other, and each is a message by itself: the first that
the parser does not take is the one. Only what is bad already is looked at, and of many fields the
first ones: a value of millions would take seconds.
"""

from __future__ import annotations

from typing import Final

from google.protobuf.descriptor import Descriptor
from google.protobuf.message import DecodeError
from google.protobuf.message_factory import GetMessageClass

# As Protobuf has it.
MAX_DEPTH: Final = 100
MAX_FIELDS: Final = 10_000
_VARINT: Final = 0
_LENGTH_DELIMITED: Final = 2
_GROUP: Final = 3
_GROUP_END: Final = 4
_FIXED: Final = {1: 8, 5: 4}
_MAX_VARINT_BYTES: Final = 10


def unreadable_field(kind: Descriptor, data: bytes, depth: int = MAX_DEPTH) -> str:
    """Return the first field that cannot be read, as in `order.price`; nothing: it is none.

    Nothing also: it is behind the first MAX_FIELDS fields.
    """
    parse = GetMessageClass(kind).FromString
    at = 0
    for _ in range(MAX_FIELDS):
        if at >= len(data):
            break
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
    if wire_type == _GROUP:
        return at, _group_end(data, at)
    return at, at + _FIXED[wire_type] if wire_type in _FIXED else len(data)


def _group_end(data: bytes, at: int) -> int:
    """Return where a group ends, which has no length: behind the tag that says so.

    The end of the data, if that does not come among the first MAX_FIELDS tags.
    """
    depth = 1
    for _ in range(MAX_FIELDS):
        if at >= len(data):
            break
        tag, at = _varint(data, at)
        wire_type = tag & 7
        if wire_type not in {_GROUP, _GROUP_END}:
            at = _content(wire_type, data, at)[1]
            continue
        depth += 1 if wire_type == _GROUP else -1
        if not depth:
            return at
    return len(data)


def _varint(data: bytes, at: int) -> tuple[int, int]:
    """Return a number and where it ends, behind the data: it is cut short."""
    number = 0
    for place, byte in enumerate(data[at : at + _MAX_VARINT_BYTES]):
        number |= (byte & 0x7F) << 7 * place
        if byte < 0x80:
            return number, at + place + 1
    return number, len(data) + 1
