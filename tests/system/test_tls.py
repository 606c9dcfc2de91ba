"""HTTPS as its users have it: beside HTTP or alone, with client certificates, whoever dawdles."""

from __future__ import annotations

import contextlib
import http.client
import os
import random
import socket
import ssl
import subprocess
import sys
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.ports import free_port
from tests.processes import outdated_tls, wait_until
from tests.servers.certificates import Authority, Certificate
from tests.system.stack import Stack
from tests.system.traffic import (
    PATIENCE,
    TEXT,
    Answer,
    Wire,
    get,
    poll,
    post,
    publishing,
    read_all,
    started,
)

pytestmark = [pytest.mark.system, pytest.mark.slow, pytest.mark.timeout(120)]

VANISHINGS = int(os.environ.get("SOAK_VANISHINGS", "60")) // 3
BIG = 500_000
READ = 8192


@dataclass(frozen=True)
class Served:
    """A router with HTTP on the stack's port and HTTPS on another."""

    stack: Stack
    port: int
    authority: Authority

    def context(self, client: Certificate | None = None) -> ssl.SSLContext:
        """Return what a client needs that trusts the authority, and may show who it is."""
        context = ssl.create_default_context(cafile=str(self.authority.ca))
        if client is not None:
            context.load_cert_chain(client.cert, client.key)
        return context

    def wire(self, receive_buffer: int = 0) -> SecureWire:
        """Return a TLS connection."""
        return SecureWire(self, receive_buffer)

    def ask(
        self, method: str, path: str, body: bytes = b"", client: Certificate | None = None
    ) -> Answer:
        """Send one request over HTTPS and return its answer."""
        context = self.context(client)
        asking = http.client.HTTPSConnection(
            "127.0.0.1", self.port, timeout=PATIENCE, context=context
        )
        with contextlib.closing(asking):
            asking.request(method, path, body, TEXT if body else {})
            answer = asking.getresponse()
            return Answer(answer.status, dict(answer.getheaders()), answer.read())


class SecureWire(Wire):
    """A TLS connection on which a test does what HTTP clients do not."""

    def __init__(self, served: Served, receive_buffer: int) -> None:
        plain = socket.socket()
        if receive_buffer:
            plain.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive_buffer)
        plain.settimeout(PATIENCE)
        plain.connect(("127.0.0.1", served.port))
        self.socket = served.context().wrap_socket(plain, server_hostname="127.0.0.1")
        self.reader = self.socket.makefile("rb")


@pytest.fixture(scope="module", params=["llhttp", "gthread"])
def served(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Served]:
    """Both kinds of worker, each with both ports."""
    folder = tmp_path_factory.mktemp(request.param)
    authority = Authority(folder)
    pair, port = authority.issue("server"), free_port()
    flags = ["--cert", str(pair.cert), "--key", str(pair.key), "--tls-port", str(port)]
    flags += ["--client-ca", str(authority.ca), "--workers", "2"]
    with started(folder, *flags, server_worker_class=request.param, consume_idle="300ms") as stack:
        yield Served(stack, port, authority)


def test_both_ports_serve_the_same_topics(served: Served) -> None:
    assert served.ask("POST", "/events/both", b"secret").status == 200
    assert post(served.stack, "both", "open").status == 200
    assert read_all(served.stack, "both") == ["secret", "open"]
    answer = served.ask("GET", "/events/both/tls/c?from=earliest&timeout=9000")
    assert answer.json == ["secret", "open"]


def test_a_port_refuses_what_is_meant_for_the_other(served: Served) -> None:
    with socket.create_connection(("127.0.0.1", served.port), PATIENCE) as client:
        client.sendall(get("/ready"))
        with contextlib.suppress(ConnectionResetError):
            assert not client.recv(100).startswith(b"HTTP")
    mistaken = Served(served.stack, served.stack.port, served.authority)
    with pytest.raises(ssl.SSLError):
        mistaken.ask("GET", "/ready")


