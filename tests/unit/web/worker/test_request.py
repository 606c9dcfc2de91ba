"""Heads and bodies of requests: what two readers could take for two things is refused."""

from __future__ import annotations

import io
import random
import socket
import tracemalloc
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from typing import Any

import pytest
from gunicorn.config import Config
from gunicorn.http.errors import (
    ChunkMissingTerminator,
    InvalidChunkExtension,
    InvalidChunkSize,
    InvalidHeader,
    NoMoreData,
    ParseException,
)
from gunicorn.http.parser import RequestParser
from hypothesis import given
from hypothesis import strategies as st

from router.web.thread_worker import check
from router.web.worker import bounds, request
from router.web.worker.chunked import ChunkedBody
from router.web.worker.request import KnownHeads, RequestRefusedError
from router.web.worker.stream import BufferedSocket, RequestBody
from tests.http import corpus
from tests.http.mutating import mutated

MUTATIONS = 200
CHUNK_ERRORS = (ChunkMissingTerminator, InvalidChunkExtension, InvalidChunkSize, InvalidHeader)
CONFIG = Config()
CONFIG.set("forwarded_allow_ips", "")


class Bytes:
    """A socket on which these bytes come, so many at a time, and then the end."""

    def __init__(self, data: bytes, step: int = 1 << 20) -> None:
        self._data = io.BytesIO(data)
        self._step = step
        self.asked = 0

    def gettimeout(self) -> None:
        return None

    def settimeout(self, seconds: float | None) -> None:
        del seconds  # all that is to come is there

    def recv(self, size: int) -> bytes:
        self.asked += 1
        return self._data.read(min(size, self._step))


Request = tuple[str, str, tuple[int, int], list[tuple[str, str]], bytes, bytes]


def ours(data: bytes, step: int = 1 << 20) -> Request | None:
    """Return the first request as our worker reads it, and what is behind it; None: refused."""
    wire = BufferedSocket(Bytes(data, step))
    seen = 0
    try:
        if not wire.more():
            return None
        while not (end := request.head_end(wire.buffer, seen)):
            seen = len(wire.buffer)
            if not wire.more():
                return None
        raw, wire.buffer = wire.buffer[:end], wire.buffer[end:]
        found = request.read_head(raw)
        framing = request.add_to_environ({}, found)
        body: RequestBody = (
            ChunkedBody(wire, 60, None)
            if framing.length is None
            else RequestBody(wire, framing.length, 60, None)
        )
        content = body.read()
        if body.unread:
            return None
    except (RequestRefusedError, ConnectionError, *CHUNK_ERRORS):
        return None
    while wire.more():
        pass
    fields = [(n.decode().upper(), v.decode("latin-1").strip(" \t")) for n, v in found.fields]
    fields = [(name, value) for name, value in fields if "_" not in name]
    return found.method, found.target, found.version, fields, content, wire.buffer


def theirs(data: bytes) -> Request | None:
    """Return the same as gunicorn reads it."""
    parser = RequestParser(CONFIG, iter([data]), ("192.0.2.1", 1))
    try:
        found = next(parser)
        check(found)
        content = found.body.read()
        if getattr(found.body.reader, "length", 0):
            return None
    except (ParseException, NoMoreData, StopIteration):
        return None
    behind = parser.unreader.take_buffered()
    return found.method, found.uri, found.version, found.headers, content, behind


# A request of HTTP/1.0 without a length is refused by the application.
@pytest.mark.parametrize("name", sorted(corpus.HEADS.keys() - {"no-length-http-1.0"}))
def test_a_head_is_refused_when(name: str) -> None:
    assert ours(corpus.HEADS[name] + corpus.SECOND) is None


def test_a_head_is_refused_when_an_attribute_of_an_event_is_there_twice() -> None:
    fields = b"ce-id: 1\r\nx-id: 1\r\nX-Id: 2\r\n"
    for read in (ours, theirs):
        assert read(corpus.post(fields)) is not None
        assert read(corpus.post(fields + b"CE-ID: 1\r\n")) is None


@pytest.mark.parametrize("name", corpus.CHUNKS)
def test_chunks_are_refused_when(name: str) -> None:
    assert ours(corpus.CHUNKS[name] + corpus.SECOND) is None


@pytest.mark.parametrize("name", corpus.FINE)
def test_a_request_is_read_as_gunicorn_reads_it_when(name: str) -> None:
    data = corpus.FINE[name][1] + corpus.SECOND
    assert ours(data) == theirs(data) is not None


