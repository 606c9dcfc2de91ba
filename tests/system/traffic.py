"""HTTP clients and commands for the fault tests: each request on a connection of its own."""

from __future__ import annotations

import contextlib
import http.client
import json
import os
import resource
import socket
import struct
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.system.stack import Stack

PATIENCE = 40.0
TEXT = {"Content-Type": "text/plain"}


@dataclass(frozen=True)
class Answer:
    """What a request was answered with."""

    status: int
    headers: dict[str, str]
    body: bytes

    @property
    def json(self) -> Any:
        """The body, which is JSON."""
        return json.loads(self.body)


def ask(
    stack: Stack, method: str, path: str, body: bytes = b"", headers: dict[str, str] | None = None
) -> Answer:
    """Send one request and return its answer."""
    client = http.client.HTTPConnection("127.0.0.1", stack.port, timeout=PATIENCE)
    with contextlib.closing(client):
        client.request(method, path, body, headers or {})
        with client.getresponse() as answer:
            found = {name.lower(): value for name, value in answer.getheaders()}
            return Answer(answer.status, found, answer.read())


def post(stack: Stack, topic: str, text: str, query: str = "", **headers: str) -> Answer:
    """Publish the lines of a text."""
    named = {name.replace("_", "-"): value for name, value in headers.items()}
    return ask(stack, "POST", f"/events/{topic}?{query}", text.encode(), TEXT | named)


def poll(stack: Stack, path: str, timeout: float = 0.0, query: str = "from=earliest") -> Answer:
    """Poll topic/group/id for so many seconds."""
    return ask(stack, "GET", f"/events/{path}?timeout={round(timeout * 1000)}&{query}")


def waiting(stack: Stack) -> float:
    """Return how many polls wait, over all workers."""
    lines = ask(stack, "GET", "/metrics").body.decode().splitlines()
    return sum(float(line.split()[-1]) for line in lines if line.startswith("router_polls_waiting"))


def allow_files(needed: int) -> None:
    """Have this process, and those that it starts from now on, open so many files if they may."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft < needed:
        resource.setrlimit(resource.RLIMIT_NOFILE, (min(needed, hard), hard))


def create(stack: Stack, topic: str, partitions: int) -> None:
    """Make a partitioned topic."""
    body = json.dumps({"topicName": topic, "partitionCount": partitions}).encode()
    kind = {"Content-Type": "application/json"}
    assert ask(stack, "POST", "/topics/create", body, kind).status == 200


def read_all(stack: Stack, topic: str, group: str = "audit", count: int = 0) -> list[str]:
    """Return everything that a topic holds, through a group of its own.

    So many messages are to come, which may take long where another server has them.
    """
    found: list[str] = []
    while True:
        answer = poll(stack, f"{topic}/{group}/audit", PATIENCE / 2 if len(found) < count else 1.0)
        assert answer.status == 200, answer.body
        if not answer.json:
            return found
        found += answer.json


def accepted(stack: Stack, topic: str, text: str) -> bool:
    """Publish, and take a refusal or a broken connection as a no."""
    with contextlib.suppress(OSError, http.client.HTTPException):
        return post(stack, topic, text).status == 200
    return False


def until_accepted(stack: Stack, topic: str, text: str, seconds: float) -> None:
    """Publish until it works; fail when it does not within so many seconds."""
    until = time.monotonic() + seconds
    while not accepted(stack, topic, text):
        assert time.monotonic() < until, "publishing does not work again"
        time.sleep(0.1)


@contextlib.contextmanager
def started(folder: Path, *flags: str, **settings: str) -> Iterator[Stack]:
    """Run the product while the block lasts; empty polls are not rationed."""
    stack = Stack(folder, *flags, **{"consume_empty_polls_per_minute": "0"} | settings)
    try:
        stack.start()
        yield stack
    finally:
        stack.stop()


def router(folder: Path, *arguments: str, text: str = "") -> subprocess.CompletedProcess[str]:
    """Run a command on the folder's data, to its end."""
    return subprocess.run(
        [sys.executable, "-m", "router", *arguments, "--data", str(folder / "data")],
        cwd=folder,
        input=text,
        env=os.environ | {"ROUTER_BROKER_LINGER": "300ms", "ROUTER_SERVER_PORT": "0"},
        capture_output=True,
        text=True,
        timeout=PATIENCE,
        check=False,
    )


