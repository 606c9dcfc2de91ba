"""Lines of an input as they arrive."""

from __future__ import annotations

from collections.abc import Iterator
from typing import IO, Final

CHUNK: Final = 1 << 18
LONGEST_LINE: Final = 8 << 20


def chunks(source: IO[bytes], longest: int | None = None) -> Iterator[tuple[list[bytes], int]]:
    """Yield the lines that have arrived, without waiting for a full chunk, and their bytes.

    A line of more than `longest` bytes (LONGEST_LINE) is handed on in parts, to be refused.
    """
    rest: list[bytes] = []
    held = 0
    while data := source.read1(CHUNK):  # type: ignore[attr-defined] # buffered readers have it
        head, newline, tail = data.rpartition(b"\n")
        if newline:
            yield _lines(b"".join([*rest, head])), len(data)
            rest, held = [tail], len(tail)
            continue
        rest.append(data)
        held += len(data)
        # What is too long for a message is handed on to be refused, before it fills the memory.
        if held > (LONGEST_LINE if longest is None else longest):
            yield [b"".join(rest)], len(data)
            rest, held = [], 0
        else:
            yield [], len(data)
    yield _lines(b"".join(rest)), 0


def _lines(text: bytes) -> list[bytes]:
    return [line for line in (part.rstrip(b"\r") for part in text.split(b"\n")) if line]
