"""On which line of a TOML file each key stands, for sentences about it.

The standard library's parser, which says what the file means, keeps no places. This reads the same
text once more, line by line, and understands only so much of TOML as declarations are written in:
headers, keys at the beginning of a line, and texts of several lines. A key that it does not find is
said to stand where its table begins, so a sentence may be a few lines off, and never wrong.
"""

from __future__ import annotations

import re
from typing import Final

Place = tuple[str | int, ...]

_HEADER: Final = re.compile(r"\s*(\[\[?)\s*([^\[\]]+?)\s*\]\]?\s*(?:#.*)?")
_KEY: Final = re.compile(r"""\s*((?:[A-Za-z0-9_-]+|"[^"]*"|'[^']*')(?:\s*\.\s*[\w"'-]+)*)\s*=""")
_PART: Final = re.compile(r"""[A-Za-z0-9_-]+|"[^"]*"|'[^']*'""")
_QUOTES: Final = ('"""', "'''")


def places(text: str) -> dict[Place, int]:
    """Return the line, from 1, of each table and key; tables of an array are numbered from 0."""
    found: dict[Place, int] = {(): 1}
    table: Place = ()
    counts: dict[str, int] = {}
    quote = ""
    for number, line in enumerate(text.splitlines(), 1):
        if quote:
            quote = "" if quote in line else quote
            continue
        if header := _HEADER.fullmatch(line):
            table = _table(header, counts)
            found[table] = number
        elif key := _KEY.match(line):
            found[table + tuple(_parts(key[1]))] = number
            quote = _open(line[key.end() :])
    return found


def place(found: dict[Place, int], path: Place) -> int:
    """Return the line of a key, or else of the nearest table around it."""
    while path and path not in found:
        path = path[:-1]
    return found.get(path, 1)


def sql_line(text: str, line: int) -> int:
    """Return the line on which a text begins whose key stands on `line`."""
    lines = text.splitlines()
    if not 0 < line <= len(lines):
        return line
    after = lines[line - 1].partition("=")[2].strip()
    # A line break directly behind the opening quotes is no part of the text.
    return line + 1 if after in _QUOTES else line


def _table(header: re.Match[str], counts: dict[str, int]) -> Place:
    parts: Place = tuple(_parts(header[2]))
    if header[1] != "[[":
        return parts
    counts[header[2]] = counts.get(header[2], -1) + 1
    return (*parts, counts[header[2]])


def _parts(key: str) -> list[str]:
    return [part.strip("\"'") for part in _PART.findall(key)]


def _open(rest: str) -> str:
    """Return the quotes of a text that goes on behind this line, nothing if none does."""
    for quote in _QUOTES:
        if rest.strip().startswith(quote) and rest.count(quote) == 1:
            return quote
    return ""
