"""Server-sent events as a client reads them (WHATWG HTML, 9.2.6), from pieces of any size."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Final

from router.errors import BackendUnavailableError, RouterError

MAX_EVENT_BYTES: Final = 64 << 20
_LINE_END: Final = re.compile(rb"\r\n|\n|\r")


@dataclass(frozen=True, slots=True)
class Event:
    """An event, or a comment or place without `data`; `id`: where to go on, None: not said."""

    data: bytes | None
    id: str | None = None
    name: str = "message"


def events(pieces: Iterable[bytes]) -> Iterator[Event]:
    """Yield events, and one without data for each comment and each place that stands alone.

    Raises BackendUnavailableError for an event named `error`, with which a server ends a stream.
    """
    data: list[bytes] = []
    place: str | None = None
    name = "message"
    for line in _lines(pieces):
        if line:
            field, _, text = line.partition(b":")
            text = text.removeprefix(b" ")
            if not field:
                yield Event(None)
            elif field == b"data":
                data.append(text)
            elif field == b"id":
                place = text.decode("utf-8", "replace")
            elif field == b"event":
                name = text.decode("utf-8", "replace")
            continue
        if name == "error":
            said = b"\n".join(data).decode("utf-8", "replace")
            raise BackendUnavailableError(f"The server ended the stream: {said}")
        if data or place is not None:
            yield Event(b"\n".join(data) if data else None, place, name)
        data, place, name = [], None, "message"


def _lines(pieces: Iterable[bytes]) -> Iterator[bytes]:
    rest = b""
    for piece in pieces:
        text = rest + piece
        # A CR at the end may be half of a CR LF.
        held = b"\r" if text.endswith(b"\r") else b""
        *lines, rest = _LINE_END.split(text.removesuffix(held))
        rest += held
        if len(rest) > MAX_EVENT_BYTES:
            raise RouterError(f"The stream has an event of more than {MAX_EVENT_BYTES} bytes.")
        yield from lines
