"""Frames of the Pulsar binary protocol: bytes as they arrive to commands, and back."""

from __future__ import annotations

from struct import Struct
from typing import Any, Final, NamedTuple

from google.protobuf.message import DecodeError

from router.wire import ProtocolError
from router.wire.pulsar.pulsar_pb2 import BaseCommand
from router.wire.pulsar.strict import (
    SMALL,
    TextCheck,
    check_count,
    incomplete,
)

# A frame is [total size u32][command size u32][BaseCommand][payload]; the total counts what follows
# it. SEND, MESSAGE and APPENDS carry a payload, and an EXTENSION may. Sizes are checked as soon as
# the first four bytes are there, so what is held never exceeds one frame and one chunk. Bytes are
# parsed where
# they lie: only the piece of a frame that a chunk leaves over is copied into the buffer. The
# alternative, a list of chunks joined when a frame is whole, holds 40 bytes for each byte of a peer
# that dribbles.

MAX_MESSAGE_SIZE: Final = 5 * 1024 * 1024
# Clients fill a chunk up to the largest message and put its metadata on top of that.
FRAME_LIMIT: Final = MAX_MESSAGE_SIZE + 10 * 1024

_SIZE: Final = Struct(">I")
_SIZES: Final = Struct(">II")
_PAYLOAD_TYPES: Final = frozenset({BaseCommand.SEND, BaseCommand.MESSAGE, BaseCommand.APPENDS})


class CommandFields(NamedTuple):
    """Where BaseCommand keeps the fields of one type of command; the check of those with text.

    `payload`: whether one follows the command.
    """

    field: str
    text: TextCheck | None
    payload: bool


def _bodies() -> dict[int, CommandFields]:
    # A type and the field of its body have the same number; a few types are only names to us.
    fields = BaseCommand.DESCRIPTOR.fields_by_number
    bodies = {}
    for number in BaseCommand.Type.values():
        if (field := fields.get(number)) is not None:
            # The content of an extension is checked where it is read.
            check = TextCheck(field.message_type) if field.message_type is not None else None
            text = None if check is None or check.idle else check
            bodies[number] = CommandFields(field.name, text, number in _PAYLOAD_TYPES)
    return bodies


_BODIES: Final = _bodies()
# What nearly all commands are: the type, the tag of its fields, one byte for their size, the fields
# and nothing else. Of such a command only the fields are looked at, for there are no others: to ask
# BaseCommand whether it is complete means to ask for each of its 60 fields whether it is there.
_SHORT: Final = {
    bytes((0x08, number, number << 3 | 2)): body
    for number, body in _BODIES.items()
    if number << 3 < 0x80
}
_SHORT_HEAD: Final = 4
_SHORT_SIZE: Final = _SHORT_HEAD + 0x7F


class Frame(NamedTuple):
    """A command with what follows it: empty, or what SEND, MESSAGE, APPENDS, EXTENSION carry."""

    command: BaseCommand
    payload: bytes


class PulsarFrameReader:
    """Turns bytes, cut anywhere, into frames; after a ProtocolError it is of no more use.

    `expected_bytes` is the size of the frame that has begun to arrive, head included.
    """

    def __init__(self, limit: int = FRAME_LIMIT) -> None:
        self._limit: Final = limit
        self._held = bytearray()
        self.expected_bytes = _SIZE.size
        self._failure: ProtocolError | None = None
        # Whether the peer is a broker that we chose to connect to; None before its first command.
        self._chosen: bool | None = None

    def receive(self, data: bytes | bytearray | memoryview) -> list[Frame]:
        """Take bytes as they came off the wire; return the frames that they completed.

        Raises ProtocolError, again at each later call; frames of the same call are then dropped, as
        the connection is.
        """
        if self._failure is not None:
            raise self._failure
        try:
            if self._held or type(data) is not bytes:
                return self._receive(data)
            # Nearly always nothing was begun before, and nothing is left.
            frames, used = self._read(data, 0)
            if used < len(data):
                self._held += data[used:]
        except ProtocolError as error:
            # Without its traceback, which would keep what was received.
            self._failure = ProtocolError(str(error))
            self._held = bytearray()
            raise
        return frames

    def _receive(self, data: bytes | bytearray | memoryview) -> list[Frame]:
        held, view, start = self._held, memoryview(data), 0
        frames: list[Frame] = []
        # Of the chunk only what the frame lacks that was begun is copied: first, perhaps, its size.
        while held:
            lacking = self.expected_bytes - len(held)
            held += view[start : start + lacking]
            if lacking > len(view) - start:
                return frames
            start += lacking
            with memoryview(held) as whole:
                found, used = self._read(whole, 0)
            frames += found
            del held[:used]
        # Bytes are cut in less time than a view of them, and what is cut out needs no copy.
        found, used = self._read(data if type(data) is bytes else view, start)
        held += view[used:]
        return frames + found if frames else found

    def _read(self, view: bytes | memoryview, start: int) -> tuple[list[Frame], int]:
        frames: list[Frame] = []
        end, size_at = len(view), _SIZE.unpack_from
        while end - start >= _SIZE.size:
            (total,) = size_at(view, start)
            if total > self._limit:
                raise ProtocolError(f"frame of {total} bytes, allowed are {self._limit}")
            stop = start + _SIZE.size + total
            if stop > end:
                self.expected_bytes = stop - start
                return frames, start
            frames.append(_read_frame(view, start, stop, chosen=self._chosen))
            if self._chosen is None:
                self._chosen = frames[0].command.type == BaseCommand.CONNECTED
            start = stop
        self.expected_bytes = _SIZE.size
        return frames, start


