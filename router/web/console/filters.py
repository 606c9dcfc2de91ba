"""Which messages a page shows, exports and replays: the filters of a topic's messages.

`static/messages.js` says the same of messages that arrive live; a test holds both to one table.

- `filter`: value, key or a header (`name: value`) hold the text, in either case
- `key`: the key is exactly this
- `header`: there is a header of this name; `name=value`: and it is exactly this
- `path`: the value is JSON that has something at a path: `$`, then `.name`, `["any name"]`, `[0]`
  or `[*]` (each element or member); with `=` behind it, a text, number, true, false or null

Numbers are compared as JavaScript has them. Keys and values that are no UTF-8 are hexadecimal.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final, NoReturn

from router.errors import BadReadOptionError
from router.model import Message, Stored
from router.quoting import quoted
from router.web.console.shown import text

MAX_CHARACTERS: Final = 1_000
"""Of one filter."""
MAX_STEPS: Final = 20
MAX_VISITED: Final = 10_000
"""Values of one message that a path looks at."""
NAMES: Final = ("filter", "key", "header", "path", "partition")
_STEP: Final = re.compile(
    r'\.(\*|[^ \t.\[\]="<>!]+)|\[(\*|[0-9]{1,9})\]|\[("(?:[^"\\\x00-\x1f]|\\.)*")\]'
)
_BLANK: Final = " \t"
_NUMBER: Final = re.compile(r"-?(?:0|[1-9][0-9]*)(?:\.[0-9]+)?(?:[eE][+-]?[0-9]+)?")
_PATH: Final = 'a path such as $.order.total, $.items[0]["unit price"] or $.id=7'
Step = str | int | None
"""A name, an index, or None: every member."""


@dataclass(frozen=True, slots=True)
class JsonPath:
    """A place in JSON values, and what is to be there; `wanted` None: anything."""

    steps: tuple[Step, ...]
    wanted: str | None

    @classmethod
    def read(cls, written: str) -> JsonPath:
        """Read a path; raise BadReadOptionError."""
        written = written.strip(_BLANK)
        if not written.startswith("$"):
            raise _unreadable(written)
        steps, at = list[Step](), 1
        while (found := _STEP.match(written, at)) and len(steps) <= MAX_STEPS:
            steps.append(_step(found, written))
            at = found.end()
        rest = written[at:].lstrip(_BLANK)
        if len(steps) > MAX_STEPS or rest[:1] not in {"", "="}:
            raise _unreadable(written)
        return cls(tuple(steps), rest[1:].strip(_BLANK) if rest else None)

    def found_in(self, value: str) -> bool:
        """Return whether a text is JSON that has it."""
        try:
            loaded = json.loads(value, parse_int=float, parse_constant=_no_constant)
        except (ValueError, RecursionError):
            return False
        found, visited = [loaded], 0
        for step in self.steps:
            found = [member for one in found for member in _members(one, step)]
            visited += len(found)
            if visited > MAX_VISITED:
                return False
        return any(self.wanted is None or _equals(one, self.wanted) for one in found)


@dataclass(frozen=True, slots=True)
class Filter:
    """What messages have to have; what is empty is not asked for."""

    text: str = ""
    key: str = ""
    header: str = ""
    path: JsonPath | None = None
    partition: int | None = None

    @classmethod
    def read(cls, given: Mapping[str, str]) -> Filter:
        """Read the filters from the texts of their names; raise BadReadOptionError."""
        for name in NAMES:
            if len(given.get(name, "")) > MAX_CHARACTERS:
                raise BadReadOptionError(f"{name}: expected at most {MAX_CHARACTERS} characters.")
        path, partition = given.get("path", ""), given.get("partition", "").strip()
        if partition and not (partition.isascii() and partition.isdigit() and len(partition) < 10):
            raise BadReadOptionError(
                f"partition: expected a whole number, not {quoted(partition, 40)}."
            )
        return cls(
            given.get("filter", ""),
            given.get("key", ""),
            given.get("header", ""),
            JsonPath.read(path) if path.strip(_BLANK) else None,
            int(partition) if partition else None,
        )

    def matches(self, stored: Stored) -> bool:
        """Return whether a message has all that is asked for."""
        message = stored.message
        return (
            self.partition in {None, max(0, stored.position.partition)}
            and (not self.key or _key(message) == self.key)
            and (not self.header or self._has_header(message))
            and (not self.text or self._holds_text(message))
            and (self.path is None or _has_path(message, self.path))
        )

    def _has_header(self, message: Message) -> bool:
        name, equals, value = self.header.partition("=")
        found = message.properties.get(name)
        return found is not None and (not equals or found == value)

    def _holds_text(self, message: Message) -> bool:
        wanted = self.text.lower()
        texts = [text(message.value)[0], text(message.key or b"")[0]]
        texts += [f"{name}: {value}" for name, value in message.properties.items()]
        return any(wanted in one.lower() for one in texts)


def _key(message: Message) -> str | None:
    return None if message.key is None else text(message.key)[0]


def _has_path(message: Message, path: JsonPath) -> bool:
    value, decoded = text(message.value)
    return decoded and path.found_in(value)


def _step(found: re.Match[str], written: str) -> Step:
    name, index, quoted_name = found.groups()
    if quoted_name is not None:
        try:
            return str(json.loads(quoted_name))
        except ValueError:
            raise _unreadable(written) from None
    if "*" in {name, index}:
        return None
    return int(index) if index is not None else str(name)


def _members(value: Any, step: Step) -> list[Any]:
    if step is None:
        return list(value.values()) if isinstance(value, dict) else _elements(value)
    if isinstance(step, int):
        return _elements(value)[step : step + 1]
    return [value[step]] if isinstance(value, dict) and step in value else []


def _elements(value: Any) -> list[Any]:
    return value if isinstance(value, list) else []


def _equals(value: object, wanted: str) -> bool:
    if isinstance(value, str):
        return value in {wanted, _unquoted(wanted)}
    if isinstance(value, bool):
        return wanted == ("true" if value else "false")
    if isinstance(value, float):
        return bool(_NUMBER.fullmatch(wanted)) and float(wanted) == value
    return value is None and wanted == "null"


def _unquoted(wanted: str) -> str | None:
    if not wanted.startswith('"'):
        return None
    try:
        found = json.loads(wanted)
    except ValueError:
        return None
    return found if isinstance(found, str) else None


def _no_constant(name: str) -> NoReturn:
    raise ValueError(name)


def _unreadable(written: str) -> BadReadOptionError:
    return BadReadOptionError(f"path: expected {_PATH}, not {quoted(written, 40)}.")
