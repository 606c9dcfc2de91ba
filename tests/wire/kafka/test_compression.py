"""Compressed records: every codec, none above its bound in bytes and memory, damage as an error."""

from __future__ import annotations

import gzip
import time
import tracemalloc
from collections.abc import Callable
from functools import partial

import cramjam
import lz4.frame
import pytest
import zstandard
from hypothesis import given
from hypothesis import strategies as st

from router.wire.kafka import compression
from router.wire.kafka.compression import MAX_GZIP_MEMBERS, compress, decompress, decompress_start
from router.wire.kafka.errors import (
    CorruptRecordsError,
    OversizedRecordsError,
    RecordsError,
    UnknownCompressionError,
)

LIMIT = 10_000


def raw_snappy(data: bytes) -> bytes:
    """Return what librdkafka sends: one block."""
    return bytes(cramjam.snappy.compress_raw(data))


def javas_snappy(data: bytes) -> bytes:
    """Return what Java's clients send: a header, and blocks with their sizes."""
    out = b"\x82SNAPPY\0" + (1).to_bytes(4) + (1).to_bytes(4)
    for begin in range(0, len(data), 1000):
        block = raw_snappy(data[begin : begin + 1000])
        out += len(block).to_bytes(4) + block
    return out


def zstd_stream(data: bytes) -> bytes:
    """Return what librdkafka and Java send: a frame that does not say its size."""
    stream = zstandard.ZstdCompressor().compressobj()
    return stream.compress(data) + stream.flush()


def linked_lz4(data: bytes) -> bytes:
    """Return a frame whose blocks depend on each other, with all checksums and its size."""
    return bytes(
        lz4.frame.compress(data, block_linked=True, content_checksum=True, block_checksum=True)
    )


FORMS: dict[str, tuple[int, Callable[[bytes], bytes]]] = {
    "gzip": (1, gzip.compress),
    "snappy": (2, raw_snappy),
    "xerial": (2, javas_snappy),
    "lz4": (3, lz4.frame.compress),
    "lz4 linked": (3, linked_lz4),
    "zstd": (4, zstandard.ZstdCompressor().compress),
    "zstd stream": (4, zstd_stream),
    **{f"own {codec}": (codec, partial(compress, codec)) for codec in range(1, 5)},
}
forms = pytest.mark.parametrize(("codec", "form"), FORMS.values(), ids=FORMS.keys())


@forms
@given(data=st.binary(max_size=5000))
def test_what_was_compressed_comes_back(
    codec: int, form: Callable[[bytes], bytes], data: bytes
) -> None:
    assert decompress(codec, form(data), 5000) == data
    assert decompress(codec, form(data), len(data)) == data


@forms
def test_what_grows_too_large_is_refused(codec: int, form: Callable[[bytes], bytes]) -> None:
    assert len(decompress(codec, form(bytes(LIMIT)), LIMIT)) == LIMIT
    with pytest.raises(OversizedRecordsError, match="bytes"):
        decompress(codec, form(bytes(LIMIT + 1)), LIMIT)


@forms
def test_data_that_ends_early_is_refused_at_every_byte(
    codec: int, form: Callable[[bytes], bytes]
) -> None:
    plain = bytes(range(256)) * 9
    data = form(plain)
    for end in range(len(data)):
        try:
            found = decompress(codec, data[:end], LIMIT)
        except CorruptRecordsError:
            continue
        # Xerial's framing does not say where it ends, so whole blocks may be missing.
        assert data.startswith(b"\x82SNAPPY")
        assert plain.startswith(found)
        assert len(found) < len(plain)


@forms
@given(data=st.binary(max_size=300), noise=st.binary(min_size=1, max_size=9), at=st.integers(0))
def test_damage_is_an_error_or_other_bytes_within_the_limit(
    codec: int, form: Callable[[bytes], bytes], data: bytes, noise: bytes, at: int
) -> None:
    damaged = bytearray(form(data))
    at %= len(damaged) + 1
    damaged[at : at + len(noise)] = noise
    try:
        assert len(decompress(codec, bytes(damaged), LIMIT)) <= LIMIT
    except RecordsError:
        return


