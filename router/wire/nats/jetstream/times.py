"""Times of the JetStream API: nanoseconds since 1970, and RFC 3339 in UTC with nanoseconds."""

from __future__ import annotations

import re
from datetime import date, timedelta
from functools import lru_cache
from typing import Final

from router.errors.quoting import quoted

NANOSECONDS: Final = 1_000_000_000
"""Nanoseconds of one second."""

ZERO_TIME_NS: Final = -62_135_596_800 * NANOSECONDS
"""The time that JetStream writes where there is none: the start of the year 1."""

_RFC_3339: Final = re.compile(
    r"(\d{4})-(\d\d)-(\d\d)T(\d\d):(\d\d):(\d\d)(?:\.(\d+))?(?:Z|([+-])(\d\d):(\d\d))", re.ASCII
)
# The calendar repeats after so many years; Python's has those from 1 to 9999 alone.
_CYCLE_YEARS: Final = 400
_CYCLE_DAYS: Final = 146_097
_YEAR_2000: Final = date(2000, 1, 1)
_DAYS_TO_2000: Final = (_YEAR_2000 - date(1970, 1, 1)).days
_DAY_SECONDS: Final = 86_400
_SHOWN_CHARACTERS: Final = 64


def parse_time(text: str) -> int:
    """Return the nanoseconds since 1970 of a time after RFC 3339; raises ValueError.

    Digits after the ninth of a fraction are dropped, and a leap second is refused, as Go does.
    """
    match = _RFC_3339.fullmatch(text)
    if match is None:
        raise ValueError(f"{quoted(text, _SHOWN_CHARACTERS)} is no time after RFC 3339")
    year, month, day, hour, minute, second = (int(part) for part in match.groups()[:6])
    try:
        days = _days_since_1970(year, month, day)
    except ValueError:
        raise ValueError(f"{quoted(text, _SHOWN_CHARACTERS)} has no such day") from None
    if hour > 23 or minute > 59 or second > 59:
        raise ValueError(f"{quoted(text, _SHOWN_CHARACTERS)} has no such time of day")
    seconds = days * _DAY_SECONDS + hour * 3600 + minute * 60 + second
    if match[8] is not None:
        hours, minutes = int(match[9]), int(match[10])
        if hours > 23 or minutes > 59:
            raise ValueError(f"{quoted(text, _SHOWN_CHARACTERS)} has no such offset from UTC")
        offset = hours * 3600 + minutes * 60
        seconds += -offset if match[8] == "+" else offset
    return seconds * NANOSECONDS + int((match[7] or "0")[:9].ljust(9, "0"))


def format_time(time_ns: int) -> str:
    """Return a time as RFC 3339 in UTC; the fraction has no zeros at its end, as in Go."""
    seconds, fraction = divmod(time_ns, NANOSECONDS)
    digits = f".{fraction:09}".rstrip("0") if fraction else ""
    return f"{format_second(seconds)}{digits}Z"


@lru_cache(maxsize=256)
def format_second(seconds: int) -> str:
    """Return the time of a whole second since 1970 as RFC 3339, without the `Z` at the end."""
    days, second = divmod(seconds, _DAY_SECONDS)
    cycles, within = divmod(days - _DAYS_TO_2000, _CYCLE_DAYS)
    found = _YEAR_2000 + timedelta(within)
    year, hour, minute = found.year + cycles * _CYCLE_YEARS, second // 3600, second // 60 % 60
    return f"{year:04}-{found.month:02}-{found.day:02}T{hour:02}:{minute:02}:{second % 60:02}"


def _days_since_1970(year: int, month: int, day: int) -> int:
    """Return how many days a date is behind the first of 1970; raise ValueError for none."""
    cycles, within = divmod(year, _CYCLE_YEARS)
    behind_2000 = (_YEAR_2000.replace(2000 + within, month, day) - _YEAR_2000).days
    return _DAYS_TO_2000 + behind_2000 + (cycles - 2000 // _CYCLE_YEARS) * _CYCLE_DAYS
