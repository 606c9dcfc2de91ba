"""Strings as Java's ObjectOutputStream writes them (Java Object Serialization Specification, 6)."""

from __future__ import annotations

from typing import Final

_MAGIC: Final = b"\xac\xed\x00\x05"
_NULL: Final = 0x70
_STRING: Final = 0x74
_LONG_STRING: Final = 0x7C


def string(data: bytes) -> str | None:
    """Return the string that is all of a stream, None for Java's null and for no data at all.

    Data without Java's magic number is taken for plain UTF-8, written by hand. Raises
    ValueError for other objects, for a stream that breaks off, and for text that is none.
    """
    if not data:
        return None
    if not data.startswith(_MAGIC[:2]):
        return data.decode("utf-8")
    kind = data[4] if data.startswith(_MAGIC) and len(data) > 4 else None
    if kind == _NULL and len(data) == 5:
        return None
    if kind not in {_STRING, _LONG_STRING}:
        raise ValueError("it is a Java object other than a string")
    body = 7 if kind == _STRING else 13
    length = int.from_bytes(data[5:body], "big")
    if len(data) != body + length:
        raise ValueError(f"it has {len(data)} bytes, and says {body + length}")
    return modified_utf8(data[body:])


def modified_utf8(data: bytes) -> str:
    """Decode what DataOutput.writeUTF writes: NUL in two bytes, surrogates in three each.

    Raises ValueError.
    """
    halves = data.replace(b"\xc0\x80", b"\x00").decode("utf-8", "surrogatepass")
    return halves.encode("utf-16-be", "surrogatepass").decode("utf-16-be")
