"""Draws the layout of a version: one line for each field, in the order of the wire."""

from __future__ import annotations

from router.wire.kafka.definitions import (
    FIXED_BYTES,
    ZERO_UUID,
    FieldDefinition,
    MessageDefinition,
    StructDefinition,
    fields_of,
    is_compact,
    is_tagged,
)


def layout(definition: MessageDefinition, version: int) -> str:
    """Return the layout of a version as text."""
    flexible = version in definition.flexible
    key = "" if definition.api_key is None else f", API key {definition.api_key}"
    kind = "flexible" if flexible else "not flexible"
    head = f"{definition.name} v{version} ({definition.type}{key}, {kind})"
    return "\n".join([head, *_struct(definition, definition.struct, version, "  ")])


_TAGS = "tagged fields: uvarint count, then (uvarint tag, uvarint size, value)"


def _struct(
    definition: MessageDefinition, struct: StructDefinition, version: int, indent: str
) -> list[str]:
    fields = list(fields_of(struct, version))
    lines: list[str] = []
    for field in fields:
        if not is_tagged(field, version):
            lines += _field(definition, field, version, indent)
    if version in definition.flexible:
        lines.append(f"{indent}{_TAGS}")
        for field in sorted(fields, key=lambda one: one.tag or 0):
            if is_tagged(field, version):
                lines += _field(definition, field, version, f"{indent}  ")
    return lines


def _field(
    definition: MessageDefinition, field: FieldDefinition, version: int, indent: str
) -> list[str]:
    notes = [_encoding(definition, field, version)]
    if version in field.nullable:
        notes.append("nullable")
    if field.map_key:
        notes.append("key")
    if field.default not in (0, "", b"", (), ZERO_UUID, None):
        notes.append(f"default {field.default!r}")
    tag = f"{field.tag}: " if is_tagged(field, version) else ""
    lines = [
        f"{indent}{tag}{field.name}: {field.type} ({', '.join(note for note in notes if note)})"
    ]
    if field.struct is not None:
        lines += _struct(definition, field.struct, version, f"{indent}  ")
    return lines


def _encoding(definition: MessageDefinition, field: FieldDefinition, version: int) -> str:
    compact = is_compact(definition, field, version)
    if field.type.array:
        return "uvarint count + 1" if compact else "int32 count"
    if field.struct is not None:
        return "in line"
    if (size := FIXED_BYTES.get(field.type.element)) is not None:
        return "1 byte" if size == 1 else f"{size} bytes"
    if compact:
        return "uvarint length + 1"
    return "int16 length" if field.type.element == "string" else "int32 length"
