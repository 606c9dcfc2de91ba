"""What keeps walks through values short, however hostile these are, and says where one failed."""

from __future__ import annotations

from typing import Final

from router.errors import PayloadMismatchError
from router.errors.quoting import quoted

MAX_DEPTH: Final = 200
"""Levels of a value; each is at most one level of JSON, of which encoders take 254."""
MAX_STEPS: Final = 2_000_000
"""Parts of a value that are looked at."""
MAX_WASTE: Final = 20_000
"""Of these, parts of branches of unions that were tried in vain, however often: a few bytes could
be tried in more ways than there is time for."""
MAX_SHOWN: Final = 60
"""Characters of a text that a sentence shows."""


class UnfitError(PayloadMismatchError):
    """A value is not of its type; another branch of a union may take it."""

    def __init__(self, message: str) -> None:
        super().__init__(message)
        self.path: list[str] = []

    def __str__(self) -> str:
        where = ".".join(reversed(self.path))
        return f"{where}: {super().__str__()}" if where else super().__str__()


class WalkBudget:
    """How much of a walk is left; the end of it is not for another branch to mend."""

    def __init__(self, limit: int = MAX_STEPS) -> None:
        self.left = limit
        self._waste = MAX_WASTE

    def take(self, depth: int, count: int = 1) -> None:
        """Note that so many more parts are looked at; raise PayloadMismatchError."""
        self.left -= count
        if self.left < 0:
            raise PayloadMismatchError("the value has too many parts")
        if depth > MAX_DEPTH:
            raise PayloadMismatchError(f"the value has more than {MAX_DEPTH} levels")

    def waste(self, left: int) -> None:
        """Note that all steps since so many were left led nowhere; raise PayloadMismatchError."""
        self._waste -= left - self.left
        if self._waste < 0:
            raise PayloadMismatchError("the value could be of too many branches of its unions")


def shown(value: object) -> str:
    """Return a value as a sentence may show it."""
    if isinstance(value, str | float | None):
        return quoted(value, MAX_SHOWN)
    return _number_or_type(value)


def _number_or_type(value: object) -> str:
    # The digits of a huge number take long to find.
    small = isinstance(value, int) and value.bit_length() <= 64
    return quoted(value) if small else f"a JSON {_JSON.get(type(value), type(value).__name__)}"


_JSON: Final = {dict: "object", list: "array", int: "number", bool: "boolean"}
