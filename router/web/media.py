"""Media types: what a body is, and which format an answer has (RFC 9110, 8.3 and 12.5)."""

from __future__ import annotations

import re
from collections.abc import Sequence
from enum import Enum
from functools import lru_cache
from typing import Final

from router.errors import BadReadOptionError, NotAcceptableError
from router.errors.quoting import quoted

# Words (tokens) and values of HTTP's fields (RFC 9110, 5.5 and 5.6.2), as parts of patterns.
WORD: Final = r"[!#$%&'*+\-.^_`|~0-9A-Za-z]+"
FIELD_VALUE: Final = r"[\t\x20-\x7e\x80-\xff]*"
# Parameters mean nothing here, so their quoted texts, which may hold commas, are left out. The
# pattern matches at every quote, closed or not: it never reads a character twice.
_QUOTED: Final = re.compile(r'"(?:[^"\\]|\\.)*+"?')
_RANGE: Final = re.compile(rf"{WORD}/{WORD}|\*")
_Q: Final = re.compile(r"(?:0?\.\d{1,9}|[01](?:\.\d{0,9})?)")
PROBLEM: Final = "application/problem+json"
"""A problem document (RFC 9457)."""


class Format(Enum):
    """How messages are written into an answer."""

    JSON = "application/json"
    NDJSON = "application/x-ndjson"
    CAMBRIA = "application/cambria"
    TEXT = "text/plain"
    EVENTS = "application/cloudevents-batch+json"
    """CloudEvents, which an Accept has to name; a request for one event gets a batch."""


_PLAIN: Final = tuple(choice for choice in Format if choice is not Format.EVENTS)
_EVENT: Final = "application/cloudevents+json"


@lru_cache(maxsize=256)
def media_type(header: str) -> str:
    """Return type and subtype in lower case, without parameters."""
    return header.partition(";")[0].strip().lower()


@lru_cache(maxsize=256)
def answer_format(accept: str | None, content_type: str | None) -> Format:
    """Choose the format of a poll's answer by Accept; where that leaves it open, by Content-Type.

    The guide names Content-Type for polls too. Raises BadReadOptionError for an Accept that cannot
    be read, NotAcceptableError when it names nothing that the router writes.
    """
    kind = media_type(content_type or "")
    preferred = next((choice for choice in _PLAIN if choice.value == kind), Format.JSON)
    ranges = _ranges(accept or "")
    if not ranges:
        return preferred
    rated = [(*_rate(choice, ranges), choice) for choice in (preferred, *_PLAIN)]
    rated += [
        (quality, at, Format.EVENTS)
        for at, (name, quality) in enumerate(ranges)
        if name in {Format.EVENTS.value, _EVENT}
    ]
    best = min(rated, key=lambda found: (-found[0], found[1]))
    if best[0] <= 0:
        offered = ", ".join(choice.value for choice in _PLAIN)
        raise NotAcceptableError(f"The router answers {offered}; Accept allows none of them.")
    choice: Format = best[2]
    return choice


def names_events(accept: str | None) -> bool:
    """Return whether an Accept header names a media type of CloudEvents that the router writes."""
    return "cloudevents" in (accept or "").lower() and any(
        name in {Format.EVENTS.value, _EVENT} and quality > 0
        for name, quality in _ranges(accept or "")
    )


def wants_json(accept: str | None) -> bool:
    """Return whether an Accept header asks for JSON and not for a text format of Prometheus."""
    ranges = [part.partition(";")[0].strip().lower() for part in (accept or "").split(",")]
    return "application/json" in ranges and not any(
        name in {"text/plain", "application/openmetrics-text"} for name in ranges
    )


def _ranges(accept: str) -> list[tuple[str, float]]:
    found = []
    for part in _QUOTED.sub("", accept).split(","):
        name, *parameters = (piece.strip() for piece in part.split(";"))
        if not name and not parameters:
            continue  # empty list elements are allowed (RFC 9110, 5.6.1)
        if not _RANGE.fullmatch(name):
            raise BadReadOptionError(f"Accept: {quoted(name)} is no media range")
        # Java's own HTTP client sends a lone "*".
        found.append(("*/*" if name == "*" else name.lower(), _quality(parameters)))
    return found


def _quality(parameters: Sequence[str]) -> float:
    for parameter in parameters:
        name, _, value = parameter.partition("=")
        if name.strip().lower() == "q":
            value = value.strip()
            if not _Q.fullmatch(value) or float(value) > 1:
                raise BadReadOptionError(f"Accept: q={value[:20]} is no weight between 0 and 1")
            return float(value)
    return 1.0


def _rate(choice: Format, ranges: Sequence[tuple[str, float]]) -> tuple[float, int]:
    """Return the weight of a format, by its most specific range, and where that range stands."""
    kind = choice.value.partition("/")[0]
    for range_name in (choice.value, f"{kind}/*", "*/*"):
        for at, (name, quality) in enumerate(ranges):
            if name == range_name:
                return quality, at
    return 0.0, len(ranges)
