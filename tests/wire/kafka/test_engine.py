"""What the engine makes of definitions: values, collections, tags, headers, versions."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from router.wire.kafka.engine import (
    request_header_version,
    response_header_version,
)
from tests.wire.kafka import reference
from tests.wire.kafka.examples import ALL_KINDS, ITEMS, TAGGED, example
from tests.wire.kafka.messages import MESSAGES, build, plain


@given(seed=st.integers(0, (1 << 32) - 1), version=st.integers(0, 3))
@settings(max_examples=300, deadline=None)
def test_every_type_is_as_in_the_reference(seed: int, version: int) -> None:
    definition = ALL_KINDS.definition()
    value = reference.Chance(definition, version, seed).message()
    data = reference.write(definition, version, value)
    message = build(ALL_KINDS, value)
    assert message.write(version) == data
    assert plain(ALL_KINDS.read(data, version)) == value
    form = json.loads(json.dumps(message.to_json(version)))
    assert ALL_KINDS.from_json(form, version).to_json(version) == form


def test_an_ignorable_field_is_left_out_where_the_version_lacks_it() -> None:
    keyed: Any = ALL_KINDS.STRUCTS["Keyed"]
    message: Any = ALL_KINDS(keyed=[keyed(id=3, part="x")])  # type: ignore[call-arg]
    found: Any = ALL_KINDS.read(message.write(0), 0)
    assert found.keyed == [keyed(id=3)]


def test_tagged_fields_of_struct_type_are_written_when_not_default() -> None:
    cls: Any = ALL_KINDS
    base = len(cls().write(2))
    point = cls.STRUCTS["TagMaybe"]
    assert len(cls(tag_maybe=point()).write(2)) == base + 2 + 1 + 5
    assert len(cls(tag_null=None).write(2)) == base + 2 + 1
    assert len(cls(tag_plain=cls.STRUCTS["TagPlain"](x=7)).write(2)) == base
    for message in (cls(tag_maybe=point()), cls(tag_null=None)):
        assert cls.read(message.write(2), 2) == message


def test_unknown_tagged_fields_are_kept_between_the_known_ones() -> None:
    cls = example({"name": "Tag", "type": "int8", "versions": "2+", **TAGGED})
    data = b"\x03" + b"\x00\x01\x09" + b"\x05\x02hi" + b"\x90\x01\x00"
    found = cls.read(data, 2)
    assert found.tag == 9
    assert found.unknown_tagged_fields == ((5, b"hi"), (144, b""))
    assert found.write(2) == data
    assert cls.read(b"\0", 2) != found


def test_a_collection_finds_by_key_and_keeps_the_order() -> None:
    cls: Any = ALL_KINDS
    keyed = cls.STRUCTS["Keyed"]
    message = cls(keyed=[keyed(id=number % 50, part=str(number)) for number in range(100)])
    found = cls.read(message.write(1), 1).keyed
    assert [one.id for one in found] == [number % 50 for number in range(100)]
    assert found.find(7, "57") is found[57]
    assert found.find(7, "8") is None
    found.append(last := keyed(id=1000, part="x"))
    assert found.find(1000, "x") is last
    assert found[-1] is last
    for change in (
        lambda: found.remove(last),
        lambda: found.insert(0, last),
        lambda: found.pop(0),
        lambda: found.extend([last]),
        lambda: found.__delitem__(-1),
        lambda: found.__setitem__(0, last),
        found.reverse,
        lambda: found.sort(key=lambda one: one.id),
        found.clear,
    ):
        change()
        assert (found.find(1000, "x") is last) == (last in found)
    found += [last]
    assert found.find(1000, "x") is last


def test_messages_are_equal_by_value_and_show_their_fields() -> None:
    cls = example(ITEMS, {"name": "Size", "type": "int8", "versions": "0+"})
    item = cls.STRUCTS["Item"]
    assert cls(items=[item(x=1)]) == cls(items=[item(x=1)])
    assert cls(items=[item(x=1)]) != cls(items=[item(x=2)])
    assert cls() != item()
    assert repr(cls(items=[item(x=1)])) == "Example(items=[Item(x=1)], size_=0)"
    assert cls().items is not cls().items
    with pytest.raises(TypeError):
        hash(cls())
    with pytest.raises(AttributeError):
        cls().nothing = 1


def test_any_buffer_is_read() -> None:
    cls = example({"name": "Name", "type": "string", "versions": "0+"})
    for buffer in (b"\x00\x01a", bytearray(b"\x00\x01a"), memoryview(b"\x00\x01a")):
        assert cls.read(buffer, 0).name == "a"


def test_versions_of_one_layout_share_a_function() -> None:
    assert ALL_KINDS.READERS[2] is not ALL_KINDS.READERS[3]
    cls = example(ITEMS)
    assert cls.READERS[0] is cls.READERS[1]
    assert cls.READERS[2] is cls.READERS[3]
    assert cls.READERS[1] is not cls.READERS[2]
    assert cls.WRITERS[0] is cls.WRITERS[1]


def test_headers_have_the_versions_of_the_protocol() -> None:
    versions = MESSAGES.request(18).definition()
    assert request_header_version(versions, 2) == 1
    assert request_header_version(versions, 3) == 2
    answer = MESSAGES.response(18).definition()
    assert [response_header_version(answer, version) for version in (0, 3, 4)] == [0, 0, 0]
    metadata = MESSAGES.response(3).definition()
    assert [response_header_version(metadata, version) for version in (8, 9)] == [0, 1]
    header: Any = MESSAGES.message("RequestHeader")
    made = header(request_api_key=18, request_api_version=3, correlation_id=1, client_id="me")
    assert made.write(2) == bytes.fromhex("00120003000000010002") + b"me\0"
    assert header.read(made.write(2), 2) == made
