"""Which stretch of a topic's messages a page, an export or a replay is about, as addresses say it.

`from` is where it begins: `earliest`, `latest`, a time, the id of a message
(`ledger:entry:partition`, `:index` behind it in a batch, or PIP 64's base64), which is in one
partition, or marks as server-sent events have them, one for each partition. `before` are marks of
where it ends. Without either it is about the last messages, and what comes.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final, NoReturn
from urllib.parse import urlencode

from router.errors import BadReadOptionError, BadRequestError
from router.errors.quoting import quoted
from router.model import NOT_PARTITIONED, Message, Position, Stored
from router.services.groups import moment
from router.services.read import placed
from router.services.scan import After, Places, Start, StartPosition
from router.web.console import shown
from router.web.console.context import words
from router.web.openapi.description import text
from router.web.pulsar_rest import ids
from router.web.requests import Query

_EXPECTED: Final = (
    "expected earliest, latest, a time with its zone such as 2026-11-01T00:00Z, milliseconds since"
    " 1970, or a message's id such as 12:345:0"
)


SELECTION: Final = (
    text("filter", "Messages whose value, key or headers hold this text."),
    text("key", "Messages of exactly this key."),
    text("header", "Messages with a header: `name`, or `name=value`."),
    text("path", "Messages whose JSON has something at a path, such as `$.order.total=12`."),
    text("partition", "Messages of one partition."),
    text("from", "Where the stretch begins."),
    text("before", "Marks of where it ends."),
)
MAX_CHARACTERS: Final = 1_000
"""Of one filter."""
MAX_STEPS: Final = 20
MAX_VISITED: Final = 10_000
"""Values of one message that a path visits."""
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
class Selection:
    """A stretch of a topic and filters; `starts` and `ends` None: not named.

    `given` are the parameters that say so, without those that are empty.
    """

    chosen: Filter
    partitions: tuple[int, ...]
    starts: Places | None
    ends: Places | None
    given: Mapping[str, str]

    @property
    def live(self) -> bool:
        """Return whether it is about the last messages, and what comes."""
        return self.starts is None and self.ends is None

    @property
    def filters(self) -> bool:
        """Return whether it leaves out messages by what they hold."""
        return any(name in self.given for name in NAMES)

    def query(self, **places: str) -> str:
        """Return the query of an address with the same filters, and other places."""
        kept = {name: self.given[name] for name in (*NAMES, "view") if name in self.given}
        return urlencode({"tab": "messages"} | kept | places)

    def marks(self, places: Mapping[int, StartPosition]) -> str | None:
        """Return places as a text, None: there are too many of them."""
        if len(self.partitions) > ids.MAX_MARKS:
            return None
        return ids.write_marks([places[partition] for partition in self.partitions])


def texts(query: Query) -> dict[str, str]:
    """Return the parameters of a query that say which messages are meant."""
    return {name: words(query, name) for name in (*NAMES, "from", "before")}


def read_selection(given: Mapping[str, str], partitions: Sequence[int]) -> Selection:
    """Return what the texts of a request say; raise BadReadOptionError.

    `partitions` are the topic's, as its store numbers them.
    """
    chosen = Filter.read(given)
    start = given.get("from", "").strip()
    end = "" if start else given.get("before", "").strip()
    selected = _selected(partitions, chosen.partition)
    starts: Places | None = None
    if start and start != Start.LATEST.value:
        starts = _read("from", start, partitions, selected)
        if len(starts) < len(selected):
            selected = tuple(starts)
            chosen = replace(chosen, partition=max(0, selected[0]))
    ends = read_places("before", end, selected) if end else None
    if ends and not all(isinstance(e, After | Position | Start) for e in ends.values()):
        raise BadReadOptionError("before: expected marks of messages.")
    parameters = dict(given) | {"from": start, "before": end}
    if chosen.partition is not None:
        parameters["partition"] = str(chosen.partition)
    return Selection(
        chosen, selected, starts, ends, {name: one for name, one in parameters.items() if one}
    )


def _selected(partitions: Sequence[int], expected: int | None) -> tuple[int, ...]:
    if expected is None:
        return tuple(partitions)
    if expected >= len(partitions):
        raise BadReadOptionError(
            f"partition: expected a number below {len(partitions)}, not {expected}."
        )
    return (partitions[expected],)


def _read(
    name: str, written: str, partitions: Sequence[int], selected: tuple[int, ...]
) -> dict[int, StartPosition]:
    """Return the places that a text names, of one partition only if it is a message's."""
    try:
        return dict.fromkeys(selected, moment(name, written))
    except BadReadOptionError:
        pass
    if "." in written or "@" in written:
        return read_places(name, written, selected)
    try:
        position = ids.read(written)
    except BadRequestError as error:
        raise _unreadable(name, written) from error
    if position.partition == NOT_PARTITIONED and len(selected) == 1:
        position = replace(position, partition=selected[0])
    if len(partitions) == 1 and position.partition in {0, NOT_PARTITIONED}:
        position = replace(position, partition=partitions[0])
    if position.partition not in selected:
        raise BadReadOptionError(
            f"{name}: expected a message of a partition that is shown, not {quoted(written, 40)}."
        )
    return {position.partition: position}


