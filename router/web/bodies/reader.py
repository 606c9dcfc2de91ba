"""Bodies to messages within the worker's bounds: what is heavy is read off the event loop.

A body is heavy by what it is without its compression: 232 bytes of gzip can hold 100,000 lines. So
a compressed body is inflated up to a small bound first, and read here if it ends within and holds
few messages. Any other is read by `offload`, once the memory that it can take is reserved; what it
then does take stays reserved until its messages are stored.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Final

from router.errors import BatchTooLargeError
from router.model import Message
from router.services.memory_budget import MemoryBudget, Reservation
from router.waiting import Offload, Steps, run_here
from router.web.bodies.inflate import Bounds, most_inflated
from router.web.bodies.parse import (
    BATCHES,
    CAMBRIA_ZIP,
    EVENTS,
    JSON,
    most_messages,
    parse,
    plain,
)
from router.wire import ndjson

LIGHT_BYTES: Final = 256 * 1024
LIGHT_COMPRESSED_BYTES: Final = 16 * 1024
LIGHT_MESSAGES: Final = 2_000
# Up to so many bytes, messages are counted before memory is reserved: that takes a millisecond.
MAX_COUNTED_BYTES: Final = 1024 * 1024
# What a message takes beside its value: the tuple, the bytes object, its place in lists.
MESSAGE_BYTES: Final = 256
# `"a":1,`
_SHORTEST_ATTRIBUTE_BYTES: Final = 6


@dataclass(frozen=True, slots=True)
class Body:
    """A body as it was sent; `key` is for messages that its format gives none."""

    kind: str
    encoding: str
    data: bytes
    key: bytes | None = None

    def is_compressed(self) -> bool:
        """Return whether it may grow."""
        return bool(self.encoding) or self.kind == CAMBRIA_ZIP


class BodyReader:
    """Reads the bodies of one worker's requests; calls may be made from many threads."""

    def __init__(
        self,
        bounds: Bounds,
        budget: MemoryBudget,
        offload: Offload,
        timeout: float,
        clock: Callable[[], float],
    ) -> None:
        self.bounds = bounds
        self.offload = offload
        self._budget = budget
        self._timeout = timeout
        self._clock = clock

    def messages(self, body: Body) -> Steps[tuple[list[Message], Reservation]]:
        """Return the messages of a body, and what the caller releases when they are stored.

        Raises what `parse` and `plain` raise, and OverloadedError.
        """
        deadline, held = self._clock() + self._timeout, len(body.data)
        data = light(body, self.bounds)
        if data is not None:
            messages = parse(body.kind, data, body.key, self.bounds)
            size = _size(body.kind, len(data), messages)
            return messages, (yield from self._budget.reserve(size, held, deadline))
        reserved = yield from self._budget.reserve(self.most(body), held, deadline)
        try:
            size, messages = self.offload(_read, body, self.bounds)
        except BaseException:
            reserved.release()
            raise
        reserved.shrink(_size(body.kind, size, messages))
        return messages, reserved

    def reserve(self, body: Body, message_bytes: int) -> Steps[tuple[Reservation, Offload]]:
        """Reserve what a body and its messages can take; return that, and what to read it by.

        For who reads it otherwise than `messages` does, so that each of its messages takes
        `message_bytes` beside its value. Raises what `plain` raises, and
        OverloadedError.
        """
        data = light(body, self.bounds)
        if data is None:
            size = self.most(body, message_bytes)
        else:
            size = len(data) + message_bytes * most_messages(body.kind, data)
        deadline = self._clock() + self._timeout
        reserved = yield from self._budget.reserve(size, len(body.data), deadline)
        return reserved, self.offload if data is None else run_here

    def most(self, body: Body, message_bytes: int = MESSAGE_BYTES) -> int:
        """Return how much memory a body and its messages can take."""
        size = len(body.data)
        if body.is_compressed():
            size = most_inflated(size, self.bounds)
            if body.encoding and body.kind == CAMBRIA_ZIP:
                size = most_inflated(size, self.bounds)
        elif size <= MAX_COUNTED_BYTES:
            return size + message_bytes * min(
                self.bounds.messages, _most_parsed(body.kind, body.data)
            )
        messages = min(self.bounds.messages, size // 2 + 1) if body.kind in BATCHES else 1
        if body.kind in EVENTS:
            messages = size // _SHORTEST_ATTRIBUTE_BYTES
        return size + message_bytes * messages


def light(body: Body, bounds: Bounds) -> bytes | None:
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
    heavy = len(data) > LIGHT_BYTES or _most_parsed(body.kind, data) > LIGHT_MESSAGES
    return None if heavy else data


def _read(body: Body, bounds: Bounds) -> tuple[int, list[Message]]:
    data = plain(body.kind, body.encoding, body.data, bounds)
    return len(data), parse(body.kind, data, body.key, bounds)


def _most_parsed(kind: str, data: bytes) -> int:
    """Return how many messages, and arrays beside them, a body that is not compressed can have.

    An attribute of an event counts as a message: each has a text of its own, in quotes.
    """
    parsed = most_messages(kind, data) + (data.count(b"[") if kind == JSON else 0)
    return parsed + data.count(b'"') // 2 if kind in EVENTS else parsed


def _size(kind: str, length: int, messages: list[Message]) -> int:
    parsed = len(messages)
    if kind in EVENTS or kind == ndjson.KIND:
        parsed += sum(len(message.properties) for message in messages)
    return length + MESSAGE_BYTES * parsed
