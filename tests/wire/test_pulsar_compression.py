"""Compression: foreign implementations agree, and no header makes anyone allocate."""

from __future__ import annotations

import subprocess
import sys
import tracemalloc
import zlib
from collections.abc import Callable
from pathlib import Path

import cramjam
import pytest
import zstandard
from hypothesis import given
from hypothesis import strategies as st

from router.wire.pulsar import ProtocolError, compress, decompress
from router.wire.pulsar.pulsar_pb2 import LZ4, NONE, SNAPPY, ZLIB, ZSTD, CompressionType

KINDS = [NONE, LZ4, ZLIB, ZSTD, SNAPPY]
COMPRESSED = KINDS[1:]
BODIES = st.binary(max_size=300) | st.builds(
    bytes.__mul__, st.binary(max_size=5), st.integers(0, 400)
)
MIB = 2**20

kinds = pytest.mark.parametrize("kind", KINDS, ids=CompressionType.Name)
compressed_kinds = pytest.mark.parametrize("kind", COMPRESSED, ids=CompressionType.Name)


def snappy_by_definition(block: bytes) -> bytes:
    """Decode a raw Snappy block as its format description has it, byte by byte."""
    size, at = 0, 0
    while True:
        size |= (block[at] & 0x7F) << 7 * at
        at += 1
        if block[at - 1] < 0x80:
            break
    out = bytearray()
    while at < len(block):
        tag = block[at]
        at += 1
        if tag & 3 == 0:
            length = (tag >> 2) + 1
            if length > 60:
                extra = length - 60
                length = int.from_bytes(block[at : at + extra], "little") + 1
                at += extra
            out += block[at : at + length]
            at += length
            continue
        if tag & 3 == 1:
            length, offset = (tag >> 2 & 7) + 4, (tag >> 5) << 8 | block[at]
            at += 1
        else:
            width = 2 if tag & 3 == 2 else 4
            length, offset = (tag >> 2) + 1, int.from_bytes(block[at : at + width], "little")
            at += width
        for _ in range(length):
            out.append(out[-offset])
    assert len(out) == size
    return bytes(out)


def snappy_literals(data: bytes) -> bytes:
    """Encode as literals only: a Snappy block that no compressor of ours would write."""
    size = bytearray()
    number = len(data)
    while number >= 0x80:
        size.append(number & 0x7F | 0x80)
        number >>= 7
    size.append(number)
    pieces = [data[at : at + 60] for at in range(0, len(data), 60)]
    return bytes(size) + b"".join(bytes([len(piece) - 1 << 2]) + piece for piece in pieces)


def zstd_without_size(data: bytes) -> bytes:
    """A frame whose header does not tell the size of its content, as streaming producers write."""
    stream = zstandard.ZstdCompressor().compressobj()
    return stream.compress(data) + stream.flush()


FOREIGN_DECODERS: dict[CompressionType, Callable[[bytes, int], bytes]] = {
    LZ4: lambda data, size: bytes(cramjam.lz4.decompress_block(data, output_len=size)),
    ZLIB: lambda data, _: bytes(cramjam.zlib.decompress(data)),
    ZSTD: lambda data, _: bytes(cramjam.zstd.decompress(data)),
    SNAPPY: lambda data, _: snappy_by_definition(data),
}
FOREIGN_ENCODERS: dict[str, tuple[CompressionType, Callable[[bytes], bytes]]] = {
    "LZ4": (LZ4, lambda data: bytes(cramjam.lz4.compress_block(data, store_size=False))),
    "ZLIB": (ZLIB, lambda data: bytes(cramjam.zlib.compress(data, 9))),
    "ZSTD": (ZSTD, lambda data: bytes(cramjam.zstd.compress(data, 19))),
    "ZSTD without size": (ZSTD, zstd_without_size),
    "SNAPPY": (SNAPPY, snappy_literals),
}


@kinds
@given(body=BODIES)
def test_decompress_undoes_compress(kind: CompressionType, body: bytes) -> None:
    assert decompress(kind, compress(kind, body), len(body)) == body
    assert decompress(kind, memoryview(compress(kind, body)), len(body) + 1000) == body


@compressed_kinds
@given(body=BODIES.filter(bool))
def test_foreign_decoder_reads_what_compress_writes(kind: CompressionType, body: bytes) -> None:
    assert FOREIGN_DECODERS[kind](compress(kind, body), len(body)) == body


@pytest.mark.parametrize("name", FOREIGN_ENCODERS)
@given(body=BODIES)
def test_decompress_reads_what_foreign_encoders_write(name: str, body: bytes) -> None:
    kind, encoder = FOREIGN_ENCODERS[name]
    assert decompress(kind, encoder(body), len(body)) == body


@kinds
@given(body=BODIES.filter(bool), data=st.data())
def test_decompress_raises_when_the_body_exceeds_the_limit(
    kind: CompressionType, body: bytes, data: st.DataObject
) -> None:
    limit = data.draw(st.integers(0, len(body) - 1))
    with pytest.raises(ProtocolError):
        decompress(kind, compress(kind, body), limit)


