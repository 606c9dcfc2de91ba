"""Server-sent events over real connections, with each kind of worker."""

from __future__ import annotations

import socket
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import orjson
import pytest
import requests

from tests.system.stack import Stack
from tests.unit.web.pulsar_rest.events import Event, parse

PATIENCE = 30.0

pytestmark = [pytest.mark.system, pytest.mark.slow, pytest.mark.timeout(120)]


@pytest.fixture(scope="module", params=["llhttp", "gthread"])
def stack(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Stack]:
    """The router with one worker, one stream at a time, and little patience for slow readers."""
    stack = Stack(
        tmp_path_factory.mktemp("stack"),
        backend_url="memory",
        server_worker_class=request.param,
        stream_connections="1",
        stream_write_timeout="5s",
        stream_heartbeat="200ms",
    )
    stack.start()
    yield stack
    stack.stop()


@pytest.fixture
def topic(stack: Stack, request: pytest.FixtureRequest) -> str:
    """The address of a new topic."""
    name = request.node.originalname
    made = requests.post(f"{stack.url}/topics/create", json={"topicName": name}, timeout=PATIENCE)
    assert made.status_code == 200, made.text
    return f"{stack.url}/topics/public/default/{name}"


def produce(topic: str, *values: str) -> None:
    body = {"messages": [{"value": value} for value in values]}
    assert requests.post(topic, json=body, timeout=PATIENCE).status_code == 200


def opened(topic: str, **headers: str) -> requests.Response:
    """Open a stream; the worker may take a moment to notice that the last one is over."""
    end = time.monotonic() + PATIENCE
    while True:
        url = f"{topic}/partitions/0/messages?stream"
        answer = requests.get(url, headers=headers, stream=True, timeout=PATIENCE)
        if answer.status_code == 200:
            return answer
        assert answer.status_code == 429, answer.text
        assert time.monotonic() < end
        time.sleep(0.05)


def reading_slowly(stack: Stack, topic: str, buffer: int = 4096) -> socket.socket:
    """Open a stream as `opened` does, and read its first line only, with little room for more."""
    path = topic.removeprefix(stack.url)
    end = time.monotonic() + PATIENCE
    while True:
        slow = socket.create_connection(("127.0.0.1", stack.port), PATIENCE)
        slow.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, buffer)
        slow.sendall(
            f"GET {path}/partitions/0/messages?stream HTTP/1.1\r\nHost: localhost\r\n\r\n".encode()
        )
        line = slow.recv(15)
        if line == b"HTTP/1.1 200 OK":
            return slow
        slow.close()
        assert line == b"HTTP/1.1 429 TO"
        assert time.monotonic() < end
        time.sleep(0.05)


class Reading:
    """The events of a stream, as they come."""

    def __init__(self, answer: requests.Response) -> None:
        self._pieces = answer.iter_content(None)
        self._found = b""

    def events(self, count: int) -> list[Event]:
        """Return all events so far, once there are so many."""
        while len(parse(self._found)[0]) < count:
            self._found += next(self._pieces)
        return parse(self._found)[0]


def values(found: list[Event]) -> list[Any]:
    return [event.data["value"] for event in found]  # type: ignore[index] # JSON


def test_events_come_as_they_are_published_and_go_on_later(topic: str) -> None:
    with opened(topic) as answer:
        reading = Reading(answer)
        produce(topic, "a", "b")
        first = reading.events(2)
        produce(topic, "c")
        assert values(reading.events(3)) == ["a", "b", "c"]
    with opened(topic, **{"Last-Event-ID": first[0].id}) as again:
        assert values(Reading(again).events(2)) == ["b", "c"]


def test_client_that_leaves_makes_room_for_another(topic: str) -> None:
    for _ in range(3):
        opened(topic).close()
    produce(topic, "a")
    with opened(topic) as answer:
        assert values(Reading(answer).events(1)) == ["a"]


def test_reader_that_takes_nothing_is_cut_off(stack: Stack, topic: str) -> None:
    for _ in range(12):
        produce(topic, *("x" * 500_000 for _ in range(4)))
    with reading_slowly(stack, topic):
        opened(topic).close()


def test_reader_that_is_slow_gets_all(stack: Stack, topic: str) -> None:
    sent = [f"{number}-{'x' * 2000}" for number in range(2_000)]
    for begin in range(0, len(sent), 500):
        produce(topic, *sent[begin : begin + 500])
    found: list[Any] = []
    with reading_slowly(stack, topic, 128 * 1024) as slow:
        rest = b""
        while len(found) < len(sent):
            time.sleep(0.005)  # the router waits meanwhile, with more than the connection holds
            part = slow.recv(64 * 1024)
            assert part
            *lines, rest = (rest + part).split(b"\n")
            found += [orjson.loads(line[6:])["value"] for line in lines if line[:6] == b"data: "]
    assert found == sent


def test_stop_ends_streams_whole_and_at_once(stack: Stack, topic: str) -> None:
    produce(topic, "a")
    with opened(topic) as answer:
        pieces = answer.iter_content(None)
        found = next(pieces)
        assert stack.process is not None
        began = time.monotonic()
        stack.process.terminate()
        # A body that broke off would be an error here.
        found += b"".join(pieces)
        assert values(parse(found)[0]) == ["a"]
    assert stack.process.wait(PATIENCE) == 0
    assert time.monotonic() - began < 10


def test_nothing_went_wrong_unseen(stack: Stack) -> None:
    log = Path(stack.folder / "serve.log").read_text()
    assert "Dragoman listens" in log
    assert "request failed" not in log
    assert "Traceback" not in log
