"""Compression of bodies, in the four formats of the protocol, never above the promised size."""

from __future__ import annotations

import zlib
from collections.abc import Callable
from typing import Final

import cramjam
import lz4.block
import zstandard

from router.wire import ProtocolError
from router.wire.pulsar.pulsar_pb2 import (
    LZ4,
    NONE,
    SNAPPY,
    ZLIB,
    ZSTD,
    CompressionType,
)

# LZ4 and SNAPPY are raw blocks, ZLIB a zlib stream, ZSTD one standard frame. Whatever a header
# declares is compared with the limit before a library sees it, since the libraries allocate what
# headers declare; LZ4 blocks declare nothing and SNAPPY no more than it can keep, so for these two
# the best possible ratio of the format bounds the allocation as well.

_LZ4_RATIO: Final = 255
_SNAPPY_RATIO: Final = 64
# Streaming compressors up to level 16 use windows up to this; those that know the size need none.
_ZSTD_WINDOW: Final = 4 * 1024 * 1024


def compress(kind: CompressionType, data: bytes) -> bytes:
    """Return the body as a producer sends it."""
    if kind == LZ4:
        return bytes(lz4.block.compress(data, store_size=False))
    if kind == ZLIB:
        return zlib.compress(data)
    if kind == ZSTD:
        return zstandard.ZstdCompressor().compress(data)
    if kind == SNAPPY:
        return bytes(cramjam.snappy.compress_raw(data))
    return data


def decompress(kind: CompressionType, data: bytes | memoryview, size_limit: int) -> bytes:
    """Return the body that was compressed, of at most `size_limit` bytes; else ProtocolError."""
    if (read := _READERS.get(kind)) is None:
        raise ProtocolError(f"compression {kind} is unknown")
    plain = read(data, size_limit)
    if len(plain) > size_limit:
        raise ProtocolError(f"body larger than {size_limit} bytes")
    return plain


def _lz4(data: bytes | memoryview, size_limit: int) -> bytes:
    room = min(size_limit, _LZ4_RATIO * len(data))
    try:
        return bytes(lz4.block.decompress(data, uncompressed_size=room))
    except lz4.block.LZ4BlockError as error:
        raise ProtocolError(f"LZ4: {error}") from error


def _zlib(data: bytes | memoryview, size_limit: int) -> bytes:
    stream = zlib.decompressobj()
    try:
        # One byte more than is allowed tells a body of just that size from a larger one.
        plain = stream.decompress(data, size_limit + 1)
    except zlib.error as error:
        raise ProtocolError(f"ZLIB: {error}") from error
    if len(plain) <= size_limit and (not stream.eof or stream.unused_data):
        raise ProtocolError("ZLIB: cut short, or followed by something else")
    return plain


def _zstd(data: bytes | memoryview, size_limit: int) -> bytes:
    try:
        declared = zstandard.frame_content_size(data)
        if declared > size_limit:
            raise ProtocolError(f"ZSTD: body larger than {size_limit} bytes")
        # A context is not to be shared by threads, and making one costs 10 microseconds.
        reader = zstandard.ZstdDecompressor(max_window_size=_ZSTD_WINDOW)
        return reader.decompress(data, max_output_size=size_limit, allow_extra_data=False)
    except zstandard.ZstdError as error:
        raise ProtocolError(f"ZSTD: {error}") from error


def _snappy(data: bytes | memoryview, size_limit: int) -> bytes:
    declared, head = 0, data[:5]
    for place, byte in enumerate(head):
        declared |= (byte & 0x7F) << 7 * place
        if byte < 0x80:
            break
    if declared > min(size_limit, _SNAPPY_RATIO * len(data)):
        raise ProtocolError(f"SNAPPY: body larger than {size_limit} bytes")
    try:
        return bytes(cramjam.snappy.decompress_raw(data))
    except cramjam.DecompressionError as error:
        raise ProtocolError(f"SNAPPY: {error}") from error


_READERS: Final[dict[int, Callable[[bytes | memoryview, int], bytes]]] = {
    NONE: lambda data, _: bytes(data),
    LZ4: _lz4,
    ZLIB: _zlib,
    ZSTD: _zstd,
    SNAPPY: _snappy,
}
