"""Values as JSON, encoded by the newest schema of their topic."""

from __future__ import annotations

import json
from typing import Any, Final

import orjson

from router.errors import BadJsonError, BadRequestError, BatchTooLargeError, PayloadMismatchError
from router.model import Message, Schema, SchemaType, TopicName
from router.schemas import encode, encode_pair
from router.schemas.examples import example
from router.services.topic_schemas import TopicSchemas

MAX_TEXT_BYTES: Final = 4 * 1024 * 1024
MAX_VALUES: Final = 10_000
_BLANK: Final = " \t\n\r"
_decoder: Final = json.JSONDecoder()


def schema_messages(schemas: TopicSchemas, topic: TopicName, data: bytes) -> list[Message]:
    """Return a message for each JSON value; an array stands for what is in it.

    A value of a KEY_VALUE schema is an object with `key` and `value`; null is no value. Raises
    BadRequestError where the topic has no schema, BadJsonError, BatchTooLargeError, and
    PayloadMismatchError naming the first value that does not fit.
    """
    schema = schemas.newest(topic)
    if schema is None:
        raise BadRequestError(f"schema: the topic {topic.local} has none.")
    messages = []
    for number, value in enumerate(_values(data)):
        try:
            messages.append(_message(schema, value))
        except PayloadMismatchError as error:
            raise PayloadMismatchError(f"Value {number + 1}: {error}") from error
    return messages


def example_text(schema: Schema) -> str:
    """Return a value of a schema as JSON, for a person to begin with; "": there is none."""
    value = example(schema)
    return "" if value is None else orjson.dumps(value, option=orjson.OPT_INDENT_2).decode()


def _message(schema: Schema, value: Any) -> Message:
    if schema.type is not SchemaType.KEY_VALUE:
        payload = b"" if value is None else encode(schema, value)
        return Message(payload, schema_version=schema.version, null=value is None)
    if not isinstance(value, dict) or not value.keys() <= {"key", "value"}:
        raise PayloadMismatchError("expected an object with key and value")
    key, payload = encode_pair(schema, value.get("key"), value.get("value"))
    # A pair in one payload says itself that it has no value.
    null = value.get("value") is None and not payload
    return Message(payload, key, schema_version=schema.version, null=null)


def _values(data: bytes) -> list[Any]:
    if len(data) > MAX_TEXT_BYTES:
        raise BatchTooLargeError(f"The limit is {MAX_TEXT_BYTES} bytes by a schema.")
    try:
        text = data.decode()
    except UnicodeDecodeError as error:
        raise BadJsonError(f"The message is not UTF-8 at byte {error.start}.") from error
    if text.startswith("\ufeff"):
        raise BadJsonError("The message begins with a byte order mark; send it without one.")
    found, at = list[Any](), _beyond(text, 0)
    while at < len(text):
        try:
            value, end = _decoder.raw_decode(text, at)
        except json.JSONDecodeError as error:
            raise BadJsonError(f"{error.msg} at character {error.pos}.") from error
        except RecursionError as error:
            raise BadJsonError(f"The value at character {at} is nested too deep.") from error
        found += value if isinstance(value, list) else [value]
        at = _beyond(text, end)
    if len(found) > MAX_VALUES:
        raise BatchTooLargeError(f"The limit is {MAX_VALUES} values by a schema.")
    return found


def _beyond(text: str, at: int) -> int:
    """Return the place of the next character that is not blank."""
    while at < len(text) and text[at] in _BLANK:
        at += 1
    return at