VECTORS = {
    **corpus.HEADS,
    **corpus.CHUNKS,
    **{name: data for name, (_, data) in corpus.SIZES.items() if len(data) < 20_000},
    **{f"fine-{name}": data for name, (_, data) in corpus.FINE.items()},
}


@pytest.mark.slow
@pytest.mark.parametrize("name", VECTORS)
def test_whatever_is_taken_is_what_gunicorn_takes_when_damaged(name: str) -> None:
    """Ours may refuse more; where both take a request, they take the same one."""
    chance = random.Random(name)
    for _ in range(MUTATIONS):
        data = mutated(chance, VECTORS[name]) + corpus.SECOND
        mine = ours(data)
        if mine is not None:
            assert mine == theirs(data), data


@given(name=st.sampled_from(sorted(corpus.FINE)), step=st.integers(1, 40))
def test_a_request_is_read_the_same_in_any_pieces(name: str, step: int) -> None:
    data = corpus.FINE[name][1] + corpus.SECOND
    assert ours(data, step) == ours(data)


@pytest.mark.parametrize("name", sorted(corpus.SIZES.keys() - {"cl-large"}))
def test_a_head_over_a_bound_has_its_status(name: str) -> None:
    status, data = corpus.SIZES[name]
    with pytest.raises(RequestRefusedError) as refused:
        request.read_head(data[: request.head_end(data, 0)])
    assert refused.value.status == status


def test_a_head_is_refused_as_soon_as_it_is_too_long() -> None:
    data = b"GET / HTTP/1.1\r\n" + b"X: y\r\n" * 20_000
    with pytest.raises(RequestRefusedError) as refused:
        request.head_end(data[: bounds.MAX_HEAD_BYTES + 1], bounds.MAX_HEAD_BYTES)
    assert refused.value.status == 431


@pytest.mark.parametrize(
    ("target", "parts"),
    [
        ("/a/b?c=d", ("/a/b", "c=d")),
        ("/a?b?c", ("/a", "b?c")),
        ("/a#b?c", ("/a", "")),
        ("//a/b", ("//a/b", "")),
        ("http://t:1/a?b", ("/a", "b")),
        ("http://t", ("", "")),
        ("*", ("*", "")),
    ],
)
def test_path_and_query_are_taken_as_sent(target: str, parts: tuple[str, str]) -> None:
    assert request.split_target(target) == parts


def judged(data: bytes, heads: KnownHeads | None = None) -> object:
    """Return what a head says, or why it is refused."""
    try:
        if heads is None:
            return request.parse(data)
        return (heads.get(("a", data)) or heads.learn(("a", data))).request
    except RequestRefusedError as refusal:
        return refusal.status, refusal.sentence


@pytest.mark.parametrize("name", VECTORS)
def test_a_head_that_came_before_is_judged_as_one_that_is_new(name: str) -> None:
    chance = random.Random(name)
    for _ in range(10):
        raw = mutated(chance, VECTORS[name]).partition(b"\r\n\r\n")[0] + b"\r\n\r\n"
        heads = KnownHeads()
        first, again = judged(raw, heads), judged(bytes(bytearray(raw)), heads)
        assert first == again == judged(raw)


def fields_of(number: int, count: int, length: int) -> bytes:
    """Return so many fields whose names no other head has."""
    return b"".join(b"%x-%x:%s\r\n" % (place, number, b"v" * length) for place in range(count))


def memory_of_heads(count: int, length: int) -> tuple[int, int, bool]:
    """Return what a full table of 1 MiB takes in memory, how many heads it has, if the last too."""
    request.MAX_CACHED_BYTES = 1 << 20  # type: ignore[misc] # of a process for this alone
    heads, keys = KnownHeads(), list[tuple[str, bytes]]()
    tracemalloc.start()
    begun = tracemalloc.get_traced_memory()[0]
    for number in range(1_000):
        line = b"GET /%d HTTP/1.1\r\nHost: localhost\r\n" % number
        key = "10.0.0.1 - 80", line + fields_of(number, count, length) + b"\r\n"
        assert len(key[1]) <= request.MAX_CACHED_HEAD_BYTES
        heads.learn(key)
        keys = [*keys[-10:], key]
    taken = tracemalloc.get_traced_memory()[0] - begun
    return taken, len(heads._table), all(heads.get(key) is not None for key in keys)