@compressed_kinds
@given(body=BODIES.filter(bool), data=st.data())
def test_decompress_raises_or_stays_in_bounds_when_cut_short(
    kind: CompressionType, body: bytes, data: st.DataObject
) -> None:
    whole = compress(kind, body)
    cut = whole[: data.draw(st.integers(0, len(whole) - 1))]
    try:
        plain = decompress(kind, cut, len(body))
    except ProtocolError:
        return
    # Only a raw LZ4 block may end anywhere; what was there so far is then the body.
    assert kind == LZ4
    assert body.startswith(plain)


@compressed_kinds
@given(
    body=BODIES.filter(bool),
    edits=st.lists(st.tuples(st.integers(0, 400), st.integers(0, 255)), min_size=1, max_size=3),
)
def test_decompress_raises_or_stays_in_bounds_when_mutated(
    kind: CompressionType, body: bytes, edits: list[tuple[int, int]]
) -> None:
    mutated = bytearray(compress(kind, body))
    for place, byte in edits:
        mutated[place % len(mutated)] = byte
    try:
        plain = decompress(kind, bytes(mutated), 1000)
    except ProtocolError:
        return
    assert len(plain) <= 1000


@compressed_kinds
@given(noise=st.binary(max_size=100))
def test_decompress_raises_or_stays_in_bounds_when_noise(
    kind: CompressionType, noise: bytes
) -> None:
    try:
        plain = decompress(kind, noise, 1000)
    except ProtocolError:
        return
    assert len(plain) <= 1000


@pytest.mark.parametrize("kind", [ZLIB, ZSTD, SNAPPY], ids=CompressionType.Name)
def test_decompress_raises_when_something_follows(kind: CompressionType) -> None:
    with pytest.raises(ProtocolError):
        decompress(kind, compress(kind, b"body") + b"more", 1000)


def test_decompress_raises_when_the_compression_is_unknown() -> None:
    with pytest.raises(ProtocolError, match="unknown"):
        decompress(9, b"", 1000)  # type: ignore[arg-type]


BOMBS = {
    "LZ4": (LZ4, compress(LZ4, bytes(64 * MIB))),
    "ZLIB": (ZLIB, zlib.compress(bytes(64 * MIB), 9)),
    "ZSTD": (ZSTD, zstandard.ZstdCompressor().compress(bytes(64 * MIB))),
    "ZSTD without size": (ZSTD, zstd_without_size(bytes(64 * MIB))),
    "SNAPPY": (SNAPPY, compress(SNAPPY, bytes(64 * MIB))),
    "SNAPPY that declares 4 GiB": (SNAPPY, b"\xff\xff\xff\xff\x0f\0a"),
    "SNAPPY that declares its limit": (SNAPPY, b"\x80\x80\xc0\x02\0a"),
    "ZSTD that declares 2**62": (ZSTD, b"\x28\xb5\x2f\xfd\xe0" + (2**62).to_bytes(8, "little")),
    # A window of 2 GiB without a size.
    "ZSTD of a huge window": (ZSTD, b"\x28\xb5\x2f\xfd\x00\xa8\x01\x00\x00"),
}

CHILD = """
import pathlib, resource, sys
from router.wire.pulsar import ProtocolError, decompress

bombs = [path.read_bytes() for path in sorted(pathlib.Path(sys.argv[1]).iterdir())]
pages = int(pathlib.Path("/proc/self/statm").read_text().split()[0])
room = pages * resource.getpagesize() + int(sys.argv[2])
resource.setrlimit(resource.RLIMIT_AS, (room, room))
for bomb in bombs:
    try:
        decompress(bomb[0], bomb[1:], int(sys.argv[3]))
    except ProtocolError:
        print("refused")
"""


@pytest.mark.parametrize("name", BOMBS)
def test_decompress_raises_within_the_limit_when_a_header_lies(name: str) -> None:
    kind, bomb = BOMBS[name]
    # What threads of other tests allocate meanwhile is counted too: the least counts.
    peak = min(_peak_of_refusing(kind, bomb) for _ in range(3))
    # ZLIB's output is joined from pieces, for a moment both are there.
    assert peak < (11 if kind == ZLIB else 6) * MIB


def _peak_of_refusing(kind: CompressionType, bomb: bytes) -> int:
    """Return the most bytes that Python had allocated while a bomb was refused."""
    tracemalloc.start()
    try:
        with pytest.raises(ProtocolError):
            decompress(kind, bomb, 5 * MIB)
        return tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()


@pytest.mark.slow
def test_decompress_needs_no_room_for_what_headers_declare(tmp_path: Path) -> None:
    for name, (kind, bomb) in BOMBS.items():
        (tmp_path / name).write_bytes(bytes([kind]) + bomb)
    # One body, one window and some slack, for the native libraries' allocations too.
    ran = subprocess.run(
        [sys.executable, "-c", CHILD, str(tmp_path), str(24 * MIB), str(5 * MIB)],
        capture_output=True,
        text=True,
        timeout=50,
        check=False,
    )
    assert (ran.stdout.split(), ran.stderr) == (["refused"] * len(BOMBS), "")
