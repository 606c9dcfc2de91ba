"""The model of Kafka's message definitions: messages, structs, fields and their types.

A definition describes one message for all of its versions (seed: Apache Kafka Message Definitions).
`router.wire.kafka.parsing` reads it from a file's text and checks it.
"""

from __future__ import annotations

import keyword
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from router.wire.kafka.versions import NONE, Versions

INTEGERS: Final[Mapping[str, tuple[int, int]]] = {
    "int8": (-(1 << 7), (1 << 7) - 1),
    "int16": (-(1 << 15), (1 << 15) - 1),
    "uint16": (0, (1 << 16) - 1),
    "int32": (-(1 << 31), (1 << 31) - 1),
    "uint32": (0, (1 << 32) - 1),
    "int64": (-(1 << 63), (1 << 63) - 1),
}
FIXED_BYTES: Final[Mapping[str, int]] = {
    "bool": 1,
    "int8": 1,
    "int16": 2,
    "uint16": 2,
    "int32": 4,
    "uint32": 4,
    "int64": 8,
    "float64": 8,
    "uuid": 16,
}
"""The primitives whose values all have the same size."""
PRIMITIVES: Final = frozenset({"string", "bytes", "records", *FIXED_BYTES})
NULLABLE_PRIMITIVES: Final = frozenset({"string", "bytes", "records"})
MESSAGE_TYPES: Final = frozenset(
    {"request", "response", "header", "metadata", "data", "coordinator-key", "coordinator-value"}
)
ENTITY_TYPES: Final[Mapping[str, str]] = {
    "unknown": "",
    "transactionalId": "string",
    "producerId": "int64",
    "groupId": "string",
    "topicName": "string",
    "brokerId": "int32",
}
LISTENERS: Final = frozenset({"zkBroker", "broker", "controller"})

ZERO_UUID: Final = bytes(16)


class DefinitionError(Exception):
    """A definition breaks a rule; `str()` names the file, the field and what is wrong."""

    def __init__(self, file: str, place: str, sentence: str) -> None:
        super().__init__(f"{file}: {f'{place}: ' if place else ''}{sentence}")
        self.file = file
        self.place = place
        self.sentence = sentence


@dataclass(frozen=True, slots=True)
class FieldType:
    """The type of a field: a primitive or a struct, or an array of one of them."""

    element: str
    array: bool = False

    @property
    def struct(self) -> bool:
        """Tell whether the type, or that of the elements, is a struct."""
        return self.element not in PRIMITIVES

    def __str__(self) -> str:
        return f"[]{self.element}" if self.array else self.element


@dataclass(frozen=True, slots=True)
class FieldDefinition:
    """One field. `default` is a value of Python, None for null, () for empty structs and arrays.

    `struct` is the definition of the struct that the type names, for struct and array of struct.
    """

    name: str
    type: FieldType
    versions: Versions
    nullable: Versions = NONE
    default: Any = None
    ignorable: bool = False
    map_key: bool = False
    tag: int | None = None
    tagged: Versions = NONE
    flexible: Versions | None = None
    zero_copy: bool = False
    entity_type: str = "unknown"
    about: str = ""
    struct: StructDefinition | None = None


@dataclass(frozen=True, slots=True)
class StructDefinition:
    """Fields in the order of the wire; the message itself is one too."""

    name: str
    versions: Versions
    fields: tuple[FieldDefinition, ...]

    @property
    def keys(self) -> tuple[FieldDefinition, ...]:
        """Return the fields that make an array of this struct a map."""
        return tuple(found for found in self.fields if found.map_key)


@dataclass(frozen=True, slots=True)
class MessageDefinition:
    """One message; `valid` are the versions that it has, `flexible` those with compact lengths."""

    file: str
    type: str
    name: str
    valid: Versions
    flexible: Versions
    struct: StructDefinition
    api_key: int | None = None
    listeners: tuple[str, ...] = ()
    latest_unstable: bool = False
    structs: Mapping[str, StructDefinition] = field(default_factory=dict)
    """All structs of the message by name, the common ones among them."""


def fields_of(struct: StructDefinition, version: int) -> Iterator[FieldDefinition]:
    """Yield the fields of a struct that a version has, in the order of the wire."""
    return (found for found in struct.fields if version in found.versions)


def is_tagged(field_: FieldDefinition, version: int) -> bool:
    """Tell whether a field that the version has is in its tagged section."""
    return version in field_.tagged


def is_compact(definition: MessageDefinition, field_: FieldDefinition, version: int) -> bool:
    """Tell whether lengths of the field are unsigned varints, one more than the length."""
    own = field_.flexible
    return version in (definition.flexible if own is None else own)


_HUMP: Final = re.compile(r"(?<=[a-z0-9])(?=[A-Z])|(?<=[A-Z])(?=[A-Z][a-z])")
_RESERVED: Final = frozenset(
    {
        *keyword.kwlist,
        "self",
        "read",
        "read_from",
        "write",
        "frame",
        "size",
        "to_json",
        "from_json",
        "definition",
    }
)


def attribute(name: str) -> str:
    """Return the name in Python of a field, such as `topic_id` for `TopicId`."""
    found = _HUMP.sub("_", name).lower()
    return f"{found}_" if found in _RESERVED else found


def camel_case(name: str) -> str:
    """Return the key of a field in Kafka's JSON form."""
    return name[0].lower() + name[1:]
