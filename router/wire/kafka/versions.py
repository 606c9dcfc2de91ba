"""Ranges of versions, as definitions write them: `none`, `3`, `0-4`, `2+`."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Final

MAX_VERSION: Final = (1 << 15) - 1

_RANGE: Final = re.compile(r"(\d{1,5})(?:(\+)|-(\d{1,5}))?")


@dataclass(frozen=True, slots=True)
class Versions:
    """The versions from `lowest` to `highest`.

    There is no upper end where `highest` is None, and there are no versions where `lowest` is None.
    """

    lowest: int | None
    highest: int | None

    @property
    def empty(self) -> bool:
        """Tell whether there are no versions."""
        return self.lowest is None

    @property
    def end(self) -> int:
        """Return the highest version, the highest possible one where there is no end."""
        return MAX_VERSION if self.highest is None else self.highest

    def __contains__(self, version: int) -> bool:
        return self.lowest is not None and self.lowest <= version <= self.end

    def __and__(self, other: Versions) -> Versions:
        if self.lowest is None or other.lowest is None:
            return NONE
        low, end = max(self.lowest, other.lowest), min(self.end, other.end)
        return Versions(low, None if end == MAX_VERSION else end) if low <= end else NONE

    def within(self, other: Versions) -> bool:
        """Tell whether all versions here are versions there too."""
        return self.empty or (self & other) == self

    def numbers(self) -> range:
        """Return the versions of a range that has an end."""
        return range(0) if self.lowest is None else range(self.lowest, self.end + 1)

    def __str__(self) -> str:
        if self.lowest is None:
            return "none"
        if self.highest is None:
            return f"{self.lowest}+"
        return str(self.lowest) if self.lowest == self.highest else f"{self.lowest}-{self.highest}"


NONE: Final = Versions(None, None)
ALL: Final = Versions(0, None)


def parse_versions(text: str) -> Versions:
    """Return the versions that a text names; raise ValueError with a sentence."""
    text = text.strip()
    if text == "none":
        return NONE
    found = _RANGE.fullmatch(text)
    if found is None:
        raise ValueError("versions are none, a number, a range such as 0-4, or 2+")
    low = int(found[1])
    high = None if found[2] else int(found[3] or low)
    if low > MAX_VERSION or (high is not None and not low <= high <= MAX_VERSION):
        raise ValueError(f"versions go from 0 to {MAX_VERSION}, the lower end first")
    return Versions(low, high)
