"""Refusals: bytes that are no message, values that no version carries, unbounded definitions."""

from __future__ import annotations

import json
from contextlib import suppress
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from router.wire.kafka.definitions import DefinitionError
from router.wire.kafka.engine import (
    Messages,
    compile_message,
)
from router.wire.kafka.errors import (
    MalformedMessageError,
    UnsupportedVersionError,
    UnwritableMessageError,
)
from router.wire.kafka.parsing import parse
from tests.wire.kafka.examples import ALL_KINDS, ITEMS, POINT, TAGGED, example, text_of


@given(data=st.binary(max_size=200), version=st.integers(0, 3))
@settings(max_examples=300, deadline=None)
def test_any_bytes_are_read_or_refused(data: bytes, version: int) -> None:
    try:
        found, end = ALL_KINDS.read_from(data, version)
    except MalformedMessageError as error:
        assert error.field, error  # noqa: PT017 either may happen
    else:
        assert end <= len(data)
        with suppress(UnwritableMessageError):  # tags that are unknown and do not ascend
            written = found.write(version)
            assert ALL_KINDS.read(written, version).write(version) == written


@pytest.mark.parametrize("version", [0, 2])
@pytest.mark.parametrize("kind", ["[]int64", "[]string", "[]uuid", "[]bytes", "[]bool", "[]Item"])
def test_a_hostile_count_is_refused_before_allocation(kind: str, version: int) -> None:
    inner = {"fields": POINT} if kind == "[]Item" else {}
    cls = example({"name": "Many", "type": kind, "versions": "0+", **inner})
    count = b"\xff\xff\xff\xff\x07" if version == 2 else b"\x7f\xff\xff\xff"
    with pytest.raises(MalformedMessageError, match=r"Many: \d+ elements do not fit into 3 bytes"):
        cls.read(count + bytes(3), version)


@pytest.mark.parametrize(
    ("data", "sentence"),
    [
        (b"\x80\x80\x80\x80\x80\x00", "Name: a varint is longer than 5 bytes or out of range"),
        (b"\x00", "Name: null .length -1. in a field that is not nullable"),
        (b"\x80\x80\x02" + bytes(40_000), "Name: a string of 32767 bytes"),
        (b"\x81\x80\x02" + bytes(40_000), "Name: a string of 32768 bytes is longer than 32767"),
        (b"\x05abc", "Name: 4 bytes are wanted where 3 remain"),
        (b"\x01\x01\x00\x05\x00\x00", "Tag: 5 bytes are wanted|tagged fields: 5 bytes are wanted"),
        (b"\x01\x01\x00\x05" + bytes(9), "Tag: the field is not 5 bytes"),
        (b"\x01\xff\xff\xff\xff\x07", "tagged fields: the bytes end in a varint"),
        (b"\x01\xff\xff\xff\xff\x0f", "tagged fields: there are -1 tagged fields"),
        (b"\x80\x80\x80\x80\x08", "Name: a varint is longer than 5 bytes or out of range"),
    ],
)
def test_a_malformed_field_is_named(data: bytes, sentence: str) -> None:
    tag = {"name": "Tag", "type": "int32", "versions": "2+", **TAGGED}
    cls = example({"name": "Name", "type": "string", "versions": "0+"}, tag)
    if "32767 bytes$" in f"{sentence}$":
        assert len(cls.read(data, 2).name) == 32767
        return
    with pytest.raises(MalformedMessageError, match=f"Example v2, ({sentence})"):
        cls.read(data, 2)


