"""Messages of the router as messages of NATS, and back: subjects, keys, properties and times.

Theory of operation. The subject is the property `Nats-Subject`, and every other property is a
header. What NATS has no field for travels in headers whose names begin with `router-`. Properties
that no header can hold (line breaks, a name with a colon, spaces at an end that readers take away,
names of the router's own headers) stand in the header `router-properties` as JSON in base64; of
such a value there is a header all the same, as near to it as can be. Headers of one name are
written as `repeated_headers` has them. Where a block of headers says more than properties can
(bytes that are no UTF-8, a status, other spaces), the property `router-nats-headers` has the whole
block in base64, and a message with that property is written with this block again.
"""

from __future__ import annotations

import re
from base64 import b64decode, b64encode
from collections.abc import Mapping
from typing import Final

import orjson

from router.model import NO_PROPERTIES, Message
from router.wire.nats.headers import SUBJECT, read
from router.wire.nats.message import NatsMessage
from router.wire.nats.subjects import is_literal
from router.wire.repeated_headers import HEADERS, NATS_HEADERS, Pairs, as_pairs, as_properties

KEY: Final = "router-key"
BINARY_KEY: Final = "router-key-base64"
EVENT_TIME: Final = "router-event-time"
NULL: Final = "router-null"
SCHEMA_VERSION: Final = "router-schema-version"
REPLICATE_TO: Final = "router-replicate-to"
OTHER_PROPERTIES: Final = "router-properties"
ALL_HEADERS: Final = NATS_HEADERS

_OWN_NAMES: Final = frozenset(
    {KEY, BINARY_KEY, EVENT_TIME, NULL, SCHEMA_VERSION, REPLICATE_TO, OTHER_PROPERTIES}
    | {ALL_HEADERS, SUBJECT}
)
_MAX_DIGITS: Final = 19
_MAX_EVENT_TIME: Final = (1 << 63) - 1
_CONTROLS: Final = re.compile(r"[\x00-\x1f\x7f]+")
_NO_CLUSTERS: Final[tuple[str, ...]] = ()


def read_message(message: NatsMessage) -> Message:
    """Return a message of NATS as one of the router."""
    subject, _, block, payload = message
    if not block:
        return Message(payload, None, {SUBJECT: subject} if subject else NO_PROPERTIES)
    found = _read(message)
    if write_message(found) == (subject, "", block, payload):
        return found
    whole = b64encode(block).decode()
    return found._replace(properties={**found.properties, ALL_HEADERS: whole})


def write_message(message: Message) -> NatsMessage:
    """Return a message of the router as one of NATS; without a valid subject it has none.

    Raises ValueError for text that UTF-8 has no form for.
    """
    properties = message.properties
    subject = subject_of(properties)
    value = b"" if message.null else message.value
    if ALL_HEADERS in properties:
        restored = _restored(message, subject)
        if restored is not None:
            return restored
    headers: list[tuple[str, str]] = []
    others: dict[str, str] = {}
    for name, text in _pairs(properties):
        if name in _OWN_NAMES or not _is_name(name):
            others[name] = text
            continue
        shown = _shown(text)
        headers.append((name, shown))
        if shown != text:
            others[name] = text
    if subject:
        del others[SUBJECT]
    if others:
        headers.append((OTHER_PROPERTIES, _packed(others)))
    headers += _own_headers(message).items()
    if not headers:
        return NatsMessage(subject, "", b"", value)
    lines = "".join([f"{name}: {text}\r\n" for name, text in headers])
    return NatsMessage(subject, "", f"NATS/1.0\r\n{lines}\r\n".encode(), value)


def subject_of(properties: Mapping[str, str]) -> str:
    """Return the subject that properties give a message, "" without a valid one."""
    subject = properties.get(SUBJECT, "")
    return subject if subject and is_literal(subject) else ""


def routing_key(message: NatsMessage) -> bytes:
    """Return what says which of several consumers gets a message: its key, or else its subject."""
    if b"\nrouter-key" in message.headers:
        key = _read(message).key
        if key is not None:
            return key
    return message.subject.encode()


