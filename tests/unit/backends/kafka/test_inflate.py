"""Compressed batches: every format, and none above its bound."""

from __future__ import annotations

import gzip
from collections.abc import Callable

import cramjam
import lz4.frame
import pytest
import zstandard
from hypothesis import given
from hypothesis import strategies as st

from router.backends.kafka.inflate import OversizedError, inflate


def raw_snappy(data: bytes) -> bytes:
    return bytes(cramjam.snappy.compress_raw(data))


def javas_snappy(data: bytes) -> bytes:
    """Return what Java's clients send: a header, and blocks with their sizes."""
    out = b"\x82SNAPPY\0" + (1).to_bytes(4) + (1).to_bytes(4)
    for begin in range(0, len(data), 1000):
        block = raw_snappy(data[begin : begin + 1000])
        out += len(block).to_bytes(4) + block
    return out


FORMS: dict[str, tuple[int, Callable[[bytes], bytes]]] = {
    "gzip": (1, gzip.compress),
    "snappy": (2, raw_snappy),
    "xerial": (2, javas_snappy),
    "lz4": (3, lz4.frame.compress),
    "zstd": (4, zstandard.ZstdCompressor().compress),
}
forms = pytest.mark.parametrize(("codec", "compress"), FORMS.values(), ids=FORMS.keys())


@forms
@given(data=st.binary(max_size=5000))
def test_what_was_compressed_comes_back(
    codec: int, compress: Callable[[bytes], bytes], data: bytes
) -> None:
    assert inflate(codec, compress(data), 5000) == data


@forms
def test_what_grows_too_large_is_refused(codec: int, compress: Callable[[bytes], bytes]) -> None:
    assert len(inflate(codec, compress(bytes(10_000)), 10_000)) == 10_000
    with pytest.raises(OversizedError, match="bytes"):
        inflate(codec, compress(bytes(10_001)), 10_000)


@forms
def test_damage_is_refused(codec: int, compress: Callable[[bytes], bytes]) -> None:
    with pytest.raises(ValueError):  # noqa: PT011 - each library says it in its own words
        inflate(codec, b"\x07" + compress(b"data" * 100)[1:], 10_000)


def test_an_unknown_format_is_refused() -> None:
    with pytest.raises(ValueError, match="7 is unknown"):
        inflate(7, b"", 10_000)
