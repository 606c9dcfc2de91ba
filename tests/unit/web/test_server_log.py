"""The access log: what a line says of a request, in both forms."""

from __future__ import annotations

import re
from datetime import timedelta
from types import SimpleNamespace
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from router.web.server_log import common, fields

LINE = re.compile(r'\S+ - \S+ \[[^]"]+\] "\S+ \S+ \S+" (?:\d{3}|-) (?:\d+|-)')


def of(environ: dict[str, Any], status: str = "200 OK", sent: int | None = 7) -> dict[str, Any]:
    """Return the fields of a request that was answered after 1.5 s."""
    answer = SimpleNamespace(status=status, sent=sent, headers=[("transactionId", "t1")])
    return fields(answer, environ, timedelta(seconds=1.5))


def test_fields_tell_who_asked_for_what() -> None:
    found = of(
        {
            "REMOTE_ADDR": "192.0.2.7",
            "REQUEST_METHOD": "GET",
            "RAW_URI": "/events/t/g/c?timeout=5",
            "SERVER_PROTOCOL": "HTTP/1.1",
            "HTTP_USER_AGENT": "curl/8",
            "router.user": "anna",
        }
    )
    assert found == {
        "address": "192.0.2.7",
        "user": "anna",
        "method": "GET",
        "path": "/events/t/g/c",
        "query": "timeout=5",
        "protocol": "HTTP/1.1",
        "status": 200,
        "bytes": 7,
        "seconds": 1.5,
        "agent": "curl/8",
        "request_id": "t1",
    }
    assert common(found).startswith("192.0.2.7 - anna [")
    assert common(found).endswith('] "GET /events/t/g/c?timeout=5 HTTP/1.1" 200 7')


@given(st.dictionaries(st.sampled_from(["REMOTE_ADDR", "RAW_URI", "router.user"]), st.text()))
def test_common_line_is_one_line_whatever_clients_send(environ: dict[str, str]) -> None:
    asked = {"REQUEST_METHOD": "GET", "SERVER_PROTOCOL": "HTTP/1.1", **environ}
    assert LINE.fullmatch(common(of(asked, "-", None)))
