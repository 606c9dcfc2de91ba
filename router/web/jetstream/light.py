"""Answers for light clients: `+OK` or `-ERR`, with fields in URL encoding behind it (seed 003).

A client that reads nothing but the first byte knows the outcome. Fields are `name=value` with `&`
between them; a space is `%20`. They carry no types: docs/jetstream-http.md says what each one is.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final
from urllib.parse import quote

KIND: Final = "text/plain; charset=utf-8"


def ok(fields: Mapping[str, object] | None = None) -> str:
    """Return `+OK`, with its context if there is any."""
    return _line("+OK", fields or {})


def err(fields: Mapping[str, object] | None = None) -> str:
    """Return `-ERR`, with its context if there is any."""
    return _line("-ERR", fields or {})


def _line(prefix: str, fields: Mapping[str, object]) -> str:
    shown = {name: str(value) for name, value in fields.items() if value not in {None, ""}}
    if not shown:
        return prefix
    pairs = (f"{name}={quote(text, safe='')}" for name, text in shown.items())
    return f"{prefix} {'&'.join(pairs)}"
