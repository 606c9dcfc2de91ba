"""Formats of standard input and output: laws of reading in any pieces."""

from __future__ import annotations

import io
import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from router.cli import formats
from router.cli.formats import DocumentReader
from router.errors import BadFramingError, BadJsonError, MessageTooLargeError, RouterError
from router.model import Message, Position, Stored
from router.wire import cambria, ndjson

values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner),
    max_leaves=4,
)
documents = st.dictionaries(st.text(max_size=4), values, max_size=3)
blanks = st.text(" \t\r\n", max_size=3)
messages = st.lists(
    st.tuples(st.binary(max_size=20), st.none() | st.binary(min_size=1, max_size=5)).map(
        lambda parts: Message(*parts)
    ),
    max_size=5,
)


class Pieces(io.BytesIO):
    """An input that gives a few bytes at a time."""

    def __init__(self, data: bytes, step: int) -> None:
        super().__init__(data)
        self._step = step

    def read1(self, _size: int | None = -1, /) -> bytes:
        return self.read(self._step)


def read(form: str, data: bytes, step: int = 1 << 20, key: bytes | None = None) -> list[Message]:
    batches = list(formats.READERS[form](Pieces(data, step), key))
    assert sum(size for _, size in batches) == len(data)
    return [message for some, _ in batches for message in some]


@pytest.mark.slow
@given(
    found=st.lists(documents, max_size=4),
    blank=blanks,
    step=st.integers(1, 30),
    in_array=st.booleans(),
    pretty=st.booleans(),
)
def test_objects_are_found_in_any_pieces(
    found: list[dict[str, object]], blank: str, step: int, in_array: bool, pretty: bool
) -> None:
    texts = [json.dumps(one, ensure_ascii=False, indent=2 if pretty else None) for one in found]
    whole = blank.join(texts)
    if in_array:
        whole = f"[{blank}{(blank + ',' + blank).join(texts)}{blank}]"
    assert [m.value.decode() for m in read("json", whole.encode(), step)] == texts


@given(sent=messages, step=st.integers(1, 20))
def test_records_are_found_in_any_pieces(sent: list[Message], step: int) -> None:
    assert read("cambria", cambria.framed(sent), step) == sent


@pytest.mark.slow
@given(sent=messages, step=st.integers(1, 20))
def test_described_messages_are_found_in_any_pieces(sent: list[Message], step: int) -> None:
    assert read("ndjson", ndjson.framed(sent), step) == sent


def test_keys_are_those_of_objects_or_the_default() -> None:
    found = read("json", b'{"cambria.partition":"own"}{"a":1}', key=b"k")
    assert [message.key for message in found] == [b"own", b"k"]


@pytest.mark.parametrize(
    ("form", "data", "error"),
    [
        ("json", b'{"a":1}\n{"a":}', BadJsonError),
        ("json", b'[{"a":1} {"b":2}]', BadJsonError),
        ("json", b'[{"a":1},', BadJsonError),
        ("json", b'{"a":1', BadJsonError),
        ("json", b'{"a":NaN}', BadJsonError),
        ("json", b"12", BadJsonError),
        ("json", b"[[{}]]", BadJsonError),
        ("json", b"\xff", BadJsonError),
        ("json", b'{"a":' * 100_000, BadJsonError),
        ("cambria", b"1.1.a", BadFramingError),
        ("cambria", b"x" * 10_000, BadFramingError),
        ("cambria", b"1.999999999.", MessageTooLargeError),
        ("ndjson", b"{}\n", BadJsonError),
    ],
)
def test_what_is_not_in_the_format_is_refused(
    form: str, data: bytes, error: type[RouterError]
) -> None:
    with pytest.raises(error):
        read(form, data, step=50_000)


def test_the_object_that_is_wrong_is_named_at_once() -> None:
    reader = DocumentReader(None, 1 << 20)
    with pytest.raises(BadJsonError, match="Object 2 of the input: expected an object"):
        reader.receive(b'{"a":1}\nx' + b" " * 100)


def test_an_object_without_an_end_is_not_kept_for_ever() -> None:
    reader = DocumentReader(None, 1000)
    reader.receive(b'{"a":"' + b"x" * 900)
    with pytest.raises(MessageTooLargeError):
        reader.receive(b"x" * 1000)


@pytest.mark.parametrize(
    ("value", "line"),
    [
        (b'{"a": 1}', b'{"a": 1}\n'),
        (b'{"a":\n1}', b'{"a":1}\n'),
        (b"text", b'"text"\n'),
        (b"\xff", '"\ufffd"\n'.encode()),
    ],
)
def test_a_value_is_written_as_json_on_one_line(value: bytes, line: bytes) -> None:
    assert formats.write_document(Stored(Message(value), Position(1, 2), 3)) == line
