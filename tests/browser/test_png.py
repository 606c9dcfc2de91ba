"""Pictures that are written are those that were read, but for rare colours."""

from __future__ import annotations

import struct
import zlib

from tests.browser import png


def coloured(colours: list[list[png.Colour]]) -> bytes:
    """Return a picture in RGB whose rows have the filters Sub, Up, Average and Paeth in turn."""
    width, above = 3 * len(colours[0]), bytes(3 * len(colours[0]))
    data = b""
    for number, colour in enumerate(colours):
        row, kind = bytes(value for one in colour for value in one), 1 + number % 4
        data += bytes([kind])
        for at in range(width):
            left, corner = (row[at - 3], above[at - 3]) if at >= 3 else (0, 0)
            data += bytes([(row[at] - png._prediction(kind, left, above[at], corner)) & 255])
        above = row
    header = struct.pack(">IIBBBBB", width // 3, len(colours), 8, 2, 0, 0, 0)
    chunks = ((b"IHDR", header), (b"IDAT", zlib.compress(data)), (b"IEND", b""))
    return png.SIGNATURE + b"".join(png._chunk(name, body) for name, body in chunks)


def test_filters_are_undone() -> None:
    colours: list[list[png.Colour]] = [
        [(x * 40, y * 50, 255 - x * y) for x in range(5)] for y in range(5)
    ]
    assert png.read(coloured(colours)).rows == colours


def test_animation_has_what_differs_between_frames() -> None:
    first: list[list[png.Colour]] = [[(0, 0, 0)] * 6 for _ in range(4)]
    second = [list(row) for row in first]
    second[2][3] = second[3][4] = (9, 9, 9)
    made = png.write([png.Frame(first, 500), png.Frame(second, 700)])
    found = dict(png._chunks(made[: made.index(b"IDAT") - 4]))
    assert found[b"acTL"] == struct.pack(">II", 2, 0)
    placed = [body for name, body in png._chunks(made) if name == b"fcTL"]
    assert struct.unpack(">IIIIIHHBB", placed[1]) == (1, 2, 2, 3, 2, 700, 1_000, 0, 0)
    (data,) = (body[4:] for name, body in png._chunks(made) if name == b"fdAT")
    assert zlib.decompress(data) == b"\0\1\0\0\0\1"


def test_rare_colours_become_their_nearest() -> None:
    rows: list[list[png.Colour]] = [[(0, 0, 0)] * 300, [(0, n % 256, n // 256) for n in range(300)]]
    made = png.write([png.Frame(rows)])
    palette = dict(png._chunks(made))[b"PLTE"]
    assert len(palette) == 3 * png.MAX_COLOURS
    assert len(made) < 2_000