def test_tls_before_1_2_is_refused_and_the_port_serves_on(served: Served) -> None:
    with (
        socket.create_connection(("127.0.0.1", served.port), PATIENCE) as client,
        pytest.raises((ssl.SSLError, ConnectionResetError)),
    ):
        outdated_tls().wrap_socket(client)
    assert served.ask("GET", "/ready").status == 200


def test_plain_http_on_the_tls_port_ends_without_an_answer_and_without_a_traceback(
    served: Served,
) -> None:
    for sent in (get("/ready"), b"\r\n", b"\x16\x03\x01\x00\x00", bytes(1000)):
        with socket.create_connection(("127.0.0.1", served.port), PATIENCE) as client:
            client.sendall(sent)
            with contextlib.suppress(OSError):
                client.shutdown(socket.SHUT_WR)
                while data := client.recv(1 << 16):
                    assert not data.startswith(b"HTTP")
    assert served.ask("GET", "/ready").status == 200
    assert "Traceback" not in (served.stack.folder / "serve.log").read_text()


def test_client_certificates_are_welcome_but_only_of_our_authority(
    served: Served, tmp_path: Path
) -> None:
    assert served.ask("GET", "/ready", client=served.authority.issue("anna")).status == 200
    stranger = Authority(tmp_path / "other").issue("mallory")
    # The refusal comes after the client's side of the handshake is done (TLS 1.3).
    with pytest.raises((ssl.SSLError, ConnectionError)):
        served.ask("GET", "/ready", client=stranger)


def test_handshakes_that_never_come_hold_up_nobody(served: Served) -> None:
    address = ("127.0.0.1", served.port)
    with contextlib.ExitStack() as clients:
        for _ in range(100):
            clients.enter_context(socket.create_connection(address, PATIENCE))
        halves = [
            clients.enter_context(socket.create_connection(address, PATIENCE)) for _ in range(20)
        ]
        for half in halves:
            half.sendall(b"\x16\x03\x01\x02\x00\x01")  # a greeting that breaks off
        shaken = [clients.enter_context(served.wire()) for _ in range(50)]
        slowest = 0.0
        for number in range(20):
            began = time.monotonic()
            assert served.ask("POST", "/events/dawdle", b"%d" % number).status == 200
            slowest = max(slowest, time.monotonic() - began)
        assert slowest < 5
        assert halves[0].recv(100) == b"", "the server gives up waiting"
        shaken[-1].send(get("/ready"))
        assert shaken[-1].answer().status == 200, "a connection may rest before its first request"


def test_requests_on_one_connection_are_answered_in_turn(served: Served) -> None:
    # All in one TLS record, the first one as long as what the server reads at once: behind it, what
    # is decrypted already makes no socket readable.
    first = publishing("pipe", b"0 ".ljust(4000))
    first = publishing("pipe", b"0 ".ljust(4000 + READ - len(first), b"x"))
    assert len(first) == READ
    with served.wire() as client:
        rest = [publishing("pipe", b"%d " % number) for number in range(1, 20)]
        client.send(b"".join([first, *rest]))
        for _ in range(20):
            assert client.answer().json["count"] == 1
        client.send(get("/events/pipe/g/c?timeout=5000&from=earliest"))
        found = client.answer().json
    found += rest_of(served, "pipe/g/c")
    assert [text.partition(" ")[0] for text in found] == [str(number) for number in range(20)]


def rest_of(served: Served, path: str) -> list[str]:
    """Poll until nothing comes any more."""
    found: list[str] = []
    while messages := poll(served.stack, path, 1).json:
        found += messages
    return found


def test_a_message_published_after_a_client_was_cut_off_goes_to_the_next(served: Served) -> None:
    chance = random.Random(5)
    assert post(served.stack, "cut", "start").status == 200
    assert poll(served.stack, "cut/g/c", 5).json == ["start"]
    for number in range(10):
        client = served.wire()
        client.poll("cut/g/c", 20)
        time.sleep(chance.uniform(0, 0.05))
        if number % 2:
            client.reset()
        else:
            client.close()
        assert post(served.stack, "cut", str(number)).status == 200
        assert poll(served.stack, "cut/g/c", 10).json == [str(number)]


