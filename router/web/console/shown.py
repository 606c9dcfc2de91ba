"""Numbers, times and bytes as pages show them."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Final

from router.model import Message, Position

_UNITS: Final = ("B", "KiB", "MiB", "GiB", "TiB")
_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)


def size(count: int) -> str:
    """Return a number of bytes in the unit that suits it."""
    value, unit = float(count), _UNITS[0]
    for unit in _UNITS:
        if value < 1024 or unit == _UNITS[-1]:
            break
        value /= 1024
    return f"{count} B" if unit == "B" else f"{value:.1f} {unit}"


def at(milliseconds: int) -> str:
    """Return a time in ms since 1970 in UTC; the number where no calendar has it."""
    try:
        found = _EPOCH + timedelta(milliseconds=milliseconds)
    except OverflowError:
        return str(milliseconds)
    return found.strftime("%Y-%m-%d %H:%M:%S.") + f"{found.microsecond // 1000:03d}Z"


def text(value: bytes) -> tuple[str, bool]:
    """Return bytes as text, and whether they are UTF-8; others are shown in hexadecimal."""
    try:
        return value.decode(), True
    except UnicodeDecodeError:
        return value.hex(" "), False


def place(position: Position) -> str:
    """Return where a message is stored in its partition: ledger, entry, index in its batch."""
    index = f".{position.batch_index}" if position.batch_index >= 0 else ""
    return f"{position.ledger}.{position.entry}{index}"


def matches(message: Message, wanted: str) -> bool:
    """Return whether value, key or a header hold a text, in either case."""
    if not wanted:
        return True
    texts = [text(message.value)[0], text(message.key or b"")[0]]
    texts += [f"{name}: {value}" for name, value in message.properties.items()]
    return any(wanted.lower() in one.lower() for one in texts)
