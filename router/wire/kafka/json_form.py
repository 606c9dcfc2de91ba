"""Messages to and from Kafka's JSON form, as Apache's JsonConverter classes have it.

Names are in camel case, bytes in base64, a uuid in Kafka's base64 for URLs without padding. Fields
that a version lacks are left out, and tagged fields that have their default.

Tagged fields that the definition does not know are under UNKNOWN_TAGS, for which Kafka's form has
no name: Apache's converters lose them. A field that the version lacks is read nevertheless, so that
what writes the message refuses it or leaves it out, by the definition. A name that is no field at
all is refused.
"""

from __future__ import annotations

import base64
import binascii
import math
from collections.abc import Iterator, Mapping
from typing import Any, Final

from router.wire.kafka.definitions import (
    INTEGERS,
    FieldDefinition,
    MessageDefinition,
    StructDefinition,
    attribute,
    camel_case,
    is_tagged,
)
from router.wire.kafka.diagnosis import differs_from_default
from router.wire.kafka.errors import MalformedMessageError

UNKNOWN_TAGS: Final = "unknownTaggedFields"
"""A list of objects with the members `tag`, a number, and `data`, bytes in base64."""

_JSON_TYPES: Mapping[str, type | tuple[type, ...]] = {
    "bool": bool,
    "float64": (int, float),
    "string": str,
    "uuid": str,
}


def to_json(definition: MessageDefinition, version: int, message: Any) -> dict[str, Any]:
    """Return the JSON of a message that the version can carry."""
    return _struct_to_json(definition.struct, version, message)


def from_json(message: Any, value: Any, version: int) -> Any:
    """Return an instance of a message's class; raise MalformedMessageError."""
    return _JsonFormReader(message, version).struct(message.definition().struct, value, "")


def _struct_to_json(struct: StructDefinition, version: int, value: Any) -> dict[str, Any]:
    found = {}
    for field in struct.fields:
        if version not in field.versions:
            continue
        given = getattr(value, attribute(field.name))
        if is_tagged(field, version) and not differs_from_default(field, given):
            continue
        if given is None:
            shown: Any = None
        elif field.type.array:
            shown = [_element_to_json(field, version, one) for one in given]
        else:
            shown = _element_to_json(field, version, given)
        found[camel_case(field.name)] = shown
    if value.unknown_tagged_fields:
        found[UNKNOWN_TAGS] = [
            {"tag": tag, "data": base64.b64encode(data).decode()}
            for tag, data in value.unknown_tagged_fields
        ]
    return found


def _element_to_json(field: FieldDefinition, version: int, value: Any) -> Any:
    if field.struct is not None:
        return _struct_to_json(field.struct, version, value)
    kind = field.type.element
    if kind == "uuid":
        return uuid_text(value)
    if kind in {"bytes", "records"}:
        return base64.b64encode(value).decode()
    if kind == "bool":
        return bool(value)
    if kind == "float64" and not math.isfinite(value):
        # JSON has no such numbers; these are the words of Apache's converters
        return "NaN" if math.isnan(value) else "Infinity" if value > 0 else "-Infinity"
    return value


def uuid_text(value: bytes) -> str:
    """Return a uuid as Kafka writes it: base64 for URLs, without padding."""
    return base64.urlsafe_b64encode(value).rstrip(b"=").decode()


def parse_uuid(text: str) -> bytes:
    """Return the 16 bytes of a uuid as Kafka writes it; raise ValueError."""
    try:
        found = base64.b64decode(f"{text}==", altchars="-_", validate=True)
    except binascii.Error:
        found = b""
    if len(found) != 16:
        raise ValueError(f"{text} is no uuid in base64")
    return found


