"""The slow and obvious codec of Kafka messages, which the generated one is compared with.

A message is a dict by the names of fields; a struct holds its unknown tagged fields under UNKNOWN.
It is written from the description of the protocol and uses nothing of the engine but definitions.
"""

from __future__ import annotations

import random
import struct
from typing import Any

from router.wire.kafka.definitions import FieldDefinition, MessageDefinition, StructDefinition

UNKNOWN = "unknown tagged fields"
FIXED = {
    "int8": (1, True),
    "int16": (2, True),
    "uint16": (2, False),
    "int32": (4, True),
    "uint32": (4, False),
    "int64": (8, True),
}
STRINGS = ("", "a", "topic", "ünïcødé", "x" * 126, "y" * 127, "z" * 128, "w" * 300, "日本語", "\0")


class TruncatedError(Exception):
    pass


def uvarint(number: int) -> bytes:
    found = b""
    while number >= 0x80:
        found += bytes([number % 0x80 + 0x80])
        number //= 0x80
    return found + bytes([number])


def write(definition: MessageDefinition, version: int, value: dict[str, Any]) -> bytes:
    return write_struct(definition, version, definition.struct, value)


def write_struct(
    definition: MessageDefinition, version: int, struct_: StructDefinition, value: dict[str, Any]
) -> bytes:
    found = b""
    tags: list[tuple[int, bytes]] = list(value[UNKNOWN])
    for field in struct_.fields:
        if version not in field.versions:
            continue
        given = value[field.name]
        if version in field.tagged:
            assert field.tag is not None
            if given != default(field):
                tags.append((field.tag, write_value(definition, version, field, given)))
        else:
            found += write_value(definition, version, field, given)
    if version in definition.flexible:
        found += uvarint(len(tags))
        for tag, content in sorted(tags):
            found += uvarint(tag) + uvarint(len(content)) + content
    return found


def write_value(
    definition: MessageDefinition, version: int, field: FieldDefinition, given: Any
) -> bytes:
    flexible = version in definition.flexible
    if field.type.array:
        if given is None:
            return b"\0" if flexible else (-1).to_bytes(4, signed=True)
        count = uvarint(len(given) + 1) if flexible else len(given).to_bytes(4)
        return count + b"".join(write_one(definition, version, field, one) for one in given)
    if field.struct is not None and version in field.nullable:
        tagged = version in field.tagged
        if given is None:
            return b"\0" if tagged else b"\xff"
        return b"\1" + write_one(definition, version, field, given)
    return write_one(definition, version, field, given)


def write_one(
    definition: MessageDefinition, version: int, field: FieldDefinition, given: Any
) -> bytes:
    kind = field.type.element
    if field.struct is not None:
        return write_struct(definition, version, field.struct, given)
    if kind in FIXED:
        size, signed = FIXED[kind]
        return int(given).to_bytes(size, signed=signed)
    if kind == "bool":
        return bytes([given])
    if kind == "float64":
        return struct.pack(">d", given)
    if kind == "uuid":
        return bytes(given)
    flexible = definition.flexible if field.flexible is None else field.flexible
    width = 2 if kind == "string" else 4
    if given is None:
        return b"\0" if version in flexible else b"\xff" * width
    content = given.encode() if kind == "string" else bytes(given)
    size_bytes = uvarint(len(content) + 1) if version in flexible else len(content).to_bytes(width)
    return size_bytes + content


def default(field: FieldDefinition) -> Any:
    if field.default is None:
        return None
    if field.type.array:
        return []
    if field.struct is not None:
        found: dict[str, Any] = {inner.name: default(inner) for inner in field.struct.fields}
        found[UNKNOWN] = []
        return found
    return field.default


