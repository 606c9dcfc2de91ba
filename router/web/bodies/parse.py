"""From a body and its media type to messages."""

from __future__ import annotations

import re
from collections.abc import Iterable
from itertools import islice
from typing import Final

from router.errors import BatchTooLargeError
from router.model import Message
from router.web.bodies.inflate import Bounds, inflate
from router.web.bodies.objects import objects
from router.wire.cambria import records

CAMBRIA_ZIP: Final = "application/cambria-zip"
_LINE: Final = re.compile(rb"[^\r\n]+")


def read(kind: str, body: bytes, key: bytes | None, bounds: Bounds) -> list[Message]:
    """Return the messages of a body; `key` is for those that the format gives none.

    Refuses the body whole: raises BadFramingError, BadJsonError, BatchTooLargeError,
    MessageTooLargeError. An empty body has no messages, whatever its kind.
    """
    if not body:
        return []
    if kind == "application/json":
        return _bounded(objects(body, key, bounds.message), bounds)
    if kind == "application/cambria":
        return _bounded(records(body), bounds)
    if kind == CAMBRIA_ZIP:
        return _bounded(records(inflate("gzip", body, bounds)), bounds)
    if kind == "text/plain":
        return _lines(body, key, bounds)
    return [Message(body, key)]


def _lines(body: bytes, key: bytes | None, bounds: Bounds) -> list[Message]:
    breaks = body.count(b"\n") + body.count(b"\r")
    if breaks < bounds.messages:
        return [Message(line, key) for line in body.splitlines() if line]
    # Maybe too many: not all at once, as the list of them can take fifty times the body.
    return _bounded((Message(line[0], key) for line in _LINE.finditer(body)), bounds)


def _bounded(messages: Iterable[Message], bounds: Bounds) -> list[Message]:
    found = list(islice(messages, bounds.messages + 1))
    if len(found) > bounds.messages:
        raise BatchTooLargeError(f"The limit is {bounds.messages} messages.")
    return found