def read_places(name: str, written: str, selected: tuple[int, ...]) -> dict[int, StartPosition]:
    """Return places from marks, one for each partition; raise BadReadOptionError."""
    try:
        marks = ids.read_marks(written)
    except BadRequestError as error:
        raise _unreadable(name, written) from error
    if len(marks) != len(selected):
        raise BadReadOptionError(
            f"{name}: expected marks of {len(selected)} partitions, not of {len(marks)}."
        )
    return {p: placed(mark, p) for p, mark in zip(selected, marks, strict=True)}


def _unreadable(name: str, written: str) -> BadReadOptionError:
    return BadReadOptionError(f"{name}: {_EXPECTED}, not {quoted(written, 40)}.")


@dataclass(frozen=True, slots=True)
class JsonPath:
    """A place in JSON values, and what is to be there; `expected` None: anything."""

    steps: tuple[Step, ...]
    expected: str | None

    @classmethod
    def read(cls, written: str) -> JsonPath:
        """Read a path; raise BadReadOptionError."""
        written = written.strip(_BLANK)
        if not written.startswith("$"):
            raise _unreadable_path(written)
        steps, at = list[Step](), 1
        while (found := _STEP.match(written, at)) and len(steps) <= MAX_STEPS:
            steps.append(_step(found, written))
            at = found.end()
        rest = written[at:].lstrip(_BLANK)
        if len(steps) > MAX_STEPS or rest[:1] not in {"", "="}:
            raise _unreadable_path(written)
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
        return any(self.expected is None or _equals(one, self.expected) for one in found)


@dataclass(frozen=True, slots=True)
class Filter:
    """What messages have to have; what is empty does not matter."""

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
        """Return whether a message has all of that."""
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
        expected = self.text.lower()
        texts = [shown.text(message.value)[0], shown.text(message.key or b"")[0]]
        texts += [f"{name}: {value}" for name, value in message.properties.items()]
        return any(expected in one.lower() for one in texts)


def _key(message: Message) -> str | None:
    return None if message.key is None else shown.text(message.key)[0]


def _has_path(message: Message, path: JsonPath) -> bool:
    value, decoded = shown.text(message.value)
    return decoded and path.found_in(value)


def _step(found: re.Match[str], written: str) -> Step:
    name, index, quoted_name = found.groups()
    if quoted_name is not None:
        try:
            return str(json.loads(quoted_name))
        except ValueError:
            raise _unreadable_path(written) from None
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


def _equals(value: object, expected: str) -> bool:
    if isinstance(value, str):
        return value in {expected, _unquoted(expected)}
    if isinstance(value, bool):
        return expected == ("true" if value else "false")
    if isinstance(value, float):
        return bool(_NUMBER.fullmatch(expected)) and float(expected) == value
    return value is None and expected == "null"


def _unquoted(expected: str) -> str | None:
    if not expected.startswith('"'):
        return None
    try:
        found = json.loads(expected)
    except ValueError:
        return None
    return found if isinstance(found, str) else None


def _no_constant(name: str) -> NoReturn:
    raise ValueError(name)


def _unreadable_path(written: str) -> BadReadOptionError:
    return BadReadOptionError(f"path: expected {_PATH}, not {quoted(written, 40)}.")