@pytest.mark.slow
@pytest.mark.no_cover
def test_heads_take_no_more_memory_than_their_bound() -> None:
    # Here, what other tests left running would be counted as well.
    with ProcessPoolExecutor(1, get_context("spawn"), max_tasks_per_child=1) as processes:
        for count, length in ((0, 0), (10, 60), (97, 1), (1, 1_800)):
            measured = processes.submit(memory_of_heads, count, length)
            taken, known, has_last = measured.result(240)
            # What is prepared for a head is not here, but counted.
            assert taken < 1 << 20
            assert taken + request._CACHED_HEAD_BYTES * known > (1 << 20) * 0.7
            assert has_last


@given(line=st.binary(max_size=60), more=st.binary(max_size=9))
def test_what_is_shown_of_a_refused_head_is_printable(line: bytes, more: bytes) -> None:
    shown = request.line_environ(line + b" HTTP/1.1\r\n" + more)
    assert all(text.isascii() and text.isprintable() for text in shown.values())


def test_what_is_shown_of_a_refused_head_is_its_request_line() -> None:
    line = {"REQUEST_METHOD": "GET", "RAW_URI": "/a?b", "SERVER_PROTOCOL": "HTTP/1.1"}
    nothing = dict.fromkeys(line, "-")
    assert request.line_environ(b"\r\nGET /a?b HTTP/1.1\r\n") == line
    assert request.line_environ(b"GET /a?b HTTP/1.1\r\nHost") == line
    assert request.line_environ(b"GET /%s HTTP/1.1\r\n" % (b"a" * bounds.MAX_LINE_BYTES)) == nothing
    assert request.line_environ(b"GET /a?b") == nothing


def test_a_body_is_never_read_beyond_its_end() -> None:
    client = Bytes(b"abcdef")
    wire = BufferedSocket(client)
    body = RequestBody(wire, 3, 60, None)
    assert body.read() == b"abc"
    assert body.read() == b""
    assert wire.more()
    assert wire.buffer == b"def"


@pytest.mark.parametrize("kind", ["length", "chunks"])
@pytest.mark.parametrize("patience", [None, 60.0])
def test_a_client_that_falls_silent_has_the_time_of_its_body(
    kind: str, patience: float | None
) -> None:
    ours, theirs = socket.socketpair()
    with ours, theirs:
        ours.settimeout(patience)
        theirs.sendall(b"abc" if kind == "length" else b"5\r\nab")
        read: RequestBody = (
            RequestBody(BufferedSocket(ours), 10, 0.1, None)
            if kind == "length"
            else ChunkedBody(BufferedSocket(ours), 0.1, None)
        )
        with pytest.raises(TimeoutError):
            read.read()
        assert read.failed
        assert ours.gettimeout() == patience


def test_a_client_is_told_to_go_on_only_when_its_body_is_waited_for() -> None:
    told: list[int] = []

    def body(sent: bytes, ahead: bytes) -> RequestBody:
        wire = BufferedSocket(Bytes(sent))
        wire.buffer = ahead
        return RequestBody(wire, 3, 60, lambda: told.append(1))

    assert body(b"", b"abc").read() == b"abc"
    assert not told
    waiting = body(b"abc", b"")
    assert waiting.waited_for
    assert waiting.read() == b"abc"
    assert told == [1]
    assert not waiting.waited_for


@pytest.mark.parametrize("read", [RequestBody.read, b"".join])
def test_lines_and_reads_give_the_same(read: Callable[[Any], bytes]) -> None:
    text = b"a\nbc\n\nd"
    assert read(RequestBody(BufferedSocket(Bytes(text + b"more", 3)), len(text), 60, None)) == text


def test_a_body_that_takes_too_long_is_given_up() -> None:
    body = RequestBody(BufferedSocket(Bytes(b"ab", 1)), 3, 0, None)
    with pytest.raises(TimeoutError):
        body.read()
    assert body.failed
    assert not body.drain(100)


def test_head_without_its_environment_is_read_again_and_counts_as_before() -> None:
    heads = KnownHeads()
    known = heads.learn(("a", b"GET /events/t/g/c HTTP/1.1\r\nHost: h\r\n\r\n"))
    request, counted = known.whole(), known.cached_bytes
    known.drop_environ()
    assert not known.request.environ
    assert known.whole() == request
    assert known.cached_bytes == counted