class Load(threading.Thread):
    """Publishes numbered messages one after another and keeps every answer."""

    def __init__(self, stack: Stack, topic: str, name: str, size: int = 0) -> None:
        super().__init__(daemon=True)
        self.stack, self.topic, self.label, self.size = stack, topic, name, size
        self.stopping = threading.Event()
        self.acknowledged: list[str] = []
        self.refused: list[Answer] = []
        self.slowest = 0.0

    def run(self) -> None:
        """Publish until told to stop; no message is sent twice."""
        number = 0
        while not self.stopping.is_set():
            message = f"{self.label}:{number}:{'x' * self.size}"
            began = time.monotonic()
            try:
                answer = post(self.stack, self.topic, message, f"partitionKey={self.label}")
            except (OSError, http.client.HTTPException):
                time.sleep(0.02)
            else:
                if answer.status == 200:
                    self.acknowledged.append(message)
                else:
                    self.refused.append(answer)
                    time.sleep(0.02)
            self.slowest = max(self.slowest, time.monotonic() - began)
            number += 1

    def end(self) -> None:
        """Stop, and wait for the last answer."""
        self.stopping.set()
        self.join(PATIENCE + 20)
        assert not self.is_alive(), "a request was never answered"


@contextlib.contextmanager
def loaded(stack: Stack, topic: str, publishers: int = 4, size: int = 0) -> Iterator[list[Load]]:
    """Publish to a topic while the block lasts."""
    loads = [Load(stack, topic, f"p{number}", size) for number in range(publishers)]
    for load in loads:
        load.start()
    try:
        yield loads
    finally:
        for load in loads:
            load.stopping.set()
        for load in loads:
            load.end()


def expect_kept(loads: list[Load], stored: list[str]) -> None:
    """Whatever was acknowledged is stored once, in order, and nothing else is stored twice."""
    assert len(stored) == len(set(stored)), "stored twice"
    assert sum(len(load.acknowledged) for load in loads) > 0, "no load"
    places = {message: place for place, message in enumerate(stored)}
    for load in loads:
        lost = [message for message in load.acknowledged if message not in places]
        assert not lost, f"acknowledged and lost: {[m[:40] for m in lost[:5]]}, {len(lost)} in all"
        order = [places[message] for message in load.acknowledged]
        assert order == sorted(order), f"{load.label}: reordered"


class Wire:
    """A connection on which a test does what HTTP clients do not."""

    def __init__(self, stack: Stack, receive_buffer: int = 0) -> None:
        self.socket = socket.socket()
        if receive_buffer:
            self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive_buffer)
        self.socket.settimeout(PATIENCE)
        self.socket.connect(("127.0.0.1", stack.port))
        self.reader = self.socket.makefile("rb")

    def __enter__(self) -> Wire:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def send(self, data: bytes) -> None:
        """Send these bytes."""
        self.socket.sendall(data)

    def poll(self, path: str, timeout: float, query: str = "from=earliest") -> None:
        """Send a poll of topic/group/id that waits so many seconds."""
        self.send(get(f"/events/{path}?timeout={round(timeout * 1000)}&{query}"))

    def answer(self) -> Answer:
        """Read one answer."""
        status = self.reader.readline().split()
        if not status:
            raise ConnectionResetError("the connection ended instead of an answer")
        headers = {}
        while line := self.reader.readline().strip().decode():
            name, _, value = line.partition(":")
            headers[name.lower()] = value.strip()
        size = int(headers.get("content-length", "0"))
        body = self.reader.read(size)
        if len(body) < size:
            raise ConnectionResetError("the connection ended within an answer")
        return Answer(int(status[1]), headers, body)

    def close(self) -> None:
        """Go away as clients do."""
        self.reader.close()
        self.socket.close()

    def reset(self) -> None:
        """Go away as a machine does that lost its power, but told."""
        self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self.close()


def get(path: str) -> bytes:
    """Return a GET request as bytes."""
    return f"GET {path} HTTP/1.1\r\nHost: localhost\r\n\r\n".encode()


def publishing(topic: str, body: bytes) -> bytes:
    """Return a POST request as bytes."""
    head = f"POST /events/{topic} HTTP/1.1\r\nHost: localhost\r\nContent-Type: text/plain\r\n"
    return f"{head}Content-Length: {len(body)}\r\n\r\n".encode() + body
