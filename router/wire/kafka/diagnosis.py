"""What is wrong with bytes or with a message: a slow walk that names the field.

Generated functions raise bare errors of Python, which costs them nothing. The walk here goes over
the same bytes or values by the definition and stops at the first field that breaks a rule.
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from typing import Any

from router.wire.kafka import primitives as p
from router.wire.kafka.definitions import (
    FIXED_BYTES,
    INTEGERS,
    FieldDefinition,
    FieldType,
    MessageDefinition,
    StructDefinition,
    attribute,
    is_compact,
    is_tagged,
)
from router.wire.kafka.errors import MalformedMessageError, UnwritableMessageError


class _FieldError(Exception):
    def __init__(self, field: str, sentence: str) -> None:
        super().__init__(sentence)
        self.field = field
        self.sentence = sentence


def explain_read(
    definition: MessageDefinition, version: int, buffer: bytes, error: Exception
) -> MalformedMessageError:
    """Return the error for bytes that a generated function refused."""
    walk = _ReadWalk(definition, version, buffer)
    try:
        walk.struct(definition.struct, "")
    except _FieldError as found:
        return MalformedMessageError(definition.name, version, found.field, found.sentence)
    return MalformedMessageError(definition.name, version, "", f"the bytes are malformed: {error}")


def explain_write(
    definition: MessageDefinition, version: int, message: Any, error: Exception
) -> UnwritableMessageError:
    """Return the error for a message that a generated function refused."""
    try:
        _WriteWalk(definition, version).struct(definition.struct, message, "")
    except _FieldError as found:
        return UnwritableMessageError(definition.name, version, found.field, found.sentence)
    return UnwritableMessageError(definition.name, version, "", f"{type(error).__name__}: {error}")


class _ReadWalk:
    def __init__(self, definition: MessageDefinition, version: int, buffer: bytes) -> None:
        self._definition = definition
        self._version = version
        self._flexible = version in definition.flexible
        self._buffer = buffer
        self._at = 0

    def struct(self, struct_: StructDefinition, place: str) -> None:
        """Walk over a struct; raise _FieldError."""
        tagged: dict[int, FieldDefinition] = {}
        for field in struct_.fields:
            if self._version not in field.versions:
                continue
            if field.tag is not None and is_tagged(field, self._version):
                tagged[field.tag] = field
            else:
                self._value(field, _place(place, field), tagged=False)
        if not self._flexible:
            return
        here = _place(place, None)
        count = self._uvarint(here)
        if count < 0:
            raise _FieldError(here, f"there are {count} tagged fields")
        for _ in range(count):
            tag, size = self._uvarint(here), self._uvarint(here)
            if tag < 0:
                raise _FieldError(here, f"there is no tag {tag}")
            self._need(size, here)
            stop = self._at + size
            if tag in tagged:
                self._value(tagged[tag], _place(place, tagged[tag]), tagged=True)
                if self._at != stop:
                    raise _FieldError(_place(place, tagged[tag]), f"the field is not {size} bytes")
            self._at = stop

    def _value(self, field: FieldDefinition, place: str, *, tagged: bool) -> None:
        nullable = self._version in field.nullable
        if field.type.array:
            count = self._length(place, nullable, compact=self._flexible, wide=True)
            width = FIXED_BYTES.get(field.type.element, 1)
            if count > (len(self._buffer) - self._at) // width:
                remaining = len(self._buffer) - self._at
                raise _FieldError(place, f"{count} elements do not fit into {remaining} bytes")
            for index in range(count):
                self._element(field, f"{place}[{index}]", nullable=False)
        elif field.struct is not None and nullable:
            if (self._uvarint(place) > 0) if tagged else (self._take(1, place)[0] < 128):
                self.struct(field.struct, place)
        else:
            self._element(field, place, nullable=nullable)

    def _element(self, field: FieldDefinition, place: str, *, nullable: bool) -> None:
        kind = field.type.element
        if field.struct is not None:
            self.struct(field.struct, place)
        elif kind in FIXED_BYTES:
            self._take(FIXED_BYTES[kind], place)
        else:
            text = kind == "string"
            compact = is_compact(self._definition, field, self._version)
            size = self._length(place, nullable, compact=compact, wide=not text)
            if text and size > p.MAX_STRING_BYTES:
                raise _FieldError(place, f"a string of {size} bytes is longer than 32767")
            self._take(size, place)

    def _length(self, place: str, nullable: bool, *, compact: bool, wide: bool) -> int:
        if compact:
            size = self._uvarint(place) - 1
        else:
            size = int.from_bytes(self._take(4 if wide else 2, place), signed=True)
        if size < 0 and not nullable:
            raise _FieldError(place, f"null (length {size}) in a field that is not nullable")
        return max(size, 0)

    def _uvarint(self, place: str) -> int:
        try:
            number, self._at = p.read_uvarint(self._buffer, self._at)
        except IndexError:
            raise _FieldError(place, "the bytes end in a varint") from None
        except ValueError as error:
            raise _FieldError(place, str(error)) from None
        return number

    def _need(self, size: int, place: str) -> None:
        remaining = len(self._buffer) - self._at
        if not 0 <= size <= remaining:
            raise _FieldError(place, f"{size} bytes are wanted where {remaining} remain")

    def _take(self, size: int, place: str) -> bytes:
        self._need(size, place)
        found = self._buffer[self._at : self._at + size]
        self._at += size
        return found


class _WriteWalk:
    def __init__(self, definition: MessageDefinition, version: int) -> None:
        self._definition = definition
        self._version = version

    def struct(self, struct_: StructDefinition, value: Any, place: str) -> None:
        """Walk over a struct; raise _FieldError."""
        for field in struct_.fields:
            here = _place(place, field)
            try:
                given = getattr(value, attribute(field.name))
            except AttributeError:
                found = f"a {type(value).__name__} is no {struct_.name} with all fields"
                raise _FieldError(here, found) from None
            if self._version in field.versions:
                self._value(field, given, here)
            elif not field.ignorable and differs_from_default(field, given):
                raise _FieldError(here, "the version lacks the field, which is not its default")
        self._unknown(struct_, value, place)

    def _unknown(self, struct_: StructDefinition, value: Any, place: str) -> None:
        unknown = value.unknown_tagged_fields
        here = _place(place, None)
        if unknown and self._version not in self._definition.flexible:
            raise _FieldError(here, "the version has no tagged fields")
        known = {field.tag for field in struct_.fields if is_tagged(field, self._version)}
        tags = [tag for tag, _ in unknown]
        if len(set(tags)) < len(tags) or known & set(tags):
            raise _FieldError(here, "a tag stands twice")
        if tags and max(tags) > p.MAX_TAG:
            raise _FieldError(here, f"a tag is above {p.MAX_TAG}")
        if tags != sorted(tags):
            raise _FieldError(here, "the tags that are unknown do not ascend")

    def _value(self, field: FieldDefinition, given: Any, place: str) -> None:
        if given is None:
            if self._version not in field.nullable and field.type != FieldType("records"):
                raise _FieldError(place, "null in a field that is not nullable")
            if self._version not in field.nullable:
                raise _FieldError(place, "records are missing")
            return
        if not field.type.array:
            self._element(field, given, place)
            return
        try:
            elements = list(given)
        except TypeError:
            raise _FieldError(place, f"a {type(given).__name__} is no array") from None
        for index, element in enumerate(elements):
            self._element(field, element, f"{place}[{index}]")

    def _element(self, field: FieldDefinition, given: Any, place: str) -> None:
        if field.struct is not None:
            self.struct(field.struct, given, place)
            return
        kind = field.type.element
        check = _CHECKS.get(kind, _check_bytes)
        sentence = _check_integer(kind, given) if kind in INTEGERS else check(given)
        if sentence:
            raise _FieldError(place, sentence)


def differs_from_default(field: FieldDefinition, given: Any) -> bool:
    """Tell whether a value is not the field's default."""
    if field.default is None:
        return given is not None
    if given is None:
        return True
    if field.type.array:
        return len(given) > 0
    if field.struct is not None:
        return bool(given != type(given)())
    return bool(given != field.default)


