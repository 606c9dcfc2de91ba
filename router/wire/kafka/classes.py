"""Generates the classes of a message: one typed, slotted class per struct, for all versions."""

from __future__ import annotations

from router.wire.kafka.definitions import (
    FieldDefinition,
    MessageDefinition,
    StructDefinition,
    attribute,
)
from router.wire.kafka.source import FunctionSource, default_source, is_collection, is_numbers

_TYPES = {
    "bool": "bool",
    "float64": "float",
    "string": "str",
    "uuid": "bytes",
    "bytes": "bytes",
    "records": "bytes | memoryview",
}

RUNTIME = "router.wire.kafka"
"""The package of what generated code imports."""

HEADER = '''"""{name}, generated from Kafka's message definition; do not edit."""

from __future__ import annotations

import struct
from collections.abc import Iterable

from {runtime} import primitives as p
from {runtime}.runtime import UNSET, Collection, KafkaMessage, Struct

_list = list
_tuple = tuple
_new = object.__new__
'''


def classes_source(definition: MessageDefinition) -> list[str]:
    """Return the lines of the classes, those of nested structs first."""
    source = FunctionSource()
    collections = _collections(definition)
    for struct in definition.structs.values():
        _class(source, struct, "Struct")
        if struct.name in collections:
            _collection(source, struct)
    _class(source, definition.struct, "KafkaMessage")
    name = definition.name
    structs = ", ".join(f'"{one}": {one}' for one in definition.structs)
    source.line(f"{name}.STRUCTS = {{{structs}}}")
    return source.lines


def _collections(definition: MessageDefinition) -> set[str]:
    structs = definition.struct, *definition.structs.values()
    fields = (field for struct in structs for field in struct.fields)
    return {field.type.element for field in fields if is_collection(field)}


def _collection(source: FunctionSource, struct: StructDefinition) -> None:
    keys = ", ".join(f'"{attribute(field.name)}"' for field in struct.keys)
    with source.block(f"class {struct.name}Collection(Collection[{struct.name}]):"):
        source.line(f'"""{struct.name} found by its key."""')
        source.line("")
        source.line("__slots__ = ()")
        source.line(f"KEY = ({keys},)")
    source.line("")
    source.line("")


def _class(source: FunctionSource, struct: StructDefinition, base: str) -> None:
    fields = struct.fields
    slots = "".join(f'"{attribute(field.name)}", ' for field in fields)
    with source.block(f"class {struct.name}({base}):"):
        source.line(f'"""{struct.name}, versions {struct.versions}."""')
        source.line("")
        source.line(f"__slots__ = ({slots})")
        for field in fields:
            source.line(f"{attribute(field.name)}: {_annotation(field, 'list')}")
        source.line("")
        with source.block("def __init__("):
            source.line("self,")
            source.line("*,")
            for field in fields:
                source.line(_parameter(field))
            source.line("unknown_tagged_fields: Iterable[tuple[int, bytes]] = (),")
        with source.block(") -> None:"):
            for field in fields:
                source.line(_assignment(field))
            source.line("self.unknown_tagged_fields = tuple(unknown_tagged_fields)")
    source.line("")
    source.line("")


def _annotation(field: FieldDefinition, array: str) -> str:
    element = field.type.element
    found = element if field.struct is not None else _TYPES.get(element, "int")
    if field.type.array:
        if array == "list" and is_collection(field):
            found = f"{found}Collection"
        elif array == "list" and is_numbers(field):
            found = f"tuple[{found}, ...]"
        else:
            found = f"{array}[{found}]"
    optional = not field.nullable.empty or field.default is None
    return f"{found} | None" if optional else found


def _parameter(field: FieldDefinition) -> str:
    default = default_source(field)
    if field.default is not None:
        if field.type.array:
            default = "()"
        elif field.struct is not None:
            default = "UNSET"
    return f"{attribute(field.name)}: {_annotation(field, 'Iterable')} = {default},"


def _assignment(field: FieldDefinition) -> str:
    name = attribute(field.name)
    if field.type.array:
        made = "_tuple" if is_numbers(field) else "_list"
        made = f"{field.type.element}Collection" if is_collection(field) else made
        return f"self.{name} = None if {name} is None else {made}({name})"
    if field.struct is not None and field.default is not None:
        return f"self.{name} = {field.type.element}() if {name} is UNSET else {name}"
    return f"self.{name} = {name}"
