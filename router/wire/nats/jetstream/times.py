"""Times of the JetStream API: nanoseconds since 1970, and RFC 3339 in UTC with nanoseconds."""

from __future__ import annotations

import re
from calendar import monthrange, timegm
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
    if not (1 <= month <= 12 and 1 <= day <= monthrange(year, month)[1]):
        raise ValueError(f"{quoted(text, _SHOWN_CHARACTERS)} has no such day")
    if hour > 23 or minute > 59 or second > 59:
        raise ValueError(f"{quoted(text, _SHOWN_CHARACTERS)} has no such time of day")
    seconds = timegm((year, month, day, hour, minute, second))
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


def format_duration(seconds: int) -> str:
    """Return a duration of whole seconds, 0 or more, as Go writes it: `1h0m5s`."""
    minutes, second = divmod(seconds, 60)
    hours, minute = divmod(minutes, 60)
    shown = f"{hours}h" if hours else ""
    return f"{shown}{minute}m{second}s" if minutes else f"{second}s"


@lru_cache(maxsize=256)
def format_second(seconds: int) -> str:
    """Return the time of a whole second since 1970 as RFC 3339, without the `Z` at the end."""
    days, second = divmod(seconds, _DAY_SECONDS)
    year, month, day = _date_of(days)
    return (
        f"{year:04}-{month:02}-{day:02}T{second // 3600:02}:{second // 60 % 60:02}:{second % 60:02}"
    )


# Years are counted from March, so that a leap day is the last day of its year.
def _date_of(days: int) -> tuple[int, int, int]:
    era, day_of_era = divmod(days + 719_468, 146_097)
    year_of_era = (
        day_of_era - day_of_era // 1460 + day_of_era // 36_524 - day_of_era // 146_096
    ) // 365
    day_of_year = day_of_era - (365 * year_of_era + year_of_era // 4 - year_of_era // 100)
    shifted = (5 * day_of_year + 2) // 153
    month = shifted + 3 if shifted < 10 else shifted - 9
    return era * 400 + year_of_era + (month <= 2), month, day_of_year - (153 * shifted + 2) // 5 + 1
