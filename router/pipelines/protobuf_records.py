"""Protobuf messages in the columns of a definition, which is what the registry has of a schema.

Theory of operation. A value is read by the descriptors of the version that it was written with, and
its fields become those of the columns by their numbers: that is Protobuf's own rule, by which names
may change. What the two types have to do with one another is worked out once for each version; a
number that has another type there ends that version's values, not the pipeline.

Protobuf reads almost anything: what has not the type of its field is an unknown field to it, and
would be a null column to us. A value is therefore bad if a number that its version knows has bytes
that it does not understand, or an enum a number without a name. Numbers that it does not know are
passed over. Only a value that is bad is walked through, to name the field.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from decimal import Decimal
from typing import Any, Final

import orjson
from google.protobuf.descriptor import Descriptor, FieldDescriptor
from google.protobuf.json_format import MessageToDict
from google.protobuf.message import DecodeError
from google.protobuf.message_factory import GetMessageClass
from google.protobuf.unknown_fields import UnknownFieldSet

from router.errors import InvalidSchemaError, PayloadMismatchError
from router.model import Schema, SchemaType
from router.pipelines.protobuf_faults import unreadable_field
from router.pipelines.versioned import (
    MAX_DEPTH,
    MAX_TYPES,
    ReadRow,
    Row,
    VersionedDecoder,
)
from router.schemas.protobuf import message_type

Convert = Callable[[Any], Any]
"""What makes the value of a column of a value, or of a message that has it."""

_STRUCT: Final = "STRUCT"
# Types of Google's that contain themselves: their messages are any JSON.
_JSON: Final = frozenset(f"google.protobuf.{name}" for name in ("Struct", "Value", "ListValue"))
_UNSIGNED: Final = "DECIMAL(20, 0)"
_SIMPLE: Final = {
    FieldDescriptor.CPPTYPE_INT32: "INT",
    FieldDescriptor.CPPTYPE_INT64: "BIGINT",
    FieldDescriptor.CPPTYPE_UINT32: "BIGINT",
    FieldDescriptor.CPPTYPE_UINT64: _UNSIGNED,
    FieldDescriptor.CPPTYPE_FLOAT: "FLOAT",
    FieldDescriptor.CPPTYPE_DOUBLE: "DOUBLE",
    FieldDescriptor.CPPTYPE_BOOL: "BOOLEAN",
    FieldDescriptor.CPPTYPE_ENUM: "STRING",
    FieldDescriptor.CPPTYPE_STRING: "STRING",
    FieldDescriptor.CPPTYPE_MESSAGE: _STRUCT,
}
# What a column takes besides its own type: nothing is lost, and Spark's rows have the value's type.
_WIDENED: Final[dict[tuple[str, str], Convert]] = {
    ("INT", "BIGINT"): int,
    ("INT", _UNSIGNED): Decimal,
    ("BIGINT", _UNSIGNED): Decimal,
    ("FLOAT", "DOUBLE"): float,
    ("STRING", "BINARY"): str.encode,
}


class ProtobufDecoder(VersionedDecoder):
    """Reads Protobuf values into the columns of a definition, given as its JSON text."""

    type = SchemaType.PROTOBUF_NATIVE

    def reader(self, written: Schema) -> ReadRow:
        """Return what makes a row of a value; see VersionedDecoder."""
        kind = message_type(written)
        parse = GetMessageClass(kind).FromString
        row = _row(kind, _columns_type(self.definition), "")

        def read(value: bytes) -> Row:
            try:
                message = parse(value)
            except DecodeError as error:
                name = unreadable_field(kind, value)
                where = f"the field {name} of {kind.full_name}" if name else kind.full_name
                raise PayloadMismatchError(f"{where} cannot be read") from error
            return row(message)

        return read


def protobuf_columns(definition: str) -> dict[str, str]:
    """Return Spark's types of a message's fields by name; raise InvalidSchemaError.

    An enum is the text of its name, a value of any JSON that text; what has no sign is the next
    larger number. A field of a type
    without fields, or of nothing but such fields, is no column.
    """
    count = itertools.count()
    return {field.name: _type(field, 0, count) for field in _shown(_columns_type(definition))}


def _columns_type(definition: str) -> Descriptor:
    return message_type(Schema(SchemaType.PROTOBUF_NATIVE, definition.encode()))


def _shown(kind: Descriptor) -> list[FieldDescriptor]:
    """Return the fields that are columns."""
    known: dict[str, bool] = {}
    found = [f for f in kind.fields if _is_column(f, known, 0)]
    if not found:
        raise InvalidSchemaError(f"{kind.full_name} has no fields that could be columns")
    return found


def _is_column(field: FieldDescriptor, known: dict[str, bool], depth: int) -> bool:
    """Return whether a field has a type of Spark; `known` has it for types by their names.

    What contains itself, or is too deep, has one here: `_type` refuses it.
    """
    value = entry[1] if (entry := _entry(field)) else field
    kind = value.message_type
    if kind is None or kind.full_name in _JSON or depth > MAX_DEPTH:
        return True
    if kind.full_name not in known:
        known[kind.full_name] = True
        known[kind.full_name] = any(_is_column(f, known, depth + 1) for f in kind.fields)
    return known[kind.full_name]


def _type(field: FieldDescriptor, depth: int, count: Iterator[int]) -> str:
    if depth > MAX_DEPTH:
        raise InvalidSchemaError("a definition that contains itself has no columns")
    if next(count) >= MAX_TYPES:
        raise InvalidSchemaError(f"columns have at most {MAX_TYPES} fields and parts in all")
    if entry := _entry(field):
        key, value = (_type(part, depth + 1, count) for part in entry)
        return f"MAP<{key}, {value}>"
    kind = _kind(field)
    if field.message_type is not None and kind == _STRUCT:
        inner = _shown(field.message_type)
        kind = f"STRUCT<{', '.join(f'`{f.name}`: {_type(f, depth + 1, count)}' for f in inner)}>"
    return f"ARRAY<{kind}>" if field.is_repeated else kind


def _kind(field: FieldDescriptor) -> str:
    """Return Spark's type of one value, STRUCT for messages that have fields of their own."""
    if field.message_type is not None and field.message_type.full_name in _JSON:
        return "STRING"
    return "BINARY" if field.type == FieldDescriptor.TYPE_BYTES else _SIMPLE[field.cpp_type]


