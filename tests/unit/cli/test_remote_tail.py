"""Tails of a router elsewhere: where they go on, and when they give up."""

from __future__ import annotations

from http.server import BaseHTTPRequestHandler

import pytest
from hypothesis import given
from hypothesis import strategies as st

from router.backends import Start
from router.cli.connection import Tail
from router.cli.contexts import Context
from router.cli.http_client import HttpClient
from router.cli.remote_tail import RESUME_SECONDS, RemoteTail, ServerSentEvent, events
from router.errors import BackendUnavailableError, OverloadedError, TopicNotFoundError
from tests.ports import free_port
from tests.unit.cli.servers import Handler, answer, hang_up, scripted
from tests.unit.cli.test_http_client import Clock


def stream(text: str) -> Handler:
    """Return what answers with events, and closes the connection."""

    def handle(request: BaseHTTPRequestHandler) -> None:
        request.send_response(200)
        request.send_header("Content-Type", "text/event-stream")
        request.send_header("Connection", "close")
        request.end_headers()
        request.wfile.write(text.encode())
        request.close_connection = True

    return handle


def tail(url: str, clock: Clock) -> RemoteTail:
    client = HttpClient(Context(url), clock=clock, sleep=clock.sleep)
    silent = Tail(Start.EARLIEST, None)
    return RemoteTail(client, "/events/t", silent, lambda _: None, clock, clock.sleep)


ONE = 'id: @earliest\n\nid: 1.1\ndata: {"value":"a"}\n\n'


def test_a_tail_goes_on_behind_what_it_had_while_the_server_is_away_or_busy() -> None:
    busy = answer(503, '{"message":"Busy."}', Retry_After="7")
    ended = stream('event: error\ndata: {"errorMessage":"the broker is away"}\n\n')
    script = (busy, stream(ONE), hang_up, busy, ended, stream('id: 1.2\ndata: {"value":"b"}\n\n'))
    clock = Clock()
    with scripted(*script) as (url, seen):
        found = (one for batch in tail(url, clock).batches() for one in batch)
        assert [next(found).message.value, next(found).message.value] == [b"a", b"b"]
    assert clock.slept == [7.0, 0.5, 7.0, 0.5]
    assert [request.headers["Last-Event-ID"] for request in seen] == [None, None, *["1.1"] * 4]


def test_a_tail_gives_up_after_a_while() -> None:
    busy = answer(503, '{"message":"Busy."}', Retry_After="7")
    clock = Clock()
    with scripted(busy) as (url, _), pytest.raises(OverloadedError):
        list(tail(url, clock).batches())
    assert clock.now <= RESUME_SECONDS


def test_a_tail_of_a_server_that_never_was_or_a_topic_that_is_none_ends_at_once() -> None:
    clock = Clock()
    with pytest.raises(BackendUnavailableError):
        list(tail(f"http://127.0.0.1:{free_port()}", clock).batches())
    with (
        scripted(answer(404, '{"message":"None."}')) as (url, _),
        pytest.raises(TopicNotFoundError),
    ):
        list(tail(url, clock).batches())
    assert clock.slept == []


texts = st.text("ab: \u00e9", min_size=1, max_size=6)


@given(
    sent=st.lists(st.tuples(texts.filter(str.strip), texts), max_size=4),
    end=st.sampled_from(["\n", "\r\n", "\r"]),
    step=st.integers(1, 7),
)
def test_events_are_found_in_any_pieces(sent: list[tuple[str, str]], end: str, step: int) -> None:
    text = "".join(f"id:{place}{end}data: {data}{end}{end}" for place, data in sent)
    raw = text.encode() + b"\n"
    pieces = [raw[at : at + step] for at in range(0, len(raw), step)]
    found = [ServerSentEvent(data.encode(), place.removeprefix(" ")) for place, data in sent]
    assert list(events(pieces)) == found
