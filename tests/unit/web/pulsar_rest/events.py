"""Server-sent events, read as the HTML standard says browsers do."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import orjson
from werkzeug.test import TestResponse


@dataclass(frozen=True, slots=True)
class Event:
    """One event as a page gets it: `id` is the last one that was set."""

    id: str
    kind: str
    data: object


def parse(stream: bytes) -> tuple[list[Event], str]:
    """Return the events of a stream that broke off anywhere, and the last id that counts."""
    events, last, pending, kind, data = [], "", "", "message", b""
    for line in stream.split(b"\n")[:-1]:
        name, _, value = line.partition(b":")
        value = value.removeprefix(b" ")
        if name == b"id":
            pending = value.decode()
        elif name == b"event":
            kind = value.decode()
        elif name == b"data":
            data = value
        elif line == b"":
            last = pending
            if data:
                events.append(Event(last, kind, orjson.loads(data)))
            kind, data = "message", b""
    return events, last


def take(answer: TestResponse, events: int) -> bytes:
    """Return the stream up to so many events, and end it."""
    assert answer.status_code == 200, answer.text
    assert answer.mimetype == "text/event-stream"
    found = b""
    pieces: Iterator[bytes] = iter(answer.iter_encoded())
    while len(parse(found)[0]) < events:
        found += next(pieces)
    answer.close()
    return found
