"""Reading requests."""

from __future__ import annotations

import io
import socket
from typing import Any
from urllib.parse import quote

import pytest
from hypothesis import given
from hypothesis import strategies as st

from router.errors import (
    BadRequestError,
    BatchTooLargeError,
    ReadBodyTooLargeError,
    UnsupportedEncodingError,
)
from router.web import requests


class Chunk:
    """A stream that fails as gunicorn's does."""

    def __init__(self, error: Exception) -> None:
        self._error = error

    def read(self, _size: int) -> bytes:
        raise self._error


def environ(body: bytes, length: str | None = None) -> dict[str, Any]:
    found: dict[str, Any] = {"wsgi.input": io.BytesIO(body)}
    if length is not None:
        found["CONTENT_LENGTH"] = length
    return found


def chunks(body: bytes) -> dict[str, Any]:
    return environ(body) | {"wsgi.input_terminated": True}


@given(body=st.binary(max_size=300), limit=st.integers(0, 300), chunked=st.booleans())
def test_body_is_read_whole_or_refused(body: bytes, limit: int, chunked: bool) -> None:
    request = chunks(body) if chunked else environ(body + b"next request", str(len(body)))
    if len(body) > limit:
        with pytest.raises(BatchTooLargeError):
            requests.body(request, limit)
    else:
        assert requests.body(request, limit) == body


def test_body_without_a_length_is_empty() -> None:
    assert requests.body(environ(b"something"), 100) == b""


@pytest.mark.parametrize("coding", ["gzip, chunked", "gzip", "deflate,chunked", "chunked, chunked"])
def test_body_in_another_transfer_coding_is_refused(coding: str) -> None:
    with pytest.raises(UnsupportedEncodingError):
        requests.body(chunks(b"x") | {"HTTP_TRANSFER_ENCODING": coding}, 100)


@pytest.mark.parametrize("coding", ["chunked", " Chunked "])
def test_chunked_is_the_transfer_coding_that_is_read(coding: str) -> None:
    assert requests.body(chunks(b"x") | {"HTTP_TRANSFER_ENCODING": coding}, 100) == b"x"


def test_body_that_breaks_off_is_refused() -> None:
    with pytest.raises(BadRequestError, match="5 of 9"):
        requests.body(environ(b"hello", "9"), 100)


@pytest.mark.parametrize("length", ["x", "-1", "1.0"])
def test_body_with_a_bad_length_is_refused(length: str) -> None:
    with pytest.raises(BadRequestError):
        requests.body(environ(b"", length), 100)


def gunicorn_error() -> Exception:
    kind: type[Exception] = type(
        "InvalidChunkSize", (Exception,), {"__module__": "gunicorn.http.errors"}
    )
    return kind("zz")


@pytest.mark.parametrize(
    ("error", "sentence"),
    [
        (ConnectionResetError(), "broke off"),
        (TimeoutError(), "in time"),
        (gunicorn_error(), "zz"),
    ],
)
def test_body_that_cannot_be_read_is_refused(error: Exception, sentence: str) -> None:
    request = {"wsgi.input": Chunk(error), "wsgi.input_terminated": True}
    with pytest.raises(BadRequestError, match=sentence):
        requests.body(request, 100)


def test_body_that_fails_by_our_mistake_is_no_bad_request() -> None:
    with pytest.raises(ZeroDivisionError):
        requests.body({"wsgi.input": Chunk(ZeroDivisionError()), "CONTENT_LENGTH": "1"}, 100)


def test_body_is_waited_for_with_a_bound_that_ends_with_it() -> None:
    ours, theirs = socket.socketpair()
    with ours, theirs:
        ours.settimeout(7)
        seen = []

        class Noted(io.BytesIO):
            def read(self, size: int | None = -1) -> bytes:
                seen.append(ours.gettimeout())
                return super().read(size)

        request = {"wsgi.input": Noted(b"x"), "CONTENT_LENGTH": "1", "gunicorn.socket": ours}
        assert requests.body(request, 9) == b"x"
        assert seen == [requests.MAX_BODY_PAUSE_SECONDS]
        assert ours.gettimeout() == 7


@pytest.mark.parametrize("chunked", [True, False])
def test_body_of_a_reading_request_is_bounded(chunked: bool) -> None:
    request = chunks(b"x" * 11) if chunked else environ(b"x" * 11, "11")
    with pytest.raises(ReadBodyTooLargeError):
        requests.no_body(request, 10)


def test_body_of_a_reading_request_is_left_alone_when_small() -> None:
    requests.no_body(environ(b"x" * 10, "10"), 10)


@given(
    st.dictionaries(st.text(st.characters(max_codepoint=255), min_size=1), st.binary(), max_size=9)
)
def test_query_gives_parameters_byte_for_byte(sent: dict[str, bytes]) -> None:
    pairs = "&".join(
        f"{quote(k.encode('latin-1'), safe='')}={quote(v, safe='')}" for k, v in sent.items()
    )
    found = requests.query({"QUERY_STRING": pairs})
    assert {k: v.encode("latin-1") for k, v in found.items()} == sent


def test_query_takes_the_first_of_a_name() -> None:
    assert requests.query({"QUERY_STRING": "a=1&a=2&b=&c"}) == {"a": "1", "b": "", "c": ""}


def test_query_is_bounded() -> None:
    with pytest.raises(BadRequestError):
        requests.query({"QUERY_STRING": "a=1&" * 101})


def test_idempotency_key_is_bounded() -> None:
    assert requests.idempotency_key({}) is None
    assert requests.idempotency_key({"HTTP_IDEMPOTENCY_KEY": "x" * 255}) == "x" * 255
    with pytest.raises(BadRequestError):
        requests.idempotency_key({"HTTP_IDEMPOTENCY_KEY": "x" * 256})