def test_nothing_is_lost_when_clients_vanish_as_their_answer_comes(served: Served) -> None:
    chance = random.Random(6)
    assert post(served.stack, "vanish", "start").status == 200
    assert poll(served.stack, "vanish/g/first", 5).json == ["start"]
    for number in range(VANISHINGS):
        client = served.wire()
        client.poll(f"vanish/g/c{number}", 20, "ack=next")
        time.sleep(chance.uniform(0.005, 0.03))
        with ThreadPoolExecutor(1) as publisher:
            publisher.submit(post, served.stack, "vanish", str(number))
            time.sleep(chance.uniform(0, 0.012))
            client.reset()
    # Nobody read an answer, and nobody came back to say so: it is all still there.
    assert set(rest_of(served, "vanish/g/last")) == {str(n) for n in range(VANISHINGS)}


def test_a_large_answer_comes_whole_and_again_when_it_breaks_off(served: Served) -> None:
    messages = [f"{number:03d}" + "z" * BIG for number in range(12)]
    for message in messages:
        assert served.ask("POST", "/events/large", message.encode()).status == 200
    for _ in range(2):
        client = served.wire(receive_buffer=4096)
        client.poll("large/g/c", 20)
        assert client.reader.read(10_000)
        client.reset()
    assert served.ask("GET", "/events/large/g/c?from=earliest&timeout=20000").json == messages
    assert poll(served.stack, "large/g/c").json == []


class SecureStack(Stack):
    """A router that speaks nothing but HTTPS."""

    def wait_ready(self) -> None:
        """Wait until it says where it listens, which it does when it is ready."""
        wait_until(lambda: "router listens on" in (self.folder / "serve.log").read_text(), 60)


def serial(served: Served) -> int:
    """Return the number of the certificate that a new connection is shown."""
    with served.wire() as client:
        assert isinstance(client.socket, ssl.SSLSocket)
        shown = client.socket.getpeercert()
        assert shown is not None
        return int(str(shown["serialNumber"]), 16)


def test_https_alone_renews_its_certificate_and_stops_in_spite_of_idle_clients(
    tmp_path: Path,
) -> None:
    authority = Authority(tmp_path)
    pair = authority.issue("server")
    pair.cert.write_bytes(pair.cert.read_bytes() + pair.key.read_bytes())
    stack = SecureStack(tmp_path, "--cert", str(pair.cert), server_graceful_timeout="60s")
    stack.start()
    served = Served(stack, stack.port, authority)
    try:
        said = (tmp_path / "serve.log").read_text()
        assert f"listens on https://127.0.0.1:{stack.port}\n" in said
        assert f"-d 'hello' https://127.0.0.1:{stack.port}/events" in said
        old = serial(served)
        fresh = authority.issue("fresh")
        fresh.cert.write_bytes(fresh.cert.read_bytes() + fresh.key.read_bytes())
        fresh.cert.replace(pair.cert)
        wait_until(lambda: serial(served) != old, 60)
        with served.wire() as used, served.wire():
            used.send(get("/ready"))
            assert used.answer().status == 200
            began = time.monotonic()
            assert stack.stop() == 0
        assert time.monotonic() - began < 30
    finally:
        stack.stop()


def test_serve_refuses_files_that_do_not_serve_before_anything_starts(tmp_path: Path) -> None:
    authority = Authority(tmp_path)
    one, other = authority.issue("one"), authority.issue("other")
    command = [sys.executable, "-m", "router", "serve", "--cert", str(one.cert)]
    command += ["--key", str(other.key), "--data", str(tmp_path / "data")]
    ended = subprocess.run(
        command, cwd=tmp_path, capture_output=True, text=True, timeout=30, check=False
    )
    assert ended.returncode == os.EX_CONFIG
    assert ended.stderr.startswith("Error: server.key = ")
    assert "Traceback" not in ended.stderr
    assert not (tmp_path / "data").exists()
