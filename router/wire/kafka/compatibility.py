"""Compares two definitions of a message by what is on the wire in each version.

A released version does not change: its fields, their order, types, nullability, tags and lengths
stay, and no version goes away. Legal are new versions, new tagged fields in a version that exists,
other names for the same bytes, and an array of a primitive that becomes an array of a struct with
that primitive alone where the bytes stay equal. Apache's own checker compares the JSON, which
lets swapped tags and re-ordered fields of one type pass and refuses tagged fields.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from router.wire.kafka.definitions import (
    FieldDefinition,
    MessageDefinition,
    StructDefinition,
    fields_of,
    is_compact,
    is_tagged,
)

_Found = Iterator[tuple[str, str, str]]
"""Kind, place and sentence of what differs in one version."""


@dataclass(frozen=True, slots=True)
class Incompatibility:
    """What peers of the old and the new definition would not agree on, in some versions."""

    kind: str
    message: str
    field: str
    versions: tuple[int, ...]
    sentence: str

    def __str__(self) -> str:
        place = f"{self.message}.{self.field}" if self.field else self.message
        shown = ", ".join(map(str, self.versions))
        return f"{self.kind}: {place} (versions {shown}): {self.sentence}"

    def to_json(self) -> dict[str, Any]:
        """Return the finding as a JSON object."""
        return {
            "kind": self.kind,
            "message": self.message,
            "field": self.field,
            "versions": list(self.versions),
            "sentence": self.sentence,
        }


def compare(
    old: MessageDefinition, new: MessageDefinition, unstable: Iterable[int] = ()
) -> list[Incompatibility]:
    """Return why the new definition is incompatible; empty if it is compatible.

    The latest version of the old definition is excused where that says that it is unstable, and
    so are the versions in `unstable`.
    """
    excused = {*unstable, *unstable_versions(old)}
    found: dict[tuple[str, str, str], list[int]] = {}
    for version in old.valid.numbers():
        if version in excused:
            continue
        for finding in _version(old, new, version):
            found.setdefault(finding, []).append(version)
    return [
        Incompatibility(kind, old.name, place, tuple(versions), sentence)
        for (kind, place, sentence), versions in found.items()
    ]


def compare_sets(
    old: Mapping[str, MessageDefinition], new: Mapping[str, MessageDefinition]
) -> list[Incompatibility]:
    """Return why a set of definitions by name is incompatible with the one before it."""
    unstable = {one.api_key: unstable_versions(one) for one in old.values() if one.latest_unstable}
    found: list[Incompatibility] = []
    for name, definition in old.items():
        excused = unstable.get(definition.api_key, ())
        if name in new:
            found += compare(definition, new[name], excused)
        else:
            versions = tuple(one for one in definition.valid.numbers() if one not in excused)
            if versions:
                sentence = "the message is not defined any more"
                found.append(Incompatibility("version-dropped", name, "", versions, sentence))
    return found


def unstable_versions(definition: MessageDefinition) -> tuple[int, ...]:
    """Return the version that may still change, if there is one."""
    return tuple(definition.valid.numbers())[-1:] if definition.latest_unstable else ()


def _version(old: MessageDefinition, new: MessageDefinition, version: int) -> _Found:
    if version not in new.valid:
        yield "version-dropped", "", "the version is not valid any more"
        return
    if old.api_key != new.api_key:
        yield "type-changed", "", f"the API key was {old.api_key} and is {new.api_key}"
    if (version in old.flexible) != (version in new.flexible):
        was = "flexible" if version in old.flexible else "not flexible"
        yield "flexibility-changed", "", f"the version was {was}"
    yield from _Comparison(old, new, version).structs(old.struct, new.struct, "")


class _Comparison:
    """Compares the structs of two definitions in one version."""

    def __init__(self, old: MessageDefinition, new: MessageDefinition, version: int) -> None:
        self._old = old
        self._new = new
        self._version = version

    def structs(self, old: StructDefinition, new: StructDefinition, place: str) -> _Found:
        """Yield what differs between two structs."""
        before, after = self._plain(old), self._plain(new)
        tagged = self._tagged(old), self._tagged(new)
        names = [one.name for one in before], [one.name for one in after]
        common = [name for name in names[0] if name in names[1]]
        if common != [name for name in names[1] if name in names[0]]:
            yield "field-reordered", place, f"the order was {', '.join(common)}"
        renamed = self._renamed(before, after)
        pairs = {one.name: two for one in before for two in after if one.name == two.name}
        pairs.update({one.name: two for one, two in renamed})
        new_names = {two.name for _, two in renamed}
        for one in before:
            here = f"{place}.{one.name}" if place else one.name
            if one.name in pairs:
                yield from self._fields(one, pairs[one.name], here)
            elif one.name in {two.name for two in tagged[1].values()}:
                yield "tag-changed", here, "the field was not tagged"
            else:
                yield "field-removed", here, "the field is not in the version any more"
        before_tagged = {one.name for one in tagged[0].values()}
        for two in after:
            if two.name not in names[0] and two.name not in new_names | before_tagged:
                here = f"{place}.{two.name}" if place else two.name
                yield "field-added", here, "the field is new in a version that exists"
        yield from self._tags(tagged, {*names[1]}, place)

    def _tags(
        self,
        tagged: tuple[dict[int, FieldDefinition], dict[int, FieldDefinition]],
        plain: set[str],
        place: str,
    ) -> _Found:
        """Yield what differs of tagged fields; `plain` are those that are not tagged now."""
        old, new = tagged
        new_tags = {field.name: tag for tag, field in new.items()}
        old_names = {field.name for field in old.values()}
        for tag, field in old.items():
            here = f"{place}.{field.name}" if place else field.name
            if field.name in new_tags:
                if new_tags[field.name] != tag:
                    sentence = f"the tag was {tag} and is {new_tags[field.name]}"
                    yield "tag-changed", here, sentence
                yield from self._fields(field, new[new_tags[field.name]], here)
            elif field.name in plain:
                yield "tag-changed", here, "the field was tagged"
            elif tag in new and new[tag].name not in old_names:
                other = new[tag]
                if self._same(field, other):
                    yield from self._fields(field, other, here)
                else:
                    yield "tag-changed", here, f"tag {tag} is that of {other.name} now"
            else:
                yield "field-removed", here, f"the field with tag {tag} is gone from the version"

    def _fields(self, old: FieldDefinition, new: FieldDefinition, place: str) -> _Found:
        version = self._version
        if is_tagged(old, version) != is_tagged(new, version):
            yield "tag-changed", place, "the field is tagged in one definition alone"
        if (version in old.nullable) != (version in new.nullable):
            can = "could" if version in old.nullable else "could not"
            yield "nullability-changed", place, f"the field {can} be null"
        if old.default != new.default:
            yield "default-changed", place, f"it was {old.default!r} and is {new.default!r}"
        if (version in self._old.flexible) == (version in self._new.flexible):
            compact = is_compact(self._old, old, version), is_compact(self._new, new, version)
            if compact[0] != compact[1]:
                yield "flexibility-changed", place, "the lengths of the field differ"
        if old.struct is not None and new.struct is not None and old.type.array == new.type.array:
            yield from self.structs(old.struct, new.struct, place)
        elif self._wire(old, self._old) != self._wire(new, self._new):
            yield "type-changed", place, f"the type was {old.type} and is {new.type}"

    def _same(self, old: FieldDefinition, new: FieldDefinition) -> bool:
        return next(self._fields(old, new, ""), None) is None

    def _renamed(
        self, before: list[FieldDefinition], after: list[FieldDefinition]
    ) -> list[tuple[FieldDefinition, FieldDefinition]]:
        """Return fields at one position whose bytes are equal and whose names are not."""
        if len(before) != len(after):
            return []
        old, new = {one.name for one in before}, {one.name for one in after}
        return [
            (one, two)
            for one, two in zip(before, after, strict=True)
            if one.name not in new and two.name not in old and self._same(one, two)
        ]

    def _plain(self, struct: StructDefinition) -> list[FieldDefinition]:
        version = self._version
        return [one for one in fields_of(struct, version) if not is_tagged(one, version)]

    def _tagged(self, struct: StructDefinition) -> dict[int, FieldDefinition]:
        version = self._version
        return {
            one.tag: one
            for one in fields_of(struct, version)
            if one.tag is not None and is_tagged(one, version)
        }

    def _wire(self, field: FieldDefinition, definition: MessageDefinition) -> str:
        """Return the type of a field by its bytes: a struct of one value in an array is that."""
        if field.struct is None or not field.type.array:
            return str(field.type)
        inner = list(fields_of(field.struct, self._version))
        if len(inner) != 1 or self._version in definition.flexible:
            return "[]struct"
        only = inner[0]
        if only.type.array or only.struct is not None or self._version in only.nullable:
            return "[]struct"
        return f"[]{only.type}"
