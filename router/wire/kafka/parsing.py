"""Reading Kafka's message definitions, JSON with comments, by the rules of Kafka's generator.

`parse` reads a file's text and returns a `MessageDefinition`. A definition that breaks a rule is
refused with the file, the field and a sentence, before anything is generated from it.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Final

from router.wire.kafka.definitions import (
    ENTITY_TYPES,
    LISTENERS,
    MESSAGE_TYPES,
    NULLABLE_PRIMITIVES,
    PRIMITIVES,
    DefinitionError,
    FieldDefinition,
    FieldType,
    MessageDefinition,
    StructDefinition,
)
from router.wire.kafka.nodes import JsonNode, default_of, is_name, loaded
from router.wire.kafka.versions import NONE, Versions

MAX_DEPTH: Final = 8
"""Structs in structs. Kafka's own definitions have four, and Python 20 nested loops."""
MAX_FIELDS: Final = 1000
"""Fields of a message with those of its structs wherever they are used."""
_TOO_DEEP: Final = f"structs may be nested {MAX_DEPTH} deep"

_MESSAGE_KEYS: Final = frozenset(
    {
        "apiKey",
        "type",
        "listeners",
        "name",
        "validVersions",
        "deprecatedVersions",
        "flexibleVersions",
        "latestVersionUnstable",
        "fields",
        "commonStructs",
    }
)
_STRUCT_KEYS: Final = frozenset({"name", "versions", "deprecatedVersions", "fields"})
_FIELD_KEYS: Final = frozenset(
    {
        "name",
        "type",
        "versions",
        "about",
        "default",
        "fields",
        "nullableVersions",
        "entityType",
        "ignorable",
        "mapKey",
        "tag",
        "taggedVersions",
        "zeroCopy",
        "flexibleVersions",
    }
)


def parse(text: str, file: str, *, released: bool = False) -> MessageDefinition:
    """Return the definition that a file's text holds; raise DefinitionError.

    A definition that was released may leave flexibleVersions out, as those before Kafka 3.0 do
    where there are none; the generator demands them of what it reads today.
    """
    return _Parser(loaded(text, file), released).message()


def check_set(definitions: Sequence[MessageDefinition]) -> None:
    """Raise DefinitionError unless each API key has at most one request and one response."""
    seen: dict[tuple[int, str], MessageDefinition] = {}
    for found in definitions:
        if found.api_key is None:
            continue
        key = (found.api_key, found.type)
        if key in seen:
            raise DefinitionError(
                found.file,
                found.name,
                f"there is another {found.type} with the API key {found.api_key}, {seen[key].name}",
            )
        seen[key] = found


