"""Bodies to messages within the worker's bounds: what is heavy is read off the event loop.

A body is heavy by what it is without its compression: 232 bytes of gzip can hold 100,000 lines. So
a compressed body is inflated up to a small bound first, and read here if it ends within and holds
few messages. Any other is read by `offload`, once the memory that it can take is reserved; what it
then does take stays reserved until its messages are stored.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from itertools import islice
from typing import Final, NamedTuple
from urllib.parse import unquote_to_bytes
from wsgiref.types import WSGIEnvironment

from router.clocks.steps import Offload, Steps, run_here
from router.errors import (
    BadCloudEventError,
    BadJsonError,
    BatchTooLargeError,
    MessageTooLargeError,
    UnsupportedEncodingError,
)
from router.errors.quoting import quoted
from router.model import Message
from router.services.memory_budget import MemoryBudget, Reservation
from router.web.bodies.cloudevents import EVENT, EVENT_BATCH, REQUIRED, check_name, events
from router.web.bodies.inflate import PublishBounds, inflate, max_inflated
from router.web.bodies.objects import objects
from router.web.media import media_type
from router.wire import ndjson
from router.wire.cambria import records

LIGHT_BYTES: Final = 256 * 1024
LIGHT_COMPRESSED_BYTES: Final = 16 * 1024
LIGHT_MESSAGES: Final = 2_000
# Up to so many bytes, messages are counted before memory is reserved: that takes a millisecond.
MAX_COUNTED_BYTES: Final = 1024 * 1024
# What a message takes beside its value: the tuple, the bytes object, its place in lists.
MESSAGE_BYTES: Final = 256
# `"a":1,`
_SHORTEST_ATTRIBUTE_BYTES: Final = 6
CAMBRIA_ZIP: Final = "application/cambria-zip"
JSON: Final = "application/json"
CAMBRIA: Final = "application/cambria"
TEXT: Final = "text/plain"
EVENTS: Final = frozenset({EVENT, EVENT_BATCH})
# Of any other kind, a body is one message.
BATCHES: Final = frozenset({JSON, CAMBRIA, CAMBRIA_ZIP, TEXT, ndjson.KIND}) | EVENTS
_ANY_EVENT: Final = "application/cloudevents"
STEP_BYTES: Final = 256 * 1024
LINE_BYTES_PER_BYTE: Final = 6
"""What a byte of a message takes in JSON at most (\\u0000)."""
LINE_FRAME_BYTES: Final = 4096
"""What a line may have beside: names of fields, and what the store says of a message."""
_PREFIX: Final = "HTTP_CE_"
HEADERS: Final = frozenset(f"{_PREFIX}{name.upper()}" for name in REQUIRED)
"""In the environment: a request without any of them is no event in binary mode."""
_IN_DOCUMENTS: Final = "application/cloudevents"
_QUOTED: Final = re.compile(r'"(?:[^"\\]|\\.)*+"')
_ESCAPED: Final = re.compile(r"\\(.)")
_ENCODED: Final = re.compile(r"(?:[ -$&-~]|%[0-9A-Fa-f]{2})*+")


class PublishBody(NamedTuple):
    """A body as it was sent; `key` is for messages that its format gives none."""

    kind: str
    encoding: str
    data: bytes
    key: bytes | None = None

    def is_compressed(self) -> bool:
        """Return whether it may grow."""
        return bool(self.encoding) or self.kind == CAMBRIA_ZIP


@dataclass(eq=False)
class BodyReader:
    """Reads the bodies of one worker's requests; calls may be made from many threads."""

    bounds: PublishBounds
    _budget: MemoryBudget
    offload: Offload
    _timeout: float
    _clock: Callable[[], float]

    def with_message_limit(self, limit: int) -> BodyReader:
        """Return a reader of bodies whose messages have at most so many bytes."""
        bounds = replace(self.bounds, message=limit, batch=max(limit, self.bounds.batch))
        return BodyReader(bounds, self._budget, self.offload, self._timeout, self._clock)

    def messages(self, body: PublishBody) -> Steps[tuple[list[Message], Reservation]]:
        """Return the messages of a body, and what the caller releases when they are stored.

        Raises what `parse` and `plain` raise, and OverloadedError.
        """
        deadline, held = self._clock() + self._timeout, len(body.data)
        found = self._light(body)
        if found is not None:
            messages, size = found
            return messages, (yield from self._budget.reserve(size, held, deadline))
        reserved = yield from self._budget.reserve(self.max_size(body), held, deadline)
        try:
            size, messages = self.offload(_read, body, self.bounds)
        except BaseException:
            reserved.release()
            raise
        reserved.shrink(_size(body.kind, size, messages))
        return messages, reserved

    def at_once(self, body: PublishBody) -> tuple[list[Message], Reservation] | None:
        """Return what `messages` does if nothing has to be waited for, else None.

        Raises what `parse` and `plain` raise.
        """
        found = self._light(body)
        if found is None:
            return None
        messages, size = found
        reserved = self._budget.try_reserve(size)
        return None if reserved is None else (messages, reserved)

    def _light(self, body: PublishBody) -> tuple[list[Message], int] | None:
        """Return the messages of a light body, and the memory that they take."""
        data = light(body, self.bounds)
        if data is None:
            return None
        messages = parse(body.kind, data, body.key, self.bounds)
        return messages, _size(body.kind, len(data), messages)

    def reserve(self, body: PublishBody, message_bytes: int) -> Steps[tuple[Reservation, Offload]]:
        """Reserve what a body and its messages can take; return that, and what to read it by.

        For who reads it otherwise than `messages` does, so that each of its messages takes
        `message_bytes` beside its value. Raises what `plain` raises, and
        OverloadedError.
        """
        data = light(body, self.bounds)
        if data is None:
            size = self.max_size(body, message_bytes)
        else:
            size = len(data) + message_bytes * max_messages(body.kind, data)
        deadline = self._clock() + self._timeout
        reserved = yield from self._budget.reserve(size, len(body.data), deadline)
        return reserved, self.offload if data is None else run_here

    def max_size(self, body: PublishBody, message_bytes: int = MESSAGE_BYTES) -> int:
        """Return how much memory a body and its messages can take."""
        size = len(body.data)
        if body.is_compressed():
            size = max_inflated(size, self.bounds)
            if body.encoding and body.kind == CAMBRIA_ZIP:
                size = max_inflated(size, self.bounds)
        elif size <= MAX_COUNTED_BYTES:
            return size + message_bytes * min(
                self.bounds.messages, _max_parsed(body.kind, body.data)
            )
        messages = min(self.bounds.messages, size // 2 + 1) if body.kind in BATCHES else 1
        if body.kind in EVENTS:
            messages = size // _SHORTEST_ATTRIBUTE_BYTES
        return size + message_bytes * messages


def light(body: PublishBody, bounds: PublishBounds) -> bytes | None:
    """Return a body without its compression if it can be read in little time, None: it may not.

    Raises what `plain` raises.
    """
    if not body.is_compressed():
        data = body.data
    elif len(body.data) > LIGHT_COMPRESSED_BYTES:
        return None
    else:
        small = replace(bounds, batch=min(bounds.batch, LIGHT_BYTES))
        try:
            data = plain(body.kind, body.encoding, body.data, small)
        except BatchTooLargeError:
            return None
    if body.kind not in BATCHES:
        return data
    heavy = len(data) > LIGHT_BYTES or _max_parsed(body.kind, data) > LIGHT_MESSAGES
    return None if heavy else data


def _read(body: PublishBody, bounds: PublishBounds) -> tuple[int, list[Message]]:
    data = plain(body.kind, body.encoding, body.data, bounds)
    return len(data), parse(body.kind, data, body.key, bounds)


def _max_parsed(kind: str, data: bytes) -> int:
    """Return how many messages, and arrays beside them, a body that is not compressed can have.

    An attribute of an event counts as a message: each has a text of its own, in quotes.
    """
    parsed = max_messages(kind, data) + (data.count(b"[") if kind == JSON else 0)
    return parsed + data.count(b'"') // 2 if kind in EVENTS else parsed


def _size(kind: str, length: int, messages: list[Message]) -> int:
    parsed = len(messages)
    if kind in EVENTS or kind == ndjson.KIND:
        parsed += sum(len(message.properties) for message in messages)
    return length + MESSAGE_BYTES * parsed


def read(kind: str, body: bytes, key: bytes | None, bounds: PublishBounds) -> list[Message]:
    """Return the messages of a body; `key` is for those that the format gives none.

    Refuses the body whole: raises BadFramingError, BadJsonError, BadCloudEventError,
    BatchTooLargeError, MessageTooLargeError, UnsupportedEncodingError. An empty body has no
    messages, whatever its kind.
    """
    return parse(kind, plain(kind, "", body, bounds), key, bounds)


def plain(kind: str, encoding: str, body: bytes, bounds: PublishBounds) -> bytes:
    """Return a body without its compression; raise what `inflate` raises."""
    body = inflate(encoding, body, bounds)
    return inflate("gzip", body, bounds) if kind == CAMBRIA_ZIP else body


def parse(kind: str, body: bytes, key: bytes | None, bounds: PublishBounds) -> list[Message]:
    """Return the messages of a body that is not compressed any more, as `read` does."""
    if not body:
        return []
    if reader := _READERS.get(kind):
        return _bounded(reader(body, key, bounds), bounds)
    if kind.startswith(_ANY_EVENT):
        raise UnsupportedEncodingError(f"{quoted(kind, 60)} is none of {EVENT}, {EVENT_BATCH}.")
    return [Message(body, key)]


def max_messages(kind: str, body: bytes) -> int:
    """Return how many messages a body that is not compressed has at most, in little time."""
    if kind == JSON:
        return body.count(b"{")
    if kind in {CAMBRIA, CAMBRIA_ZIP}:
        return body.count(b".") // 2
    if kind == TEXT:
        return body.count(b"\n") + body.count(b"\r") + 1
    if kind == ndjson.KIND:
        # A property takes as much as a message: each has a colon, as each field of a message has.
        return body.count(b":")
    return body.count(b"{") if kind in EVENTS else 1


def _described(body: bytes, key: bytes | None, bounds: PublishBounds) -> Iterator[Message]:
    """Yield the messages of lines of NDJSON, with at most as many properties as messages."""
    left = bounds.messages
    for number, line in enumerate(_lines(body), 1):
        if len(line) > LINE_BYTES_PER_BYTE * bounds.message + LINE_FRAME_BYTES:
            raise MessageTooLargeError(f"Message {number} is larger than {bounds.message} bytes.")
        try:
            message = ndjson.decode(line, key)
        except BadJsonError as error:
            raise BadJsonError(f"Message {number}: {error}") from error
        left -= len(message.properties)
        if left < 0:
            raise BatchTooLargeError(f"The limit is {bounds.messages} properties.")
        yield message


def _lines(body: bytes) -> Iterator[bytes]:
    """Return the lines that are not empty."""
    return filter(None, body.splitlines()) if len(body) <= STEP_BYTES else _stepwise(body)


def _stepwise(body: bytes) -> Iterator[bytes]:
    """Yield the lines that are not empty; a step ends where a line does."""
    begin, length = 0, len(body)
    feed = carriage = -1
    while begin < length:
        middle = min(begin + STEP_BYTES, length)
        # What was found behind the last step's end is not searched again.
        feed = feed if feed >= middle else _find(body, b"\n", middle)
        carriage = carriage if carriage >= middle else _find(body, b"\r", middle)
        end = min(feed, carriage, length - 1) + 1
        yield from filter(None, body[begin:end].splitlines())
        begin = end


def _find(body: bytes, byte: bytes, start: int) -> int:
    found = body.find(byte, start)
    return found if found >= 0 else len(body)


def _bounded(messages: Iterable[Message], bounds: PublishBounds) -> list[Message]:
    found = list(islice(messages, bounds.messages + 1))
    if len(found) > bounds.messages:
        raise BatchTooLargeError(f"The limit is {bounds.messages} messages.")
    return found


_READERS: Final[Mapping[str, Callable[[bytes, bytes | None, PublishBounds], Iterable[Message]]]] = {
    JSON: lambda body, key, bounds: objects(body, key, bounds.message),
    CAMBRIA: lambda body, _key, _bounds: records(body),
    CAMBRIA_ZIP: lambda body, _key, _bounds: records(body),
    TEXT: lambda body, key, _bounds: (Message(line, key) for line in _lines(body)),
    ndjson.KIND: _described,
    EVENT: lambda body, key, bounds: events(EVENT, body, key, bounds.message),
    EVENT_BATCH: lambda body, key, bounds: events(EVENT_BATCH, body, key, bounds.message),
}


def event_attributes(environ: WSGIEnvironment) -> dict[str, str] | None:
    """Return the attributes in a request's headers, None: it is no event in binary mode.

    Raises BadCloudEventError for headers that cannot be read; whether the attributes are valid is
    not looked at. A body that is an event itself counts, and not the headers beside it.
    """
    if environ.keys().isdisjoint(HEADERS):
        return None
    if media_type(environ.get("CONTENT_TYPE", "")).startswith(_IN_DOCUMENTS):
        return None
    found = {}
    for field, value in environ.items():
        if field.startswith(_PREFIX):
            name = field.removeprefix(_PREFIX).lower().replace("_", "-")
            check_name(name)
            found[name] = _decoded(name, value)
    return found


def _decoded(name: str, value: str) -> str:
    """Undo the quotes of older senders, then percent encoding."""
    if value.startswith('"'):
        if not _QUOTED.fullmatch(value):
            raise BadCloudEventError(f"ce-{name}: {quoted(value)} is no quoted text.")
        value = _ESCAPED.sub(r"\1", value[1:-1])
    if not _ENCODED.fullmatch(value):
        raise BadCloudEventError(
            f"ce-{name}: {quoted(value)} has a character that is to be percent-encoded, or a"
            " percent sign without two hexadecimal digits."
        )
    try:
        return unquote_to_bytes(value).decode()
    except UnicodeDecodeError:
        raise BadCloudEventError(f"ce-{name}: what is percent-encoded is no UTF-8.") from None
