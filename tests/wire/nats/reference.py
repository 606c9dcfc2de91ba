"""The wire and the subjects of NATS again, slow and obvious, for comparisons."""

from __future__ import annotations

import json
import re
from itertools import product

from router.wire.nats.message import NatsMessage
from router.wire.nats.parser import (
    Connect,
    NatsProtocolError,
    Operation,
    Ping,
    Pong,
    Publish,
    Subscribe,
    Unsubscribe,
)

UNKNOWN = "Unknown Protocol Operation"

Seen = Operation | tuple[str, bool]
"""An operation; an error as its text and whether the connection ends."""


def seen(operations: list[Operation]) -> list[Seen]:
    """Return operations so that they can be compared."""
    return [
        (one.text, one.fatal) if isinstance(one, NatsProtocolError) else one for one in operations
    ]


class RefusalError(Exception):
    """A line that ends the connection."""


class CutShortError(Exception):
    """The stream ends within an operation."""


def read_stream(data: bytes, max_line: int, max_payload: int) -> list[Seen]:
    """Return the operations of a whole stream; what is cut off at its end is none."""
    found: list[Seen] = []
    while data:
        line, end, data = data.partition(b"\n")
        try:
            _check(line, max_line)
            if not end:
                break
            words = [word for word in re.split(rb"[ \t\r]+", line) if word]
            verb = words[0].decode("latin-1").upper() if words else ""
            if verb in {"PUB", "HPUB"}:
                operation, data = _publish(words, 1 if verb == "PUB" else 2, data, max_payload)
                found.append(operation)
            else:
                found += _line(verb, line, words)
        except CutShortError:
            break
        except RefusalError as error:
            return [*found, (str(error), True)]
    return found


def _check(line: bytes, max_line: int) -> None:
    if len(line) > max_line:
        raise RefusalError("maximum control line exceeded")


def _publish(words: list[bytes], sizes: int, rest: bytes, max_payload: int) -> tuple[Seen, bytes]:
    texts = words[-sizes:]
    names = words[1:-sizes]
    if len(names) not in {1, 2} or not all(re.fullmatch(rb"[0-9]{1,9}", one) for one in texts):
        raise RefusalError(UNKNOWN)
    head, size = (0, int(texts[0])) if sizes == 1 else (int(texts[0]), int(texts[1]))
    if head > size:
        raise RefusalError(UNKNOWN)
    if size > max_payload:
        raise RefusalError("Maximum Payload Violation")
    body, end, rest = rest[:size], rest[size : size + 2], rest[size + 2 :]
    if len(end) < 2:
        raise CutShortError
    if end != b"\r\n":
        raise RefusalError(UNKNOWN)
    try:
        subject, reply, *_ = [*(name.decode() for name in names), ""]
    except UnicodeDecodeError:
        return ("Invalid Publish Subject", False), rest
    return Publish(NatsMessage(subject, reply, body[:head], body[head:])), rest


def _line(verb: str, line: bytes, words: list[bytes]) -> list[Seen]:
    if verb.startswith(("PING", "PONG")):
        return [Ping() if verb.startswith("PING") else Pong()]
    if verb.startswith("CONNECT"):
        return [_connect(line)]
    if verb == "SUB" and len(words) in {3, 4}:
        return [_subscribe(words)]
    if verb == "UNSUB" and len(words) in {2, 3}:
        number = words[2] if len(words) == 3 else b"0"
        return [Unsubscribe(words[1], int(number) if re.fullmatch(rb"[0-9]{1,9}", number) else 0)]
    if verb.startswith(("INFO", "+OK", "-ERR")):
        return []
    raise RefusalError(UNKNOWN)


def _connect(line: bytes) -> Connect:
    try:
        options = json.loads(line.strip()[7:].decode())
    except ValueError:
        options = None
    if not isinstance(options, dict):
        raise RefusalError(UNKNOWN)
    return Connect(options)


def _subscribe(words: list[bytes]) -> Seen:
    try:
        texts = [word.decode() for word in words[1:-1]]
    except UnicodeDecodeError:
        return "Invalid Subject", False
    tokens = texts[0].split(".")
    if not all(tokens) or ">" in tokens[:-1] or re.search(r"[\t\n\f\r ]", texts[0]):
        return "Invalid Subject", False
    return Subscribe(texts[0], texts[1] if len(texts) > 1 else "", words[-1])


def pattern_of(pattern: str) -> re.Pattern[str]:
    """Return a regular expression of the literal subjects that a pattern matches."""
    tokens = [
        r"[^.]+" if token == "*" else r"[^.]+(\.[^.]+)*" if token == ">" else re.escape(token)
        for token in pattern.split(".")
    ]
    return re.compile(r"\.".join(tokens))


def literals(alphabet: str, longest: int) -> list[str]:
    """Return all literal subjects with tokens of these letters."""
    return [
        ".".join(tokens)
        for length in range(1, longest + 1)
        for tokens in product(alphabet, repeat=length)
    ]