class _Parser:
    """Reads the definition of one file."""

    def __init__(self, root: JsonNode, released: bool) -> None:
        self._root = root
        self._released = released
        self._valid = NONE
        self._flexible = NONE
        self._structs: dict[str, StructDefinition] = {}
        self._common: dict[str, JsonNode] = {}
        self._resolving: set[str] = set()
        self._extents: dict[str, tuple[int, int]] = {}

    def message(self) -> MessageDefinition:
        """Return the whole definition."""
        root = self._root
        root.check_keys(_MESSAGE_KEYS)
        name = root.name()
        type_ = root.values.get("type")
        if type_ not in MESSAGE_TYPES:
            raise root.error(f"type is one of {', '.join(sorted(MESSAGE_TYPES))}")
        self._valid = root.versions("validVersions")
        if not self._valid.empty and self._valid.highest is None:
            raise root.error("validVersions needs an upper end")
        self._flexible = self._flexible_versions()
        unstable = root.flag("latestVersionUnstable")
        if unstable and type_ != "request":
            raise root.error("latestVersionUnstable is for requests only")
        for common in root.children("commonStructs", "commonStructs"):
            self._register(common)
        for struct in self._common:
            self._common_struct(struct, 0)
        fields = self._fields(root.children("fields", name), self._valid, 0)
        if any(found.map_key for found in fields):
            raise root.at(name).error("mapKey is for fields of structs in arrays only")
        if name in self._structs:
            raise root.at(name).error("a struct has the name of the message")
        structs = dict(self._structs)
        return MessageDefinition(
            root.file,
            type_,
            name,
            self._valid,
            self._flexible,
            self._registered(root.at(name), StructDefinition(name, self._valid, fields)),
            self._api_key(type_),
            self._listeners(type_),
            unstable,
            structs,
        )

    def _register(self, node: JsonNode) -> None:
        node.check_keys(_STRUCT_KEYS)
        name = node.name()
        if name in self._common:
            raise node.at(name).error("the struct is defined twice")
        if not name[0].isupper() or name in PRIMITIVES:
            raise node.at(name).error("the name of a struct begins with a capital letter")
        self._common[name] = node.at(name)

    def _flexible_versions(self) -> Versions:
        root = self._root
        if "flexibleVersions" not in root.values:
            if self._valid.empty or self._released:
                return NONE
            raise root.error("flexibleVersions is missing; say none if there are none")
        found = root.versions("flexibleVersions")
        if not found.empty and found.highest is not None:
            raise root.error("flexibleVersions is none or has no upper end, such as 3+")
        return found

    def _listeners(self, type_: str) -> tuple[str, ...]:
        found = self._root.values_of("listeners")
        if found and type_ != "request":
            raise self._root.error("listeners is for requests only")
        if any(one not in LISTENERS for one in found):
            raise self._root.error(f"listeners are {', '.join(sorted(LISTENERS))}")
        return tuple(found)

    def _api_key(self, type_: str) -> int | None:
        found = self._root.number("apiKey", "apiKey is a number from 0 to 32767", 1 << 15)
        if found is None:
            if type_ in {"request", "response"} and not self._valid.empty:
                raise self._root.error("a request or response needs an apiKey")
            return None
        if type_ in {"header", "data"}:
            raise self._root.error(f"a {type_} has no apiKey")
        return found

    def _fields(
        self, nodes: Sequence[JsonNode], parent: Versions, depth: int
    ) -> tuple[FieldDefinition, ...]:
        if not nodes:
            return ()
        if depth > MAX_DEPTH:
            raise nodes[0].error(_TOO_DEEP)
        found = [self._field(node, parent, depth) for node in nodes]
        names = [one.name.lower() for one in found]
        if len(set(names)) < len(names):
            raise nodes[0].error("two fields of a struct have the same name")
        tags = sorted(one.tag for one in found if one.tag is not None)
        if tags != list(range(len(tags))):
            raise nodes[0].error(f"tags are numbered from 0 without gaps, not {tags}")
        return tuple(found)

    def _field(self, outer: JsonNode, parent: Versions, depth: int) -> FieldDefinition:
        name = outer.name()
        node = outer.at(f"{outer.place}.{name}")
        node.check_keys(_FIELD_KEYS)
        tag, tagged = _tag(node)
        if "versions" not in node.values and tagged.empty:
            raise node.error("versions is missing")
        versions = node.versions("versions") if "versions" in node.values else tagged
        type_ = _type(node)
        found = FieldDefinition(
            name,
            type_,
            versions,
            _nullable(node, type_),
            ignorable=node.flag("ignorable"),
            map_key=node.flag("mapKey"),
            tag=tag,
            tagged=tagged,
            flexible=self._own_flexible(node, type_),
            zero_copy=node.flag("zeroCopy"),
            entity_type=_entity(node, type_),
            about=str(node.values.get("about", "")),
            struct=self._struct(node, type_, versions & parent, depth),
        )
        self._check_tag(node, found)
        if found.zero_copy and type_ != FieldType("bytes"):
            raise node.error("zeroCopy is for bytes only")
        return dataclasses.replace(found, default=default_of(node, found))

    def _check_tag(self, node: JsonNode, found: FieldDefinition) -> None:
        if found.tag is None:
            return
        if found.tagged.highest is not None:
            raise node.error("taggedVersions has no upper end, such as 3+")
        if not found.tagged.within(found.versions):
            raise node.error("taggedVersions are among the versions of the field")
        if not found.tagged.within(self._flexible):
            raise node.error("a field can be tagged in flexible versions only")
        if found.map_key:
            raise node.error("a tagged field cannot be a mapKey")
        if found.type == FieldType("records"):
            raise node.error("records cannot be tagged")
        if not found.nullable.empty and not found.tagged.within(found.nullable):
            raise node.error("a tagged field is nullable in all tagged versions or in none")

    def _own_flexible(self, node: JsonNode, type_: FieldType) -> Versions | None:
        if "flexibleVersions" not in node.values:
            return None
        if type_.array or type_.element not in {"string", "bytes"}:
            raise node.error("flexibleVersions of a field is for string and bytes only")
        found = node.versions("flexibleVersions")
        if not found.within(self._flexible):
            raise node.error("flexibleVersions are among those of the message")
        return found

    def _struct(
        self, node: JsonNode, type_: FieldType, parent: Versions, depth: int
    ) -> StructDefinition | None:
        inline = node.children("fields", node.place)
        name = type_.element
        if not type_.struct:
            if inline:
                raise node.error(f"{type_} has no fields")
            return None
        if name in self._common:
            if inline:
                raise node.error(f"{name} is a common struct; its fields stand there")
            return self._checked(node, type_, self._common_struct(name, depth))
        if not inline:
            raise node.error(f"the fields of {name} are missing")
        fields = self._fields(inline, parent, depth + 1)
        if name in self._structs:
            raise node.error(f"the struct {name} is defined twice")
        found = self._registered(node, StructDefinition(name, parent, fields))
        return self._checked(node, type_, found)

    def _checked(
        self, node: JsonNode, type_: FieldType, found: StructDefinition
    ) -> StructDefinition:
        if found.keys and not type_.array:
            raise node.error("mapKey is for structs in arrays only")
        return found

    def _common_struct(self, name: str, depth: int) -> StructDefinition:
        if name in self._structs:
            return self._structs[name]
        node = self._common[name]
        if name in self._resolving:
            raise node.error("the struct contains itself")
        self._resolving.add(name)
        versions = node.versions("versions")
        fields = self._fields(node.children("fields", name), versions, depth + 1)
        self._resolving.discard(name)
        return self._registered(node, StructDefinition(name, versions, fields))

    def _registered(self, node: JsonNode, struct: StructDefinition) -> StructDefinition:
        """Keep a struct; raise DefinitionError if code for it, in line, would have no bound."""
        inner = [self._extents[one.type.element] for one in struct.fields if one.type.struct]
        fields = len(struct.fields) + sum(count for count, _ in inner)
        depth = 1 + max((depth for _, depth in inner), default=0)
        if depth > MAX_DEPTH:
            raise node.error(_TOO_DEEP)
        if fields > MAX_FIELDS:
            raise node.error(f"with those of its structs it has more than {MAX_FIELDS} fields")
        self._extents[struct.name] = fields, depth
        self._structs[struct.name] = struct
        return struct


