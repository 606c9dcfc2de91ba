"""Objects of a definition's JSON: values read by type, refused with file, place and sentence."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from router.wire.kafka.definitions import (
    INTEGERS,
    ZERO_UUID,
    DefinitionError,
    FieldDefinition,
    FieldType,
)
from router.wire.kafka.versions import NONE, Versions, parse_versions

MAX_DEFINITION_CHARACTERS: Final = 1 << 20

_MAX_DIGITS: Final = 12
_NAME: Final = re.compile(r"[A-Za-z][A-Za-z0-9]*")
# A string is matched whole, so that text in it that looks like a comment stays.
_COMMENT: Final = re.compile(r'"(?:[^"\\]|\\.)*"|//[^\n]*|/\*.*?\*/', re.DOTALL)


@dataclass(frozen=True, slots=True)
class JsonNode:
    """An object of the JSON at a place of a file, such as `Topics.Name`."""

    file: str
    place: str
    values: Mapping[str, Any]

    def error(self, sentence: str) -> DefinitionError:
        """Return the error that names this place."""
        return DefinitionError(self.file, self.place, sentence)

    def at(self, place: str) -> JsonNode:
        """Return this object with another name for its place."""
        return JsonNode(self.file, place, self.values)

    def name(self) -> str:
        """Return the name; raise DefinitionError unless it is letters and digits."""
        found = self.values.get("name")
        if not is_name(found):
            raise self.error("a name is letters and digits, a letter first")
        return str(found)

    def check_keys(self, known: frozenset[str]) -> None:
        """Raise DefinitionError if there is a key that is not known."""
        for unknown in sorted(self.values.keys() - known):
            raise self.error(f"there is no key {unknown}")

    def values_of(self, key: str) -> list[Any]:
        """Return the list under a key; a single value is a list of it, as in Kafka's reader."""
        found = self.values.get(key)
        if found is None:
            return []
        return found if isinstance(found, list) else [found]

    def children(self, key: str, place: str) -> list[JsonNode]:
        """Return the objects of the list under a key."""
        found = self.values_of(key)
        if not all(isinstance(one, dict) for one in found):
            raise self.error(f"{key} holds objects")
        return [JsonNode(self.file, place, one) for one in found]

    def flag(self, key: str) -> bool:
        """Return a boolean, false where the key is absent."""
        found = self.values.get(key, False)
        if found in ("true", "false"):
            return bool(found == "true")
        if not isinstance(found, bool):
            raise self.error(f"{key} is true or false")
        return found

    def number(self, key: str, sentence: str, end: int) -> int | None:
        """Return a number from 0 to before `end`, also as a string, or None where it is absent.

        Raises DefinitionError with the sentence.
        """
        found = self.values.get(key)
        if isinstance(found, str) and found.isdecimal() and len(found) < _MAX_DIGITS:
            found = int(found)
        if found is None:
            return None
        if not isinstance(found, int) or isinstance(found, bool) or not 0 <= found < end:
            raise self.error(sentence)
        return found

    def versions(self, key: str) -> Versions:
        """Return the versions under a key; raise DefinitionError if it is absent."""
        text = self.values.get(key)
        if text is None:
            raise self.error(f"{key} is missing")
        try:
            return parse_versions(str(text))
        except ValueError as error:
            raise self.error(f"{key}: {error}") from None

    def versions_or_none(self, key: str) -> Versions:
        """Return the versions under a key, none where it is absent."""
        return self.versions(key) if key in self.values else NONE


def loaded(text: str, file: str) -> JsonNode:
    """Return the object that a file's text holds; raise DefinitionError."""
    if len(text) > MAX_DEFINITION_CHARACTERS:
        raise DefinitionError(file, "", "a definition has at most 1 Mi characters")
    bare = _COMMENT.sub(lambda m: m[0] if m[0].startswith('"') else " ", text)
    try:
        found = json.loads(bare, object_pairs_hook=_object)
    except (ValueError, RecursionError) as error:
        raise DefinitionError(file, "", f"this is not JSON with comments: {error}") from None
    if not isinstance(found, dict):
        raise DefinitionError(file, "", "a definition is a JSON object")
    return JsonNode(file, "", found)


def is_name(found: Any) -> bool:
    """Tell whether a value is a name of messages, structs and fields."""
    return isinstance(found, str) and _NAME.fullmatch(found) is not None


def default_of(node: JsonNode, found: FieldDefinition) -> Any:
    """Return the default of a field, None for null; raise DefinitionError."""
    given = node.values.get("default")
    if found.type == FieldType("records"):
        if given not in (None, "null"):
            raise node.error("the default of records is null")
        return None
    if given is None:
        return _implicit(found)
    text = str(given).lower() if isinstance(given, bool) else str(given)
    if text == "null":
        if not found.versions.within(found.nullable):
            raise node.error("null is a default of fields that are nullable in all versions")
        return None
    kind = found.type
    if kind.array or kind.struct or kind.element == "bytes":
        if text:
            raise node.error(f"the default of {kind} is empty or null")
        return _implicit(found)
    if kind.element == "string":
        return text
    try:
        return _value(text, kind.element)
    except ValueError:
        raise node.error(f"{text} is no default of {kind}") from None


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    # Definitions of Kafka 3.9 repeat a key with its value.
    if len(found) < len(pairs) and any(found[key] != value for key, value in pairs):
        raise ValueError("a key stands twice in an object")
    return found


def _implicit(found: FieldDefinition) -> Any:
    kind = found.type
    if kind.array or kind.struct:
        return ()
    return {"bool": False, "string": "", "bytes": b"", "uuid": ZERO_UUID, "float64": 0.0}.get(
        kind.element, 0
    )


def _value(text: str, kind: str) -> Any:
    if kind == "bool":
        if text not in {"true", "false"}:
            raise ValueError(text)
        return text == "true"
    if kind == "float64":
        return float(text)
    if kind == "uuid":
        raise ValueError(text)
    low, high = INTEGERS[kind]
    number = int(text, 16) if text.lower().startswith(("0x", "-0x")) else _decimal_or_octal(text)
    if not low <= number <= high:
        raise ValueError(text)
    return number


def _decimal_or_octal(text: str) -> int:
    digits = text.lstrip("-")
    octal = len(digits) > 1 and digits.startswith("0")
    return int(text, 8 if octal else 10)