def _place(place: str, field: FieldDefinition | None) -> str:
    name = "tagged fields" if field is None else field.name
    return f"{place}.{name}" if place else name


def _check_integer(kind: str, given: Any) -> str:
    low, high = INTEGERS[kind]
    if not isinstance(given, int):
        return f"a {type(given).__name__} is no {kind}"
    return "" if low <= given <= high else f"{given} is not from {low} to {high}"


def _check_string(given: Any) -> str:
    if not isinstance(given, str):
        return f"a {type(given).__name__} is no string"
    try:
        size = len(given.encode())
    except UnicodeEncodeError:
        return "the string has no form in UTF-8"
    return "" if size <= p.MAX_STRING_BYTES else f"a string of {size} bytes is longer than 32767"


def _check_uuid(given: Any) -> str:
    return "" if isinstance(given, bytes) and len(given) == 16 else "a uuid is 16 bytes"


def _check_float(given: Any) -> str:
    try:
        struct.pack(">d", given)
    except (struct.error, OverflowError):
        return f"a {type(given).__name__} is no float64"
    return ""


def _check_bytes(given: Any) -> str:
    try:
        memoryview(given)
    except TypeError:
        return f"a {type(given).__name__} is no bytes"
    return ""


_CHECKS: dict[str, Callable[[Any], str]] = {
    "bool": lambda _: "",
    "string": _check_string,
    "uuid": _check_uuid,
    "float64": _check_float,
}
