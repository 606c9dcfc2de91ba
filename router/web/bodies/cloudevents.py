"""The attributes of a CloudEvent (version 1.0): what is valid, and how a message carries them.

A message carries an event as the CloudEvents binding for Kafka has it in binary mode: the value is
the data, each attribute is a property `ce_<name>`, and the attribute `datacontenttype` is the
property `content-type`. An event without data is a message without a value. All attributes are
kept as their canonical texts, as headers of Kafka and of HTTP have no other type.
"""

from __future__ import annotations

import re
from base64 import b64decode
from binascii import Error as Base64Error
from collections.abc import Iterator, Mapping
from datetime import UTC, datetime, timedelta
from typing import Final

from router.errors import BadCloudEventError
from router.errors.quoting import quoted
from router.model import Message
from router.web.bodies.objects import members, texts
from router.web.media import WORD, media_type

VERSION: Final = "1.0"
PREFIX: Final = "ce_"
CONTENT_TYPE: Final = "content-type"
REQUIRED: Final = ("specversion", "id", "source", "type")
MAX_ATTRIBUTES: Final = 100
"""Attributes of one event; each costs more memory than its text."""
_PARTITION_KEY: Final = "partitionkey"
_NAME: Final = re.compile(r"[a-z0-9]{1,249}")
_RESERVED: Final = frozenset({"data", "datacontenttype"})
# Control characters, halves of surrogate pairs, and what Unicode calls no characters.
_FORBIDDEN: Final = re.compile(
    "[\x00-\x1f\x7f-\x9f\ud800-\udfff\ufdd0-\ufdef"
    + "".join(
        f"{chr(plane + 0xFFFE)}{chr(plane + 0xFFFF)}" for plane in range(0, 0x110000, 0x10000)
    )
    + "]"
)
_URI_REFERENCE: Final = re.compile(r"(?:[!#$&-;=?-\[\]_a-z~]|%[0-9A-Fa-f]{2})+")
_URI: Final = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*:.*")
_MEDIA_TYPE: Final = re.compile(
    rf'{WORD}/{WORD}(?:[ \t]*;[ \t]*(?:{WORD}=(?:{WORD}|"(?:[^"\\]|\\.)*+"))?)*+[ \t]*'
)
_TIME: Final = re.compile(
    r"(\d{4}-\d\d-\d\d)[Tt](\d\d:\d\d):(\d\d)(\.\d{1,30})?(?:[Zz]|([+-])(\d\d):(\d\d))", re.ASCII
)
_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
_MILLISECOND: Final = timedelta(milliseconds=1)
EVENT: Final = "application/cloudevents+json"
EVENT_BATCH: Final = "application/cloudevents-batch+json"
UTF8: Final = frozenset({"utf-8", "utf8", "us-ascii"})
"""Character sets whose texts are their UTF-8."""
_DATA: Final = frozenset({"data", "data_base64", "datacontenttype"})
_INTEGER: Final = re.compile(r"-?(?:0|[1-9][0-9]{0,9})")
_INTEGERS: Final = range(-(2**31), 2**31)


def message(
    attributes: Mapping[str, str], content_type: str | None, data: bytes | None, key: bytes | None
) -> Message:
    """Return the message that carries an event; raise BadCloudEventError for one that is not valid.

    `data`: None if it has none. `key`: of the request; without one the attribute `partitionkey`
    is the message's key.
    """
    check(attributes, content_type)
    if key is None and _PARTITION_KEY in attributes:
        key = attributes[_PARTITION_KEY].encode()
    properties = {f"{PREFIX}{name}": value for name, value in attributes.items()}
    if content_type is not None:
        properties[CONTENT_TYPE] = content_type
    time = attributes.get("time")
    return Message(
        data or b"",
        key,
        properties,
        None if time is None else _milliseconds(time),
        null=data is None,
    )


def check(attributes: Mapping[str, str], content_type: str | None) -> None:
    """Raise BadCloudEventError unless these are the attributes of a valid event."""
    for name in REQUIRED:
        if not attributes.get(name):
            raise BadCloudEventError(f"The attribute {name} is missing or empty.")
    if attributes["specversion"] != VERSION:
        raise BadCloudEventError(
            f"specversion: {quoted(attributes['specversion'], 20)} is not known, only {VERSION}."
        )
    if len(attributes) > MAX_ATTRIBUTES:
        raise BadCloudEventError(f"It has over {MAX_ATTRIBUTES} attributes.")
    for name, value in attributes.items():
        check_name(name)
        _check_value(name, value)
    if content_type is not None and not _MEDIA_TYPE.fullmatch(content_type):
        raise BadCloudEventError(f"datacontenttype: {quoted(content_type)} is no media type.")


