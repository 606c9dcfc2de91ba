"""Small PNG pictures of screens: a palette in place of all colours, and several as an animation.

A picture of a page has a few hundred colours, nearly all of them at the edges of letters: those
beyond 256 become the nearest of the 256 that are most frequent. A frame of an animation is the
rectangle that differs from the frame before it (APNG: chunks acTL, fcTL and fdAT).
"""

from __future__ import annotations

import struct
import zlib
from collections import Counter
from collections.abc import Iterator, Sequence
from typing import Final, NamedTuple

SIGNATURE: Final = b"\x89PNG\r\n\x1a\n"
MAX_COLOURS: Final = 256
Colour = tuple[int, ...]


class Frame(NamedTuple):
    """A picture as rows of colours, and how long it is shown in an animation."""

    rows: list[list[Colour]]
    ms: int = 0


def read(png: bytes, ms: int = 0) -> Frame:
    """Return a picture of 8 bits a channel, RGB or RGBA, not interlaced, without its alpha."""
    found = list(_chunks(png))
    width, height, _, kind = struct.unpack(">IIBB", found[0][1][:10])
    size = {2: 3, 6: 4}[kind]
    data = zlib.decompress(b"".join(body for name, body in found if name == b"IDAT"))
    rows, above, stride = [], bytes(width * size), 1 + width * size
    for at in range(0, height * stride, stride):
        above = _unfiltered(data[at], bytearray(data[at + 1 : at + stride]), above, size)
        rows.append(list(zip(*(above[channel::size] for channel in range(3)), strict=True)))
    return Frame(rows, ms)


def write(frames: Sequence[Frame]) -> bytes:
    """Return a picture, or an animation that begins again and again, with one palette."""
    palette, index = _palette(frames)
    pictures = [[bytes(map(index.__getitem__, row)) for row in frame.rows] for frame in frames]
    width, height = len(pictures[0][0]), len(pictures[0])
    header = struct.pack(">IIBBBBB", width, height, 8, 3, 0, 0, 0)
    out = [SIGNATURE, _chunk(b"IHDR", header)]
    if len(frames) > 1:
        out.append(_chunk(b"acTL", struct.pack(">II", len(frames), 0)))
    out.append(_chunk(b"PLTE", bytes(value for colour in palette for value in colour)))
    number = 0
    for at, (frame, picture) in enumerate(zip(frames, pictures, strict=True)):
        left, top, right, bottom = _difference(picture, pictures[at - 1] if at else None)
        if len(frames) > 1:
            place = (right - left, bottom - top, left, top, frame.ms, 1_000, 0, 0)
            out.append(_chunk(b"fcTL", struct.pack(">IIIIIHHBB", number, *place)))
            number += 1
        data = zlib.compress(b"".join(b"\0" + row[left:right] for row in picture[top:bottom]), 9)
        if at:
            out.append(_chunk(b"fdAT", struct.pack(">I", number) + data))
            number += 1
        else:
            out.append(_chunk(b"IDAT", data))
    return b"".join([*out, _chunk(b"IEND", b"")])


def _palette(frames: Sequence[Frame]) -> tuple[list[Colour], dict[Colour, int]]:
    """Return the colours that stay, and which of them stands for each colour."""
    counts: Counter[Colour] = Counter()
    for frame in frames:
        for row in frame.rows:
            counts.update(row)
    palette = [colour for colour, _ in counts.most_common(MAX_COLOURS)]
    index = {colour: at for at, colour in enumerate(palette)}
    for colour in counts:
        if colour not in index:
            index[colour] = min(range(MAX_COLOURS), key=lambda at: _distance(palette[at], colour))
    return palette, index


def _distance(one: Colour, other: Colour) -> int:
    return sum((a - b) ** 2 for a, b in zip(one, other, strict=True))


def _difference(picture: list[bytes], before: list[bytes] | None) -> tuple[int, int, int, int]:
    """Return the smallest rectangle with all that differs: left, top, right, bottom."""
    width = len(picture[0])
    if before is None:
        return 0, 0, width, len(picture)
    rows = [at for at, row in enumerate(picture) if row != before[at]] or [0]
    columns = [
        at for at in range(width) if any(picture[row][at] != before[row][at] for row in rows)
    ] or [0]
    return columns[0], rows[0], columns[-1] + 1, rows[-1] + 1


def _unfiltered(kind: int, row: bytearray, above: bytes, size: int) -> bytes:
    """Return a row as it was before its filter (PNG, section 9)."""
    for at in range(len(row)) if kind else ():
        left = row[at - size] if at >= size else 0
        corner = above[at - size] if at >= size else 0
        row[at] = (row[at] + _prediction(kind, left, above[at], corner)) & 255
    return bytes(row)


def _prediction(kind: int, left: int, up: int, corner: int) -> int:
    if kind < 4:
        return (0, left, up, (left + up) // 2)[kind]
    middle = left + up - corner
    return min((left, up, corner), key=lambda value: abs(middle - value))


def _chunks(png: bytes) -> Iterator[tuple[bytes, bytes]]:
    at = len(SIGNATURE)
    while at < len(png):
        (size,) = struct.unpack_from(">I", png, at)
        yield png[at + 4 : at + 8], png[at + 8 : at + 8 + size]
        at += 12 + size


def _chunk(name: bytes, body: bytes) -> bytes:
    return struct.pack(">I", len(body)) + name + body + struct.pack(">I", zlib.crc32(name + body))
