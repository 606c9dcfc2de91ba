"""Owns the compression of archives: streams of S2 frames, which are those of Snappy and more.

A frame is a kind (1 byte), a length (3 bytes, little-endian), and so many bytes: the name of the
format, a block that is compressed or plain behind its masked CRC32-C, or what may be skipped. S2
adds to Snappy larger blocks, and copies that repeat the last distance; Snappy's own decoder refuses
those, and takes all others at its speed. What is written here is plain Snappy, which every reader
of S2 understands.
"""

from __future__ import annotations

from typing import Final

import cramjam
from crc32c import crc32c

from router.wire import ProtocolError

MAX_BLOCK_BYTES: Final = 4 << 20
"""Of one block when it is plain, as S2 has it."""
MAX_FRAME_BYTES: Final = MAX_BLOCK_BYTES + MAX_BLOCK_BYTES // 4
"""Of one block as it is written; what cannot be compressed grows by less."""
_COMPRESSED: Final = 0x00
_PLAIN: Final = 0x01
_FIRST_SKIPPED: Final = 0x80
_NAME: Final = 0xFF
_NAMES: Final = frozenset((b"S2sTwO", b"sNaPpY"))
_MASK: Final = 0xA282EAD8
_LITERAL_SIZES: Final = (1, 2, 3, 4)
"""Bytes that the size of a literal takes for the codes from 60 on."""
_REPEATS: Final = {5: (1, 4), 6: (2, 1 << 8), 7: (3, 1 << 16)}
"""How many bytes the length of a repeated copy takes, and what is added to it, by its code."""


class S2Reader:
    """Decodes a stream piece by piece: `feed` bytes, then take `block` until it returns None."""

    def __init__(self) -> None:
        self._data = bytearray()
        self._named = False

    @property
    def is_complete(self) -> bool:
        """Return whether what was fed ends with a whole frame."""
        return self._named and not self._data

    def feed(self, data: bytes) -> None:
        """Take bytes of the stream."""
        self._data += data

    def block(self) -> bytes | None:
        """Return the next block, None: more bytes are needed. Raises ProtocolError."""
        data = self._data
        while len(data) >= 4:
            kind, size = data[0], int.from_bytes(data[1:4], "little")
            if not self._named and kind != _NAME:
                raise ProtocolError("the archive is not compressed with S2")
            if kind < _FIRST_SKIPPED and size > MAX_FRAME_BYTES:
                raise ProtocolError(f"a block of the archive has {size} bytes")
            if len(data) < 4 + size:
                return None
            body = bytes(data[4 : 4 + size])
            del data[: 4 + size]
            if kind == _NAME:
                if body not in _NAMES:
                    raise ProtocolError("the archive is not compressed with S2")
                self._named = True
            elif kind in {_COMPRESSED, _PLAIN}:
                return _checked(body[:4], _unpacked(body[4:]) if kind == _COMPRESSED else body[4:])
            elif kind < _FIRST_SKIPPED:
                raise ProtocolError(f"the archive has a frame of the unknown kind {kind}")
        return None


def compress(data: bytes) -> bytes:
    """Return a whole stream of some bytes; several behind one another are one stream."""
    return bytes(cramjam.snappy.compress(data))


def _checked(checksum: bytes, block: bytes) -> bytes:
    found = crc32c(block)
    masked = ((found >> 15 | found << 17) + _MASK) & 0xFFFFFFFF
    if len(block) > MAX_BLOCK_BYTES or int.from_bytes(checksum, "little") != masked:
        raise ProtocolError("a block of the archive is damaged")
    return block


def _unpacked(data: bytes) -> bytes:
    """Return a block that was compressed; raise ProtocolError."""
    size, at = _block_size(data)
    if size > MAX_BLOCK_BYTES:
        raise ProtocolError(f"a block of the archive has {size} bytes")
    try:
        return bytes(cramjam.snappy.decompress_raw(data))
    except cramjam.DecompressionError:
        pass
    try:
        found = _decode(data, at, size)
    except IndexError:
        found = b""
    if len(found) != size:
        raise ProtocolError("a block of the archive is damaged")
    return found


def _block_size(data: bytes) -> tuple[int, int]:
    """Return the size that a compressed block says, and where its tags begin."""
    size = shift = 0
    for at, byte in enumerate(data[:5], 1):
        size |= (byte & 0x7F) << shift
        if byte < 0x80:
            return size, at
        shift += 7
    raise ProtocolError("a block of the archive is damaged")


def _decode(data: bytes, at: int, size: int) -> bytes:
    """Return what the tags from a place on say, also more or less; raise IndexError at damage."""
    out = bytearray()
    end, distance = len(data), 0
    while at < end:
        tag = data[at]
        kind = tag & 3
        if kind == 0:
            length = (tag >> 2) + 1
            at += 1
            if length > 60:
                width = _LITERAL_SIZES[length - 61]
                length = int.from_bytes(data[at : at + width], "little") + 1
                at += width
            out += data[at : at + length]
            at += length
            continue
        if kind == 1:
            length, near = tag >> 2 & 7, (tag & 0xE0) << 3 | data[at + 1]
            at += 2
            if near:
                distance = near
            elif length in _REPEATS:
                width, more = _REPEATS[length]
                length = int.from_bytes(data[at : at + width], "little") + more
                at += width
            length += 4
        else:
            width = 2 if kind == 2 else 4
            length = (tag >> 2) + 1
            distance = int.from_bytes(data[at + 1 : at + 1 + width], "little")
            at += 1 + width
        begin = len(out) - distance
        if not distance or begin < 0 or len(out) + length > size:
            raise IndexError
        if distance >= length:
            out += out[begin : begin + length]
        else:
            out += (out[begin:] * (length // distance + 1))[:length]
    return bytes(out)
