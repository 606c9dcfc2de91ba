"""Formats of `pub` and `sub`: standard input becomes messages, and messages become output.

What is read is read as it comes: a batch is what has arrived, so that `tail -f | router pub` waits
for nothing. Only a record that is longer than any message ends the reading.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Iterator
from typing import IO, Any, Final

import orjson

from router.cli.documents import DocumentReader
from router.cli.lines import CHUNK, chunks
from router.errors import BadFramingError, BadJsonError, MessageTooLargeError
from router.model import Message, Position, Stored
from router.quoting import quoted
from router.wire import cambria, ndjson

MAX_RECORD_BYTES: Final = 64 << 20
"""Longest record of input, before anything knows how large a message may be."""
MAX_DOCUMENT_BYTES: Final = 16 << 20
"""The same of a JSON object, which is read again and again until it is whole."""
_CAMBRIA_HEAD: Final = re.compile(rb"\s*([0-9]{1,10})\.([0-9]{1,10})\.")
_MAX_HEAD_BYTES: Final = 4096

Batches = Iterator[tuple[list[Message], int]]
"""Messages that have arrived, and how many bytes of the input they took."""


def text(source: IO[bytes], key: bytes | None) -> Batches:
    """Each line that is not empty is a message."""
    for lines, size in chunks(source):
        yield [Message(line, key) for line in lines], size


def described(source: IO[bytes], key: bytes | None) -> Batches:
    """Each line is an object with key, value and properties, as `sub --json` prints it."""
    number = 0
    for lines, size in chunks(source, MAX_RECORD_BYTES):
        found = []
        for line in lines:
            number += 1
            try:
                found.append(ndjson.decode(line, key))
            except BadJsonError as error:
                raise BadJsonError(f"Message {number} of the input: {error}") from error
        yield found, size


def documents(source: IO[bytes], key: bytes | None) -> Batches:
    """Each JSON object is a message, of arrays too; objects may take several lines."""
    reader = DocumentReader(key, MAX_DOCUMENT_BYTES)
    for data in _reads(source):
        yield reader.receive(data), len(data)
    yield reader.receive(b"", final=True), 0


def records(source: IO[bytes], key: bytes | None) -> Batches:
    """Read `<key length>.<message length>.<key><message>`, again and again."""
    rest = b""
    for data in _reads(source):
        rest += data
        end = _whole_records(rest)
        yield _keyed(cambria.records(rest[:end]), key), len(data)
        rest = rest[end:]
    yield _keyed(cambria.records(rest), key), 0


def raw(source: IO[bytes], key: bytes | None) -> Batches:
    """All of the input is one message."""
    data = source.read(MAX_RECORD_BYTES + 1)
    _check_record(data)
    yield ([Message(data, key)] if data else []), len(data)


READERS: Final[dict[str, Callable[[IO[bytes], bytes | None], Batches]]] = {
    "text": text,
    "json": documents,
    "ndjson": described,
    "cambria": records,
    "raw": raw,
}


def stored(line: bytes) -> Stored:
    """Return what the store says of a message in a line of NDJSON."""
    given = json.loads(line)
    position: dict[str, Any] = given.get("position") or {}
    return Stored(
        ndjson.decode(line),
        Position(
            position.get("ledger", 0),
            position.get("entry", 0),
            position.get("partition", -1),
            position.get("batch_index", -1),
        ),
        given.get("publish_time") or 0,
        given.get("redelivery_count") or 0,
    )


def write_text(found: Stored) -> bytes:
    """Return the value and a line end."""
    return found.message.value + b"\n"


def write_described(found: Stored) -> bytes:
    """Return all that is known of a message, as a line of JSON."""
    line = ndjson.line(found) | ({"value": None} if found.message.null else {})
    return orjson.dumps(line, option=orjson.OPT_APPEND_NEWLINE)


def write_document(found: Stored) -> bytes:
    """Return the value as JSON on one line: as it is, or as a JSON text where it is no JSON."""
    value = found.message.value
    try:
        document = orjson.loads(value)
    except orjson.JSONDecodeError:
        return orjson.dumps(value.decode("utf-8", "replace")) + b"\n"
    if b"\n" in value or b"\r" in value:
        return orjson.dumps(document) + b"\n"
    return value + b"\n"


def write_record(found: Stored) -> bytes:
    """Return a record of cambria, and a line end."""
    return cambria.framed([found.message])


def write_raw(found: Stored) -> bytes:
    """Return the value alone."""
    return found.message.value


WRITERS: Final[dict[str, Callable[[Stored], bytes]]] = {
    "text": write_text,
    "json": write_document,
    "ndjson": write_described,
    "cambria": write_record,
    "raw": write_raw,
}


def _reads(source: IO[bytes]) -> Iterator[bytes]:
    while data := source.read1(CHUNK):  # type: ignore[attr-defined] # buffered readers have it
        yield data


def _check_record(rest: bytes) -> None:
    if len(rest) > MAX_RECORD_BYTES:
        raise MessageTooLargeError(f"The input has a record of more than {MAX_RECORD_BYTES} bytes.")


def _whole_records(text: bytes) -> int:
    """Return where the last record ends that is there as a whole; raise BadFramingError."""
    at = 0
    while head := _CAMBRIA_HEAD.match(text, at):
        length = sum(map(int, head.groups()))
        if length > 2 * cambria.LONGEST:
            raise MessageTooLargeError(f"The input has a record of {length} bytes.")
        if head.end() + length > len(text):
            return at
        at = head.end() + length
    if len(text) - at > _MAX_HEAD_BYTES and text[at:].strip():
        raise BadFramingError(
            f"Expected <key length>.<message length>., got {quoted(text[at : at + 20])}."
        )
    return at


def _keyed(found: Iterable[Message], key: bytes | None) -> list[Message]:
    return [one if one.key is not None else one._replace(key=key) for one in found]