def _tag(node: JsonNode) -> tuple[int | None, Versions]:
    tag = node.number("tag", "a tag is a number from 0 on", 1 << 31)
    tagged = node.versions_or_none("taggedVersions")
    if tag is None:
        if not tagged.empty:
            raise node.error("taggedVersions needs a tag")
        return None, NONE
    if tagged.empty:
        raise node.error("a tag needs taggedVersions")
    return tag, tagged


def _type(node: JsonNode) -> FieldType:
    text = node.values.get("type")
    if not isinstance(text, str):
        raise node.error("type is missing")
    array = text.startswith("[]")
    element = text[2:] if array else text
    if element.startswith("[]"):
        raise node.error("there are no arrays of arrays")
    if element in PRIMITIVES:
        if array and element == "records":
            raise node.error("there are no arrays of records")
    elif not is_name(element) or not element[0].isupper():
        raise node.error(f"there is no type {element}")
    return FieldType(element, array)


def _nullable(node: JsonNode, type_: FieldType) -> Versions:
    found = node.versions_or_none("nullableVersions")
    if found.empty or type_.array or type_.struct or type_.element in NULLABLE_PRIMITIVES:
        return found
    raise node.error(f"{type_} cannot be null")


def _entity(node: JsonNode, type_: FieldType) -> str:
    found = node.values.get("entityType", "unknown")
    if found not in ENTITY_TYPES:
        raise node.error(f"entityType is one of {', '.join(sorted(ENTITY_TYPES))}")
    required = ENTITY_TYPES[found]
    if required and type_.element != required:
        raise node.error(f"a {found} has the type {required}, not {type_.element}")
    return str(found)
