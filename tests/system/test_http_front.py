"""The HTTP front under its real server, over the memory backend."""

from __future__ import annotations

import gzip
import json
import os
import socket
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pytest
import requests

from tests.system.stack import Stack
from tests.unit.web.applications import BOTH, HASHES

pytestmark = [pytest.mark.system, pytest.mark.timeout(180)]
PATIENCE = 20.0
SOON = 5.0


@pytest.fixture
def stacks(tmp_path: Path) -> Iterator[Callable[..., Stack]]:
    made: list[Stack] = []

    def make(**settings: str) -> Stack:
        made.append(Stack(tmp_path, "--backend", "memory", **settings))
        made[-1].start()
        return made[-1]

    yield make
    for stack in made:
        stack.stop()


KINDS = ["llhttp", "gthread"]


@pytest.fixture(scope="module")
def running(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Callable[[str], Stack]]:
    """Give the router with one kind of worker, started once for all tests of the module."""
    made: dict[str, Stack] = {}

    def find(kind: str) -> Stack:
        if kind not in made:
            folder = tmp_path_factory.mktemp(kind)
            made[kind] = Stack(folder, "--backend", "memory", server_worker_class=kind)
            made[kind].start()
        return made[kind]

    yield find
    for stack in made.values():
        stack.stop()


def emptied(stack: Stack) -> Iterator[Stack]:
    """Give a router that has no topics, and leave it so."""
    yield stack
    for topic in requests.get(f"{stack.url}/topics", timeout=PATIENCE).json()["topics"]:
        path = quote(topic, safe="")
        assert requests.delete(f"{stack.url}/topics/{path}", timeout=PATIENCE).status_code == 200


@pytest.fixture(params=KINDS)
def stack(running: Callable[[str], Stack], request: pytest.FixtureRequest) -> Iterator[Stack]:
    """The router with each kind of worker, without topics."""
    yield from emptied(running(request.param))


@pytest.fixture
def llhttp(running: Callable[[str], Stack]) -> Iterator[Stack]:
    """The router with the worker that runs requests in greenlets, without topics."""
    yield from emptied(running("llhttp"))


def publish(stack: Stack, body: bytes = b"x", **more: Any) -> requests.Response:
    headers = {"Content-Type": "text/plain"} | more.pop("headers", {})
    return requests.post(f"{stack.url}/events/t", body, headers=headers, timeout=PATIENCE, **more)


def poll(stack: Stack, timeout: float = 0, **more: Any) -> Any:
    query = f"timeout={round(timeout * 1000)}&from=earliest"
    url = f"{stack.url}/events/t/g/c?{query}"
    answer = requests.get(url, timeout=PATIENCE, **more)
    assert answer.status_code == 200, answer.text
    return answer.json()


class Raw:
    """A connection on which the test writes the bytes itself."""

    def __init__(self, stack: Stack) -> None:
        self.socket = socket.create_connection(("127.0.0.1", stack.port), PATIENCE)
        self.reader = self.socket.makefile("rb")

    def send(self, *lines: str, body: bytes = b"") -> None:
        """Send a request head and what follows it."""
        self.socket.sendall("".join(f"{line}\r\n" for line in (*lines, "")).encode() + body)

    def answer(self) -> tuple[int, dict[str, str], bytes]:
        """Read one answer."""
        status = int(self.reader.readline().split()[1])
        headers = {}
        while line := self.reader.readline().strip().decode():
            name, _, value = line.partition(":")
            headers[name.lower()] = value.strip()
        return status, headers, self.reader.read(int(headers["content-length"]))

    def ended(self) -> bool:
        """Return whether the server closed the connection."""
        return self.reader.read(1) == b""

    def close(self) -> None:
        """Go away."""
        self.reader.close()
        self.socket.close()


@pytest.fixture
def connect() -> Iterator[Callable[[Stack], Raw]]:
    made: list[Raw] = []

    def make(stack: Stack) -> Raw:
        made.append(Raw(stack))
        return made[-1]

    yield make
    for raw in made:
        raw.close()


Connect = Callable[[Stack], Raw]
POST = ("POST /events/t HTTP/1.1", "Host: localhost", "Content-Type: text/plain")
POLL = ("GET /events/t/g/c?timeout=20000&from=earliest HTTP/1.1", "Host: localhost")


def waiting(stack: Stack) -> float:
    lines = requests.get(f"{stack.url}/metrics", timeout=PATIENCE).text.splitlines()
    return float(next(line for line in lines if line.startswith("router_polls_waiting")).split()[1])


