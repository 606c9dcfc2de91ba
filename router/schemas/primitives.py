"""Values of the schemas that need no definition, as Apache Pulsar's Java client lays them out.

All numbers are big-endian. In JSON: numbers and booleans as themselves; DATE, TIME and TIMESTAMP as
their milliseconds since 1970; INSTANT and the LOCAL_ ones, which count nanoseconds, as ISO 8601
texts; bytes as base64.
"""

from __future__ import annotations

import base64
import binascii
import datetime
import math
import re
from collections.abc import Callable
from struct import Struct
from typing import Any, Final

from router.errors import PayloadMismatchError
from router.model import SchemaType
from router.schemas.walking import UnfitError, shown

_NUMBERS: Final = {
    SchemaType.INT8: Struct(">b"),
    SchemaType.INT16: Struct(">h"),
    SchemaType.INT32: Struct(">i"),
    SchemaType.INT64: Struct(">q"),
    SchemaType.DATE: Struct(">q"),
    SchemaType.TIME: Struct(">q"),
    SchemaType.TIMESTAMP: Struct(">q"),
}
_FLOATS: Final = {SchemaType.FLOAT: Struct(">f"), SchemaType.DOUBLE: Struct(">d")}
_SECONDS_NANOS: Final = Struct(">qi")
_LONG: Final = Struct(">q")
_DAY_NANOS: Final = Struct(">qq")

_SECOND: Final = 10**9
_DAY: Final = 86_400 * _SECOND
_TIME: Final = re.compile(r"(\d\d):(\d\d)(?::(\d\d)(?:\.(\d{1,9}))?)?", re.ASCII)
# Day 0 of Pulsar's, as Python's calendar counts.
_EPOCH: Final = datetime.date(1970, 1, 1).toordinal()
_WORDS: Final = {"NaN": math.nan, "Infinity": math.inf, "-Infinity": -math.inf}
_SINGLE_MAX: Final = float.fromhex("0x1.fffffep+127")


def write(kind: SchemaType, value: Any) -> bytes:
    """Return the bytes of a value; raise PayloadMismatchError."""
    if (number := _NUMBERS.get(kind)) is not None:
        return _write_integer(kind, number, value)
    if (number := _FLOATS.get(kind)) is not None:
        found = from_json(value, single=kind is SchemaType.FLOAT)
        if found is None:
            raise UnfitError(f"{shown(value)} is no {kind.name}")
        return number.pack(found)
    if kind is SchemaType.BOOLEAN:
        if not isinstance(value, bool):
            raise UnfitError(f"{shown(value)} is no BOOLEAN")
        return bytes([value])
    if not isinstance(value, str):
        raise UnfitError(f"{shown(value)} is no {kind.name}: a text is needed")
    return _WRITERS.get(kind, _from_base64)(value)


def read(kind: SchemaType, data: bytes) -> Any:
    """Return the value that bytes stand for; raise PayloadMismatchError."""
    if (number := _NUMBERS.get(kind) or _FLOATS.get(kind)) is not None:
        found = _unpack(number, kind, data)[0]
        return to_json(found) if isinstance(found, float) else found
    if kind is SchemaType.BOOLEAN:
        if len(data) != 1:
            raise PayloadMismatchError(f"{len(data)} bytes are no BOOLEAN")
        return data != b"\0"
    reader = _READERS.get(kind)
    return base64.b64encode(data).decode() if reader is None else reader(data)


def _write_integer(kind: SchemaType, number: Struct, value: Any) -> bytes:
    bound = 1 << (8 * number.size - 1)
    if not isinstance(value, int) or isinstance(value, bool) or not -bound <= value < bound:
        raise UnfitError(f"{shown(value)} is no {kind.name}")
    return number.pack(value)


def _unpack(form: Struct, kind: SchemaType, data: bytes) -> tuple[Any, ...]:
    if len(data) != form.size:
        raise PayloadMismatchError(f"{len(data)} bytes are no {kind.name}, which has {form.size}")
    return form.unpack(data)


def _from_base64(text: str) -> bytes:
    try:
        return base64.b64decode(text, validate=True)
    except (binascii.Error, ValueError) as error:
        raise UnfitError("bytes are written as base64") from error


def _write_text(text: str) -> bytes:
    try:
        return text.encode()
    except UnicodeEncodeError as error:
        raise UnfitError("a text with half a character") from error


