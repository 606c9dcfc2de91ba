"""MessagePack as JSON shows it: a reader with bounds, for values that people look at.

Bytes are written in base64, extensions with their number, times in UTC; keys of maps that are no
text are written as JSON.
"""

from __future__ import annotations

import json
import struct
from base64 import b64encode
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from typing import Any, Final

MAX_DEPTH: Final = 64
MAX_NODES: Final = 100_000
_TIMESTAMP: Final = -1
_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)


def _forms() -> Iterator[tuple[int, tuple[str, Any]]]:
    """Yield how a value is read that begins with a byte: its form, and what the byte says of it.

    That is the value itself, a format of `struct`, a size, or, negative, the width of the size.
    """
    for byte in range(0x80):
        yield byte, ("constant", byte)
    for byte in range(16):
        yield 0x80 + byte, ("map", byte)
        yield 0x90 + byte, ("array", byte)
    for byte in range(32):
        yield 0xA0 + byte, ("text", byte)
        yield 0xE0 + byte, ("constant", byte - 32)
    yield from {
        0xC0: ("constant", None),
        0xC2: ("constant", False),
        0xC3: ("constant", True),
    }.items()
    for byte, code in enumerate("fdBHIQbhiq", 0xCA):
        yield byte, ("number", f">{code}")
    for first, form in ((0xC4, "bytes"), (0xC7, "extension"), (0xD9, "text")):
        yield from ((first + n, (form, -(1 << n))) for n in range(3))
    yield from ((0xD4 + n, ("extension", 1 << n)) for n in range(5))
    for first, form in ((0xDC, "array"), (0xDE, "map")):
        yield from ((first + n, (form, -2 << n)) for n in range(2))


_FORMS: Final = dict(_forms())


def structure(data: bytes) -> dict[str, Any] | list[Any] | None:
    """Return the map or array that data is, as JSON can hold it; None: it is none.

    None as well for data that is deeper than MAX_DEPTH, or has more than MAX_NODES values.
    """
    if _FORMS.get(data[0] if data else 0, ("", 0))[0] not in {"map", "array"}:
        return None
    reader = _MessagePackReader(data)
    try:
        found = reader.value(0)
    except (ValueError, struct.error, OverflowError):  # UnicodeError too
        return None
    return found if reader.at == len(data) else None


class _MessagePackReader:
    def __init__(self, data: bytes) -> None:
        self._data = data
        self._nodes = 0
        self.at = 0

    def value(self, depth: int) -> Any:
        self._nodes += 1
        if depth > MAX_DEPTH or self._nodes > MAX_NODES:
            raise ValueError("it is too large")
        form, layout = _FORMS.get(self._take(1)[0], ("", None))
        if form == "constant":
            return layout
        if form == "number":
            return _finite(struct.unpack(layout, self._take(struct.calcsize(layout)))[0])
        if not form:
            raise ValueError("no value begins so")
        size = layout if layout >= 0 else int.from_bytes(self._take(-layout))
        return self._sized(form, size, depth)

    def _sized(self, form: str, size: int, depth: int) -> Any:
        if form == "map":
            return self._map(size, depth)
        if form == "array":
            return [self.value(depth + 1) for _ in range(size)]
        if form == "extension":
            return self._extension(size)
        data = self._take(size)
        return data.decode() if form == "text" else b64encode(data).decode()

    def _map(self, count: int, depth: int) -> dict[str, Any]:
        found = {}
        for _ in range(count):
            key = self.value(depth + 1)
            found[key if isinstance(key, str) else json.dumps(key)] = self.value(depth + 1)
        return found

    def _extension(self, size: int) -> Any:
        (number,) = struct.unpack(">b", self._take(1))
        data = self._take(size)
        if number == _TIMESTAMP and (time := _time(data)) is not None:
            return time
        return {"extension": number, "data": b64encode(data).decode()}

    def _take(self, size: int) -> bytes:
        end = self.at + size
        if end > len(self._data):
            raise ValueError("it ends early")
        taken, self.at = self._data[self.at : end], end
        return taken


def _finite(number: float) -> float | str:
    return number if number - number == 0 else str(number)


def _time(data: bytes) -> str | None:
    """Return the time of an extension in UTC, None: it holds none that a calendar has."""
    if len(data) == 4:
        seconds, nanoseconds = int.from_bytes(data), 0
    elif len(data) == 8:
        both = int.from_bytes(data)
        nanoseconds, seconds = both >> 34, both & (2**34 - 1)
    elif len(data) == 12:
        nanoseconds, seconds = struct.unpack(">Iq", data)
    else:
        return None
    try:
        return (_EPOCH + timedelta(seconds=seconds, microseconds=nanoseconds // 1000)).isoformat()
    except OverflowError:
        return None
