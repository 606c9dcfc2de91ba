"""Media types and the choice of an answer's format."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from router.errors import BadReadOptionError, NotAcceptableError
from router.web.media import Format, answer_format, media_type


@pytest.mark.parametrize(
    "header",
    ["application/json", "Application/JSON", "application/json; charset=UTF-8",
     " application/json;charset=utf-8;x=y", "application/json ; a=b"],
)  # fmt: skip
def test_media_type_is_read_without_case_and_parameters(header: str) -> None:
    assert media_type(header) == "application/json"


@pytest.mark.parametrize(
    ("accept", "expected"),
    [
        (None, Format.JSON),
        ("", Format.JSON),
        ("*/*", Format.JSON),
        ("application/cambria", Format.CAMBRIA),
        ("Application/X-NDJSON", Format.NDJSON),
        ("text/plain", Format.TEXT),
        ("text/*", Format.TEXT),
        ("application/*", Format.JSON),
        ("application/json;q=0.1, text/plain;q=0.2", Format.TEXT),
        ("application/json;q=0.2, text/plain;q=0.2", Format.JSON),
        ("text/plain, application/json", Format.TEXT),
        ("application/*;q=0.9, application/json;q=0, */*;q=0.1", Format.NDJSON),
        ("text/html, application/xhtml+xml, application/xml;q=0.9, */*;q=0.8", Format.JSON),
        # java.net.HttpURLConnection
        ("text/html, image/gif, image/jpeg, *; q=.2, */*; q=.2", Format.JSON),
        ("image/png, , application/cambria;v=1;q=1.000", Format.CAMBRIA),
        ('application/json;x="a, \\"b;q=9"; q=0.1, application/cambria', Format.CAMBRIA),
    ],
)
def test_accept_chooses_the_format(accept: str | None, expected: Format) -> None:
    assert answer_format(accept, None) is expected


@pytest.mark.parametrize("accept", [None, "*/*", "application/*"])
def test_content_type_chooses_where_accept_leaves_it_open(accept: str | None) -> None:
    assert answer_format(accept, "application/cambria; x=y") is Format.CAMBRIA


def test_accept_wins_over_content_type() -> None:
    assert answer_format("application/json", "application/cambria") is Format.JSON


def test_content_type_that_is_no_format_is_ignored() -> None:
    assert answer_format(None, "application/x-www-form-urlencoded") is Format.JSON


@pytest.mark.parametrize(
    "accept", ["image/png", "*/*;q=0", "text/html;q=1", "application/json;q=0"]
)
def test_accept_of_nothing_that_is_written_is_refused(accept: str) -> None:
    with pytest.raises(NotAcceptableError):
        answer_format(accept, None)


@given(accept=st.text('*/;,=q. 01ajson"\\', max_size=40))
def test_any_accept_gives_a_format_or_is_refused(accept: str) -> None:
    try:
        chosen = answer_format(accept, None)
    except (BadReadOptionError, NotAcceptableError):
        assert accept.strip(", ")
    else:
        assert chosen in Format
