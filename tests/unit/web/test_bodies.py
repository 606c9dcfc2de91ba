"""Formats of bodies: laws of reading and writing."""

from __future__ import annotations

import base64
import gzip
import json
import os
import tracemalloc
import zlib

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from router.errors import (
    BadFramingError,
    BadJsonError,
    BatchTooLargeError,
    MessageTooLargeError,
    NotAcceptableError,
    UnsupportedEncodingError,
)
from router.model import Message, Position, Stored
from router.web.bodies import PublishBounds, inflate, read, write
from router.web.bodies.inflate import MAX_FREE_BYTES, MAX_MEMBERS
from router.web.bodies.objects import MAX_DEPTH, MAX_WINDOW, objects
from router.web.media import Format
from router.wire import ndjson

BOUNDS = PublishBounds(batch=1 << 20, ratio=200, messages=10_000, message=1_000_000)
JSON = "application/json"
CAMBRIA = "application/cambria"

blanks = st.text(" \t\r\n", max_size=4)
values = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=4), inner),
    max_leaves=4,
)
documents = st.dictionaries(st.text(max_size=6), values, max_size=5).map(
    lambda value: json.dumps(value, ensure_ascii=False)
)
keyed = st.tuples(st.binary(max_size=30), st.none() | st.binary(min_size=1, max_size=9))
sent = st.lists(keyed.map(lambda parts: Message(*parts)), max_size=12)


def stored(messages: list[Message]) -> list[Stored]:
    return [Stored(m, Position(1, at), 1_000) for at, m in enumerate(messages)]


def texts(kind: str, body: bytes) -> list[bytes]:
    return [message.value for message in read(kind, body, None, BOUNDS)]


@pytest.mark.slow
@settings(max_examples=40)
@given(found=st.lists(documents, max_size=4), blank=blanks)
def test_json_array_gives_each_object_as_it_was_sent(found: list[str], blank: str) -> None:
    body = f"{blank}[{blank}" + f"{blank},{blank}".join(found) + f"{blank}]{blank}"
    assert texts(JSON, body.encode()) == [text.encode() for text in found]


@pytest.mark.slow
@settings(max_examples=40)
@given(found=st.lists(documents, max_size=4), blank=blanks)
def test_json_stream_gives_each_object_as_it_was_sent(found: list[str], blank: str) -> None:
    body = blank + "".join(f"{text}\n{blank}" for text in found)
    assert texts(JSON, body.encode()) == [text.encode() for text in found]


@given(body=st.text('{}[]":,0 a\\n\né', max_size=40).map(str.encode) | st.binary(max_size=40))
def test_json_reader_takes_exactly_objects_and_arrays_of_objects(body: bytes) -> None:
    try:
        found = texts(JSON, body)
    except BadJsonError:
        assert not _is_good(body)
    else:
        assert all(isinstance(json.loads(text, parse_constant=_refuse), dict) for text in found)


def _is_good(body: bytes) -> bool:
    try:
        whole = json.loads(body.decode(), parse_constant=_refuse)
    except ValueError:
        return False
    return isinstance(whole, dict) or (
        isinstance(whole, list) and all(isinstance(one, dict) for one in whole)
    )


def _refuse(name: str) -> None:
    raise ValueError(name)


@pytest.mark.parametrize(
    "text", ['{"n":123456789012345678901234567890}', '{"n":' + "9" * 5000 + "}", '{"n":1e999}',
             '{ "b" : 1 , "a":2,"b":3 }', '{"x":"\\ud800"}']
)  # fmt: skip
def test_json_text_is_kept_when_a_parser_would_change_it(text: str) -> None:
    assert texts(JSON, text.encode()) == [text.encode()]


@pytest.mark.parametrize(
    "body", [b'{"a":NaN}', b'{"a":Infinity}', b'{"a":-Infinity}', b'{"a":"\xff"}', b"[1]", b"[[]]",
             b'["a"]', b"1", b'"a"', b"null", b"[{},]", b"[{} {}]", b"[{}", b"{}]", b"{},{}",
             b"[]]", b"{'a':1}", b'{"a":01}', b'{"a":"\n"}', b"\xef\xbb\xbf{}",
             b'{"cambria.partition":"\\ud800"}']
)  # fmt: skip
def test_json_is_refused_when_it_is_none_or_no_object(body: bytes) -> None:
    with pytest.raises(BadJsonError):
        read(JSON, body, None, BOUNDS)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("depth", "opened", "closed"), [(MAX_DEPTH, '{"a":', "}"), (MAX_DEPTH - 1, "[", "]")]
)
def test_json_nesting_is_bounded(depth: int, opened: str, closed: str) -> None:
    def nested(levels: int) -> bytes:
        return ('{"x":' + opened * (levels - 1) + "0" + closed * (levels - 1) + "}").encode()

    assert len(texts(JSON, nested(depth))) == 1
    for levels in (MAX_DEPTH + 1, MAX_DEPTH + 400, 100_000):
        with pytest.raises(BadJsonError, match="nested"):
            read(JSON, nested(levels), None, BOUNDS)