@forms
def test_bytes_behind_the_data_are_refused(codec: int, form: Callable[[bytes], bytes]) -> None:
    try:
        found = decompress(codec, form(b"data" * 100) + b"\x07\x07", LIMIT)
    except RecordsError:
        return
    # The library does not say where a frame ended that does not declare its size.
    assert (form, found) == (zstd_stream, b"data" * 100)


def test_an_unknown_codec_is_refused() -> None:
    for codec in (5, 6, 7):
        with pytest.raises(UnknownCompressionError, match=f"{codec} is unknown"):
            decompress(codec, b"", LIMIT)
        with pytest.raises(UnknownCompressionError, match=f"{codec} is unknown"):
            compress(codec, b"")


def test_members_of_gzip_are_read_one_after_the_other_and_not_without_end() -> None:
    one = gzip.compress(b"x")
    assert decompress(1, one * MAX_GZIP_MEMBERS, LIMIT) == b"x" * MAX_GZIP_MEMBERS
    with pytest.raises(CorruptRecordsError, match="members"):
        decompress(1, one * (MAX_GZIP_MEMBERS + 1), LIMIT)
    with pytest.raises(OversizedRecordsError):
        decompress(1, gzip.compress(bytes(LIMIT)) + one, LIMIT)


def bomb(form: Callable[[bytes], bytes]) -> bytes:
    return form(bytes(64 << 20))


def declaring(size: int) -> bytes:
    """Return the header of a zstd frame that declares so many bytes."""
    return b"\x28\xb5\x2f\xfd\xe0" + size.to_bytes(8, "little") + b"\x01\0\0"


BOMBS: dict[str, tuple[int, bytes]] = {
    "gzip": (1, bomb(gzip.compress)),
    "gzip of many members": (1, gzip.compress(bytes(1 << 20)) * 40),
    "snappy": (2, bomb(raw_snappy)),
    "snappy that declares 4 GiB": (2, b"\xff\xff\xff\xff\x0f" + bytes(1 << 20)),
    "xerial": (2, bomb(compression._write_xerial)),
    "xerial of empty blocks": (
        2,
        b"\x82SNAPPY\0" + bytes(8) + (b"\0\0\0\1\0" * 200_000),
    ),
    "lz4": (3, bomb(lz4.frame.compress)),
    "zstd": (4, bomb(zstandard.ZstdCompressor().compress)),
    "zstd stream": (4, bomb(zstd_stream)),
    "zstd that declares 2^62": (4, declaring(1 << 62)),
    "zstd that declares a little": (4, declaring(100)),
}


@pytest.mark.alone
@pytest.mark.slow
@pytest.mark.parametrize(("codec", "data"), BOMBS.values(), ids=BOMBS.keys())
def test_bombs_cost_little_time_and_memory(codec: int, data: bytes) -> None:
    limit = 1 << 20
    tracemalloc.start()
    start = time.process_time()
    try:
        found = decompress(codec, data, limit)
        assert len(found) <= limit
    except RecordsError:
        pass
    finally:
        taken = time.process_time() - start
        peak = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
    assert peak < 8 * limit
    assert taken < 2


@forms
@pytest.mark.parametrize("size", [0, 10, 900, 5_000])
def test_the_start_of_data_is_found_without_the_rest(
    codec: int, form: Callable[[bytes], bytes], size: int
) -> None:
    plain = bytes(range(250)) * 20
    found = decompress_start(codec, form(plain), size)
    assert len(found) >= size
    assert plain.startswith(found)
    half = form(plain * 100)
    found = decompress_start(codec, half, size)
    assert (plain * 100).startswith(found)
