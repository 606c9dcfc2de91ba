"""What sentences to clients quote: what they sent, and what systems and libraries say.

Python's own notation (single quotes, b'..', None, <objects>) is nothing that a client knows, and
may hold half characters, which no answer can be written with.
"""

from __future__ import annotations

import re
from codecs import BOM_UTF8
from collections.abc import Iterable, Mapping
from difflib import get_close_matches
from json import dumps
from typing import Final

MAX_QUOTED: Final = 80
"""Characters of what a sentence quotes."""
MAX_REASON_CHARACTERS: Final = 300
"""Characters of what a sentence repeats of a library's."""
_NUMBER: Final = re.compile(r"^\[[^\]]*\]\s*")
_WORD: Final = re.compile(r"(?<!\w)b?'([^'{}\[\]<>]*)'")
_CONSTANTS: Final = {"None": "null", "True": "true", "False": "false"}
_CONSTANT: Final = re.compile(r"\b(?:None|True|False)\b")
_STRUCTURE: Final = re.compile(r"[:,]?\s*[{\[<].*", re.DOTALL)


def json_failure(data: bytes, error: Exception) -> str:
    """Return why data are no JSON: what the parser says, unless they begin with a BOM."""
    if data.startswith(BOM_UTF8):
        return "it begins with a byte order mark (EF BB BF); send it without one"
    return str(error)


def nearest(word: str, known: Iterable[str]) -> str:
    """Return what a sentence adds when a known word is like this one."""
    near = get_close_matches(word, sorted(set(known)), 1)
    return f"; did you mean {near[0]}?" if near else ""


def quoted(value: object, limit: int = MAX_QUOTED) -> str:
    """Return what a client sent as sentences quote it: in double quotes, cut, on one line.

    Texts are escaped as in JSON, half characters too; bytes are taken as UTF-8; other values are
    shown as the JSON that they came as.
    """
    if isinstance(value, bytes | bytearray | memoryview):
        value = bytes(value[:limit]).decode(errors="replace")
    if not isinstance(value, str):
        return _in_json(value)[:limit]
    shown = "".join(map(_escaped, value[:limit]))
    return f'"{shown}..."' if len(value) > limit else f'"{shown}"'


def _escaped(character: str) -> str:
    if character.isprintable() and character not in '"\\':
        return character
    return "\\u007f" if character == "\x7f" else dumps(character)[1:-1]


def _in_json(value: object) -> str:
    if value is None or isinstance(value, bool | int | float):
        return dumps(value)
    return "an object" if isinstance(value, Mapping) else "a list"


def failure_text(failure: BaseException) -> str:
    """Return what a failure of the system or of a library says.

    Its numbers, paths and values stay out: they are for the log.
    """
    if isinstance(failure, OSError):
        text = failure.strerror or str(failure)
    elif isinstance(failure, UnicodeDecodeError):
        text = f"no UTF-8 at byte {failure.start}"
    elif isinstance(failure, KeyError):
        text = f"there is no {quoted(str(failure.args[0]))}" if failure.args else ""
    else:
        text = str(failure)
    text = _STRUCTURE.sub(" ...", _WORD.sub(r'"\1"', _NUMBER.sub("", text)))
    text = _CONSTANT.sub(lambda found: _CONSTANTS[found[0]], text)
    return text[:MAX_REASON_CHARACTERS] or "no reason was given"
