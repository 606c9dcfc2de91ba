"""CloudEvents in JSON, one (structured mode) or an array of them (batched), to messages.

The text of `data` is kept as it was sent where the data are JSON; a text is kept as UTF-8, and
`data_base64` as its bytes. What is stored is what binary mode would have stored.
"""

from __future__ import annotations

import re
from base64 import b64decode
from binascii import Error as Base64Error
from collections.abc import Iterator
from typing import Final

from router.errors import BadCloudEventError
from router.model import Message
from router.quoting import quoted
from router.web.bodies.event_attributes import (
    MAX_ATTRIBUTES,
    charset,
    check_name,
    is_json,
    message,
)
from router.web.bodies.objects import members, texts

EVENT: Final = "application/cloudevents+json"
EVENT_BATCH: Final = "application/cloudevents-batch+json"
UTF8: Final = frozenset({"utf-8", "utf8", "us-ascii"})
"""Character sets whose texts are their UTF-8."""
_DATA: Final = frozenset({"data", "data_base64", "datacontenttype"})
_INTEGER: Final = re.compile(r"-?(?:0|[1-9][0-9]{0,9})")
_INTEGERS: Final = range(-(2**31), 2**31)


def events(kind: str, body: bytes, key: bytes | None, longest: int) -> Iterator[Message]:
    """Read the events of a body; `key` is that of the request.

    `longest` bounds a message. Raises BadCloudEventError, BadJsonError, MessageTooLargeError.
    """
    batch = kind == EVENT_BATCH
    for number, text in enumerate(texts(body, longest, array=batch), 1):
        try:
            yield event(text, key)
        except BadCloudEventError as error:
            if not batch:
                raise
            raise BadCloudEventError(f"Event {number} of the batch: {error}") from None


def event(text: str, key: bytes | None) -> Message:
    """Return the message for an event's JSON object; raise BadCloudEventError."""
    attributes: dict[str, str] = {}
    found: dict[str, tuple[object, str]] = {}
    for name, value, raw in members(text):
        if name in found:
            raise BadCloudEventError(f"{quoted(name)} is there twice.")
        if len(found) > MAX_ATTRIBUTES + len(_DATA):
            raise BadCloudEventError(f"It has over {MAX_ATTRIBUTES} attributes.")
        found[name] = value, raw
        if name not in _DATA and value is not None:
            check_name(name)
            attributes[name] = _canonical(name, value, raw)
    kind, raw = found.get("datacontenttype", (None, ""))
    content_type = None if kind is None else _canonical("datacontenttype", kind, raw)
    return message(attributes, content_type, _data(found, content_type), key)


def _canonical(name: str, value: object, raw: str) -> str:
    """Return the canonical text of an attribute's value."""
    if isinstance(value, str):
        return value
    if isinstance(value, bool):
        return raw
    if _INTEGER.fullmatch(raw) and int(raw) in _INTEGERS:
        return str(int(raw))
    raise BadCloudEventError(f"{name}: expected a text, true, false, or a whole number of 32 bits.")


def _data(found: dict[str, tuple[object, str]], content_type: str | None) -> bytes | None:
    value, raw = found.get("data", (None, ""))
    encoded, _ = found.get("data_base64", (None, ""))
    if value is None:
        return None if encoded is None else _decoded(encoded)
    if encoded is not None:
        raise BadCloudEventError("It has both data and data_base64.")
    if content_type is None or is_json(content_type):
        return raw.encode()
    if not isinstance(value, str):
        raise BadCloudEventError(
            f"data: expected a text, as datacontenttype is {quoted(content_type)}."
        )
    if charset(content_type) not in UTF8:
        raise BadCloudEventError("data: a text is UTF-8; send other bytes as data_base64.")
    try:
        return value.encode()
    except UnicodeEncodeError:
        raise BadCloudEventError("data: it holds half a surrogate pair.") from None


def _decoded(encoded: object) -> bytes:
    if not isinstance(encoded, str):
        raise BadCloudEventError("data_base64: expected a text.")
    try:
        return b64decode(encoded, validate=True)
    except (Base64Error, ValueError):
        raise BadCloudEventError("data_base64: it is no base64.") from None