def until_waiting(stack: Stack, polls: int) -> None:
    end = time.monotonic() + PATIENCE
    while waiting(stack) != polls:
        assert time.monotonic() < end, "the polls do not wait"
        time.sleep(0.01)


def test_waiting_poll_is_answered_by_what_is_published_and_not_by_the_end_of_its_time(
    stack: Stack,
) -> None:
    publish(stack)
    poll(stack)
    with ThreadPoolExecutor() as pool:
        for turn in range(5):
            answer = pool.submit(poll, stack, 2 * PATIENCE)
            until_waiting(stack, 1)
            publish(stack, b"%d" % turn)
            assert answer.result(PATIENCE) == [str(turn)]


def test_client_that_goes_away_while_its_poll_waits_loses_nothing(
    stack: Stack, connect: Connect
) -> None:
    publish(stack)
    poll(stack)
    for _ in range(3):
        leaver = connect(stack)
        leaver.send(*POLL)
        until_waiting(stack, 1)
        leaver.close()
        until_waiting(stack, 0)
    publish(stack, b"a\nb")
    # The claim of the id is free, and what came since is all there.
    assert poll(stack) == ["a", "b"]


def test_client_that_goes_away_just_before_a_message_loses_nothing(
    llhttp: Stack, connect: Connect
) -> None:
    publish(llhttp)
    poll(llhttp)
    for turn in range(30):
        leaver = connect(llhttp)
        leaver.send(*POLL)
        until_waiting(llhttp, 1)
        leaver.close()
        publish(llhttp, b"%d" % turn)
        assert poll(llhttp, SOON) == [str(turn)]


@pytest.mark.parametrize("kind", KINDS)
def test_stop_answers_waiting_polls(stacks: Callable[..., Stack], kind: str) -> None:
    stack = stacks(server_worker_class=kind, server_graceful_timeout="50s")
    publish(stack)
    poll(stack)
    with ThreadPoolExecutor() as pool:
        answer = pool.submit(poll, stack, 2 * PATIENCE)
        until_waiting(stack, 1)
        begin = time.monotonic()
        assert stack.stop() == 0
        assert answer.result(PATIENCE) == []
    assert time.monotonic() - begin < 40


def test_chunked_bodies_are_read(stack: Stack, connect: Connect) -> None:
    raw = connect(stack)
    raw.send(*POST, "Transfer-Encoding: chunked", body=b"2\r\na\n\r\n3;x=y\r\nb\nc\r\n0\r\n\r\n")
    status, _, body = raw.answer()
    assert (status, json.loads(body)["count"]) == (200, 3)
    assert poll(stack) == ["a", "b", "c"]


def refused(raw: Raw, expected: int) -> None:
    status, headers, body = raw.answer()
    assert (status, headers["content-type"]) == (expected, "application/json")
    told = json.loads(body)
    assert set(told) == BOTH
    assert told["status"] == expected
    assert headers["transactionid"] == told["transactionid"]


def test_malformed_chunks_are_refused_and_the_connection_ends(
    stack: Stack, connect: Connect
) -> None:
    raw = connect(stack)
    raw.send(*POST, "Transfer-Encoding: chunked", body=b"2\r\na\n\r\nnonsense\r\n")
    refused(raw, 400)
    assert raw.ended()
    assert requests.get(f"{stack.url}/topics", timeout=PATIENCE).json() == {"topics": []}


@pytest.mark.parametrize(
    "declared",
    [("Content-Length: 100",), ("Transfer-Encoding: chunked",)],
    ids=["length", "chunks"],
)
def test_body_that_breaks_off_is_not_published(
    stack: Stack, connect: Connect, declared: tuple[str]
) -> None:
    raw = connect(stack)
    raw.send(*POST, *declared, body=b"5\r\na\nb")
    raw.socket.shutdown(socket.SHUT_WR)
    refused(raw, 400)
    assert requests.get(f"{stack.url}/topics", timeout=PATIENCE).json() == {"topics": []}


@pytest.mark.parametrize(
    ("lines", "status"),
    [
        (("GET /topics HTTP/1.1", "Host: localhost", "no header"), 400),
        (("NONSENSE",), 400),
        (("GET /topics HTTP/1.1", "Host: localhost", "X: " + "y" * 9_000), 431),
    ],
)
def test_requests_that_cannot_be_read_are_refused_in_json(
    llhttp: Stack, connect: Connect, lines: tuple[str, ...], status: int
) -> None:
    raw = connect(llhttp)
    raw.send(*lines)
    refused(raw, status)
    assert raw.ended()


