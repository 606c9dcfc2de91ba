"""HTTP to a router elsewhere: failures in words, repeats, and what never leaves."""

from __future__ import annotations

import ssl
from collections.abc import Iterator
from contextlib import suppress
from http.server import BaseHTTPRequestHandler

import pytest

from router.cli.contexts import Context
from router.cli.http_client import PIECE_BYTES, HttpClient, HttpRequest, SilenceError, _pieces
from router.cli.status import status_of
from router.errors import BackendUnavailableError, OverloadedError, RouterError, SettingError
from tests.ports import free_port
from tests.unit.cli.servers import Handler, answer, hang_up, scripted

BUSY = answer(503, '{"message":"Busy."}', Retry_After="7")


class Clock:
    """Time that passes only while the client sleeps."""

    def __init__(self) -> None:
        self.now = 0.0
        self.slept: list[float] = []

    def __call__(self) -> float:
        return self.now

    def sleep(self, seconds: float) -> None:
        self.slept.append(seconds)
        self.now += seconds


def client(url: str, clock: Clock, **context: str) -> HttpClient:
    return HttpClient(Context(url, **context), sleep=clock.sleep, clock=clock)


@pytest.mark.parametrize(
    ("handler", "sentence", "status"),
    [
        (answer(401, '{"message":"Who?"}'), "Who? (No credentials were sent", 77),
        (answer(403, '{"detail":"No right."}'), "No right. (HTTP 403)", 77),
        (answer(404, '{"errorMessage":"None."}'), "None. (HTTP 404)", 66),
        (answer(409, '{"reason":"Is there."}'), "Is there. (HTTP 409)", 1),
        (answer(413, '{"message":"Too large."}'), "Too large. (HTTP 413)", 65),
        (
            answer(429, '{"message":"Slowly."}', Retry_After="60"),
            "(HTTP 429, try again in 60 s)",
            75,
        ),
        (
            answer(503, '{"message":"Busy."}', Retry_After="60"),
            "(HTTP 503, try again in 60 s)",
            75,
        ),
        (answer(500, "<html>"), "not in a router's words. (HTTP 500)", 1),
        (answer(302, Location="http://evil.example/"), "redirects to http://evil.example/", 1),
        (answer(400, '{"message":"\\u001b[31mred\\n"}'), " [31mred ", 1),
        (hang_up, "cannot be reached", 69),
    ],
)
def test_a_refusal_is_a_sentence_with_its_status(
    handler: Handler, sentence: str, status: int
) -> None:
    with scripted(handler) as (url, seen), pytest.raises(RouterError) as raised:
        client(url, Clock()).ask(HttpRequest("GET", "/topics"))
    assert sentence in str(raised.value)
    assert status_of(raised.value) == status
    assert len(seen) == 1


def test_a_busy_server_is_asked_again_when_it_says() -> None:
    clock = Clock()
    with scripted(BUSY, BUSY, answer(200, "{}")) as (url, seen):
        assert client(url, clock).ask(HttpRequest("GET", "/")).data == b"{}"
    assert (len(seen), clock.slept) == (3, [7.0, 7.0])


def test_a_server_that_stays_busy_is_given_up() -> None:
    clock = Clock()
    with scripted(BUSY) as (url, _), pytest.raises(OverloadedError):
        client(url, clock).ask(HttpRequest("GET", "/"))
    assert clock.now <= 30


def test_a_server_that_went_away_is_asked_again_and_one_that_never_was_is_not() -> None:
    clock = Clock()
    with scripted(answer(200), hang_up, hang_up, answer(200, "back")) as (url, _):
        there = client(url, clock)
        there.ask(HttpRequest("GET", "/"))
        assert there.ask(HttpRequest("GET", "/")).data == b"back"
    absent = client(f"http://127.0.0.1:{free_port()}", clock)
    slept = len(clock.slept)
    with pytest.raises(BackendUnavailableError, match="cannot be reached"):
        absent.ask(HttpRequest("GET", "/"))
    assert len(clock.slept) == slept


