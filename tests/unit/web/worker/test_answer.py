"""Answers of the llhttp worker: what it says of its end is so."""

from __future__ import annotations

from ipaddress import ip_network

import pytest

from router.web.worker.bounds import ConnectionLimiter, WorkerBounds
from router.web.worker.stream import MAX_JOINED_BYTES, ResponseStream


class Wire:
    """A connection that keeps what is written."""

    def __init__(self) -> None:
        self.sent: list[bytes] = []

    def write(self, data: bytes) -> None:
        self.sent.append(data)


def answered(
    *pieces: bytes,
    method: str = "GET",
    status: str = "200 OK",
    version: tuple[int, int] = (1, 1),
    **headers: str,
) -> tuple[bytes, bytes, bool]:
    """Return head and body of an answer, and whether it is the last one."""
    wire = Wire()
    answer = ResponseStream(wire, method, version, closing=False)  # type: ignore[arg-type]
    named = [(name.replace("_", "-"), value) for name, value in headers.items()]
    answer.start_response(status, named)
    for piece in pieces:
        answer.write(piece)
    answer.end()
    head, _, body = b"".join(wire.sent).partition(b"\r\n\r\n")
    return head, body, answer.closing


def test_answer_leaves_in_one_piece_when_it_is_short() -> None:
    wire = Wire()
    answer = ResponseStream(wire, "GET", (1, 1), closing=False)  # type: ignore[arg-type]
    answer.start_response("200 OK", [("Content-Length", "2")])
    answer.write(b"{}")
    answer.end()
    assert len(wire.sent) == 1


def test_answer_without_a_length_is_chunked() -> None:
    long = bytes(MAX_JOINED_BYTES + 1)
    head, body, closing = answered(b"ab", b"", long)
    assert b"Transfer-Encoding: chunked" in head
    assert body == b"2\r\nab\r\n%x\r\n%s\r\n0\r\n\r\n" % (len(long), long)
    assert not closing


def test_answer_without_a_length_ends_an_old_connection() -> None:
    head, body, closing = answered(b"ab", version=(1, 0))
    assert b"Connection: close" in head
    assert (body, closing) == (b"ab", True)


def test_answer_that_is_shorter_than_it_says_is_the_last() -> None:
    assert answered(b"ab", Content_Length="3")[1:] == (b"ab", True)


def test_answer_that_is_longer_than_it_says_is_cut() -> None:
    assert answered(b"ab", b"cd", Content_Length="3")[1:] == (b"abc", False)


@pytest.mark.parametrize("status", ["204 No Content", "304 Not Modified"])
def test_answer_has_no_body_when(status: str) -> None:
    head, body, closing = answered(b"ab", status=status)
    assert b"chunked" not in head
    assert (body, closing) == (b"", False)


def test_answer_to_head_keeps_its_length() -> None:
    head, body, closing = answered(b"", method="HEAD", Content_Length="7")
    assert b"Content-Length: 7" in head
    assert (body, closing) == (b"", False)


@pytest.mark.parametrize(
    ("name", "value"), [("X", "a\r\nSet-Cookie: b"), ("X", "a\0"), ("X\r\n", "a"), ("X y", "a")]
)
def test_answer_takes_no_header_that_splits_it(name: str, value: str) -> None:
    answer = ResponseStream(Wire(), "GET", (1, 1), closing=False)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="is none"):
        answer.start_response("200 OK", [(name, value)])


def test_answer_says_of_its_connection_what_is_so() -> None:
    head = answered(b"", Connection="keep-alive, x", Transfer_Encoding="gzip")[0]
    assert head.lower().count(b"connection:") == 1
    assert b"gzip" not in head


def test_crowd_counts_each_address_but_for_trusted_proxies() -> None:
    crowd = ConnectionLimiter(WorkerBounds(per_address=2, proxies=(ip_network("192.0.2.0/24"),)))
    stranger, proxy = ("198.51.100.1", 1), ("192.0.2.1", 1)
    seats = [crowd.enter(stranger) for _ in range(3)]
    assert seats == ["198.51.100.1", "198.51.100.1", None]
    assert None not in [crowd.enter(proxy) for _ in range(9)]
    assert crowd.enter("") == ""
    crowd.leave("198.51.100.1")
    assert crowd.enter(stranger) is not None
