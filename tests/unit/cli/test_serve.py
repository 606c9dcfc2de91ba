"""What `serve` says when it is ready, and how it finds out."""

from __future__ import annotations

import socket
import sys
import threading
from pathlib import Path

import pytest

from router.cli.health import answers, scheme_of
from router.cli.serve import welcome
from router.settings import Settings, load


def settings(**flags: str) -> Settings:
    return load(None, {}, {name.replace("__", "."): value for name, value in flags.items()})


CERT = {"server__cert": "c.pem"}


@pytest.mark.parametrize(
    ("flags", "scheme", "line"),
    [
        ({}, "http", "http://127.0.0.1:3904"),
        (CERT, "https", "https://127.0.0.1:3904"),
        (
            CERT | {"server__tls_port": "3905"},
            "http",
            "http://127.0.0.1:3904 and https://127.0.0.1:3905",
        ),
    ],
)
def test_welcome_names_every_address(flags: dict[str, str], scheme: str, line: str) -> None:
    given = settings(**flags)
    assert scheme_of(given) == scheme
    said = welcome(given, "127.0.0.1")
    assert said[0] == f"Dragoman listens on {line}"
    assert f"'{scheme}://127.0.0.1:3904/events/greetings/g1/c1?" in said[-1]


def test_welcome_says_how_a_shell_finds_the_program(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    program = tmp_path / "my folder" / "bin" / "router"
    program.parent.mkdir(parents=True)
    program.write_text("#!/bin/sh\n")
    program.chmod(0o755)
    monkeypatch.setattr(sys, "argv", [str(program), "serve"])
    monkeypatch.setenv("PATH", "/usr/bin")
    assert welcome(settings(), "127.0.0.1")[-1] == f"  export PATH='{program.parent}':$PATH"
    monkeypatch.setenv("PATH", f"{program.parent}:/usr/bin")
    assert "curl" in welcome(settings(), "127.0.0.1")[-1]


def test_welcome_writes_an_ipv6_address_in_brackets() -> None:
    given = settings(**CERT, server__tls_port="3905")
    assert "http://[::1]:3904 and https://[::1]:3905" in welcome(given, "::1")[0]


def test_welcome_names_the_addresses_of_all_listeners() -> None:
    said = "\n".join(
        welcome(settings(broker__nats="h:4222", broker__nats_tls="h:4223"), "127.0.0.1")
    )
    assert "  NATS clients: nats://h:4222\n  NATS clients over TLS: tls://h:4223\n" in said
    said = "\n".join(welcome(settings(broker__kafka="h:9092"), "127.0.0.1"))
    assert "bootstrap.servers=h:9092" in said
    assert "NATS" not in said


def test_welcome_names_what_the_nodes_share_but_no_password() -> None:
    given = settings(
        backend__url="kafka://anna:hunter2@k1:9092", zookeeper__servers="zk:2181/router"
    )
    said = "\n".join(welcome(given, "127.0.0.1"))
    assert "backend kafka://anna:***@k1:9092," in said
    assert "ZooKeeper at zk:2181/router" in said


def answering(listener: socket.socket, answer: bytes) -> threading.Thread:
    """Answer one connection with these bytes."""

    def serve() -> None:
        client, _ = listener.accept()
        with client:
            client.recv(1000)
            client.sendall(answer)

    thread = threading.Thread(target=serve)
    thread.start()
    return thread


@pytest.mark.parametrize(
    ("answer", "secure", "ready"),
    [
        (b"HTTP/1.1 200 OK\r\n\r\n", False, True),
        (b"HTTP/1.1 503 No\r\n\r\n", False, False),
        (b"", False, False),
        (b"HTTP/1.1 200 OK\r\n\r\n", True, False),
    ],
)
def test_answers_believes_only_a_200_in_the_right_protocol(
    answer: bytes, secure: bool, ready: bool
) -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        thread = answering(listener, answer)
        assert answers(listener.getsockname(), secure) is ready
        thread.join(10)


def test_answers_is_no_where_nobody_listens(free_port: int) -> None:
    assert not answers(("127.0.0.1", free_port), False)
    assert not answers(("127.0.0.1", free_port), True)


def test_what_to_try_needs_a_topic_where_none_is_created() -> None:
    said = welcome(settings(backend__url="pulsar://h:6650/?admin=none"), "127.0.0.1")
    assert "Try it with a topic that exists:" in said
    assert "Try it:" in welcome(settings(backend__url="pulsar://h:6650"), "127.0.0.1")
