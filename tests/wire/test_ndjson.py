"""Messages as lines of NDJSON come back as they were."""

from __future__ import annotations

import base64

import pytest
from hypothesis import given
from hypothesis import strategies as st

from router.errors import BadJsonError
from router.model import Message
from router.wire import ndjson

texts = st.text(st.characters(codec="utf-8"), max_size=20)
described = st.tuples(
    st.binary(max_size=40) | texts.map(str.encode),
    st.none() | st.binary(max_size=20) | texts.map(str.encode),
    st.dictionaries(texts, texts, max_size=4),
    st.none() | st.integers(0, 2**63 - 1),
)
messages = described.map(lambda parts: Message(*parts)) | st.just(Message(b"", null=True))


@given(sent=st.lists(messages, max_size=6))
def test_messages_survive_their_lines(sent: list[Message]) -> None:
    lines = ndjson.framed(sent).splitlines()
    assert [ndjson.decode(line, b"default") for line in lines] == sent


def test_a_line_without_a_key_has_the_default() -> None:
    assert ndjson.decode(b'{"value":"v"}', b"k").key == b"k"
    assert ndjson.decode(b'{"value":"v","key":null}', b"k").key is None


def test_headers_are_properties() -> None:
    assert ndjson.decode(b'{"value":"v","headers":{"a":"b"}}').properties == {"a": "b"}


def test_what_the_store_says_is_passed_over() -> None:
    line = b'{"value":"v","position":{"ledger":1},"publish_time":2,"redelivery_count":3}'
    assert ndjson.decode(line) == Message(b"v")


@pytest.mark.parametrize(
    ("line", "sentence"),
    [
        (b"[1]", "Expected an object, got a list."),
        (b"{", "The line is no JSON"),
        (b'{"key":"k"}', "neither value nor value_base64"),
        (b'{"value":1}', "value: expected a text, got 1."),
        (b'{"value":"a","value_base64":"YQ=="}', "value as well as value_base64"),
        (b'{"value_base64":"*"}', 'value_base64: "*" is no base64.'),
        (b'{"value":"a","valeu":1}', 'no field "valeu"'),
        (b'{"value":"a","properties":{"a":1}}', "expected an object of texts"),
        (b'{"value":"a","properties":{},"headers":{}}', "properties as well as headers"),
        (b'{"value":"a","event_time":-1}', "event_time: -1 is no time"),
        (b'{"value":"a","event_time":true}', "event_time: true is no time"),
    ],
)
def test_a_line_that_is_no_message_is_refused(line: bytes, sentence: str) -> None:
    with pytest.raises(BadJsonError, match=sentence.replace("*", r"\*")):
        ndjson.decode(line)


def test_bytes_that_are_no_text_are_base64() -> None:
    found = ndjson.encode(Message(b"\xff", b"\xfe"))
    assert base64.b64decode(found["value_base64"]) == b"\xff"
    assert base64.b64decode(found["key_base64"]) == b"\xfe"