def test_json_nesting_is_counted_by_its_depth_and_not_by_its_brackets() -> None:
    depth = MAX_DEPTH - 1
    body = '{"x":' + "[" * depth + "]" * depth + ', "y":' + "[]}"
    assert texts(JSON, body.encode()) == [body.encode()]
    with pytest.raises(BadJsonError, match="nested"):
        texts(JSON, ('{"x":[' + "[" * depth + "]" * depth + '], "y":[]}').encode())


def test_json_brackets_in_texts_are_no_nesting() -> None:
    body = json.dumps({"a": '[{\\"' * 2 * MAX_DEPTH}).encode()
    assert texts(JSON, body) == [body]


def test_json_beyond_one_window_is_read_whole() -> None:
    one = b'{"a":"' + b"x" * 900_000 + b'"}'
    many = [one] * (3 * MAX_WINDOW // len(one))
    assert [m.value for m in objects(b"[" + b",".join(many) + b"]", None, 1_000_000)] == many


@pytest.mark.slow
@pytest.mark.parametrize(
    "start", [b'{"a":"' + b"x" * 3 * MAX_WINDOW, b'{"a":[' + b"[],0," * MAX_WINDOW]
)
def test_json_object_beyond_a_window_is_too_large(start: bytes) -> None:
    with pytest.raises(MessageTooLargeError):
        list(objects(start + b'0]}"}', None, 1_000_000))


def test_json_error_behind_the_first_window_is_told_with_its_place() -> None:
    one = b'{"a":"' + b"x" * 999_990 + b'"}\n'
    with pytest.raises(BadJsonError, match="at character 8999992"):
        list(objects(one * 9 + b"{nothing}", None, 1_000_000))


@pytest.mark.parametrize(
    ("text", "key"),
    [('{"cambria.partition":"é"}', "é"), ('{"cambria.partition":7}', "given"),
     ('{"cambria.partition":""}', "given"), ('{"a":{"cambria.partition":"k"}}', "given")],
)  # fmt: skip
def test_json_key_is_a_text_field_of_the_object(text: str, key: str) -> None:
    [message] = read(JSON, text.encode(), b"given", BOUNDS)
    assert message.key == key.encode()


@given(messages=sent)
def test_cambria_is_read_back_as_written(messages: list[Message]) -> None:
    assert read(CAMBRIA, write(Format.CAMBRIA, stored(messages)), b"other", BOUNDS) == messages


@given(messages=sent, blank=st.text(" \t\r\n", max_size=3).map(str.encode))
def test_cambria_takes_white_space_between_records(messages: list[Message], blank: bytes) -> None:
    body = blank
    for m in messages:
        key = m.key or b""
        body += b"%d.%d.%b%b" % (len(key), len(m.value), key, m.value) + blank
    assert read(CAMBRIA, body, None, BOUNDS) == messages


@given(messages=sent, data=st.data())
def test_cambria_cut_short_is_refused_or_a_prefix(
    messages: list[Message], data: st.DataObject
) -> None:
    body = write(Format.CAMBRIA, stored(messages))
    cut = data.draw(st.integers(0, len(body)))
    try:
        found = read(CAMBRIA, body[:cut], None, BOUNDS)
    except BadFramingError:
        assert cut < len(body)
    else:
        assert found == messages[: len(found)]


@pytest.mark.parametrize(
    "body", [b"1.1.a", b"a.b.c", b"-1.1.a", b"0.4096001.x", b"4096001.0.", b".1.a", b"0.1.ab",
             b"99999999999.1.a", b"0.1"]
)  # fmt: skip
def test_cambria_is_refused_when_a_record_does_not_fit(body: bytes) -> None:
    with pytest.raises(BadFramingError):
        read(CAMBRIA, body, None, BOUNDS)


@given(
    lines=st.lists(st.binary(max_size=9).filter(lambda b: not set(b) & set(b"\r\n"))),
    data=st.data(),
)
def test_text_is_a_message_a_line_and_empty_lines_are_none(
    lines: list[bytes], data: st.DataObject
) -> None:
    ends = st.sampled_from([b"\n", b"\r", b"\r\n"])
    body = b"".join(line + data.draw(ends) for line in lines)
    assert texts("text/plain", body) == [line for line in lines if line]


@given(body=st.binary(min_size=1), kind=st.sampled_from(["", "text/xml", "image/png", "text/pain"]))
def test_any_other_type_is_one_message(body: bytes, kind: str) -> None:
    assert read(kind, body, b"k", BOUNDS) == [Message(body, b"k")]


@pytest.mark.parametrize(
    "kind", [JSON, CAMBRIA, "application/cambria-zip", "text/plain", "", "a/b"]
)
def test_empty_body_has_no_messages(kind: str) -> None:
    assert read(kind, b"", None, BOUNDS) == []


@pytest.mark.parametrize(
    "end", [b"\n", b"\r", b"\r\n", b"\n\n\n"], ids=["LF", "CR", "CRLF", "empty lines"]
)
@pytest.mark.parametrize("closed", [False, True])
def test_lines_are_counted_by_the_messages_that_they_make(end: bytes, closed: bool) -> None:
    bounds = PublishBounds(1 << 20, 200, messages=3, message=100)
    for count in range(1, 6):
        body = end.join([b"line"] * count) + end * closed
        if count > 3:
            with pytest.raises(BatchTooLargeError, match="3 messages"):
                read("text/plain", body, None, bounds)
        else:
            assert len(read("text/plain", body, None, bounds)) == count


@pytest.mark.parametrize("kind", ["text/plain", JSON])
def test_body_with_too_many_messages_is_refused(kind: str) -> None:
    bounds = PublishBounds(1 << 20, 200, messages=3, message=100)
    assert len(read(kind, b"{}\n" * 3, None, bounds)) == 3
    with pytest.raises(BatchTooLargeError, match="3 messages"):
        read(kind, b"{}\n" * 4, None, bounds)


@given(
    body=st.binary(max_size=2_000), coding=st.sampled_from(["gzip", "X-GZip", "deflate", "raw", ""])
)
def test_inflated_is_what_was_compressed(body: bytes, coding: str) -> None:
    raw = zlib.compressobj(wbits=-15)
    made = {
        "gzip": gzip.compress(body),
        "deflate": zlib.compress(body),
        "raw": raw.compress(body) + raw.flush(),
        "": body,
    }["gzip" if coding == "X-GZip" else coding]
    assert inflate("deflate" if coding == "raw" else coding, made, BOUNDS) == body


@given(parts=st.lists(st.binary(max_size=300), min_size=1, max_size=4))
def test_inflated_gzip_may_have_several_members(parts: list[bytes]) -> None:
    assert inflate("gzip", b"".join(map(gzip.compress, parts)), BOUNDS) == b"".join(parts)


@given(body=st.binary(min_size=1, max_size=500), data=st.data())
def test_inflating_what_is_cut_is_refused(body: bytes, data: st.DataObject) -> None:
    made = gzip.compress(body)
    cut = data.draw(st.integers(1, len(made) - 1))
    with pytest.raises(BadFramingError):
        inflate("gzip", made[:cut], BOUNDS)


@pytest.mark.parametrize(
    "body", [b"plain", gzip.compress(b"x", mtime=0) + b"rest", zlib.compress(b"x")]
)
def test_inflating_what_is_no_gzip_is_refused(body: bytes) -> None:
    with pytest.raises(BadFramingError):
        read("application/cambria-zip", body, None, BOUNDS)


def test_inflating_stops_at_the_size() -> None:
    body = os.urandom(1 << 20)
    assert inflate("gzip", gzip.compress(body), BOUNDS) == body
    with pytest.raises(BatchTooLargeError, match="1048576 bytes"):
        inflate("gzip", gzip.compress(body + b"x"), BOUNDS)


def test_inflating_holds_little_more_than_the_bounds_allow() -> None:
    """A piece of 64 KiB may hold 64 MiB: they are not made before they are refused."""
    bomb = gzip.compress(bytes(60 << 20))
    assert len(bomb) < 1 << 16
    tracemalloc.start()
    try:
        with pytest.raises(BatchTooLargeError):
            inflate("gzip", bomb, BOUNDS)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak < 4 * BOUNDS.batch


def test_inflating_stops_at_the_ratio() -> None:
    body = bytes(1 << 20)
    assert inflate("gzip", gzip.compress(body[: 1 << 17]), BOUNDS) == body[: 1 << 17]
    with pytest.raises(BatchTooLargeError, match="200 times"):
        inflate("gzip", gzip.compress(body), BOUNDS)


def test_inflating_bounds_the_members() -> None:
    member = gzip.compress(b"x")
    assert inflate("gzip", member * MAX_MEMBERS, BOUNDS) == b"x" * MAX_MEMBERS
    with pytest.raises(BadFramingError, match="more follows"):
        inflate("gzip", member * (MAX_MEMBERS + 1), BOUNDS)


@pytest.mark.parametrize("excess", [0, 1])
def test_inflating_takes_as_much_as_the_bounds_allow_and_not_a_byte_more(excess: int) -> None:
    stored = zlib.compressobj(0, wbits=31)
    made = stored.compress(os.urandom(1_000 + excess)) + stored.flush()
    for body, bounds in (
        (made, PublishBounds(batch=1_000, ratio=200, messages=1, message=1)),
        (
            gzip.compress(bytes(MAX_FREE_BYTES + excess)),
            PublishBounds(1 << 20, ratio=1, messages=1, message=1),
        ),
    ):
        if excess:
            with pytest.raises(BatchTooLargeError):
                inflate("gzip", body, bounds)
        else:
            assert len(inflate("gzip", body, bounds)) in {1_000, MAX_FREE_BYTES}


def test_inflating_an_unknown_coding_is_refused() -> None:
    with pytest.raises(UnsupportedEncodingError):
        inflate("gzip, gzip", b"x", BOUNDS)


@given(messages=sent)
def test_json_answer_is_an_array_of_texts(messages: list[Message]) -> None:
    expected = [m.value.decode("utf-8", "replace") for m in messages]
    assert json.loads(write(Format.JSON, stored(messages))) == expected


def test_json_answer_has_no_blanks() -> None:
    body = write(Format.JSON, stored([Message(b'{"a":1}'), Message("é€".encode())]))
    assert body == '["{\\"a\\":1}","é€"]'.encode()


@given(messages=sent)
def test_ndjson_answer_tells_all_of_a_message(messages: list[Message]) -> None:
    lines = [json.loads(line) for line in write(Format.NDJSON, stored(messages)).splitlines()]
    for message, line in zip(messages, lines, strict=True):
        for name, value in (("key", message.key), ("value", message.value)):
            if name in line:
                assert (value.decode() if value is not None else None) == line[name]
            else:
                assert value == base64.b64decode(line[f"{name}_base64"])
        assert line["position"]["ledger"] == 1
        assert line["publish_time"] == 1_000


@given(messages=st.lists(st.binary(max_size=9).map(Message)))
def test_text_answer_is_a_line_a_message_or_refused(messages: list[Message]) -> None:
    broken = any(b"\n" in m.value or b"\r" in m.value for m in messages)
    if broken:
        with pytest.raises(NotAcceptableError):
            write(Format.TEXT, stored(messages))
    else:
        assert write(Format.TEXT, stored(messages)).splitlines() == [m.value for m in messages]


@given(messages=sent)
def test_ndjson_answer_is_a_body_of_described_messages(messages: list[Message]) -> None:
    assert read(ndjson.KIND, write(Format.NDJSON, stored(messages)), None, BOUNDS) == messages


@pytest.mark.parametrize(
    ("body", "error"),
    [
        (b'{"value":"a"}\n{"value":1}', BadJsonError),
        (b'{"value":"a","properties":{"a":"","b":"","c":""}}', BatchTooLargeError),
        (b'{"value":"a"}\n' * 3, BatchTooLargeError),
        (b'{"value":"%s"}' % (b"a" * 5_000), MessageTooLargeError),
    ],
)
def test_described_messages_are_bounded(body: bytes, error: type[Exception]) -> None:
    bounds = PublishBounds(batch=1 << 20, ratio=200, messages=2, message=10)
    with pytest.raises(error):
        read(ndjson.KIND, body, None, bounds)
