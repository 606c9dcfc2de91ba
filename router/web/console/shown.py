"""Numbers, times and bytes as pages show them."""

from __future__ import annotations

import json
import re
from datetime import UTC, datetime, timedelta
from typing import Any, Final, NoReturn

from router.clocks import wall_ms
from router.model import Position

_UNITS: Final = ("B", "KiB", "MiB", "GiB", "TiB")
MAX_DUMPED_BYTES: Final = 4_096
BYTES_A_LINE: Final = 16
MAX_TREE_NODES: Final = 300
"""Of one message."""
MAX_TREE_DEPTH: Final = 20
# Line break and tab show themselves; the last ones turn the direction of what follows.
_UNSEEN: Final = re.compile(
    "[\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200b\u200e\u200f\u202a-\u202e\u2060\u2066-\u2069\ufeff]"
)
_CONSTANTS: Final[dict[Any, str]] = {True: "true", False: "false", None: "null"}
_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)


def size(count: int) -> str:
    """Return a number of bytes in the unit that suits it."""
    value, unit = float(count), _UNITS[0]
    for unit in _UNITS:
        if value < 1024 or unit == _UNITS[-1]:
            break
        value /= 1024
    return f"{count} B" if unit == "B" else f"{value:.1f} {unit}"


def count(number: int) -> str:
    """Return a number with commas between thousands."""
    return f"{number:,}"


def seconds(value: float) -> str:
    """Return a time of so many seconds in the unit that suits it."""
    for unit, length in (("d", 86_400), ("h", 3_600), ("min", 60)):
        if value >= length:
            return f"{value / length:.1f}".removesuffix(".0") + f" {unit}"
    return f"{value:.0f} s"


def ago(milliseconds: int) -> str:
    """Return how long ago a time in ms since 1970 is."""
    passed = (wall_ms() - milliseconds) / 1000
    return f"{seconds(passed)} ago" if passed >= 1 else "now"


def at(milliseconds: int) -> str:
    """Return a time in ms since 1970 in UTC; the number where no calendar has it."""
    try:
        found = _EPOCH + timedelta(milliseconds=milliseconds)
    except OverflowError:
        return str(milliseconds)
    return found.strftime("%Y-%m-%d %H:%M:%S.") + f"{found.microsecond // 1000:03d}Z"


def moment(written: str) -> int | None:
    """Return the ms since 1970 of a time in ISO 8601 with its zone; None: it is none."""
    try:
        found = datetime.fromisoformat(written)
        return None if found.tzinfo is None else (found - _EPOCH) // timedelta(milliseconds=1)
    except (ValueError, OverflowError):
        return None


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


def visible(written: str) -> str:
    """Return a text in which control characters can be seen and change no direction of reading."""
    return _UNSEEN.sub(_seen, written) if _UNSEEN.search(written) else written


def _seen(found: re.Match[str]) -> str:
    code = ord(found[0])
    if code < 0x20:
        return chr(0x2400 + code)
    return "\u2421" if code == 0x7F else f"[U+{code:04X}]"


def written(messages: list[dict[str, Any]]) -> str:
    """Return what the scripts of a page need of its messages, as JSON; long ones are null."""
    names = ("key", "value", "text", "partition", "headers")
    return json.dumps(
        [None if one["left_out"] else {name: one[name] for name in names} for one in messages]
    )


def hexdump(value: bytes, limit: int = MAX_DUMPED_BYTES) -> str:
    """Return the first bytes of a value as lines of 16, each with its offset and its ASCII."""
    lines = []
    for at in range(0, min(len(value), limit), BYTES_A_LINE):
        part = value[at : at + BYTES_A_LINE]
        plain = "".join(chr(byte) if 0x20 <= byte < 0x7F else "." for byte in part)
        lines.append(f"{at:08x}  {part.hex(' '):<{3 * BYTES_A_LINE - 1}}  |{plain}|")
    return "\n".join(lines)


def tree(written: str, nodes: int = MAX_TREE_NODES) -> dict[str, Any] | None:
    """Return a JSON text as nodes, None: it is none.

    A node has a `name`, a `kind` (object, array, text, number or word), a `text`, its `children`,
    and how many `more` there are than so many `nodes` in all allow.
    """
    try:
        value = json.loads(
            written, parse_int=_Digits, parse_float=_Digits, parse_constant=_no_constant
        )
    except (ValueError, RecursionError):
        return None
    return _Tree(nodes).node("", value, 0)


class _Digits(str):
    """A number as it is written."""

    __slots__ = ()


class _Tree:
    """Makes the nodes of one message."""

    def __init__(self, nodes: int) -> None:
        self._left = nodes

    def node(self, name: str, value: Any, depth: int) -> dict[str, Any]:
        if isinstance(value, dict):
            return self._parent(name, "object", list(value.items()), depth)
        if isinstance(value, list):
            named = [(str(index), one) for index, one in enumerate(value)]
            return self._parent(name, "array", named, depth)
        if isinstance(value, _Digits):
            return _node(name, "number", str(value))
        if isinstance(value, str):
            return _node(name, "text", json.dumps(value, ensure_ascii=False))
        return _node(name, "word", _CONSTANTS[value])

    def _parent(
        self, name: str, kind: str, members: list[tuple[str, Any]], depth: int
    ) -> dict[str, Any]:
        marks = "{}" if kind == "object" else "[]"
        made = _node(name, kind, f"{marks[0]}{len(members)}{marks[1]}")
        children: list[dict[str, Any]] = made["children"]
        for member, value in members:
            if self._left <= 0 or depth >= MAX_TREE_DEPTH:
                break
            self._left -= 1
            children.append(self.node(member, value, depth + 1))
        made["more"] = len(members) - len(children)
        return made


def _no_constant(name: str) -> NoReturn:
    raise ValueError(name)


def _node(name: str, kind: str, shown: str) -> dict[str, Any]:
    return {"name": name, "kind": kind, "text": shown, "children": [], "more": 0}