@pytest.mark.parametrize(
    ("change", "version", "sentence"),
    [
        ({"string": "x" * 32768}, 2, "String: a string of 32768 bytes is longer than 32767"),
        ({"string": "x" * 32768}, 0, "String: a string of 32768 bytes is longer than 32767"),
        ({"string": None}, 2, "String: null in a field that is not nullable"),
        ({"string": 5}, 2, "String: a int is no string"),
        ({"string": "\ud800"}, 2, "String: the string has no form in UTF-8"),
        ({"int8": 128}, 0, "Int8: 128 is not from -128 to 127"),
        ({"uint32": -1}, 2, "Uint32: -1 is not from 0 to 4294967295"),
        ({"int64": "x"}, 1, "Int64: a str is no int64"),
        ({"uuid": b"x"}, 0, "Uuid: a uuid is 16 bytes"),
        ({"bytes": "x"}, 2, "Bytes: a str is no bytes"),
        ({"ids": None}, 0, "Ids: null in a field that is not nullable"),
        ({"ids": (1, 1 << 63)}, 2, r"Ids\[1\]: 9223372036854775808 is not from"),
        ({"bools": (True,)}, 0, "Bools: the version lacks the field, which is not its default"),
        ({"strings": ["x"]}, 0, "Strings: the version lacks the field, which is not its default"),
        ({"tag_null": None}, 1, "TagNull: the version lacks the field, which is not its default"),
        ({"tag_ids": (1,)}, 1, "TagIds: the version lacks the field, which is not its default"),
        ({"plain": None}, 0, "Plain: null in a field that is not nullable"),
        ({"unknown_tagged_fields": [(7, b"")]}, 1, "tagged fields: the version has no tagged"),
        ({"unknown_tagged_fields": [(7, b""), (7, b"")]}, 2, "tagged fields: a tag stands twice"),
        ({"unknown_tagged_fields": [(9, b""), (7, b"")]}, 2, "tagged fields: the tags that are"),
        (
            {"unknown_tagged_fields": [(2**31 - 1, b"")]},
            2,
            "tagged fields: a tag is above 2147483646",
        ),
        ({"tag_plain": 1}, 2, "TagPlain"),
    ],
)
def test_what_a_version_cannot_carry_is_refused(
    change: dict[str, Any], version: int, sentence: str
) -> None:
    message = ALL_KINDS(**change)
    for operation in (message.write, message.size, message.to_json):
        with pytest.raises(UnwritableMessageError, match=f"^Example v{version}, {sentence}"):
            operation(version)


def test_an_unknown_version_is_refused() -> None:
    for operation in (
        lambda: ALL_KINDS().write(4),
        lambda: ALL_KINDS().size(-1),
        lambda: ALL_KINDS.read(b"", 4),
        lambda: ALL_KINDS.from_json({}, 4),
    ):
        with pytest.raises(UnsupportedVersionError, match="the message has the versions 0-3"):
            operation()


def test_malformed_utf_8_becomes_the_replacement_character() -> None:
    cls = example({"name": "Name", "type": "string", "versions": "0+"})
    assert cls.read(b"\x00\x02\xffa", 0).name == "\ufffda"


def test_a_definition_without_bound_is_refused() -> None:
    common = [
        {
            "name": f"Level{depth}",
            "versions": "0+",
            "fields": [
                {"name": f"F{number}", "type": f"Level{depth + 1}", "versions": "0+"}
                for number in range(20)
            ],
        }
        for depth in range(6)
    ]
    common.append({"name": "Level6", "versions": "0+", "fields": POINT})
    text = json.loads(text_of({"name": "Top", "type": "Level0", "versions": "0+"}))
    for structs in (common, common[::-1]):
        with pytest.raises(DefinitionError, match="has more than 1000 fields"):
            compile_message(json.dumps({**text, "commonStructs": structs}), "Example.json")


def test_common_structs_are_nested_to_a_depth() -> None:
    common = [
        {
            "name": f"Level{depth}",
            "versions": "0+",
            "fields": [{"name": "F", "type": f"Level{depth + 1}", "versions": "0+"}],
        }
        for depth in range(12)
    ]
    common.append({"name": "Level12", "versions": "0+", "fields": POINT})
    text = json.loads(text_of({"name": "Top", "type": "Level0", "versions": "0+"}))
    for structs in (common, common[::-1]):
        with pytest.raises(DefinitionError, match="structs may be nested 8 deep"):
            compile_message(json.dumps({**text, "commonStructs": structs}), "Example.json")


def test_a_set_names_each_message_once() -> None:
    text = text_of(ITEMS)
    with pytest.raises(DefinitionError, match="there is another definition of Example"):
        Messages({"A.json": text, "B.json": text})
    assert parse(text, "A.json") == Messages({"A.json": text}).definition("Example")
