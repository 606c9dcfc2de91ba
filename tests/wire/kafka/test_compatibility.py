"""Definitions compared by what is on the wire: each kind of finding, and what is legal."""

from __future__ import annotations

import json
from typing import Any

import pytest

from router.wire.kafka.compatibility import compare, compare_sets
from router.wire.kafka.definitions import MessageDefinition
from router.wire.kafka.drawing import layout
from router.wire.kafka.parsing import parse
from tests.wire.kafka.messages import MESSAGES

ID = {"name": "Id", "type": "int32", "versions": "0+"}
NAME = {"name": "Name", "type": "string", "versions": "0+"}
COUNT = {"name": "Count", "type": "int32", "versions": "0+"}
TAG = {"name": "Tag", "type": "int32", "versions": "2+", "tag": 0, "taggedVersions": "2+"}
PLAIN = {"name": "Tag", "type": "int32", "versions": "2+"}
SECOND = {**TAG, "name": "Second", "tag": 1}
LIST = {"name": "Ids", "type": "[]int32", "versions": "0-1"}
ITEMS: dict[str, Any] = {**LIST, "type": "[]Item", "fields": [ID]}


def of(*fields: dict[str, Any], **more: Any) -> MessageDefinition:
    found = {
        "apiKey": 1,
        "type": "request",
        "name": "ExampleRequest",
        "validVersions": "0-2",
        "flexibleVersions": "2+",
        "fields": list(fields),
    }
    return parse(json.dumps({**found, **more}), "Example.json")


def kinds(old: MessageDefinition, new: MessageDefinition) -> list[str]:
    return sorted({found.kind for found in compare(old, new)})


@pytest.mark.parametrize(
    ("old", "new", "kind"),
    [
        (of(ID), of(ID, validVersions="1-2"), "version-dropped"),
        (of(ID), of(ID, validVersions="0-1"), "version-dropped"),
        (of(ID), of(ID, validVersions="none"), "version-dropped"),
        (of(ID), of(ID, NAME), "field-added"),
        (of(ID), of(ID, {**NAME, "versions": "2+"}), "field-added"),
        (of(ID, NAME), of(ID), "field-removed"),
        (of(ID, NAME), of(ID, {**NAME, "versions": "0-1"}), "field-removed"),
        (of(ID, TAG), of(ID), "field-removed"),
        (of(ID, COUNT), of(COUNT, ID), "field-reordered"),
        (of(ID), of({**ID, "type": "int64"}), "type-changed"),
        (of(ID), of({**ID, "type": "uint32"}), "type-changed"),
        (of(ID), of(ID, apiKey=2), "type-changed"),
        (of(LIST), of({**LIST, "type": "[]int64"}), "type-changed"),
        (of(LIST), of({**ITEMS, "fields": [ID, COUNT]}), "type-changed"),
        (of({**LIST, "versions": "0+"}), of({**ITEMS, "versions": "0+"}), "type-changed"),
        (of(ID), of({**ID, "default": "7"}), "default-changed"),
        (of(NAME), of({**NAME, "nullableVersions": "1+"}), "nullability-changed"),
        (of({**NAME, "nullableVersions": "0+"}), of(NAME), "nullability-changed"),
        (of(ID), of(ID, flexibleVersions="1+"), "flexibility-changed"),
        (of(ID), of(ID, flexibleVersions="none"), "flexibility-changed"),
        (of(NAME), of({**NAME, "flexibleVersions": "none"}), "flexibility-changed"),
        (of(TAG, SECOND), of({**TAG, "tag": 1}, {**SECOND, "tag": 0}), "tag-changed"),
        (of(TAG), of({**TAG, "type": "string", "name": "Other"}), "tag-changed"),
        (of(TAG), of({**TAG, "taggedVersions": "3+", "versions": "2+"}), "tag-changed"),
        (of(TAG), of(PLAIN), "tag-changed"),
        (of(TAG), of(PLAIN, {**SECOND, "tag": 0}), "tag-changed"),
        (of(PLAIN), of(TAG), "tag-changed"),
    ],
)
def test_a_change_of_what_is_on_the_wire_is_named(
    old: MessageDefinition, new: MessageDefinition, kind: str
) -> None:
    assert kinds(old, new) == [kind]


@pytest.mark.parametrize(
    ("old", "new"),
    [
        (of(ID), of(ID)),
        (of(ID), of(ID, {**NAME, "versions": "3+"}, validVersions="0-3")),
        (of(ID), of({**ID, "versions": "0-2"}, validVersions="0-3")),
        (of(ID), of(ID, TAG)),
        (of(ID), of({**ID, "name": "Number"})),
        (of(TAG), of({**TAG, "name": "Other"})),
        (of(LIST), of(ITEMS)),
        (of(ITEMS), of({**ITEMS, "type": "[]Other"})),
        (of(NAME), of({**NAME, "nullableVersions": "3+"}, validVersions="0-3")),
        (of(ID, validVersions="0-1"), of(ID, validVersions="0-2", flexibleVersions="2+")),
        (of(ID), of({**ID, "ignorable": True, "about": "text"})),
        (of(ID, latestVersionUnstable=True), of(ID, {**NAME, "versions": "2+"})),
    ],
)
def test_a_legal_change_is_compatible(old: MessageDefinition, new: MessageDefinition) -> None:
    assert compare(old, new) == []


def test_a_change_in_a_struct_names_its_place_and_its_versions() -> None:
    items = {**ITEMS, "versions": "0+"}
    new = of({**items, "fields": [ID, {**COUNT, "versions": "1+"}]})
    (found,) = compare(of(items), new)
    assert (found.kind, found.field, found.versions) == ("field-added", "Ids.Count", (1, 2))
    assert str(found).startswith("field-added: ExampleRequest.Ids.Count (versions 1, 2): ")


def test_sets_excuse_the_response_of_an_unstable_request() -> None:
    request = of(ID, latestVersionUnstable=True)
    response = of(ID, type="response", name="ExampleResponse")
    old = {"ExampleRequest": request, "ExampleResponse": response}
    changed = of(ID, {**NAME, "versions": "2+"}, type="response", name="ExampleResponse")
    assert compare_sets(old, {**old, "ExampleResponse": changed}) == []
    (found,) = compare_sets(old, {"ExampleRequest": request})
    assert (found.kind, found.versions) == ("version-dropped", (0, 1))


def test_every_definition_is_compatible_with_itself_and_drawn() -> None:
    definitions = {name: MESSAGES.definition(name) for name in MESSAGES.names}
    assert compare_sets(definitions, definitions) == []
    for definition in definitions.values():
        for version in definition.valid.numbers():
            assert layout(definition, version).startswith(f"{definition.name} v{version} (")