class Reader:
    """Reads one message from the front of bytes."""

    def __init__(self, definition: MessageDefinition, version: int, data: bytes) -> None:
        self.definition = definition
        self.version = version
        self.data = data

    def take(self, size: int) -> bytes:
        if size > len(self.data):
            raise TruncatedError
        found, self.data = self.data[:size], self.data[size:]
        return found

    def uvarint(self) -> int:
        found, shift = 0, 0
        while True:
            (byte,) = self.take(1)
            found += (byte % 0x80) << shift
            if byte < 0x80:
                return found
            shift += 7

    def struct(self, struct_: StructDefinition) -> dict[str, Any]:
        found: dict[str, Any] = {field.name: default(field) for field in struct_.fields}
        found[UNKNOWN] = []
        tagged = {}
        for field in struct_.fields:
            if self.version in field.tagged:
                tagged[field.tag] = field
            elif self.version in field.versions:
                found[field.name] = self.value(field)
        if self.version in self.definition.flexible:
            for _ in range(self.uvarint()):
                tag, size = self.uvarint(), self.uvarint()
                if tag in tagged:
                    found[tagged[tag].name] = self.value(tagged[tag])
                else:
                    found[UNKNOWN].append((tag, self.take(size)))
        return found

    def value(self, field: FieldDefinition) -> Any:
        if field.type.array:
            flexible = self.version in self.definition.flexible
            count = self.uvarint() - 1 if flexible else int.from_bytes(self.take(4), signed=True)
            return None if count < 0 else [self.one(field) for _ in range(count)]
        if field.struct is not None and self.version in field.nullable:
            present = self.take(1)[0]
            return self.one(field) if present == 1 else None
        return self.one(field)

    def one(self, field: FieldDefinition) -> Any:
        kind = field.type.element
        if field.struct is not None:
            return self.struct(field.struct)
        if kind in FIXED:
            size, signed = FIXED[kind]
            return int.from_bytes(self.take(size), signed=signed)
        if kind == "bool":
            return self.take(1) != b"\0"
        if kind == "float64":
            return struct.unpack(">d", self.take(8))[0]
        if kind == "uuid":
            return self.take(16)
        flexible = self.definition.flexible if field.flexible is None else field.flexible
        if self.version in flexible:
            size = self.uvarint() - 1
        else:
            size = int.from_bytes(self.take(2 if kind == "string" else 4), signed=True)
        if size < 0:
            return None
        content = self.take(size)
        return content.decode() if kind == "string" else content


def read(definition: MessageDefinition, version: int, data: bytes) -> dict[str, Any]:
    return Reader(definition, version, data).struct(definition.struct)


class Chance:
    """Values by chance, of a version: what the version lacks has its default."""

    def __init__(self, definition: MessageDefinition, version: int, seed: int) -> None:
        self.definition = definition
        self.version = version
        self.random = random.Random(seed)

    def message(self) -> dict[str, Any]:
        return self.struct(self.definition.struct, 0)

    def struct(self, struct_: StructDefinition, depth: int) -> dict[str, Any]:
        found: dict[str, Any] = {}
        known = 0
        for field in struct_.fields:
            if self.version in field.versions:
                found[field.name] = self.value(field, depth)
                known += self.version in field.tagged
            else:
                found[field.name] = default(field)
        found[UNKNOWN] = []
        if self.version in self.definition.flexible and self.random.random() < 0.2:
            tags = sorted(self.random.sample(range(known, known + 300), 2))
            found[UNKNOWN] = [(tag, self.random.randbytes(tag % 3)) for tag in tags]
        return found

    def value(self, field: FieldDefinition, depth: int) -> Any:
        if self.version in field.nullable and self.random.random() < 0.25:
            return None
        if self.version in field.tagged and self.random.random() < 0.4:
            return default(field)
        if not field.type.array:
            return self.one(field, depth)
        count = self.random.choice((0, 1, 2, 3) if depth < 2 else (0, 1, 2))
        if field.struct is None and self.random.random() < 0.1:
            count = self.random.choice((62, 63, 64, 126, 127, 128))
        return [self.one(field, depth + 1) for _ in range(count)]

    def one(self, field: FieldDefinition, depth: int) -> Any:
        kind, chance = field.type.element, self.random
        if field.struct is not None:
            return self.struct(field.struct, depth + 1)
        if kind in FIXED:
            size, signed = FIXED[kind]
            low = -(1 << 8 * size - 1) if signed else 0
            high = (1 << 8 * size - signed) - 1
            return chance.choice((low, high, 0, 1, chance.randint(low, high)))
        if kind == "bool":
            return chance.random() < 0.5
        if kind == "float64":
            return chance.choice((0.0, -1.5, 1e300, chance.random()))
        if kind == "uuid":
            return chance.randbytes(16)
        if kind == "string":
            return chance.choice(STRINGS)
        return chance.randbytes(chance.choice((0, 1, 5, 126, 127, 128, 400)))