@pytest.mark.parametrize("kind", KINDS)
def test_body_over_the_limit_is_refused_and_the_connection_goes_on(
    stacks: Callable[..., Stack], connect: Connect, kind: str
) -> None:
    raw = connect(stacks(publish_max_batch="1000", server_worker_class=kind))
    for declared, body in (
        ("Content-Length: 5000", b"x" * 5000),
        ("Transfer-Encoding: chunked", b"1388\r\n" + b"x" * 5000 + b"\r\n0\r\n\r\n"),
    ):
        raw.send(*POST, declared, body=body)
        refused(raw, 413)
    raw.send(*POST, "Content-Length: 1", body=b"x")
    assert raw.answer()[0] == 200


@pytest.mark.parametrize(
    ("path", "status"),
    [("a%2Fb", 400), ("%zz", 400), ("%ff", 400), ("%E9", 400), ("..", 400), ("%2e%2e", 400),
     ("%74", 200), ("a\xe9", 400)],
)  # fmt: skip
def test_names_are_taken_from_the_path_as_it_was_sent(
    llhttp: Stack, connect: Connect, path: str, status: int
) -> None:
    raw = connect(llhttp)
    raw.send(f"POST /events/{path} HTTP/1.1", *POST[1:], "Content-Length: 1", body=b"x")
    assert raw.answer()[0] == status


def test_head_consumes_nothing(llhttp: Stack) -> None:
    publish(llhttp)
    url = f"{llhttp.url}/events/t/g/c?from=earliest"
    assert requests.head(url, timeout=PATIENCE).status_code == 200
    assert poll(llhttp) == ["x"]


def test_large_compressed_bodies_are_read_whole(llhttp: Stack) -> None:
    one = json.dumps({"text": os.urandom(495_000).hex()}).encode()
    body = gzip.compress(b"[" + b",".join([one] * 30) + b"]", 1)
    headers = {"Content-Type": "application/json", "Content-Encoding": "gzip"}
    assert publish(llhttp, body, headers=headers).json()["count"] == 30
    seen = 0
    while some := poll(llhttp):
        assert all(text.encode() == one for text in some)
        seen += len(some)
    assert seen == 30


def test_passwords_are_checked_off_the_event_loop(
    stacks: Callable[..., Stack], tmp_path: Path
) -> None:
    (tmp_path / "users").write_text(f"alice:{HASHES['bcrypt']}\n")
    stack = stacks(auth_users=str(tmp_path / "users"))
    with ThreadPoolExecutor(8) as pool:
        answers = list(pool.map(lambda _: publish(stack, auth=("alice", "secret")), range(16)))
    assert [answer.status_code for answer in answers] == [200] * 16
    for auth in (None, ("alice", "wrong"), ("nobody", "secret")):
        answer = publish(stack, auth=auth)
        assert (answer.status_code, answer.json()["mrErrorCode"]) == (401, 4001)


def test_many_publishers_on_one_worker_lose_nothing(stack: Stack) -> None:
    def send(sender: int) -> int:
        with requests.Session() as session:
            return sum(
                session.post(f"{stack.url}/events/t", f"{sender}.{turn}", timeout=PATIENCE).json()[
                    "count"
                ]
                for turn in range(20)
            )

    with ThreadPoolExecutor(16) as pool:
        assert sum(pool.map(send, range(16))) == 320
    seen = poll(stack)
    assert len(seen) == len(set(seen)) == 320
    for sender in range(16):
        own = [text for text in seen if text.startswith(f"{sender}.")]
        assert own == [f"{sender}.{turn}" for turn in range(20)]


@pytest.mark.parametrize("kind", KINDS)
def test_a_refusal_reaches_a_client_that_sends_on_and_closes(
    stacks: Callable[..., Stack], kind: str
) -> None:
    stack = stacks(publish_max_batch="1M", server_worker_class=kind)
    head = "POST /events/t HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n"
    head += f"Content-Length: {8 << 20}"
    for _ in range(10):
        with socket.create_connection(("127.0.0.1", stack.port), PATIENCE) as client:
            client.sendall(head.encode() + b"\r\n\r\n")
            client.recv(1, socket.MSG_PEEK)  # the answer is there before the body is sent
            client.sendall(bytes(8 << 20))
            assert client.makefile("rb").read().startswith(b"HTTP/1.1 413 ")
