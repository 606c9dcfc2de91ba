"""From a body and its media type to messages.

What is long is read in steps: a search or a split of 32 MB in one call would hold the interpreter's
lock, and with it the event loop, although another thread makes it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from itertools import islice
from typing import Final

from router.errors import (
    BadJsonError,
    BatchTooLargeError,
    MessageTooLargeError,
    UnsupportedEncodingError,
)
from router.model import Message
from router.quoting import quoted
from router.web.bodies.events import EVENT, EVENT_BATCH, events
from router.web.bodies.inflate import Bounds, inflate
from router.web.bodies.objects import objects
from router.wire import ndjson
from router.wire.cambria import records

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


def read(kind: str, body: bytes, key: bytes | None, bounds: Bounds) -> list[Message]:
    """Return the messages of a body; `key` is for those that the format gives none.

    Refuses the body whole: raises BadFramingError, BadJsonError, BadCloudEventError,
    BatchTooLargeError, MessageTooLargeError, UnsupportedEncodingError. An empty body has no
    messages, whatever its kind.
    """
    return parse(kind, plain(kind, "", body, bounds), key, bounds)


def plain(kind: str, encoding: str, body: bytes, bounds: Bounds) -> bytes:
    """Return a body without its compression; raise what `inflate` raises."""
    body = inflate(encoding, body, bounds)
    return inflate("gzip", body, bounds) if kind == CAMBRIA_ZIP else body


def parse(kind: str, body: bytes, key: bytes | None, bounds: Bounds) -> list[Message]:
    """Return the messages of a body that is not compressed any more, as `read` does."""
    if not body:
        return []
    if reader := _READERS.get(kind):
        return _bounded(reader(body, key, bounds), bounds)
    if kind.startswith(_ANY_EVENT):
        raise UnsupportedEncodingError(f"{quoted(kind, 60)} is none of {EVENT}, {EVENT_BATCH}.")
    return [Message(body, key)]


def most_messages(kind: str, body: bytes) -> int:
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


def _described(body: bytes, key: bytes | None, bounds: Bounds) -> Iterator[Message]:
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
    """Yield the lines that are not empty; a step ends where a line does."""
    begin, length = 0, len(body)
    feed = carriage = -1
    while begin < length:
        middle = min(begin + STEP_BYTES, length)
        # What was found behind the last step's end is not looked for again.
        feed = feed if feed >= middle else _find(body, b"\n", middle)
        carriage = carriage if carriage >= middle else _find(body, b"\r", middle)
        end = min(feed, carriage, length - 1) + 1
        yield from filter(None, body[begin:end].splitlines())
        begin = end


def _find(body: bytes, byte: bytes, start: int) -> int:
    found = body.find(byte, start)
    return found if found >= 0 else len(body)


def _bounded(messages: Iterable[Message], bounds: Bounds) -> list[Message]:
    found = list(islice(messages, bounds.messages + 1))
    if len(found) > bounds.messages:
        raise BatchTooLargeError(f"The limit is {bounds.messages} messages.")
    return found


_READERS: Final[Mapping[str, Callable[[bytes, bytes | None, Bounds], Iterable[Message]]]] = {
    JSON: lambda body, key, bounds: objects(body, key, bounds.message),
    CAMBRIA: lambda body, _key, _bounds: records(body),
    CAMBRIA_ZIP: lambda body, _key, _bounds: records(body),
    TEXT: lambda body, key, _bounds: (Message(line, key) for line in _lines(body)),
    ndjson.KIND: _described,
    EVENT: lambda body, key, bounds: events(EVENT, body, key, bounds.message),
    EVENT_BATCH: lambda body, key, bounds: events(EVENT_BATCH, body, key, bounds.message),
}
