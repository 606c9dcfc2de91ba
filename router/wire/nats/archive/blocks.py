"""Owns the archive of nats-server before 2.15: a tar with the files of a stream's folder.

`meta.inf` is its configuration, `msgs/<n>.blk` are its blocks of messages, `obs/<name>/meta.inf`
and `obs/<name>/o.dat` are consumers. A record of a block is its size (4 bytes, little-endian, the
highest bit says that there are headers), sequence, time (8 bytes each), the size of the subject (2
bytes), the subject, the size of the headers (4 bytes, if there are any), headers, payload and a
checksum of 8 bytes. The highest bit of a sequence says that the message was erased, the next one
that the record is a deletion. Blocks still have messages that a limit of the stream deleted.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from struct import Struct
from typing import Final, NamedTuple

from router.wire.nats.archive.parts import (
    ArchivedConsumer,
    ArchivedDeletion,
    ArchivedMessage,
    ConsumerPosition,
    damaged,
)
from router.wire.nats.archive.source import ArchiveSource, Steps, signed

MAX_FILE_BYTES: Final = 16 << 20
"""Of a file that is read as a whole."""
BLOCK: Final = 512
_RECORD: Final = Struct("<IQqH")
_CHECKSUM_BYTES: Final = 8
_HEADERS: Final = 1 << 31
_ERASED: Final = 1 << 63
_DELETION: Final = 1 << 62
_REGULAR: Final = b"0"
_EXTENDED: Final = b"x"
_POSITION_MAGIC: Final = 22
_SECOND: Final = 1_000_000_000


class _BlockFile(NamedTuple):
    name: str
    size: int


def read_tar(source: ArchiveSource, max_message: int) -> Steps[None]:
    """Yield what the files hold, from the first one on; raise ProtocolError."""
    configs: dict[str, object] = {}
    started = False
    while (file := (yield from _next_file(source))) is not None:
        folder, _, rest = file.name.partition("/")
        if file.name == "meta.inf":
            yield from source.skip(file.size)
            started = True
        elif file.name == "errors.txt":
            text = yield from _whole(source, file)
            raise damaged(f"the server that wrote it failed: {text[:200].decode(errors='replace')}")
        elif folder == "msgs" and rest.endswith(".blk"):
            yield from _records(source, file.size, max_message)
        elif folder == "obs" and rest.endswith("/meta.inf"):
            text = yield from _whole(source, file)
            configs[rest.removesuffix("/meta.inf")] = _config(text, file.name)
        elif folder == "obs" and rest.endswith("/o.dat"):
            name = rest.removesuffix("/o.dat")
            text = yield from _whole(source, file)
            yield ArchivedConsumer(name, configs.pop(name, None), read_position(text))
        else:
            yield from source.skip(file.size)
        yield from source.skip(-file.size % BLOCK)
    if not started:
        raise damaged("it is no stream of nats-server")
    for name, config in configs.items():
        yield ArchivedConsumer(name, config, ConsumerPosition())


def read_position(data: bytes) -> ConsumerPosition:
    """Return where a consumer stands, of its file `o.dat`; raise ProtocolError."""
    if len(data) < 2 or data[0] != _POSITION_MAGIC or data[1] not in {1, 2}:
        raise damaged("a consumer's position has an unknown form")
    try:
        return _position(data[1], _numbers(data, 2))
    except StopIteration:
        raise damaged("a consumer's position is cut short") from None


def _position(version: int, numbers: Iterator[int]) -> ConsumerPosition:
    take = numbers.__next__
    floor_number, floor, delivered_number, delivered = take(), take(), take(), take()
    if version == 1:
        # It has the next delivery, counted from the floor.
        delivered_number += max(0, floor_number - 1)
        delivered += max(0, floor - 1)
    pending, redelivered = {}, {}
    if count := take():
        base = signed(take())
        for _ in range(count):
            sequence = take() + floor
            number = take() + floor_number if version == 2 else 0
            moment = signed(take())
            seconds = base - moment if version == 2 else base + moment
            pending[sequence] = number, max(0, seconds) * _SECOND
    for _ in range(take()):
        sequence = take() + floor
        redelivered[sequence] = take()
    return ConsumerPosition(
        (delivered_number, delivered), (floor_number, floor), pending, redelivered
    )


def _numbers(data: bytes, at: int) -> Iterator[int]:
    """Yield the numbers of 7 bits in each byte from a place on."""
    value = shift = 0
    for byte in data[at:]:
        value |= (byte & 0x7F) << shift
        shift += 7
        if byte < 0x80:
            yield value
            value = shift = 0


def _config(text: bytes, name: str) -> object:
    try:
        found = json.loads(text)
    except (ValueError, RecursionError) as reason:
        raise damaged(f"{name}: {reason}") from None
    if not isinstance(found, dict):
        raise damaged(f"{name} is no object")
    # The folder's own members, which have capitals.
    return {key: value for key, value in found.items() if key not in {"Created", "Name"}}


def _records(source: ArchiveSource, left: int, max_message: int) -> Steps[None]:
    """Yield the messages and deletions of a block of so many bytes."""
    while left:
        if left < _RECORD.size:
            raise damaged("a block of messages is cut short")
        size, sequence, time_ns, subject_size = _RECORD.unpack(
            (yield from source.take(_RECORD.size))
        )
        has_headers, size = bool(size & _HEADERS), size & ~_HEADERS
        body_size = size - _RECORD.size
        overhead = subject_size + 4 * has_headers + _CHECKSUM_BYTES
        if size > left or body_size < overhead:
            raise damaged("a block of messages is cut short")
        if body_size - overhead > max_message:
            raise damaged(f"message {sequence} has more than {max_message} bytes")
        body = yield from source.take(body_size)
        left -= size
        if sequence & _DELETION:
            yield ArchivedDeletion(sequence & ~(_DELETION | _ERASED))
        elif sequence & _ERASED:
            yield ArchivedDeletion(sequence & ~_ERASED)
        elif sequence:
            yield _message(sequence, time_ns, subject_size, body[:-_CHECKSUM_BYTES], has_headers)


def _message(
    sequence: int, time_ns: int, subject_size: int, body: bytes, has_headers: bool
) -> ArchivedMessage:
    headers = b""
    at = subject_size
    if has_headers:
        size = int.from_bytes(body[at : at + 4], "little")
        headers, at = body[at + 4 : at + 4 + size], at + 4 + size
        if at > len(body):
            raise damaged(f"message {sequence} is cut short")
    try:
        subject = body[:subject_size].decode()
    except UnicodeDecodeError:
        raise damaged(f"the subject of message {sequence} is no UTF-8") from None
    return ArchivedMessage(sequence, subject, headers, body[at:], time_ns)


def _next_file(source: ArchiveSource) -> Steps[_BlockFile | None]:
    """Return the next file, its content follows; None: there is none."""
    extended: dict[str, str] = {}
    while True:
        head = yield from source.take(BLOCK)
        if not any(head):
            return None
        size, kind = _octal(head[124:136]), head[156:157]
        summed = sum(head[:148]) + 8 * 32 + sum(head[156:])
        if summed != _octal(head[148:156]):
            raise damaged("the head of a file does not match its sum")
        if kind == _EXTENDED:
            text = yield from _whole(source, _BlockFile("a name", size))
            yield from source.skip(-size % BLOCK)
            extended = _extended(text)
            continue
        if kind not in {_REGULAR, b"\0"}:
            raise damaged("it holds more than files")
        name = head[:100].rstrip(b"\0").decode(errors="replace")
        prefix = head[345:500].rstrip(b"\0").decode(errors="replace")
        name = extended.get("path", f"{prefix}/{name}" if prefix else name)
        return _BlockFile(name, _decimal(extended["size"]) if "size" in extended else size)


def _whole(source: ArchiveSource, file: _BlockFile) -> Steps[bytes]:
    if file.size > MAX_FILE_BYTES:
        raise damaged(f"{file.name} has more than {MAX_FILE_BYTES} bytes")
    return (yield from source.take(file.size))


def _extended(text: bytes) -> dict[str, str]:
    """Return the attributes of a file: lines of a size, a name and a value."""
    found = {}
    while text:
        size = _decimal(text.partition(b" ")[0].decode(errors="replace"))
        line, text = text[:size], text[size:]
        name, _, value = line.partition(b" ")[2].decode(errors="replace").partition("=")
        if not size:
            raise damaged("the head of a file cannot be read")
        found[name] = value.removesuffix("\n")
    return found


def _decimal(text: str) -> int:
    if not (text.isascii() and text.isdecimal() and len(text) < 20):
        raise damaged("the head of a file cannot be read")
    return int(text)


def _octal(field: bytes) -> int:
    if field[0] & 0x80:
        return int.from_bytes(field[1:], "big")
    text = field.strip(b"\0 ")
    try:
        return int(text or b"0", 8)
    except ValueError:
        raise damaged("the head of a file cannot be read") from None
