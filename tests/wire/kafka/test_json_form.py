"""Messages in Kafka's JSON form."""

from __future__ import annotations

import json
from typing import Any

import pytest

from router.wire.kafka.errors import (
    MalformedMessageError,
)
from tests.wire.kafka.examples import ITEMS, TAGGED, example


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


def test_json_has_words_for_numbers_that_it_lacks() -> None:
    cls = example({"name": "Value", "type": "float64", "versions": "0+"})
    for number in (float("inf"), float("-inf"), 1.5):
        form = json.loads(json.dumps(cls(value=number).to_json(0), allow_nan=False))
        assert cls.from_json(form, 0) == cls(value=number)
    assert cls(value=float("nan")).to_json(0) == {"value": "NaN"}