def _read_text(data: bytes) -> str:
    try:
        return data.decode()
    except UnicodeDecodeError as error:
        raise PayloadMismatchError("a STRING that is not UTF-8") from error


def _write_instant(text: str) -> bytes:
    if not text.endswith("Z"):
        raise UnfitError(f"{shown(text)} is no INSTANT, such as 2030-01-31T10:15:30.5Z")
    day, nanos = _moment(text[:-1])
    return _SECONDS_NANOS.pack(day * 86_400 + nanos // _SECOND, nanos % _SECOND)


def _read_instant(data: bytes) -> str:
    seconds, nanos = _unpack(_SECONDS_NANOS, SchemaType.INSTANT, data)
    if not 0 <= nanos < _SECOND:
        raise PayloadMismatchError(f"an INSTANT with {nanos} nanoseconds")
    return f"{_day_text(seconds // 86_400)}T{_time_text(seconds % 86_400 * _SECOND + nanos)}Z"


def _write_date_time(text: str) -> bytes:
    return _DAY_NANOS.pack(*_moment(text))


def _read_date_time(data: bytes) -> str:
    day, nanos = _unpack(_DAY_NANOS, SchemaType.LOCAL_DATE_TIME, data)
    return f"{_day_text(day)}T{_time_text(nanos)}"


def _moment(text: str) -> tuple[int, int]:
    day, _, time = text.partition("T")
    return _day(day), _time(time)


def _day(text: str) -> int:
    try:
        return datetime.date.fromisoformat(text).toordinal() - _EPOCH
    except ValueError as error:
        raise UnfitError(f"{shown(text)} is no date, such as 2030-01-31") from error


def _day_text(day: int) -> str:
    try:
        return datetime.date.fromordinal(day + _EPOCH).isoformat()
    except (ValueError, OverflowError) as error:
        raise PayloadMismatchError("a date outside of the years 1 to 9999") from error


def _time(text: str) -> int:
    match = _TIME.fullmatch(text)
    hours, minutes, seconds = (
        (int(part or 0) for part in match.group(1, 2, 3)) if match else (24,) * 3
    )
    if match is None or hours > 23 or minutes > 59 or seconds > 59:
        raise UnfitError(f"{shown(text)} is no time, such as 10:15:30.5")
    fraction = int((match[4] or "").ljust(9, "0"))
    return (hours * 3600 + minutes * 60 + seconds) * _SECOND + fraction


def _time_text(nanos: int) -> str:
    if not 0 <= nanos < _DAY:
        raise PayloadMismatchError(f"a time of {nanos} nanoseconds")
    seconds, fraction = divmod(nanos, _SECOND)
    whole = f"{seconds // 3600:02}:{seconds // 60 % 60:02}:{seconds % 60:02}"
    return f"{whole}.{fraction:09}".rstrip("0") if fraction else whole


_WRITERS: Final[dict[SchemaType, Callable[[str], bytes]]] = {
    SchemaType.STRING: _write_text,
    SchemaType.INSTANT: _write_instant,
    SchemaType.LOCAL_DATE: lambda text: _LONG.pack(_day(text)),
    SchemaType.LOCAL_TIME: lambda text: _LONG.pack(_time(text)),
    SchemaType.LOCAL_DATE_TIME: _write_date_time,
}
_READERS: Final[dict[SchemaType, Callable[[bytes], str]]] = {
    SchemaType.STRING: _read_text,
    SchemaType.INSTANT: _read_instant,
    SchemaType.LOCAL_DATE: lambda data: _day_text(_unpack(_LONG, SchemaType.LOCAL_DATE, data)[0]),
    SchemaType.LOCAL_TIME: lambda data: _time_text(_unpack(_LONG, SchemaType.LOCAL_TIME, data)[0]),
    SchemaType.LOCAL_DATE_TIME: _read_date_time,
}


def from_json(value: Any, *, single: bool) -> float | None:
    """Return the number that a value of JSON stands for, None: it is none of that size."""
    if isinstance(value, str):
        return _WORDS.get(value)
    if not isinstance(value, int | float) or isinstance(value, bool):
        return None
    try:
        number = float(value)
    except OverflowError:
        return None
    return number if not single or abs(number) <= _SINGLE_MAX or math.isinf(number) else None


def to_json(number: float) -> float | str:
    """Return a number as JSON says it; those that are not finite in words, as Avro and Java do."""
    if math.isfinite(number):
        return number
    return "NaN" if math.isnan(number) else "Infinity" if number > 0 else "-Infinity"
