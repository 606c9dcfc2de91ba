"""Answers of workers with gunicorn's parser: the same bytes as gunicorn's own, in fewer pieces."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
from gunicorn.config import Config
from gunicorn.http import wsgi

from router.web.worker.closing import Response
from router.web.worker.writing import SHORT


class Wire:
    """A socket that keeps what is sent."""

    def __init__(self) -> None:
        self.sent: list[bytes] = []

    def sendall(self, data: bytes) -> None:
        self.sent.append(data)

    def send(self, data: bytes) -> int:
        self.sent.append(data)
        return len(data)


def answer(kind: type, method: str, *pieces: bytes, length: int | None = None) -> list[bytes]:
    """Return what an answer of this kind sends, piece by piece."""
    wire = Wire()
    request = SimpleNamespace(
        method=method,
        version=(1, 1),
        headers=[],
        body=SimpleNamespace(failed=False, reader=None),
        should_close=lambda: False,
    )
    response = kind(request, wire, Config())
    headers = [("Content-Type", "text/plain")]
    if length is not None:
        headers.append(("Content-Length", str(length)))
    response.start_response("200 OK", headers)
    for piece in pieces:
        response.write(piece)
    response.close()
    return wire.sent


CASES = {
    "short": ("POST", (b"{}",), 2),
    "pieces": ("GET", (b"a", b"b"), 2),
    "empty": ("GET", (), 0),
    "head": ("HEAD", (b"",), 7),
    "long": ("GET", (bytes(SHORT + 1),), SHORT + 1),
    "chunked": ("GET", (b"a", b"b"), None),
    "chunked and empty": ("GET", (), None),
}


@pytest.mark.parametrize("case", CASES)
def test_response_is_what_gunicorn_would_send_when(
    case: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("gunicorn.util.http_date", lambda: "now")
    method, pieces, length = CASES[case]
    theirs = answer(wsgi.Response, method, *pieces, length=length)
    assert b"".join(answer(Response, method, *pieces, length=length)) == b"".join(theirs)


def test_response_leaves_in_one_piece_when_it_is_short() -> None:
    assert len(answer(Response, "POST", b"{}", length=2)) == 1


def test_response_is_not_copied_when_it_is_long() -> None:
    body = bytes(SHORT + 1)
    assert answer(Response, "GET", body, length=len(body))[1] is body
