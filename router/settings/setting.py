"""What a setting is."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True)
class Setting:
    """One setting: `parse` turns text into its value and raises ValueError."""

    name: str
    parse: Callable[[str], Any]
    default: str
    sentence: str
