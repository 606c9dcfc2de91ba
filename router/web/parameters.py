"""Parameters of queries and paths by their types: each is read whole, or refused.

No dialect gives a parameter that cannot be read its default: a client that asks for `timeout=5s`
would wait for something else than it meant to. What a parameter holds counts, an empty text too.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import TYPE_CHECKING, Final

from router.backends import ResetTarget, Start
from router.errors import BadReadOptionError
from router.quoting import quoted
from router.services.groups import moment, target
from router.web import intake

if TYPE_CHECKING:
    from _typeshed.wsgi import WSGIEnvironment

MILLISECONDS: Final = "milliseconds"
BYTES: Final = "bytes"
MAX_NUMBER: Final = 2**63 - 1
MAX_DIGITS: Final = 19
"""Digits of MAX_NUMBER; turning very long texts into numbers costs, or fails."""
_FLAGS: Final = {"true": True, "1": True, "yes": True, "false": False, "0": False, "no": False}


class Query:
    """The parameters of a request's query; the first of a name wins.

    Each method raises BadReadOptionError for a parameter that cannot be read, and returns the
    default only where there is none of this name.
    """

    __slots__ = ("_found",)

    def __init__(self, environ: WSGIEnvironment) -> None:
        self._found = intake.query(environ)

    def text(self, name: str) -> str | None:
        """Return a parameter as it is, each character one byte as sent; None: there is none."""
        return self._found.get(name)

    def number(self, name: str, default: int, most: int, unit: str = "") -> int:
        """Return a whole number from 0 on, at most `most`: a larger one is `most`."""
        text = self._found.get(name)
        if text is None:
            return default
        found = _whole(text)
        if found is None:
            raise _unreadable(name, f"a whole number{unit and f' of {unit}'}", text)
        return min(found, most)

    def flag(self, name: str, *, default: bool, bare: bool = True) -> bool:
        """Return true or false, also written 1, 0, yes, no; `bare`: what an empty text means."""
        text = self._found.get(name)
        if text is None:
            return default
        found = _FLAGS.get(text.lower()) if text else bare
        if found is None:
            raise _unreadable(name, "true or false", text)
        return found

    def choice(self, name: str, choices: Collection[str], default: str) -> str:
        """Return one of several words."""
        text = self._found.get(name)
        if text is None:
            return default
        if text not in choices:
            raise _unreadable(name, " or ".join(choices), text)
        return text

    def moment(self, name: str) -> Start | int | None:
        """Return the earliest, the latest or a time in ms since 1970; None: there is none."""
        text = self._found.get(name)
        return None if text is None else moment(name, text)

    def target(self, name: str) -> ResetTarget | None:
        """Return where a group is to go on: a moment, or positions; None: there is none."""
        text = self._found.get(name)
        return None if text is None else target(name, text)


def number(name: str, text: str) -> int:
    """Return a whole number that a path holds; raise BadReadOptionError."""
    found = _whole(text)
    if found is None or found > MAX_NUMBER:
        raise _unreadable(name, f"a whole number up to {MAX_NUMBER}", text)
    return found


def _whole(text: str) -> int | None:
    if not (text.isascii() and text.isdigit()):
        return None
    digits = text.lstrip("0")
    return int(digits or "0") if len(digits) <= MAX_DIGITS else MAX_NUMBER + 1


def _unreadable(name: str, expected: str, text: str) -> BadReadOptionError:
    return BadReadOptionError(f"{name}: expected {expected}, not {quoted(text, 40)}.")