def _read_frame(view: bytes | memoryview, start: int, stop: int, *, chosen: bool | None) -> Frame:
    at = start + _SIZES.size
    if at > stop:
        raise ProtocolError("frame without a command")
    end = at + _SIZE.unpack_from(view, start + _SIZE.size)[0]
    if end > stop:
        raise ProtocolError("command larger than its frame")
    data = view[at:end]
    if _SHORT_HEAD <= len(data) <= _SHORT_SIZE and data[3] == len(data) - _SHORT_HEAD:
        body = _SHORT.get(bytes(data[:3]))
    else:
        body = None
    if body is None:
        command = _read_command(data, chosen=chosen)
        payload = command.type in _PAYLOAD_TYPES
    else:
        command = _read_short_command(data, body)
        payload = body.payload
    if (end < stop) != payload and command.type != BaseCommand.EXTENSION:
        raise ProtocolError(f"{BaseCommand.Type.Name(command.type)} with or without a payload")
    # Without the detour over the class's own `__new__`, which is written in Python.
    return tuple.__new__(Frame, (command, bytes(view[end:stop])))


def _read_short_command(data: bytes | memoryview, body: CommandFields) -> BaseCommand:
    try:
        command = BaseCommand.FromString(data)  # type: ignore[arg-type]  # takes any buffer
    except DecodeError as error:
        raise ProtocolError("command cannot be parsed") from error
    fields = getattr(command, body.field)
    if not fields.IsInitialized():
        raise incomplete(command)
    if body.text is not None:
        body.text.check(fields)
    return command


def _read_command(data: bytes | memoryview, *, chosen: bool | None) -> BaseCommand:
    if len(data) > SMALL and not chosen:
        check_count(BaseCommand.DESCRIPTOR, data)
    try:
        command = BaseCommand.FromString(data)  # type: ignore[arg-type]  # takes any buffer
    except DecodeError as error:
        raise ProtocolError("command cannot be parsed") from error
    if not command.IsInitialized():
        raise incomplete(command)
    if body := _BODIES.get(command.type):
        if not command.HasField(body.field):
            raise ProtocolError(f"{BaseCommand.Type.Name(command.type)} without its fields")
        if body.text is not None:
            body.text.check(getattr(command, body.field))
    return command


def encode(command: BaseCommand, payload: bytes = b"") -> bytes:
    """Return the frame of a command."""
    body = command.SerializeToString()
    size = len(body)
    head = _SIZES.pack(_SIZE.size + size + len(payload), size) + body
    return head + payload if payload else head


def encode_parts(command: BaseCommand, *payload: bytes) -> tuple[bytes, ...]:
    """Return the frame of a command in pieces, for a vectored write: no payload is copied."""
    body = command.SerializeToString()
    size = len(body)
    total = _SIZE.size + size + sum(map(len, payload))
    return _SIZES.pack(total, size) + body, *payload


def command(kind: BaseCommand.Type, **fields: Any) -> BaseCommand:
    """Return a command of this type; `fields` are those of its body."""
    body: dict[str, Any] = {_BODIES[kind].field: fields}
    return BaseCommand(type=kind, **body)
