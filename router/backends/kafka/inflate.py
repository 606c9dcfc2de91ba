"""Compressed record batches of other people's producers, never above a limit when inflated."""

from __future__ import annotations

import zlib
from typing import Final

import cramjam
import lz4.frame
import zstandard

MAX_INFLATED_BYTES: Final = 16 * 1024 * 1024
_GZIP, _SNAPPY, _LZ4, _ZSTD = 1, 2, 3, 4
_XERIAL: Final = b"\x82SNAPPY\0"
_XERIAL_HEAD: Final = 16
_SNAPPY_RATIO: Final = 64  # the format's best, so that a false header allocates no more


class OversizedError(ValueError):
    """A batch is larger without its compression than it may be."""


def inflate(codec: int, data: bytes, limit: int) -> bytes:
    """Return what was compressed; raise ValueError for damage, OversizedError above the limit."""
    try:
        plain = _inflate(codec, data, limit)
    except (zlib.error, zstandard.ZstdError, cramjam.DecompressionError, RuntimeError) as error:
        raise ValueError(f"it cannot be inflated: {error}") from error
    if len(plain) > limit:
        raise OversizedError(f"it has more than {limit} bytes when inflated")
    return plain


def _inflate(codec: int, data: bytes, limit: int) -> bytes:
    if codec == _GZIP:
        return zlib.decompressobj(31).decompress(data, limit + 1)
    if codec == _LZ4:
        return bytes(lz4.frame.LZ4FrameDecompressor().decompress(data, limit + 1))
    if codec == _ZSTD:
        with zstandard.ZstdDecompressor().stream_reader(data) as reader:
            return bytes(reader.read(limit + 1))
    if codec == _SNAPPY:
        return _snappy(data, limit)
    raise ValueError(f"compression {codec} is unknown")


def _snappy(data: bytes, limit: int) -> bytes:
    """Java's clients write blocks with a header of their own; others write one raw block."""
    if not data.startswith(_XERIAL):
        return _block(data, limit)
    at, parts = _XERIAL_HEAD, []
    while at < len(data):
        size = int.from_bytes(data[at : at + 4])
        parts.append(_block(data[at + 4 : at + 4 + size], limit))
        limit -= len(parts[-1])
        at += 4 + size
    return b"".join(parts)


def _block(data: bytes, limit: int) -> bytes:
    declared = 0
    for place, byte in enumerate(data[:5]):
        declared |= (byte & 0x7F) << 7 * place
        if byte < 0x80:
            break
    if declared > _SNAPPY_RATIO * len(data):
        raise ValueError("a snappy block declares too many bytes")
    if declared > limit:
        raise OversizedError(f"a snappy block of {declared} bytes, allowed are {limit}")
    return bytes(cramjam.snappy.decompress_raw(data))
