"""From messages to the body of an answer."""

from __future__ import annotations

from collections.abc import Sequence

import orjson

from router.errors import NotAcceptableError
from router.model import Message, Stored
from router.web.bodies.event_answers import batch
from router.web.media import Format
from router.wire.cambria import framed
from router.wire.ndjson import line


def write(choice: Format, messages: Sequence[Stored], source: str = "/events") -> bytes:
    """Write messages as a body; raise NotAcceptableError where the format cannot hold one.

    `source`: which CloudEvents that the router makes have it.
    """
    if choice is Format.JSON:
        # Legacy clients parse each string again; bytes that are no UTF-8 become U+FFFD.
        return orjson.dumps([s.message.value.decode("utf-8", "replace") for s in messages])
    if choice is Format.CAMBRIA:
        return framed(s.message for s in messages)
    if choice is Format.NDJSON:
        return b"".join(orjson.dumps(line(s), option=orjson.OPT_APPEND_NEWLINE) for s in messages)
    if choice is Format.EVENTS:
        return batch(messages, source)
    return b"".join(_text(s.message) for s in messages)


def _text(message: Message) -> bytes:
    if b"\n" in message.value or b"\r" in message.value:
        raise NotAcceptableError(
            "A message holds a line break, so text/plain cannot tell it from two; ask for"
            " application/json, application/x-ndjson or application/cambria. Nothing was consumed."
        )
    return message.value + b"\n"
