"""Parsers of settings: one function for each type, whose docstring names the type."""

from __future__ import annotations

import re
from collections.abc import Callable

_SIZES = {
    "": 1,
    "b": 1,
    "k": 1024,
    "kib": 1024,
    "m": 1 << 20,
    "mib": 1 << 20,
    "g": 1 << 30,
    "gib": 1 << 30,
}
_TIMES = {"ms": 0.001, "": 1.0, "s": 1.0, "m": 60.0, "min": 60.0, "h": 3600.0, "d": 86400.0}


def text(value: str) -> str:
    """Any text."""
    return value


def flag(value: str) -> bool:
    """Yes or no: true/false, yes/no, on/off, 1/0."""
    folded = value.strip().lower()
    if folded in {"true", "yes", "on", "1"}:
        return True
    if folded in {"false", "no", "off", "0"}:
        return False
    raise ValueError("expected true or false")


def count(value: str) -> int:
    """Non-negative whole number."""
    number = int(value)
    if number < 0:
        raise ValueError("expected a number that is not negative")
    return number


def at_most(limit: int) -> Callable[[str], int]:
    """Whole number up to a bound."""

    def parse(value: str) -> int:
        if count(value) > limit:
            raise ValueError(f"expected {limit} at most")
        return count(value)

    parse.__doc__ = f"Whole number, {limit} at most."
    return parse


def bound(value: str) -> int:
    """Bytes, with K, M or G (powers of 1024), or -1 for no limit."""
    return -1 if value.strip() == "-1" else size(value)


def size(value: str) -> int:
    """Bytes, with K, M or G (powers of 1024)."""
    match = re.fullmatch(r"(\d+)\s*([a-z]*)", value.strip().lower())
    if match is None or match[2] not in _SIZES:
        raise ValueError("expected bytes, such as 65536, 64K, 32M or 1G")
    return int(match[1]) * _SIZES[match[2]]


def duration(value: str) -> float:
    """Seconds, with ms, s, m, h or d."""
    match = re.fullmatch(r"(\d+(?:\.\d+)?)\s*([a-z]*)", value.strip().lower())
    if match is None or match[2] not in _TIMES:
        raise ValueError("expected a duration, such as 250ms, 15s, 10m, 12h or 7d")
    return float(match[1]) * _TIMES[match[2]]


def listed(value: str) -> tuple[str, ...]:
    """Words separated by commas or white space."""
    return tuple(word for word in re.split(r"[,\s]+", value) if word)


def group_form(value: str) -> str:
    """Text with `{group}` and optionally `{topic}`."""
    rest = value.replace("{group}", "", 1).replace("{topic}", "", 1)
    if "{group}" not in value or not re.fullmatch(r"[A-Za-z0-9._:-]*", rest):
        raise ValueError("expected a text with {group} in it, such as {group}--{topic}")
    return value


def one_of(*words: str) -> Callable[[str], str]:
    """One of a few words."""

    def parse(value: str) -> str:
        if value not in words:
            raise ValueError(f"expected one of {', '.join(words)}")
        return value

    parse.__doc__ = "One of " + ", ".join(f"`{word}`" for word in words) + "."
    return parse