@pytest.mark.parametrize("second", [hang_up, answer(504, '{"message":"Unknown."}')])
def test_what_may_be_done_already_is_not_repeated(second: Handler) -> None:
    with scripted(answer(200), second) as (url, seen):
        there = client(url, Clock())
        there.ask(HttpRequest("GET", "/"))
        with pytest.raises(RouterError):
            there.ask(HttpRequest("DELETE", "/topics/t", safe=False))
    assert len(seen) == 2


def test_credentials_go_to_the_server_alone() -> None:
    with scripted(answer(200)) as (other, strangers):
        with scripted(answer(307, Location=f"{other}/")) as (url, seen):
            there = client(url, Clock(), user="anna", password="s3cret")
            with pytest.raises(RouterError, match="credentials are not sent elsewhere"):
                there.ask(HttpRequest("GET", "/"))
        assert seen[0].headers["Authorization"].startswith("Basic ")
        assert strangers == []


def test_a_token_that_would_break_a_header_is_refused() -> None:
    there = client("http://127.0.0.1:1", Clock(), token="a\r\nX: y")
    with pytest.raises(SettingError, match="no token has"):
        there.ask(HttpRequest("GET", "/"))


def test_a_server_that_does_not_answer_in_time_is_a_sentence() -> None:
    released = []

    def slow(request: BaseHTTPRequestHandler) -> None:
        released.append(request.rfile.read(1))  # until the client leaves

    with scripted(slow) as (url, _):
        there = HttpClient(Context(url), deadline=0.05)
        with pytest.raises(BackendUnavailableError, match="does not answer in time"):
            there.ask(HttpRequest("GET", "/"))
        there.close()


def test_an_answer_that_never_ends_is_given_up() -> None:
    def drip(request: BaseHTTPRequestHandler) -> None:
        request.send_response(200)
        request.send_header("Content-Length", "1000000000")
        request.end_headers()
        with suppress(OSError):
            while True:
                request.wfile.write(b"x" * PIECE_BYTES)

    with scripted(drip) as (url, _):
        there = HttpClient(Context(url), deadline=0.05)
        with pytest.raises(BackendUnavailableError, match="does not answer in time"):
            there.ask(HttpRequest("GET", "/"))
        there.close()


def test_a_large_body_is_sent_in_pieces_with_its_length() -> None:
    body = bytes(range(256)) * 1000
    taken: list[bytes] = []

    def take(request: BaseHTTPRequestHandler) -> None:
        assert request.headers["Transfer-Encoding"] is None
        taken.append(request.headers["Content-Length"].encode())
        answer(200)(request)

    with scripted(take) as (url, _):
        client(url, Clock()).ask(HttpRequest("POST", "/", body=body))
    assert taken == [b"256000"]
    pieces = _pieces(body)
    assert b"".join(pieces) == body
    assert max(map(len, pieces)) == PIECE_BYTES


def test_plain_http_where_tls_is_expected_is_a_sentence() -> None:
    with scripted(answer(200)) as (url, _):
        there = client(url.replace("http:", "https:"), Clock())
        with pytest.raises(BackendUnavailableError, match="TLS: "):
            there.ask(HttpRequest("GET", "/"))


def test_a_file_of_authorities_that_is_none_is_a_sentence() -> None:
    with pytest.raises(SettingError, match="no certificates can be read"):
        client("https://127.0.0.1:1", Clock(), ca="/dev/null/none")
    assert ssl.create_default_context().check_hostname


def test_a_silent_stream_says_so_after_what_it_brought() -> None:
    def some(request: BaseHTTPRequestHandler) -> None:
        request.send_response(200)
        request.end_headers()
        request.wfile.write(b"first")
        request.rfile.read(1)

    def pieces(url: str) -> Iterator[bytes]:
        there = HttpClient(Context(url))
        with there.stream(HttpRequest("GET", "/"), 0.05) as found:
            yield from found

    with scripted(some) as (url, _):
        found = pieces(url)
        assert next(found) == b"first"
        with pytest.raises(SilenceError):
            next(found)
