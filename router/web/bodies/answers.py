"""From messages to the body of an answer."""

from __future__ import annotations

from base64 import b64encode
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime, timedelta
from typing import Final

import orjson

from router.errors import BadCloudEventError, BadJsonError, MessageTooLargeError, NotAcceptableError
from router.model import Message, Position, Stored
from router.web.bodies.cloudevents import (
    CONTENT_TYPE,
    EVENT,
    UTF8,
    carried,
    charset,
    event,
    is_allowed,
    is_json,
    is_text,
)
from router.web.bodies.objects import texts
from router.web.media import Format, media_type
from router.wire.cambria import framed
from router.wire.ndjson import line

SYNTHESISED_TYPE: Final = "dragoman.message"
"""The type of an event that a message is written as which carries none."""
_TRACING: Final = ("traceparent", "tracestate")
_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
_ONE_LINE: Final = bytes.maketrans(b"\r\n", b"  ")
_NULL: Final = b"null"


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
    return b"".join(_text_line(s.message) for s in messages)


def _text_line(message: Message) -> bytes:
    if b"\n" in message.value or b"\r" in message.value:
        raise NotAcceptableError(
            "A message holds a line break, so text/plain cannot tell it from two; ask for"
            " application/json, application/x-ndjson or application/cambria. Nothing was consumed."
        )
    return message.value + b"\n"


def batch(messages: Sequence[Stored], source: str) -> bytes:
    """Return messages as an array of events; `source` is that of those that carry none."""
    return b"[%s]" % b",".join(document(stored, source) for stored in messages)


def event_line(stored: Stored, source: str) -> bytes:
    """Return a message as an event, on one line."""
    # Line ends stand between values only: those in texts are escaped.
    return document(stored, source).translate(_ONE_LINE)


def document(stored: Stored, source: str) -> bytes:
    """Return a message as an event."""
    message = stored.message
    if message.properties:
        message = _unwrapped(message) or message
        if known := carried(message.properties):
            return _written(*known, message)
    return _written(*_synthesised(stored, source), message)


def _unwrapped(message: Message) -> Message | None:
    """Return the message for an event that is a message's whole value, None: it is none."""
    kind = message.properties.get(CONTENT_TYPE)
    if kind is None or media_type(kind) != EVENT:
        return None
    try:
        (text,) = texts(message.value, len(message.value), array=False)
        return event(text, None)
    except (BadCloudEventError, BadJsonError, MessageTooLargeError):
        return None


def _synthesised(stored: Stored, source: str) -> tuple[dict[str, str], str | None]:
    message, properties = stored.message, stored.message.properties
    found = {
        "specversion": "1.0",
        "id": _id(stored.position),
        "source": source,
        "type": SYNTHESISED_TYPE,
    }
    if time := _time(stored.publish_time):
        found["time"] = time
    if message.key and (key := _text(message.key)) and is_allowed(key):
        found["partitionkey"] = key
    tracing = {name: properties[name] for name in _TRACING if name in properties}
    found |= {name: value for name, value in tracing.items() if is_allowed(value)}
    return found, None if message.null else _kind(message.value)


def _id(position: Position) -> str:
    """Return a position as an id: partition, ledger, entry, and the place in a batch."""
    place = f"{max(position.partition, 0)}:{position.ledger}:{position.entry}"
    return f"{place}:{position.batch_index}" if position.batch_index >= 0 else place


def _time(milliseconds: int) -> str | None:
    """Return a time as RFC 3339 has it, None: it has none that late, as publishers may say."""
    try:
        moment = _EPOCH + timedelta(milliseconds=milliseconds)
    except OverflowError:
        return None
    return moment.isoformat(timespec="milliseconds").replace("+00:00", "Z")


def _kind(value: bytes) -> str:
    if value[:1] in {b"{", b"["} and _is_json_text(value):
        return "application/json"
    return "application/octet-stream" if _text(value) is None else "text/plain"


def _written(attributes: Mapping[str, str], content_type: str | None, message: Message) -> bytes:
    shown: dict[str, object] = dict(attributes)
    if content_type is not None:
        shown["datacontenttype"] = content_type
    if not message.null:
        shown |= _data(message.value, content_type)
    return orjson.dumps(shown)


def _data(value: bytes, content_type: str | None) -> dict[str, object]:
    """Return the member that holds the data: as JSON, as a text, or in base64."""
    if content_type is None or is_json(content_type):
        # A reader takes the JSON null for no data at all.
        if value.strip() != _NULL and _is_json_text(value):
            return {"data": orjson.Fragment(value)}
    elif is_text(content_type) and charset(content_type) in UTF8:
        text = _text(value)
        if text is not None:
            return {"data": text}
    return {"data_base64": b64encode(value).decode()}


def _is_json_text(value: bytes) -> bool:
    try:
        orjson.loads(value)
    except orjson.JSONDecodeError:
        return False
    return True


def _text(value: bytes) -> str | None:
    try:
        return value.decode()
    except UnicodeDecodeError:
        return None
