"""Writes what a NATS server sends: INFO, MSG and HMSG, and the short answers."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Final

import orjson

from router.wire.nats.message import NatsMessage

OK: Final = b"+OK\r\n"
"""The confirmation of an operation, which verbose clients are sent."""
PING: Final = b"PING\r\n"
PONG: Final = b"PONG\r\n"


def info(fields: dict[str, Any]) -> bytes:
    """Return INFO, the first that a server sends."""
    return b"INFO " + orjson.dumps(fields) + b" \r\n"


def msg(sid: bytes | str, message: NatsMessage, subject: str | None = None) -> bytes:
    """Return a message for the subscription `sid`, MSG or HMSG if it has headers.

    `subject` is what the client is shown, None: the message's own.
    """
    start, rest = msg_parts(message, subject)
    return b"%b%b%b" % (start, sid.encode() if isinstance(sid, str) else sid, rest)


def msg_parts(message: NatsMessage, subject: str | None = None) -> tuple[bytes, bytes]:
    """Return what stands before the name of the subscription, and what behind: for many of them."""
    own, reply, headers, payload = message
    shown = own if subject is None else subject
    back = f" {reply} " if reply else " "
    if not headers:
        rest = f"{back}{len(payload)}\r\n".encode()
        return f"MSG {shown} ".encode(), b"%b%b\r\n" % (rest, payload)
    size = len(headers)
    rest = f"{back}{size} {size + len(payload)}\r\n".encode()
    return f"HMSG {shown} ".encode(), b"%b%b%b\r\n" % (rest, headers, payload)


class MessageEncoder:
    """Encodes a message once for all that receive it one after the other."""

    def __init__(self) -> None:
        self._message, self._parts = NatsMessage(""), (b"", b"")

    def parts(self, message: NatsMessage) -> tuple[bytes, bytes]:
        """Return `msg_parts` of a message."""
        if message is not self._message:
            self._message, self._parts = message, msg_parts(message)
        return self._parts


def run_parts(sid: bytes, messages: Iterable[NatsMessage]) -> list[bytes]:
    """Return messages with reply subjects for the subscription `sid`, in pieces."""
    name, end = sid.decode("utf-8", "surrogateescape"), ""
    parts: list[bytes] = []
    for subject, reply, headers, payload in messages:
        if headers:
            size = len(headers)
            line = f"{end}HMSG {subject} {name} {reply} {size} {size + len(payload)}\r\n"
            parts += (line.encode("utf-8", "surrogateescape"), headers, payload)
        else:
            line = f"{end}MSG {subject} {name} {reply} {len(payload)}\r\n"
            parts += (line.encode("utf-8", "surrogateescape"), payload)
        end = "\r\n"
    parts.append(b"\r\n")
    return parts


def err(text: str) -> bytes:
    """Return an error; the text stands in single quotes, and is on one line."""
    return f"-ERR '{' '.join(text.split())}'\r\n".encode()
