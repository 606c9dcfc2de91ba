"""Java's serialised strings: what a JVM wrote, any text, and anything else as an error."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from router.migration import java
from tests.unit.migration.trees import golden

TEXTS = {
    "/strings/null": None,
    "/strings/all": "\0\1\x7f\x80\u07ff\u0800\ud7ff\ue000\uffff\U0001f680",
    "/strings/65535": "x" * 65_535,
    "/strings/65536": "x" * 65_536,
}


@pytest.mark.parametrize("path", TEXTS)
def test_string_is_what_the_jvm_wrote(path: str) -> None:
    assert java.string(golden()[path]) == TEXTS[path]


def test_string_refuses_another_object_of_the_jvm() -> None:
    with pytest.raises(ValueError, match="other than a string"):
        java.string(golden()["/strings/number"])


def test_string_refuses_half_a_character_of_the_jvm() -> None:
    with pytest.raises(UnicodeDecodeError):
        java.string(golden()["/strings/lone"])


def reference(text: str) -> bytes:
    """Encode by the words of java.io.DataInput: each UTF-16 unit alone, NUL in two bytes."""
    encoded = bytearray()
    units = text.encode("utf-16-be")
    for high, low in zip(units[::2], units[1::2], strict=True):
        unit = high << 8 | low
        if 0 < unit < 0x80:
            encoded.append(unit)
        elif unit < 0x800:
            encoded += bytes((0xC0 | unit >> 6, 0x80 | unit & 0x3F))
        else:
            encoded += bytes((0xE0 | unit >> 12, 0x80 | unit >> 6 & 0x3F, 0x80 | unit & 0x3F))
    return bytes(encoded)


@given(st.text(st.characters(exclude_categories=["Cs"])))
def test_modified_utf8_gives_any_text_back(text: str) -> None:
    assert java.modified_utf8(reference(text)) == text


@given(st.text(st.characters(exclude_categories=["Cs"]), max_size=80), st.booleans())
def test_string_gives_any_text_back_in_both_forms(text: str, long: bool) -> None:
    body = reference(text)
    size = len(body).to_bytes(8 if long else 2, "big")
    assert java.string(b"\xac\xed\x00\x05" + (b"|" if long else b"t") + size + body) == text


@given(st.binary(max_size=40))
def test_string_fails_only_as_promised_on_any_bytes(data: bytes) -> None:
    for stream in (data, b"\xac\xed\x00\x05" + data):
        try:
            found = java.string(stream)
        except ValueError:
            continue
        assert found is None or isinstance(found, str)


@given(st.integers(0, 11))
def test_string_refuses_a_stream_that_breaks_off(length: int) -> None:
    whole = b"\xac\xed\x00\x05t\x00\x05hello"
    if length:
        with pytest.raises(ValueError, match=r"\w"):
            java.string(whole[:length])
    assert java.string(whole) == "hello"
    with pytest.raises(ValueError, match="says 12"):
        java.string(whole + b"!")


def test_string_takes_plain_text_for_what_it_is() -> None:
    assert java.string(b'{"owner":"\xc3\xa9"}') == '{"owner":"\xe9"}'
    assert java.string(b"") is None
