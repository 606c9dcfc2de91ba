"""The `curl` and `router` lines of what a page does, quoted for a shell."""

from __future__ import annotations

import re
import shlex
from collections.abc import Sequence
from typing import Final
from urllib.parse import quote

from flask import request

from router.model import Principal
from router.web.addresses import root

# Marks that turn the direction of text would show another command than the one that is pasted.
_CONTROL: Final = re.compile(
    r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200b\u200e\u200f\u202a-\u202e\u2060\u2066-\u2069\ufeff]"
)
_TERMINAL: Final = {ord("\\"): "\\\\", ord("'"): "\\'", ord("\n"): "\\n", ord("\t"): "\\t"}


def word(text: str) -> str:
    """Return one word of a shell's; control characters are written out, so that none is pasted."""
    if not _CONTROL.search(text):
        return shlex.quote(text)
    escaped = text.translate(_TERMINAL)
    return "$'" + _CONTROL.sub(lambda found: _octets(found[0]), escaped) + "'"


def _octets(character: str) -> str:
    return "".join(f"\\x{byte:02x}" for byte in character.encode())


def segment(name: str) -> str:
    """Return a name as a segment of a path."""
    return quote(name, safe="")


def path(*segments: str) -> str:
    """Return the path of segments that are as they are, without escapes."""
    return "".join("/" + segment(one) for one in segments)


def url(*segments: str) -> str:
    """Return the address of a path of this router, as the client reaches it."""
    return root(request.environ) + path(*segments)


def curl(principal: Principal, url: str, *options: str) -> str:
    """Return a `curl` line; it asks for the password of one who has a name."""
    user = ["-u", principal.name] if principal.name else []
    return " ".join(map(word, ["curl", *user, *options, url]))


def router(*words: str) -> str:
    """Return a `router` line."""
    return " ".join(map(word, ["router", *words]))


def piped(value: str, line: Sequence[str]) -> str:
    """Return a line whose standard input is a text."""
    return f"printf %s\\\\n {word(value)} | {router(*line)}"