def _read(message: NatsMessage) -> Message:
    """Return a message with the properties that its headers say; they may not say all."""
    headers = read(message.headers)
    own = {name: value for name, value in headers if name in _OWN_NAMES}
    properties, _ = as_properties([one for one in headers if one[0] not in _OWN_NAMES])
    if OTHER_PROPERTIES in own:
        properties |= _unpacked(own[OTHER_PROPERTIES])
    if message.subject:
        properties[SUBJECT] = message.subject
    key = own[KEY].encode() if KEY in own else _binary(own.get(BINARY_KEY))
    clusters = own.get(REPLICATE_TO, "")
    return Message(
        message.payload,
        key,
        properties or NO_PROPERTIES,
        event_time=_time(own.get(EVENT_TIME, "")),
        schema_version=_binary(own.get(SCHEMA_VERSION)) or b"",
        null=NULL in own and not message.payload,
        replicate_to=tuple(clusters.split(",")) if clusters else _NO_CLUSTERS,
    )


def _pairs(properties: Mapping[str, str]) -> Pairs:
    """Return properties as headers; names repeat only where headers can hold each value."""
    if HEADERS in properties:
        pairs = as_pairs(properties)
        if all(name == SUBJECT or _is_plain(name, text) for name, text in pairs):
            return pairs
    return list(properties.items())


def _restored(message: Message, subject: str) -> NatsMessage | None:
    """Return a message with the block that its property has; None: it is not of this message."""
    block = _binary(message.properties[ALL_HEADERS])
    if not block:
        return None
    found = NatsMessage(subject, "", block, b"" if message.null else message.value)
    same = read_message(found) == message._replace(deliver_at=None, sequence=None)
    return found if same else None


def _own_headers(message: Message) -> dict[str, str]:
    own: dict[str, str] = {}
    if message.key is not None:
        own |= _key_header(message.key)
    if message.event_time is not None and _is_time(message.event_time):
        own[EVENT_TIME] = str(message.event_time)
    if message.null:
        own[NULL] = "true"
    if message.schema_version:
        own[SCHEMA_VERSION] = b64encode(message.schema_version).decode()
    if message.replicate_to:
        own[REPLICATE_TO] = ",".join(message.replicate_to)
    return own


def _key_header(key: bytes) -> dict[str, str]:
    try:
        text = key.decode()
    except UnicodeDecodeError:
        text = "\n"
    if _shown(text) == text:
        return {KEY: text}
    return {BINARY_KEY: b64encode(key).decode()}


def _time(text: str) -> int | None:
    """Return the time that a text says, if it is one."""
    if not (text.isdecimal() and len(text) <= _MAX_DIGITS and _is_time(int(text))):
        return None
    return int(text)


def _is_time(event_time: int) -> bool:
    return 0 <= event_time <= _MAX_EVENT_TIME


def _is_name(text: str) -> bool:
    """Return whether all clients take a text for a name: printable ASCII, no space, no colon."""
    return text.isascii() and text.isprintable() and not (" " in text or ":" in text or not text)


def _is_plain(name: str, text: str) -> bool:
    """Return whether a header holds a property as it is."""
    return name not in _OWN_NAMES and _is_name(name) and _shown(text) == text


def _shown(text: str) -> str:
    """Return what a header can hold of a text."""
    if text.isprintable():
        return text.strip(" ")
    return _CONTROLS.sub(" ", text).strip(" ")


def _packed(properties: Mapping[str, str]) -> str:
    try:
        return b64encode(orjson.dumps(properties, option=orjson.OPT_SORT_KEYS)).decode()
    except orjson.JSONEncodeError as error:
        raise ValueError(str(error)) from error


def _unpacked(text: str) -> dict[str, str]:
    """Return the properties of a header; none if it is not one that the router wrote."""
    try:
        found = orjson.loads(b64decode(text, validate=True))
    except ValueError:
        return {}
    if not (isinstance(found, dict) and all(isinstance(value, str) for value in found.values())):
        return {}
    if SUBJECT in found and is_literal(found[SUBJECT]):
        del found[SUBJECT]
    return found


def _binary(text: str | None) -> bytes | None:
    """Return what a text is in base64, None if it is not."""
    if text is None:
        return None
    try:
        return b64decode(text, validate=True)
    except ValueError:
        return None
