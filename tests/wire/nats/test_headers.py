"""Blocks of headers: what is built is read by us and by nats-py, and lookups are the server's."""

from __future__ import annotations

import asyncio

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from nats.aio.client import Client

from router.wire.nats.headers import build, first, read, status, status_code, with_value

NAMES = st.text(
    st.characters(min_codepoint=33, max_codepoint=126, exclude_characters=":"), min_size=1
)
VALUES = st.text(
    st.characters(exclude_categories=["Cs"], exclude_characters="\r\n"), max_size=12
).map(lambda text: text.lstrip(" "))
PAIRS = st.lists(st.tuples(NAMES, VALUES), max_size=5)


def by_nats_py(block: bytes) -> dict[str, str]:
    return asyncio.run(Client()._process_headers(block)) or {}


@given(pairs=PAIRS)
def test_headers_are_read_as_they_were_built(pairs: list[tuple[str, str]]) -> None:
    block = build(pairs)
    assert read(block) == pairs
    assert block.startswith(b"NATS/1.0\r\n") if pairs else not block
    for name, _ in pairs:
        assert first(block, name) == next(value for other, value in pairs if other == name)


@settings(max_examples=50)
@given(pairs=PAIRS)
def test_nats_py_reads_what_is_built(pairs: list[tuple[str, str]]) -> None:
    plain = {name: "".join(c for c in value if c.isprintable()).strip() for name, value in pairs}
    assert by_nats_py(build(plain.items())) == plain


@given(block=st.binary(max_size=60), name=st.sampled_from(["a", "A", "", "Nats-Msg-Id"]))
def test_any_bytes_are_read(block: bytes, name: str) -> None:
    read(b"NATS/1.0\r\n" + block)
    found = first(b"NATS/1.0\r\n" + block, name)
    if found is not None and name:
        assert name in {one for one, _ in read(b"NATS/1.0\r\n" + block)}
    status_code(block)


@pytest.mark.parametrize(
    ("block", "value"),
    [
        (b"", None),
        (b"NATS/1.0\r\n\r\n", None),
        (b"NATS/1.0\r\nNats-Msg-Id: x\r\n\r\n", "x"),
        (b"NATS/1.0\r\nNats-Msg-Id:   x y \r\n\r\n", "x y "),
        (b"NATS/1.0\r\nNats-Msg-Id:x\r\nNats-Msg-Id:y\r\n\r\n", "x"),
        (b"NATS/1.0\r\nnats-msg-id: x\r\n\r\n", None),
        (b"NATS/1.0\r\nX-Nats-Msg-Id: x\r\nNats-Msg-Id: y\r\n\r\n", "y"),
        (b"NATS/1.0\r\nA: Nats-Msg-Id: x\r\n\r\n", None),
        (b"NATS/1.0\nNats-Msg-Id: x\r\nNats-Msg-Id: y\r\n\r\n", "y"),
        (b"NATS/1.0\r\nNats-Msg-Id-Not: x\r\n\r\n", None),
        (b"NATS/1.0\r\nNats-Msg-Id: \xff\r\n\r\n", "\ufffd"),
        (b"NATS/1.0\r\nNats-Msg-Id: x", "x"),
    ],
)
def test_a_name_is_found_in_its_case_at_the_start_of_a_line(
    block: bytes, value: str | None
) -> None:
    assert first(block, "Nats-Msg-Id") == value


@pytest.mark.parametrize(
    ("code", "text", "pairs", "block"),
    [
        (503, "", [], b"NATS/1.0 503\r\n\r\n"),
        (404, "No Messages", [], b"NATS/1.0 404 No Messages\r\n\r\n"),
        (100, "Idle Heartbeat", [("A", "1")], b"NATS/1.0 100 Idle Heartbeat\r\nA: 1\r\n\r\n"),
    ],
)
def test_a_status_is_written_and_read(
    code: int, text: str, pairs: list[tuple[str, str]], block: bytes
) -> None:
    assert status(code, text, pairs) == block
    assert status_code(block) == code
    assert read(block) == pairs
    wanted = {"Status": str(code), **({"Description": text} if text else {}), **dict(pairs)}
    assert by_nats_py(block) == wanted


@pytest.mark.parametrize("pair", [("", "x"), ("a:b", "x"), ("a\n", "x"), ("a", "x\r"), ("a", "\n")])
def test_what_no_header_can_hold_is_refused(pair: tuple[str, str]) -> None:
    with pytest.raises(ValueError, match="no header can hold"):
        build([pair])


def test_a_block_without_a_status_has_none() -> None:
    assert status_code(b"NATS/1.0\r\n503: x\r\n\r\n") == 0
    assert status_code(b"") == 0


@pytest.mark.parametrize(
    ("block", "changed"),
    [
        (b"NATS/1.0\r\nA: 1\r\nB: 2\r\nA: 3\r\n\r\n", b"NATS/1.0\r\nB: 2\r\nA: 3\r\nA: x\r\n\r\n"),
        (b"NATS/1.0\r\nB: 2\r\n\r\n", b"NATS/1.0\r\nB: 2\r\nA: x\r\n\r\n"),
        (b"", b"NATS/1.0\r\nA: x\r\n\r\n"),
        (b"NATS/1.0\r\nA:\r\n\r\n", b"NATS/1.0\r\nA: x\r\n\r\n"),
    ],
)
def test_a_header_takes_the_place_of_the_first_of_its_name(block: bytes, changed: bytes) -> None:
    assert with_value(block, "A", "x") == changed
