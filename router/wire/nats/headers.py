"""Reads and writes blocks of NATS headers.

A block is `NATS/1.0`, perhaps a status with a text, CRLF, then lines `Name: value` with CRLF, and
an empty line. Names have a case, and may be there several times. Lookups find what nats-server and
its clients find: a value begins behind the spaces that follow the colon.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Final

from router.errors.quoting import quoted

Pairs = Iterable[tuple[str, str]]

VERSION: Final = b"NATS/1.0"
MSG_ID: Final = "Nats-Msg-Id"
SUBJECT: Final = "Nats-Subject"
NO_RESPONDERS: Final = 503
"""The status that answers a request which none receives."""

_STATUS: Final = re.compile(rb"NATS/1\.0[ \t]*([0-9]{1,9})")
_LINE_BREAKS: Final = re.compile(r"[\r\n]")


def read(block: bytes) -> list[tuple[str, str]]:
    """Return names and values in their order; lines without a colon or a name are left out.

    Bytes that are no UTF-8 are replaced by U+FFFD.
    """
    found = []
    # Bytes that are no UTF-8 hide no line break and no colon when they are replaced.
    for line in block.decode(errors="replace").split("\r\n")[1:]:
        name, colon, value = line.partition(":")
        if colon and name:
            found.append((name, value.lstrip(" ")))
    return found


def build(pairs: Pairs) -> bytes:
    """Return a block of these headers, b"" if there are none.

    Raises ValueError if a name or value holds what no header can: a line break, in a name a colon.
    """
    lines = _lines(pairs)
    return b"NATS/1.0\r\n" + lines + b"\r\n" if lines else b""


def status(code: int, text: str = "", pairs: Pairs = ()) -> bytes:
    """Return a block with a status and headers; raise ValueError as `build` does."""
    shown = f" {text}" if text else ""
    return f"NATS/1.0 {code}{shown}\r\n".encode() + _lines(pairs) + b"\r\n"


def status_code(block: bytes) -> int:
    """Return the status of a block, 0: it has none."""
    match = _STATUS.match(block)
    return int(match[1]) if match else 0


def first(block: bytes, name: str) -> str | None:
    """Return the value of the first header of this name, in this case; None: there is none."""
    if not block:
        return None
    key = b"\n" + name.encode() + b":"
    at = block.find(key)
    while at >= 0 and not (at and block[at - 1] == 0x0D):
        at = block.find(key, at + 1)
    if at < 0:
        return None
    start = at + len(key)
    end = block.find(b"\r\n", start)
    value = block[start:] if end < 0 else block[start:end]
    return value.lstrip(b" ").decode(errors="replace")


def with_value(block: bytes, name: str, value: str) -> bytes:
    """Return a block with a header at its end, in place of the first one of this name."""
    lines = (block or VERSION).removesuffix(b"\r\n\r\n").split(b"\r\n")
    key = name.encode() + b":"
    present = next((line for line in lines[1:] if line.startswith(key)), None)
    if present is not None:
        lines.remove(present)
    return b"\r\n".join([*lines, key + b" " + value.encode(), b"", b""])


def _lines(pairs: Pairs) -> bytes:
    lines = []
    for name, value in pairs:
        if not name or ":" in name or _LINE_BREAKS.search(name) or _LINE_BREAKS.search(value):
            raise ValueError(f"no header can hold {quoted(name)}: {quoted(value)}")
        lines.append(f"{name}: {value}\r\n")
    return "".join(lines).encode()