class _JsonFormReader:
    """Reads the JSON of one message."""

    def __init__(self, message: Any, version: int) -> None:
        self._message = message
        self._version = version
        self._inside_lacking = False

    def struct(self, struct: StructDefinition, value: Any, place: str) -> Any:
        """Return the instance of a struct's class; raise MalformedMessageError."""
        if not isinstance(value, dict):
            raise self._error(place, "an object is wanted")
        fields = {camel_case(field.name): field for field in struct.fields}
        for key in value.keys() - fields.keys() - {UNKNOWN_TAGS}:
            raise self._error(_below(place, key), "there is no such field")
        found = {}
        for key, field in fields.items():
            here = _below(place, field.name)
            if key in value:
                found[attribute(field.name)] = self._value(field, value[key], here)
            elif self._demands(field):
                raise self._error(here, "the version demands the field")
        made = (self._message if not place else self._message.STRUCTS[struct.name])(**found)
        made.unknown_tagged_fields = tuple(self._unknown_tags(value, place))
        return made

    def _demands(self, field: FieldDefinition) -> bool:
        if self._inside_lacking or self._version not in field.versions:
            return False
        return not is_tagged(field, self._version)

    def _unknown_tags(self, value: Mapping[str, Any], place: str) -> Iterator[tuple[int, bytes]]:
        given, place = value.get(UNKNOWN_TAGS, []), _below(place, UNKNOWN_TAGS)
        if not isinstance(given, list):
            raise self._error(place, "an array is wanted")
        for index, one in enumerate(given):
            here = f"{place}[{index}]"
            if not isinstance(one, dict) or one.keys() != {"tag", "data"}:
                raise self._error(here, "an object with tag and data is wanted")
            try:
                yield _parsed("uint32", one["tag"]), _parsed("bytes", one["data"])
            except ValueError as error:
                raise self._error(here, str(error)) from None

    def _value(self, field: FieldDefinition, value: Any, place: str) -> Any:
        """Return the value of a field; of one that the version lacks, nothing is demanded."""
        outside = self._inside_lacking
        self._inside_lacking = outside or self._version not in field.versions
        try:
            return self._given(field, value, place)
        finally:
            self._inside_lacking = outside

    def _given(self, field: FieldDefinition, value: Any, place: str) -> Any:
        if value is None:
            nullable = field.nullable
            if nullable.empty or not (self._inside_lacking or self._version in nullable):
                raise self._error(place, "null in a field that is not nullable")
            return None
        if not field.type.array:
            return self._element(field, value, place)
        if not isinstance(value, list):
            raise self._error(place, "an array is wanted")
        return [self._element(field, one, f"{place}[{index}]") for index, one in enumerate(value)]

    def _element(self, field: FieldDefinition, value: Any, place: str) -> Any:
        if field.struct is not None:
            return self.struct(field.struct, value, place)
        try:
            return _parsed(field.type.element, value)
        except ValueError as error:
            raise self._error(place, str(error)) from None

    def _error(self, place: str, sentence: str) -> MalformedMessageError:
        return MalformedMessageError(self._message.__name__, self._version, place, sentence)


def _below(place: str, name: str) -> str:
    return f"{place}.{name}" if place else name


def _parsed(kind: str, value: Any) -> Any:
    if kind in INTEGERS:
        low, high = INTEGERS[kind]
        if not isinstance(value, int) or isinstance(value, bool):
            raise ValueError(f"a number of the type {kind} is wanted")
        if not low <= value <= high:
            raise ValueError(f"{value} is not from {low} to {high}")
        return value
    if kind == "float64" and value in ("NaN", "Infinity", "-Infinity"):
        return float(value)
    expected = _JSON_TYPES.get(kind, str)
    fits: bool = isinstance(value, expected)
    if not fits or (kind == "float64" and isinstance(value, bool)):
        raise ValueError(f"a value of the type {kind} is wanted")
    if kind == "uuid":
        return parse_uuid(value)
    if kind == "float64":
        return float(value)
    if kind in {"bytes", "records"}:
        try:
            return base64.b64decode(value, validate=True)
        except binascii.Error:
            raise ValueError("bytes in base64 are wanted") from None
    return value
