"""Owns how a dataclass stands for a JSON object: a field is a member, said once for both ways.

A field of a request has the reader of its member (`member`). In what is written a member whose
field is OPTIONAL is left out when it has its default. The field of a TIME has nanoseconds since
1970, its member RFC 3339.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import MISSING, field, fields
from enum import StrEnum
from functools import cache
from typing import Any, Final

from router.wire.nats.jetstream.reading import ObjectReader, Reader, timestamp
from router.wire.nats.jetstream.times import ZERO_TIME_NS, format_time

OPTIONAL: Final[dict[str, Any]] = {"optional": True}
TIME: Final[dict[str, Any]] = {"time": True}
"""None: the time that JetStream writes where there is none."""
_NO_TIME: Final = format_time(ZERO_TIME_NS)


def member(
    reader: Reader, default: Any = MISSING, *, default_factory: Any = MISSING, always: bool = False
) -> Any:
    """Return the field of a member that requests have; `always`: it is not OPTIONAL."""
    metadata = {"reader": reader, "optional": not always, "time": reader is timestamp}
    return field(default=default, default_factory=default_factory, metadata=metadata)


class JsonObject:
    """A dataclass that is a JSON object."""

    __slots__ = ()

    def to_json(self) -> dict[str, Any]:
        """Return the object, its members in the order of the fields."""
        kind: Any = type(self)
        found: dict[str, Any] = {}
        for name, is_optional, default, shown in _written(kind):
            given = getattr(self, name)
            if not (is_optional and given == default):
                found[name] = shown(given)
        return found


def reader_of(kind: Any, *, ignore_unknown: bool = False) -> ObjectReader:
    """Return what reads the members of a dataclass whose fields all have readers."""
    return _reader_of(kind, ignore_unknown)


@cache
def _reader_of(kind: Any, ignore_unknown: bool) -> ObjectReader:
    readers = {one.name: one.metadata["reader"] for one in fields(kind)}
    return ObjectReader(readers, ignore_unknown=ignore_unknown)


@cache
def _written(kind: Any) -> Sequence[tuple[str, bool, object, Callable[[Any], Any]]]:
    """Return of each field its name, whether it is OPTIONAL, its default and what shows it."""
    return [
        (
            one.name,
            one.metadata.get("optional", False),
            one.default if one.default_factory is MISSING else one.default_factory(),
            shown_time if one.metadata.get("time") else _shown,
        )
        for one in fields(kind)
    ]


def shown_time(time_ns: int | None) -> str:
    """Return a time as a TIME is written."""
    return _NO_TIME if time_ns is None else format_time(time_ns)


def _shown(value: Any) -> Any:
    if isinstance(value, StrEnum):
        return value.value
    if isinstance(value, Sequence) and not isinstance(value, str):
        return [_shown(one) for one in value]
    return value.to_json() if hasattr(value, "to_json") else value