def check_name(name: str) -> None:
    """Raise BadCloudEventError for a name that no attribute of a message has."""
    if not _NAME.fullmatch(name):
        raise BadCloudEventError(
            f"{quoted(name)} is no name of an attribute: allowed are a-z and 0-9."
        )
    if name in _RESERVED:
        raise BadCloudEventError(f"{name} is no attribute that can be sent by this name.")


def carried(properties: Mapping[str, str]) -> tuple[dict[str, str], str | None] | None:
    """Return attributes and type of data that a message carries, None: it carries no valid event.

    Attributes of foreign publishers that are not valid are left out, unless they are required.
    """
    if properties.get("ce_specversion") != VERSION:
        return None
    found = {
        name.removeprefix(PREFIX): value
        for name, value in properties.items()
        if name.startswith(PREFIX) and _is_valid(name.removeprefix(PREFIX), value)
    }
    if not all(found.get(name) for name in REQUIRED):
        return None
    kind = properties.get(CONTENT_TYPE)
    return found, kind if kind is not None and _MEDIA_TYPE.fullmatch(kind) else None


def is_allowed(text: str) -> bool:
    """Return whether an attribute may have this value, as far as its characters go."""
    return not _FORBIDDEN.search(text)


def is_json(content_type: str | None) -> bool:
    """Return whether data of this type is JSON; without a type it is, in a JSON document."""
    if content_type is None:
        return True
    subtype = media_type(content_type).partition("/")[2]
    return subtype == "json" or subtype.endswith("+json")


def is_text(content_type: str) -> bool:
    """Return whether data of this type may be written as a text."""
    kind, _, subtype = media_type(content_type).partition("/")
    return kind == "text" or subtype == "xml" or subtype.endswith("+xml")


def charset(content_type: str) -> str:
    """Return the character set that a type names, in lower case; UTF-8 where it names none."""
    for parameter in content_type.split(";")[1:]:
        name, _, value = parameter.partition("=")
        if name.strip().lower() == "charset":
            return value.strip().strip('"').lower()
    return "utf-8"


def _is_valid(name: str, value: str) -> bool:
    try:
        check_name(name)
        _check_value(name, value)
    except BadCloudEventError:
        return False
    return True


def _check_value(name: str, value: str) -> None:
    if wrong := _FORBIDDEN.search(value):
        raise BadCloudEventError(f"{name}: {quoted(wrong[0])} is no character of an attribute.")
    if name == "source" and not _URI_REFERENCE.fullmatch(value):
        raise BadCloudEventError(f"source: {quoted(value)} is no URI reference.")
    if name == "dataschema" and not (_URI.match(value) and _URI_REFERENCE.fullmatch(value)):
        raise BadCloudEventError(f"dataschema: {quoted(value)} is no absolute URI.")
    if name in {"subject", _PARTITION_KEY} and not value:
        raise BadCloudEventError(f"{name}: an empty text is not allowed.")
    if name == "time" and _moment(value) is None:
        raise BadCloudEventError(f"time: {quoted(value)} is no time as in RFC 3339.")


def _moment(text: str) -> datetime | None:
    """Read a time of RFC 3339; a leap second is the second before."""
    found = _TIME.fullmatch(text)
    if found is None:
        return None
    day, minute, second, fraction, sign, hours, minutes = found.groups()
    if sign is not None and (int(hours) > 23 or int(minutes) > 59):
        return None
    try:
        local = datetime.fromisoformat(f"{day}T{minute}:{min(second, '59')}+00:00")
        if second > "60":
            return None
        offset = timedelta(hours=int(hours), minutes=int(minutes)) if sign else timedelta()
        local += timedelta(milliseconds=int((fraction or ".0")[1:4].ljust(3, "0")))
        return local + offset if sign == "-" else local - offset
    except (ValueError, OverflowError):
        return None


def _milliseconds(text: str) -> int | None:
    """Return a time in ms since 1970, None: it is not after that, which messages cannot have."""
    moment = _moment(text)
    found = 0 if moment is None else (moment - _EPOCH) // _MILLISECOND
    return found if found > 0 else None


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
