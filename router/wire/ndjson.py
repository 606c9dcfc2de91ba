"""Messages as lines of NDJSON: an object a line, with key, value and properties.

A poll, a stream and `router sub --json` write such lines; a publish takes them back. Bytes that are
no UTF-8 stand in base64, under a name that says so. A message without a value has the value null,
which is another one than the empty text. What the store says of a message (its position,
its times, how often it was delivered) is written and not read.
"""

from __future__ import annotations

import binascii
from base64 import b64decode, b64encode
from collections.abc import Iterable, Mapping
from typing import Any, Final

import orjson

from router.errors import BadJsonError
from router.errors.quoting import json_failure, quoted
from router.model import NO_PROPERTIES, Message, Stored

KIND: Final = "application/vnd.dragoman+ndjson"
MAX_EVENT_TIME: Final = 2**63 - 1
_READ: Final = frozenset(
    {"key", "key_base64", "value", "value_base64", "properties", "headers", "event_time"}
)
_PASSED_OVER: Final = frozenset({"position", "publish_time", "redelivery_count"})


def decode(line: bytes, default_key: bytes | None = None) -> Message:
    """Return the message of a line; raise BadJsonError.

    `default_key` is for a line that says nothing of a key; `"key": null` says that there is none.
    """
    try:
        given = orjson.loads(line)
    except orjson.JSONDecodeError as error:
        raise BadJsonError(f"The line is no JSON: {json_failure(line, error)}.") from error
    if not isinstance(given, dict):
        raise BadJsonError(f"Expected an object, got {quoted(given)}.")
    if unknown := given.keys() - _READ - _PASSED_OVER:
        raise BadJsonError(
            f"There is no field {quoted(min(unknown))}; a message has key, value, properties and"
            " event_time."
        )
    if "value" not in given and "value_base64" not in given:
        raise BadJsonError("There is neither value nor value_base64.")
    value = _bytes(given, "value")
    key = _bytes(given, "key") if given.keys() & {"key", "key_base64"} else default_key
    return Message(value or b"", key, _properties(given), _event_time(given), null=value is None)


def encode(message: Message) -> dict[str, Any]:
    """Return the fields of a message, as `decode` reads them."""
    return _key_and_value(message) | {
        "event_time": message.event_time,
        "properties": dict(message.properties),
    }


def framed(messages: Iterable[Message]) -> bytes:
    """Return messages as lines that `decode` reads."""
    return b"".join(orjson.dumps(encode(m), option=orjson.OPT_APPEND_NEWLINE) for m in messages)


def line(stored: Stored) -> dict[str, Any]:
    """Return a message with everything that is known of it, as a line of NDJSON has it."""
    message, position = stored.message, stored.position
    return {
        **_key_and_value(message),
        "position": {
            "ledger": position.ledger,
            "entry": position.entry,
            "partition": position.partition,
            "batch_index": position.batch_index,
        },
        "publish_time": stored.publish_time,
        "event_time": message.event_time,
        "redelivery_count": stored.redelivery_count,
        "properties": dict(message.properties),
    }


def _key_and_value(message: Message) -> dict[str, Any]:
    value = None if message.null else message.value
    return text_or_base64("key", message.key) | text_or_base64("value", value)


def text_or_base64(name: str, value: bytes | None) -> dict[str, str | None]:
    """Return bytes as a field: a text, or base64 where they are no UTF-8."""
    if value is None:
        return {name: None}
    try:
        return {name: value.decode()}
    except UnicodeDecodeError:
        return {f"{name}_base64": b64encode(value).decode()}


def _bytes(given: Mapping[str, Any], name: str) -> bytes | None:
    coded = f"{name}_base64"
    if name in given and coded in given:
        raise BadJsonError(f"There is {name} as well as {coded}.")
    text = given.get(name, given.get(coded))
    if text is None:
        return None
    if not isinstance(text, str):
        raise BadJsonError(f"{name}: expected a text, got {quoted(text)}.")
    if name in given:
        return text.encode()
    try:
        return b64decode(text, validate=True)
    except (binascii.Error, ValueError) as error:
        raise BadJsonError(f"{coded}: {quoted(text)} is no base64.") from error


def _properties(given: Mapping[str, Any]) -> Mapping[str, str]:
    if "properties" in given and "headers" in given:
        raise BadJsonError("There are properties as well as headers, which are the same.")
    found = given.get("properties", given.get("headers"))
    if found is None:
        return NO_PROPERTIES
    if not isinstance(found, dict) or not all(isinstance(text, str) for text in found.values()):
        raise BadJsonError("properties: expected an object of texts.")
    return found or NO_PROPERTIES


def _event_time(given: Mapping[str, Any]) -> int | None:
    time = given.get("event_time")
    if time is None:
        return None
    if not isinstance(time, int) or isinstance(time, bool) or not 0 <= time <= MAX_EVENT_TIME:
        raise BadJsonError(f"event_time: {quoted(time)} is no time in ms since 1970.")
    return time
