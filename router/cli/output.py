"""What commands print: a table for people, JSON for programs."""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from typing import Any

import click


def for_people() -> bool:
    """Return whether standard output is a terminal; it may be closed."""
    return sys.stdout is not None and sys.stdout.isatty()


def emit(value: Any) -> None:
    """Print a value as JSON: indented on a terminal, else on one line."""
    indent = 2 if for_people() else None
    click.echo(json.dumps(value, indent=indent, ensure_ascii=False))


def respond(as_json: bool, document: Any, *lines: str) -> None:
    """Print a document as JSON, or else the lines that tell people the same."""
    if as_json:
        emit(document)
    for line in () if as_json else lines:
        click.echo(line)


def report(as_json: bool, done: str, kind: str, name: str, where: str = "") -> None:
    """Print that something was done to an object of a kind."""
    respond(as_json, {kind: name, "done": done.lower()}, f"{done} {name} {where}".rstrip())


def table(header: Sequence[str], rows: Sequence[Sequence[object]]) -> list[str]:
    """Return lines of columns, numbers to the right; an empty header is left out.

    Characters that could command a terminal are written out.
    """
    texts = [[_printable(str(cell)) for cell in row] for row in rows]
    if header:
        texts.insert(0, list(header))
    if not texts:
        return []
    columns = range(len(texts[0]))
    widths = [max(len(row[column]) for row in texts) for column in columns]
    numeric = [bool(rows) and all(isinstance(row[c], int) for row in rows) for c in columns]
    lines = []
    for row in texts:
        cells = [
            text.rjust(width) if right else text.ljust(width)
            for text, width, right in zip(row, widths, numeric, strict=True)
        ]
        lines.append("  ".join(cells).rstrip())
    return lines


def _printable(text: str) -> str:
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in text)
