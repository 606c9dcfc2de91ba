"""Messages in Kafka's JSON form."""

from __future__ import annotations

import json
from typing import Any

import pytest

from router.wire.kafka.errors import MalformedMessageError, UnwritableMessageError
from tests.wire.kafka.examples import ITEMS, TAGGED, example

WHOLE = {"name": "", "number": 1, "data": "", "id": "A" * 22, "items": []}


@pytest.mark.parametrize(
    ("value", "sentence"),
    [
        ([], "an object is wanted"),
        ({}, "Name: the version demands the field"),
        ({"name": 1}, "Name: a value of the type string is wanted"),
        ({"name": None}, "Name: null in a field that is not nullable"),
        ({"name": "", "number": 1.5}, "Number: a number of the type int8 is wanted"),
        ({"name": "", "number": 200}, "Number: 200 is not from -128 to 127"),
        ({"name": "", "number": 1, "data": "*"}, "Data: bytes in base64 are wanted"),
        ({"name": "", "number": 1, "data": "", "id": "x"}, "Id: x is no uuid in base64"),
        ({"name": "", "number": 1, "data": "", "id": "A" * 22, "items": 1}, "Items: an array is w"),
        ({"name": "", "nummer": 1}, "nummer: there is no such field"),
        ({**WHOLE, "unknownTaggedFields": {}}, "unknownTaggedFields: an array is wanted"),
        ({**WHOLE, "unknownTaggedFields": [{}]}, r"Fields\[0\]: an object with tag and data"),
        ({**WHOLE, "unknownTaggedFields": [{"tag": -1, "data": ""}]}, "-1 is not from 0"),
        ({**WHOLE, "unknownTaggedFields": [{"tag": 9, "data": 1}]}, "of the type bytes is wanted"),
    ],
)
def test_json_that_is_no_message_is_refused(value: Any, sentence: str) -> None:
    cls = example(
        {"name": "Name", "type": "string", "versions": "0+"},
        {"name": "Number", "type": "int8", "versions": "0+"},
        {"name": "Data", "type": "bytes", "versions": "0+"},
        {"name": "Id", "type": "uuid", "versions": "0+"},
        ITEMS,
    )
    with pytest.raises(MalformedMessageError, match=sentence):
        cls.from_json(value, 0)


def test_json_is_in_kafkas_form() -> None:
    cls = example(
        {"name": "TopicId", "type": "uuid", "versions": "0+"},
        {"name": "Data", "type": "bytes", "versions": "0+"},
        {"name": "Later", "type": "int8", "versions": "1+"},
        {"name": "Tag", "type": "int8", "versions": "2+", "default": "3", **TAGGED},
    )
    message = cls(topic_id=bytes(range(16)), data=b"\xff\x00")
    assert message.to_json(0) == {"topicId": "AAECAwQFBgcICQoLDA0ODw", "data": "/wA="}
    assert message.to_json(2) == {**message.to_json(0), "later": 0}
    message.tag = 4
    assert message.to_json(2)["tag"] == 4
    assert cls.from_json(message.to_json(2), 2) == message


def test_json_keeps_tagged_fields_that_the_definition_does_not_know() -> None:
    cls = example({"name": "Tag", "type": "int8", "versions": "2+", "default": "3", **TAGGED})
    message = cls(tag=4, unknown_tagged_fields=((7, b"\xff"), (9, b"")))
    form = json.loads(json.dumps(message.to_json(2)))
    assert form["unknownTaggedFields"] == [{"tag": 7, "data": "/w=="}, {"tag": 9, "data": ""}]
    assert cls.from_json(form, 2) == message
    # A tag that the definition has, tags out of order, and a version without tags.
    for tags, version in (([0], 2), ([9, 7], 2), ([7], 1)):
        given = {"unknownTaggedFields": [{"tag": tag, "data": ""} for tag in tags], "tag": 4}
        with pytest.raises(UnwritableMessageError):
            cls.from_json(given, version).write(version)


def test_a_field_that_the_version_lacks_is_refused_or_ignored_as_by_the_class() -> None:
    later = {"versions": "1+", "type": "int8"}
    inner = {"name": "X", "type": "int32", "versions": "0+"}
    cls = example(
        {"name": "Later", **later},
        {"name": "Ignored", **later, "ignorable": True},
        {**later, "name": "Point", "type": "Point", "fields": [inner], "nullableVersions": "2+"},
        {**later, "name": "Text", "type": "string", "nullableVersions": "2+", "default": "a"},
    )
    refused: list[Any] = [{"later": 1}, {"point": {"x": 1}}, {"text": "b"}, {"text": None}]
    ignored: list[Any] = [{"later": 0}, {"ignored": 9}, {"point": {}}, {"text": "a"}, {}]
    for form in refused:
        with pytest.raises(UnwritableMessageError):
            cls.from_json(form, 0).write(0)
    for form in ignored:
        assert cls.from_json(form, 0).write(0) == b""
    with pytest.raises(MalformedMessageError, match="Later: a number of the type int8 is wanted"):
        cls.from_json({"later": "1"}, 0)


def test_json_has_words_for_numbers_that_it_lacks() -> None:
    cls = example({"name": "Value", "type": "float64", "versions": "0+"})
    for number in (float("inf"), float("-inf"), 1.5):
        form = json.loads(json.dumps(cls(value=number).to_json(0), allow_nan=False))
        assert cls.from_json(form, 0) == cls(value=number)
    assert cls(value=float("nan")).to_json(0) == {"value": "NaN"}
