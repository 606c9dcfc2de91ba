"""Compression of Kafka's records, in the four codecs of the protocol, with a bound on the result.

Theory of operation. Headers declare sizes that libraries allocate, so a declared size is compared
with the bound first. gzip and lz4 frames are decompressed up to the bound and one byte more. A zstd
frame may declare its size (librdkafka's do not); without a size the bound is the size of the
buffer, of which the kernel provides the pages that are written. Snappy comes as one raw block
(librdkafka, franz-go) or in xerial's framing, blocks with their sizes behind a header (Java,
kafka-python); a block cannot expand by more than the format's best ratio.
"""

from __future__ import annotations

import zlib
from typing import Final

import cramjam
import lz4.frame
import zstandard

from router.wire.kafka.errors import (
    CorruptRecordsError,
    OversizedRecordsError,
    UnknownCompressionError,
)

NONE: Final = 0
GZIP: Final = 1
SNAPPY: Final = 2
LZ4: Final = 3
ZSTD: Final = 4
CODEC_NAMES: Final = ("none", "gzip", "snappy", "lz4", "zstd")
"""By their numbers, as Kafka's setting `compression.type` has them."""
MAX_GZIP_MEMBERS: Final = 64
"""Java's reader takes members one after the other; writers write one."""
MAX_XERIAL_BLOCKS: Final = 1 << 14
"""Java's writer fills blocks of 1 KiB or more, by default of 32."""

_GZIP_WBITS: Final = 31
_XERIAL: Final = b"\x82SNAPPY\0" + (1).to_bytes(4) + (1).to_bytes(4)
_XERIAL_MAGIC_BYTES: Final = 8
_XERIAL_BLOCK_BYTES: Final = 32 * 1024
_SNAPPY_RATIO: Final = 64
_LZ4_BLOCK: Final = lz4.frame.BLOCKSIZE_MAX64KB
_FAILURES: Final = (zlib.error, zstandard.ZstdError, cramjam.DecompressionError, RuntimeError)


def compress(codec: int, data: bytes) -> bytes:
    """Return records as Java's clients compress them; raise UnknownCompressionError."""
    if codec == NONE:
        return data
    if codec == GZIP:
        stream = zlib.compressobj(wbits=_GZIP_WBITS)
        return stream.compress(data) + stream.flush()
    if codec == SNAPPY:
        return _write_xerial(data)
    if codec == LZ4:
        # Java's reader takes independent blocks only.
        return bytes(lz4.frame.compress(data, block_size=_LZ4_BLOCK, block_linked=False))
    if codec == ZSTD:
        return zstandard.ZstdCompressor().compress(data)
    raise UnknownCompressionError(f"compression {codec} is unknown")


def decompress(codec: int, data: bytes, limit: int) -> bytes:
    """Return what was compressed, of at most `limit` bytes.

    Raises CorruptRecordsError, OversizedRecordsError and UnknownCompressionError.
    """
    try:
        plain = _decompress(codec, data, limit)
    except _FAILURES as error:
        raise CorruptRecordsError(f"{CODEC_NAMES[codec]}: {error}") from error
    if len(plain) > limit:
        raise _oversized(limit)
    return plain


def decompress_start(codec: int, data: bytes, size: int) -> bytes:
    """Return at least the first `size` bytes of what was compressed, or all if it is smaller.

    The result has at most a few hundred kilobytes more. What follows is not checked.
    Raises CorruptRecordsError and UnknownCompressionError.
    """
    try:
        return _decompress_start(codec, data, size)
    except _FAILURES as error:
        raise CorruptRecordsError(f"{CODEC_NAMES[codec]}: {error}") from error


def _decompress(codec: int, data: bytes, limit: int) -> bytes:
    if codec == NONE:
        return data
    if (read := _READERS.get(codec)) is None:
        raise UnknownCompressionError(f"compression {codec} is unknown")
    return read(data, limit)


def _decompress_start(codec: int, data: bytes, size: int) -> bytes:
    if codec == GZIP:
        return zlib.decompressobj(_GZIP_WBITS).decompress(data, size)
    if codec == LZ4:
        return bytes(lz4.frame.LZ4FrameDecompressor().decompress(data, size))
    if codec == ZSTD:
        with zstandard.ZstdDecompressor().stream_reader(data) as reader:
            return bytes(reader.read(size))
    if codec == SNAPPY and data.startswith(_XERIAL[:_XERIAL_MAGIC_BYTES]):
        return _read_xerial(data, _SNAPPY_RATIO * len(data), size)
    return _decompress(codec, data, _SNAPPY_RATIO * len(data))


