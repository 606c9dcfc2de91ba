"""Strict reading of protobuf messages: what passes is complete, and its text is text."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import cache
from operator import attrgetter
from typing import Any, Final, Generic, TypeVar

from google.protobuf.message import DecodeError, Message

from router.wire import ProtocolError

# Why not the parser alone: in proto2 it accepts messages that lack required fields, and hands out
# text that is no UTF-8 as bytes, so that the mistake would surface as a TypeError far from here.
# The walk over text fields is planned once for each message type and touches nothing else: commands
# of the hot path (SEND, MESSAGE, SEND_RECEIPT, FLOW) hold no text and cost no walk at all.
#
# Parsed, the worst of messages takes 40 times the bytes it came in, all of it for empty messages in
# repeated fields. So the fields of a message that is not small are counted before it is parsed.

SMALL: Final = 64 * 1024
MAX_FIELDS: Final = 100_000
# As protobuf has it.
MAX_DEPTH: Final = 100

_VARINT: Final = 0
_LENGTH_DELIMITED: Final = 2
_FIXED: Final = {1: 8, 5: 4}

# What is certain of a message, from its bytes alone, if they can be parsed at all: nothing; all its
# text is text; that, and no required field is missing.
UNPROVEN: Final = 0
TEXT_SOUND: Final = 1
SOUND: Final = 2

M = TypeVar("M", bound=Message)


class TextCheck:
    """Finds text fields, in messages of one type, that hold no text; `idle` if it has none."""

    def __init__(self, kind: Any, above: tuple[Any, ...] = ()) -> None:
        text = [field for field in kind.fields if field.type == field.TYPE_STRING]
        self._single: Final = _getter(field.name for field in text if not field.is_repeated)
        self._repeated: Final = [field.name for field in text if field.is_repeated]
        self._inner: dict[str, TextCheck] = {}
        self._items: list[tuple[str, TextCheck]] = []
        for field in kind.fields:
            if field.message_type is not None and field.message_type not in (*above, kind):
                inner = TextCheck(field.message_type, (*above, kind))
                if not inner.idle and field.is_repeated:
                    self._items.append((field.name, inner))
                elif not inner.idle:
                    self._inner[field.name] = inner
        self._lists: Final = _getter((*self._repeated, *(name for name, _ in self._items)))
        self.idle: Final[bool] = not (text or self._inner or self._items)

    def check(self, message: Any) -> None:
        """Raise ProtocolError if a text field holds bytes that are no UTF-8."""
        # An absent field reads as "", which costs less than to ask whether it is there.
        if self._single is not None and bytes in map(type, self._single(message)):
            raise ProtocolError(f"{message.DESCRIPTOR.name}: text that is not UTF-8")
        # Of the hot path's messages all lists are empty, nearly always.
        if self._lists is not None and any(self._lists(message)):
            self._check_lists(message)
        if self._inner:
            # Of the many commands that a message may carry, one is there.
            for field, value in message.ListFields():
                if (inner := self._inner.get(field.name)) is not None:
                    inner.check(value)

    def _check_lists(self, message: Any) -> None:
        for name in self._repeated:
            if bytes in map(type, getattr(message, name)):
                raise ProtocolError(f"{message.DESCRIPTOR.name}.{name} is not UTF-8")
        for name, inner in self._items:
            for item in getattr(message, name):
                inner.check(item)


def _getter(names: Iterable[str]) -> Callable[[Any], tuple[Any, ...]] | None:
    """Return what reads these fields in one call; None: there are none."""
    found = tuple(names)
    # With two names and more it returns a tuple.
    return attrgetter(*found, *found[:1]) if found else None


def incomplete(message: Message) -> ProtocolError:
    """Return the failure of a message that `IsInitialized` says lacks required fields."""
    # Not found out by trying to serialize, which is faster: that names every field that is missing,
    # a gigabyte of names for the worst of frames.
    return ProtocolError(f"{message.DESCRIPTOR.name}: required fields are missing")


def check_count(
    kind: Any, data: bytes | memoryview, left: int = MAX_FIELDS, depth: int = MAX_DEPTH
) -> int:
    """Raise ProtocolError if there are more fields than `left`; return how many more may come.

    `kind` is the descriptor of the message that the data is to be parsed as. Data that cannot be
    parsed may pass.
    """
    if not depth:
        raise ProtocolError(f"{kind.name}: nested too deep")
    inner = _inner_kinds(kind)
    at, end = 0, len(data)
    while at < end:
        left -= 1
        if left < 0:
            raise ProtocolError(f"{kind.name}: more than {MAX_FIELDS} fields")
        tag, at = _varint(data, at)
        if tag & 7 == _LENGTH_DELIMITED:
            size, at = _varint(data, at)
            if nested := inner.get(tag >> 3):
                left = check_count(nested, data[at : at + size], left, depth - 1)
            at += size
        elif tag & 7 == _VARINT:
            _, at = _varint(data, at)
        elif tag & 7 in _FIXED:
            at += _FIXED[tag & 7]
        else:
            raise ProtocolError(f"{kind.name}: groups are no part of the protocol")
    return left


@cache
def _inner_kinds(kind: Any) -> dict[int, Any]:
    return {field.number: field.message_type for field in kind.fields if field.message_type}


def _varint(data: bytes | memoryview, at: int) -> tuple[int, int]:
    number = 0
    for place, byte in enumerate(data[at : at + 10], 1):
        number |= (byte & 0x7F) << 7 * (place - 1)
        if byte < 0x80:
            return number, at + place
    raise ProtocolError("number cut short")


class StrictReader(Generic[M]):
    """Reads messages of one type; raises ProtocolError for all that is not exactly one.

    `prove` tells what is certain of the bytes of a small message, and saves the search for it.
    """

    def __init__(self, kind: type[M], prove: Callable[[bytes], int] | None = None) -> None:
        self._prove: Final = prove
        self._parse: Final = kind.FromString
        self._name: Final = kind.__name__
        self._kind: Final[Any] = kind.DESCRIPTOR
        self._text: Final = TextCheck(kind.DESCRIPTOR)

    def read(self, data: bytes | memoryview, *, trusted: bool = False) -> M:
        """Return the message that these bytes are; raise ProtocolError.

        What a `trusted` peer wrote has no fields that are too many, and no text that is none.
        """
        if len(data) > SMALL:
            if not trusted:
                check_count(self._kind, data)
            proof = UNPROVEN
        else:
            data = bytes(data)
            proof = UNPROVEN if self._prove is None else self._prove(data)
        try:
            message = self._parse(data)  # type: ignore[arg-type]  # takes any buffer
        except DecodeError as error:
            raise ProtocolError(f"{self._name} cannot be parsed") from error
        if proof < SOUND and not message.IsInitialized():
            raise incomplete(message)
        if proof < TEXT_SOUND and not trusted:
            self._text.check(message)
        return message
