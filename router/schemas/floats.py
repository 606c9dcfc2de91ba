"""Floating point numbers in JSON, which has no word for those that are not finite."""

from __future__ import annotations

import math
from typing import Any, Final

_WORDS: Final = {"NaN": math.nan, "Infinity": math.inf, "-Infinity": -math.inf}
_SINGLE_MAX: Final = float.fromhex("0x1.fffffep+127")


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