def _entry(field: FieldDescriptor) -> tuple[FieldDescriptor, FieldDescriptor] | None:
    """Return the fields of a map's keys and values, None: it is no map."""
    kind = field.message_type
    if kind is None or not kind.GetOptions().map_entry:
        return None
    return kind.fields_by_number[1], kind.fields_by_number[2]


def _row(written: Descriptor, columns: Descriptor, path: str) -> Callable[[Any], Row]:
    """Return what makes a row of a message of one type in the columns of another."""
    known = written.fields_by_number
    parts = tuple(
        _absent(field) if (one := known.get(field.number)) is None else _field(one, field, path)
        for field in _shown(columns)
    )

    def read(message: Any) -> Row:
        unknown: Any = UnknownFieldSet(message)
        for unread in unknown:
            if (field := known.get(unread.field_number)) is not None:
                raise PayloadMismatchError(f"the field {path}{field.name} {_unfit(field)}")
        return tuple([part(message) for part in parts])

    return read


def _unfit(field: FieldDescriptor) -> str:
    if field.enum_type is not None:
        return f"does not fit {field.enum_type.full_name}"
    return f"does not fit {field.message_type.full_name if field.message_type else _kind(field)}"


def _absent(field: FieldDescriptor) -> Convert:
    """Return what makes the value of a field that the version does not have."""
    value: Any = None
    if field.is_repeated:
        value = {} if _entry(field) else []
    elif not field.has_presence or field.has_default_value:
        value = _value(field, field, "")(field.default_value)
    return lambda _message: value


def _field(written: FieldDescriptor, field: FieldDescriptor, path: str) -> Convert:
    """Return what reads a field out of a message; raise InvalidSchemaError."""
    name, path = written.name, f"{path}{written.name}"
    entry, column_entry = _entry(written), _entry(field)
    if written.is_repeated != field.is_repeated or (entry is None) != (column_entry is None):
        shapes = f"{_shape(written)}, and {_shape(field)} in the columns"
        raise InvalidSchemaError(f"the field {path} is {shapes}")
    if entry and column_entry:
        pairs = zip(entry, column_entry, strict=True)
        key, value = (_value(one, other, f"{path}.{one.name}") for one, other in pairs)
        return lambda m: {key(k): value(v) for k, v in getattr(m, name).items()}
    convert = _value(written, field, path)
    if written.is_repeated:
        return lambda m: [convert(one) for one in getattr(m, name)]
    # A field of this name stands before the method of the message itself.
    assert written.containing_type is not None, "it is a field of a message"
    has = GetMessageClass(written.containing_type).HasField
    if written.is_required:
        return lambda m: convert(getattr(m, name)) if has(m, name) else _missing(path)
    if written.has_presence and not written.has_default_value:
        return lambda m: convert(getattr(m, name)) if has(m, name) else None
    return lambda m: convert(getattr(m, name))


def _shape(field: FieldDescriptor) -> str:
    if not field.is_repeated:
        return "one value"
    return "a map" if _entry(field) else "several"


def _missing(path: str) -> Any:
    raise PayloadMismatchError(f"the field {path} is missing, which is required")


def _value(written: FieldDescriptor, field: FieldDescriptor, path: str) -> Convert:
    """Return what makes the value of a column of one value; raise InvalidSchemaError."""
    kinds = _kind(written), _kind(field)
    one, other = written.message_type, field.message_type
    if one is not None and other is not None and kinds == (_STRUCT, _STRUCT):
        return _row(one, other, f"{path}.")
    if kinds[0] == kinds[1]:
        return _own(written, path)
    widen = _WIDENED.get(kinds)
    if widen is None:
        raise InvalidSchemaError(f"the field {path} is {kinds[0]}, and {kinds[1]} in the columns")
    own = _own(written, path)
    return lambda value: widen(own(value))


def _own(field: FieldDescriptor, path: str) -> Convert:
    """Return what makes the value of a field as Spark takes it."""
    if field.enum_type is not None:
        names = {number: one.name for number, one in field.enum_type.values_by_number.items()}

        def named(number: int) -> str:
            if (name := names.get(number)) is None:
                raise PayloadMismatchError(f"the field {path} {_unfit(field)}: {number}")
            return name

        return named
    if field.message_type is not None:

        def text_of_json(message: Any) -> str:
            try:
                return orjson.dumps(MessageToDict(message)).decode()
            except ValueError as error:
                raise PayloadMismatchError(f"the field {path} is not JSON: {error}") from error

        return text_of_json
    if field.type == FieldDescriptor.TYPE_STRING:

        def text(value: Any) -> str:
            # In proto2 what is no UTF-8 comes as bytes.
            if not isinstance(value, str):
                raise PayloadMismatchError(f"the field {path} is not UTF-8")
            return value

        return text
    return _CONVERT.get(_kind(field), _same)


def _same(value: Any) -> Any:
    return value


_CONVERT: Final[dict[str, Convert]] = {_UNSIGNED: Decimal}
