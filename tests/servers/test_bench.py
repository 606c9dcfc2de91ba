"""The program in Go of the benchmarks: its bridge to Kafka, and its load generator."""

from __future__ import annotations

import base64
import http.client
import json
import secrets
from collections.abc import Iterator

import pytest

from bench.load import request, run_go
from bench.servers import Server, bridge
from tests.servers.kafka import Kafka

pytestmark = [pytest.mark.java, pytest.mark.timeout(120)]

SECONDS = 20.0
STORED = len(b'{"partition":0,"offset":0}')


@pytest.fixture
def server(kafka: Kafka) -> Iterator[Server]:
    with bridge(kafka.address) as server:
        yield server


@pytest.fixture
def path() -> str:
    return f"/topics/bench-{secrets.token_hex(8)}/messages"


def poll(server: Server, path: str, group: str, timeout: int) -> tuple[int, bytes]:
    client = http.client.HTTPConnection("127.0.0.1", server.port, timeout=SECONDS)
    client.request("GET", f"{path}?group={group}&timeout={timeout}")
    answer = client.getresponse()
    body = answer.read()
    client.close()
    return answer.status, body


def value(answer: tuple[int, bytes]) -> bytes:
    assert answer[0] == 200, answer
    return base64.b64decode(json.loads(answer[1])["value"])


def test_bridge_hands_each_group_each_message_once(server: Server, path: str) -> None:
    posts = [request("POST", path, text) for text in (b"first", b"second")]
    assert len(run_go(server.port, [posts], SECONDS, enough=2 * STORED).latencies) == 2
    for group in (secrets.token_hex(8), secrets.token_hex(8)):
        answers = [poll(server, path, group, 10_000) for _ in posts]
        assert [value(answer) for answer in answers] == [b"first", b"second"]
        assert poll(server, path, group, 200)[0] == 408


def test_run_go_counts_errors_and_stops_when_it_has_enough(server: Server, path: str) -> None:
    posts = [request("POST", path, b"x" * 100)]
    assert len(run_go(server.port, [posts] * 2, SECONDS, enough=3 * STORED).latencies) == 6
    polls = [
        request("GET", f"{path}?group={secrets.token_hex(8)}&timeout=10000"),
        request("GET", f"{path}?group="),
    ]
    had = run_go(server.port, [polls], SECONDS, least=100, enough=600)
    assert had.bytes >= 600
    assert had.seconds < SECONDS
    assert had.errors == len(had.latencies) - 1


def test_run_go_raises_what_failed_when_nothing_was_answered(server: Server, path: str) -> None:
    with pytest.raises(RuntimeError, match="408"):
        run_go(
            server.port, [[request("GET", f"{path}?group={secrets.token_hex(8)}&timeout=1")]], 0.3
        )
