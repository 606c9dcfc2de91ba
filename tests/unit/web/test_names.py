"""Names in paths."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any
from urllib.parse import quote, unquote

import pytest
from hypothesis import given
from hypothesis import strategies as st

from router.errors import BadNameError
from router.model import CONSUMER_NAME, NAME, TopicName
from router.web.requests import RawPaths, consumer_name, decode, topic_names

topic = topic_names("public", "default", 249)
characters = st.characters(exclude_categories=["Cs"])


@given(text=st.text(characters))
def test_decode_undoes_quoting(text: str) -> None:
    assert decode(quote(text, safe="")) == text


@given(segment=st.text(st.sampled_from("%0123456789abcdefFX"), max_size=9))
def test_decode_reads_escapes_or_refuses(segment: str) -> None:
    try:
        name = decode(segment)
    except BadNameError:
        assert "%" in segment
    else:
        assert unquote(segment, errors="strict") == name


@given(name=st.from_regex(NAME, fullmatch=True).filter(lambda n: n not in {".", ".."}))
def test_topic_takes_allowed_names_however_they_are_escaped(name: str) -> None:
    escaped = "".join(f"%{ord(c):02x}" for c in name)
    assert topic(name) == topic(escaped) == TopicName("public", "default", name)


@pytest.mark.parametrize(
    "segment", ["", ".", "..", "a/b", "a%2Fb", "t/n/x", "persistent:%2F%2Ft%2Fn%2Fx", "é", "%C3%A9",
                "a%00", "%", "%4", "%FF", "a b", "a+b", "x" * 250]
)  # fmt: skip
def test_topic_refuses_other_names(segment: str) -> None:
    with pytest.raises(BadNameError):
        topic(segment)


def test_topic_may_be_bounded_as_in_the_guide() -> None:
    short = topic_names("public", "default", 40)
    assert short("x" * 40).local == "x" * 40
    with pytest.raises(BadNameError, match="40"):
        short("x" * 41)


@given(name=st.from_regex(CONSUMER_NAME, fullmatch=True).filter(lambda n: n not in {".", ".."}))
def test_groups_and_ids_take_a_few_more_characters(name: str) -> None:
    assert consumer_name(quote(name, safe=""), "group") == name


@pytest.mark.parametrize("segment", ["", ".", "a%2Fb", "a b", "%zz", "x" * 250])
def test_groups_and_ids_refuse_others(segment: str) -> None:
    with pytest.raises(BadNameError):
        consumer_name(segment, "group")


@pytest.mark.parametrize(
    ("raw", "path"),
    [
        ("/events/a%2Fb?x=%zz", "/events/a%2Fb"),
        ("http://host:1/events/%C3%A9", "/events/%C3%A9"),
        ("/%65vents/%74", "/events/t"),
        ("/mount/events/%2F#f", "/events/%2F"),
        ("/events/plain", "as the server says"),
    ],
)
def test_path_reaches_the_application_as_it_was_sent(raw: str, path: str) -> None:
    seen = []

    def application(environ: dict[str, Any], _start: Any) -> Iterable[bytes]:
        seen.append(environ["PATH_INFO"])
        return []

    mounted = "/mount" if raw.startswith("/mount") else ""
    environ = {"RAW_URI": raw, "PATH_INFO": "as the server says", "SCRIPT_NAME": mounted}
    RawPaths(application)(environ, lambda *_: lambda _data: None)
    assert seen == [path]
