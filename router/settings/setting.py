"""What a setting is, and the types that settings have: `count("server.port", "3904", "Port …")`."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from router.settings import parsing


@dataclass(frozen=True, slots=True)
class Setting:
    """One setting: `parse` turns text into its value and raises ValueError."""

    name: str
    parse: Callable[[str], Any]
    default: str
    sentence: str


Type = Callable[[str, str, str], Setting]
"""Makes a setting of a name, a default and a sentence."""


def of_type(parse: Callable[[str], Any]) -> Type:
    """Return what makes settings that are parsed so."""
    return lambda name, default, sentence: Setting(name, parse, default, sentence)


def at_most(limit: int) -> Type:
    """Return what makes settings that are numbers up to a bound."""
    return of_type(parsing.at_most(limit))


def one_of(*words: str) -> Type:
    """Return what makes settings that are one of a few words."""
    return of_type(parsing.one_of(*words))


bound = of_type(parsing.bound)
count = of_type(parsing.count)
duration = of_type(parsing.duration)
flag = of_type(parsing.flag)
group_form = of_type(parsing.group_form)
listed = of_type(parsing.listed)
size = of_type(parsing.size)
text = of_type(parsing.text)
