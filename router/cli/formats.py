"""Formats of `pub` and `sub`: standard input becomes messages, and messages become output.

What is read is read as it comes: a batch is what has arrived, so that `tail -f | router pub` waits
for nothing. Only a record that is longer than any message ends the reading.

JSON objects come one after the other, or in arrays of any length. The standard library's decoder
says where an object ends; what it reads is thrown away but for the key, and the message is the text
between. An object that is not there as a whole is tried again when twice as much of it is there, so
that one on many lines costs little.
"""

from __future__ import annotations

import codecs
import json
import re
from collections.abc import Callable, Iterable, Iterator
from typing import IO, Any, Final, NoReturn

import orjson

from router.errors import BadFramingError, BadJsonError, MessageTooLargeError
from router.errors.quoting import quoted
from router.model import Message, Position, Stored
from router.wire import cambria, ndjson

READ_BYTES: Final = 1 << 18
MAX_LINE_BYTES: Final = 8 << 20
MAX_RECORD_BYTES: Final = 64 << 20
"""Longest record of input, before anything knows how large a message may be."""
MAX_DOCUMENT_BYTES: Final = 16 << 20
"""The same of a JSON object, which is read again and again until it is whole."""
_CAMBRIA_HEAD: Final = re.compile(rb"\s*([0-9]{1,10})\.([0-9]{1,10})\.")
_MAX_HEAD_BYTES: Final = 4096

KEY: Final = "cambria.partition"
_BLANKS: Final = " \t\n\r"
_MAX_TOKEN_CHARACTERS: Final = 16
"""How far before the end of the text an error may be that more text mends."""

Batches = Iterator[tuple[list[Message], int]]
"""Messages that have arrived, and how many bytes of the input they took."""


def text(source: IO[bytes], key: bytes | None) -> Batches:
    """Each line that is not empty is a message."""
    for lines, size in _lines(source):
        yield [Message(line, key) for line in lines], size


def described(source: IO[bytes], key: bytes | None) -> Batches:
    """Each line is an object with key, value and properties, as `sub --json` prints it."""
    number = 0
    for lines, size in _lines(source, MAX_RECORD_BYTES):
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
    return orjson.dumps(ndjson.line(found), option=orjson.OPT_APPEND_NEWLINE)


def write_document(found: Stored) -> bytes:
    """Return the value as JSON on one line: as it is, or as a JSON text where it is no JSON.

    A message without a value is null.
    """
    if found.message.null:
        return b"null\n"
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
    while data := source.read1(READ_BYTES):  # type: ignore[attr-defined] # buffered readers have it
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


def _lines(source: IO[bytes], longest: int | None = None) -> Iterator[tuple[list[bytes], int]]:
    """Yield the lines that have arrived, without waiting for a full chunk, and their bytes.

    A line of more than `longest` bytes (MAX_LINE_BYTES) is handed on in parts, to be refused.
    """
    rest: list[bytes] = []
    held = 0
    while data := source.read1(READ_BYTES):  # type: ignore[attr-defined] # buffered readers have it
        head, newline, tail = data.rpartition(b"\n")
        if newline:
            yield _nonempty(b"".join([*rest, head])), len(data)
            rest, held = [tail], len(tail)
            continue
        rest.append(data)
        held += len(data)
        # What is too long for a message is handed on to be refused, before it fills the memory.
        if held > (MAX_LINE_BYTES if longest is None else longest):
            yield [b"".join(rest)], len(data)
            rest, held = [], 0
        else:
            yield [], len(data)
    yield _nonempty(b"".join(rest)), 0


def _nonempty(text: bytes) -> list[bytes]:
    return [line for line in (part.rstrip(b"\r") for part in text.split(b"\n")) if line]


def _no_constant(name: str) -> NoReturn:
    raise BadJsonError(f"{name} is no JSON.")


# Numbers become the length of their text: nothing needs them, and a huge one may cost or fail.
_decoder: Final[Any] = json.JSONDecoder(parse_int=len, parse_float=len, parse_constant=_no_constant)


class DocumentReader:
    """Takes bytes as they come and returns the objects that they complete; `longest` in bytes."""

    def __init__(self, key: bytes | None, longest: int) -> None:
        self._key = key
        self._longest = longest
        self._decode = codecs.getincrementaldecoder("utf-8")()
        self._text = ""
        self._next_try = 0
        self._in_array = False
        self._need_comma = False
        self._count = 0

    def receive(self, data: bytes, *, final: bool = False) -> list[Message]:
        """Return the messages of objects that are whole now; `final`: there is no more data.

        Raises BadJsonError, MessageTooLargeError.
        """
        try:
            self._text += self._decode.decode(data, final)
        except UnicodeDecodeError as error:
            raise self._bad("it is not UTF-8") from error
        if len(self._text) < self._next_try and not final:
            return []
        found, at = [], self._skip(0)
        while at < len(self._text) and (read := self._object(at, final)) is not None:
            message, at = read
            found.append(message)
            at = self._skip(at)
        self._text = self._text[at:]
        self._next_try = 2 * len(self._text)
        if len(self._text) > self._longest:
            raise MessageTooLargeError(f"The input has an object of over {self._longest} bytes.")
        if final and self._in_array:
            raise self._bad("the array does not end")
        return found

    def _skip(self, at: int) -> int:
        """Return where the next object begins, behind blanks and what is between objects."""
        text = self._text
        while at < len(text):
            character = text[at]
            if character == "[" and not self._in_array:
                self._in_array, self._need_comma = True, False
            elif character == "]" and self._in_array:
                self._in_array = False
            elif character == "," and self._in_array and self._need_comma:
                self._need_comma = False
            elif character == "{" and not (self._in_array and self._need_comma):
                return at
            elif character not in _BLANKS:
                raise self._bad(f"expected an object, got {quoted(text[at : at + 20])}")
            at += 1
        return at

    def _object(self, at: int, final: bool) -> tuple[Message, int] | None:
        """Return the message of the object there and where it ends; None: it is not whole."""
        try:
            value, end = _decoder.raw_decode(self._text, at)
        except json.JSONDecodeError as error:
            is_cut = error.msg.startswith("Unterminated string")
            if not final and (is_cut or error.pos >= len(self._text) - _MAX_TOKEN_CHARACTERS):
                return None
            raise self._bad(error.msg[:1].lower() + error.msg[1:]) from error
        except RecursionError as error:
            raise self._bad("it is nested too deep") from error
        self._count += 1
        self._need_comma = True
        named = value.get(KEY)
        key = named.encode() if isinstance(named, str) and named else self._key
        return Message(self._text[at:end].encode(), key), end

    def _bad(self, sentence: str) -> BadJsonError:
        return BadJsonError(f"Object {self._count + 1} of the input: {sentence}.")
