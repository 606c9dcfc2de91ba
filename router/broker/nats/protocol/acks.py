"""Acknowledgements of JetStream: their subjects, which name the message, and their payloads."""

from __future__ import annotations

import json
import re
from typing import Final, NamedTuple

ACK_PREFIX: Final = "$JS.ACK."
_SHORT_TOKENS: Final = 9
_LONG_TOKENS: Final = 11
_DURATION_PART: Final = re.compile(rb"(\d+(?:\.\d*)?|\.\d+)(ns|us|\xc2\xb5s|ms|s|m|h)")
_UNITS_NS: Final = {
    b"ns": 1,
    b"us": 1_000,
    b"\xc2\xb5s": 1_000,
    b"ms": 1_000_000,
    b"s": 1_000_000_000,
    b"m": 60_000_000_000,
    b"h": 3_600_000_000_000,
}
_MAX_DELAY_NS: Final = (1 << 63) - 1
_KINDS: Final = (b"-NAK", b"+NXT", b"+TERM")


class AckSubject(NamedTuple):
    """What the subject of an acknowledgement names: one delivery of one message."""

    stream: str
    consumer: str
    attempt: int
    sequence: int
    consumer_sequence: int


class AckKind(NamedTuple):
    """The word of an acknowledgement, and what follows it; `delay_ns` is a refusal's."""

    name: str
    argument: bytes = b""
    delay_ns: int | None = None


def read_subject(subject: str) -> AckSubject | None:
    """Return what a subject names; None: it is no subject of an acknowledgement.

    `$JS.ACK.<stream>.<consumer>.<attempt>.<sequence>.<consumer sequence>.<time>.<left>`; longer
    ones have a domain and an account before the stream, and may have more at the end (ADR-15).
    """
    tokens = subject.split(".")
    if len(tokens) == _SHORT_TOKENS:
        tokens = tokens[2:]
    elif len(tokens) >= _LONG_TOKENS:
        tokens = tokens[4:]
    else:
        return None
    try:
        return AckSubject(tokens[0], tokens[1], int(tokens[2]), int(tokens[3]), int(tokens[4]))
    except ValueError:
        return None


def read_ack(payload: bytes) -> AckKind:
    """Return the kind of a payload; an unknown one has an empty name."""
    if payload in (b"", b"+ACK", b"+OK"):
        return AckKind("+ACK")
    if payload == b"+WPI":
        return AckKind("+WPI")
    for kind in _KINDS:
        if payload.startswith(kind):
            argument = payload[len(kind) :].strip()
            delay_ns = _delay(argument) if kind == b"-NAK" and argument else None
            return AckKind(kind.decode("ascii"), argument, delay_ns)
    return AckKind("")


def _delay(argument: bytes) -> int | None:
    """Return the nanoseconds of a delay, as an object or as Go writes it; None: it is neither."""
    delay: object = None
    if argument.startswith(b"{"):
        try:
            delay = json.loads(argument).get("delay", 0)
        except (ValueError, RecursionError):
            return None
    else:
        parts = list(_DURATION_PART.finditer(argument))
        if b"".join(part[0] for part in parts) == argument:
            found = sum(float(part[1]) * _UNITS_NS[part[2]] for part in parts)
            delay = int(found) if found <= _MAX_DELAY_NS else None
    if isinstance(delay, bool) or not isinstance(delay, int) or abs(delay) > _MAX_DELAY_NS:
        return None
    return delay