def _read_gzip(data: bytes, limit: int) -> bytes:
    parts, left = [], limit
    for _ in range(MAX_GZIP_MEMBERS):
        stream = zlib.decompressobj(_GZIP_WBITS)
        # One byte more than is allowed tells a body of just that size from a larger one.
        part = stream.decompress(data, left + 1)
        parts.append(part)
        left -= len(part)
        if left < 0:
            raise _oversized(limit)
        if not stream.eof:
            raise CorruptRecordsError("gzip: the data is cut short")
        data = stream.unused_data
        if not data:
            return parts[0] if len(parts) == 1 else b"".join(parts)
    raise CorruptRecordsError(f"gzip: more than {MAX_GZIP_MEMBERS} members")


def _read_lz4(data: bytes, limit: int) -> bytes:
    stream = lz4.frame.LZ4FrameDecompressor()
    plain = bytes(stream.decompress(data, limit + 1))
    if len(plain) <= limit and not stream.eof:
        raise CorruptRecordsError("lz4: the frame is cut short")
    if stream.unused_data:
        raise CorruptRecordsError("lz4: bytes follow the frame")
    return plain


def _read_zstd(data: bytes, limit: int) -> bytes:
    declared = zstandard.frame_content_size(data)
    if declared > limit:
        raise _oversized(limit)
    # A context is not to be shared by threads, and making one costs 10 microseconds.
    reader = zstandard.ZstdDecompressor()
    try:
        return reader.decompress(data, max_output_size=max(1, limit), allow_extra_data=False)
    except zstandard.ZstdError:
        with reader.stream_reader(data) as stream:
            if len(stream.read(limit + 1)) > limit:
                raise _oversized(limit) from None
        raise


def _read_snappy(data: bytes, limit: int) -> bytes:
    if data.startswith(_XERIAL[:_XERIAL_MAGIC_BYTES]):
        return _read_xerial(data, limit, limit + 1)
    return _read_block(data, limit)


_READERS: Final = {GZIP: _read_gzip, SNAPPY: _read_snappy, LZ4: _read_lz4, ZSTD: _read_zstd}


def _read_xerial(data: bytes, limit: int, size_at_least: int) -> bytes:
    """Return the content of the blocks until there are `size_at_least` bytes."""
    at, found = len(_XERIAL), 0
    parts: list[bytes] = []
    if len(data) < at:
        raise CorruptRecordsError("snappy: the header is cut short")
    while at < len(data) and found < size_at_least:
        if len(parts) == MAX_XERIAL_BLOCKS:
            raise CorruptRecordsError(f"snappy: more than {MAX_XERIAL_BLOCKS} blocks")
        start = at + 4
        at = start + int.from_bytes(data[at:start])
        if start > len(data) or at > len(data):
            raise CorruptRecordsError("snappy: a block is cut short")
        part = _read_block(data[start:at], limit - found)
        found += len(part)
        parts.append(part)
    return b"".join(parts)


def _read_block(data: bytes, limit: int) -> bytes:
    declared = 0
    for place, byte in enumerate(data[:5]):
        declared |= (byte & 0x7F) << 7 * place
        if byte < 0x80:
            break
    if declared > _SNAPPY_RATIO * len(data):
        raise CorruptRecordsError("snappy: a block declares more bytes than it can hold")
    if declared > limit:
        raise _oversized(limit)
    return bytes(cramjam.snappy.decompress_raw(data))


def _write_xerial(data: bytes) -> bytes:
    parts = [_XERIAL]
    for at in range(0, len(data), _XERIAL_BLOCK_BYTES):
        block = bytes(cramjam.snappy.compress_raw(data[at : at + _XERIAL_BLOCK_BYTES]))
        parts += (len(block).to_bytes(4), block)
    return b"".join(parts)


def _oversized(limit: int) -> OversizedRecordsError:
    return OversizedRecordsError(f"the records have more than {limit} bytes when decompressed")
