"""Messages of the generated classes to and from the dicts of the reference codec."""

from __future__ import annotations

from typing import Any

from router.kafka.definitions import definition_texts
from router.wire.kafka.definitions import FieldDefinition, StructDefinition, attribute
from router.wire.kafka.engine import Messages
from router.wire.kafka.runtime import KafkaMessage, Struct
from tests.wire.kafka.reference import UNKNOWN

MESSAGES = Messages(definition_texts())


def build(cls: type[KafkaMessage], value: dict[str, Any]) -> Any:
    """Return the instance of a message's class that holds a dict's values."""
    return _struct(cls, cls, cls.definition().struct, value)


def plain(message: KafkaMessage) -> dict[str, Any]:
    """Return the dict that holds a message's values."""
    return _plain(message.definition().struct, message)


def _struct(
    cls: type[Struct], message: type[KafkaMessage], struct: StructDefinition, value: dict[str, Any]
) -> Any:
    fields: dict[str, Any] = {
        attribute(field.name): _value(message, field, value[field.name]) for field in struct.fields
    }
    return cls(**fields, unknown_tagged_fields=value[UNKNOWN])  # type: ignore[call-arg]


def _value(message: type[KafkaMessage], field: FieldDefinition, value: Any) -> Any:
    if value is None or field.struct is None:
        return value
    cls = message.STRUCTS[field.type.element]
    if field.type.array:
        return [_struct(cls, message, field.struct, one) for one in value]
    return _struct(cls, message, field.struct, value)


def _plain(struct: StructDefinition, given: Any) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for field in struct.fields:
        value = getattr(given, attribute(field.name))
        if value is not None and field.type.array:
            value = [one if field.struct is None else _plain(field.struct, one) for one in value]
        elif value is not None and field.struct is not None:
            value = _plain(field.struct, value)
        found[field.name] = value
    found[UNKNOWN] = list(given.unknown_tagged_fields)
    return found
