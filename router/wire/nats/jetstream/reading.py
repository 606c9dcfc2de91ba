"""Strict reading of JSON objects: known members, their types and ranges, else error 10025.

The rules are those of nats-server with strict decoding: names of members match in any case, a
member that is `null` counts as absent, an integer has neither point nor exponent, and the last of
repeated members counts. A schema is a table of members, so no reader is written by hand.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping
from enum import StrEnum
from typing import Any, Final

from router.wire.nats.jetstream.errors import ErrorCode, JetStreamError, error
from router.wire.nats.jetstream.times import parse_time

Reader = Callable[[object], Any]
"""Turns a decoded JSON value that is not null into the member's value; raises ValueError."""

WHITESPACE: Final = b" \t\r\n"
"""What may stand around a JSON value."""

MAX_INT64: Final = (1 << 63) - 1
_MAX_INT32: Final = (1 << 31) - 1
_MAX_UINT64: Final = (1 << 64) - 1
_MAX_SHOWN_CHARACTERS: Final = 64


def invalid_json(sentence: str) -> JetStreamError:
    """Return the error 10025 with a sentence on what is wrong."""
    return error(ErrorCode.INVALID_JSON, err=sentence)


def decode(body: bytes) -> object:
    """Return the JSON value of a request's body, `{}` for an empty one; raises 10025."""
    if not body.strip(WHITESPACE):
        return {}
    try:
        return _DECODER.decode(body.decode(errors="replace"))
    except RecursionError:
        raise invalid_json("the value is nested too deeply") from None
    except ValueError as reason:
        raise invalid_json(str(reason)) from None


def _refuse_constant(name: str) -> object:
    raise ValueError(f"{name} is no JSON")


_DECODER: Final = json.JSONDecoder(parse_constant=_refuse_constant)


class ObjectReader:
    """Reads objects with the given members; `read` raises 10025 and calls raise ValueError."""

    def __init__(self, members: Mapping[str, Reader], *, ignore_unknown: bool = False) -> None:
        self._members = {name.lower(): (name, reader) for name, reader in members.items()}
        self._ignore_unknown = ignore_unknown

    def read(self, value: object) -> dict[str, Any]:
        """Return the members of a decoded value that are there; raises JetStreamError 10025."""
        try:
            return self(value)
        except ValueError as reason:
            raise invalid_json(str(reason)) from None

    def __call__(self, value: object) -> dict[str, Any]:
        """Return the members of a decoded value that are there; raises ValueError."""
        if value is None:
            return {}
        if not isinstance(value, dict):
            raise ValueError("an object is expected")  # noqa: TRY004
        found: dict[str, Any] = {}
        for key, item in value.items():
            member = self._members.get(key.lower())
            if member is None:
                if self._ignore_unknown:
                    continue
                raise ValueError(f'unknown field "{key[:_MAX_SHOWN_CHARACTERS]}"')
            name, reader = member
            if item is None and not isinstance(reader, _Choice):
                continue
            try:
                found[name] = reader(item)
            except ValueError as reason:
                raise ValueError(f"{name}: {reason}") from None
        return found


def _integer(low: int, high: int) -> Reader:
    def read(value: object) -> int:
        if not isinstance(value, int) or isinstance(value, bool) or not low <= value <= high:
            raise ValueError(f"an integer between {low} and {high} is expected")
        return value

    return read


int32 = _integer(-_MAX_INT32 - 1, _MAX_INT32)
int64 = _integer(-MAX_INT64 - 1, MAX_INT64)
uint64 = _integer(0, _MAX_UINT64)


def boolean(value: object) -> bool:
    """Return a boolean; raises ValueError."""
    if not isinstance(value, bool):
        raise ValueError("true or false is expected")  # noqa: TRY004
    return value


def text(value: object) -> str:
    """Return a string, lone surrogates replaced; raises ValueError."""
    if not isinstance(value, str):
        raise ValueError("a string is expected")  # noqa: TRY004
    return value.encode("utf-16", "surrogatepass").decode("utf-16", "replace")


def timestamp(value: object) -> int:
    """Return a time after RFC 3339 in nanoseconds since 1970; raises ValueError."""
    return parse_time(text(value))


class _Choice:
    """Reads one of the words of an enumeration."""

    def __init__(self, words: Iterable[StrEnum], aliases: Mapping[str, StrEnum]) -> None:
        self._words = {word.value: word for word in words} | dict(aliases)

    def __call__(self, value: object) -> StrEnum:
        if not isinstance(value, str) or value not in self._words:
            raise ValueError(f"one of {', '.join(self._words)} is expected")
        return self._words[value]


def choice(words: type[StrEnum], **aliases: StrEnum) -> Reader:
    """Return a reader of the words of an enumeration; null is no word."""
    return _Choice(words, aliases)


def array(item: Reader, absent: object) -> Reader:
    """Return a reader of arrays as tuples, `absent` in the place of null."""

    def read(value: object) -> tuple[Any, ...]:
        if not isinstance(value, list):
            raise ValueError("an array is expected")  # noqa: TRY004
        return tuple(absent if element is None else item(element) for element in value)

    return read


def text_map(value: object) -> dict[str, str]:
    """Return an object whose members are strings; raises ValueError."""
    if not isinstance(value, dict):
        raise ValueError("an object is expected")  # noqa: TRY004
    return {text(key): "" if item is None else text(item) for key, item in value.items()}
