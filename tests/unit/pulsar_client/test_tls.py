from __future__ import annotations

import socket
import ssl
import threading
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from router.pulsar_client.handshake import shake_hands
from router.pulsar_client.tls import TlsStream, secured
from router.wire.pulsar import pulsar_pb2 as pb
from tests.unit.pulsar_client.fake_broker import WAIT, FakeBroker, Side, T

# A key and a certificate for `localhost` of no value to anybody, good until 2126.
PEM = Path(__file__).parent / "localhost.pem"


@pytest.fixture
def far() -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(PEM)
    return context


def serve(context: ssl.SSLContext, served: list[ssl.SSLSocket]) -> socket.socket:
    """Return the near end of a connection whose far end speaks TLS in a thread."""
    near, peer = socket.socketpair()

    def work() -> None:
        try:
            served.append(context.wrap_socket(peer, server_side=True))
        except OSError:
            peer.close()

    threading.Thread(target=work, daemon=True).start()
    return near


def open_stream(context: ssl.SSLContext) -> tuple[TlsStream, ssl.SSLSocket]:
    served: list[ssl.SSLSocket] = []
    stream = secured(serve(context, served), "localhost", WAIT)
    deadline = time.monotonic() + WAIT
    while not served:
        assert time.monotonic() < deadline
        time.sleep(0.002)
    return stream, served[0]


@pytest.fixture
def trusted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SSL_CERT_FILE", str(PEM))


@pytest.mark.usefixtures("trusted")
def test_bytes_pass_in_both_directions_at_once(far: ssl.SSLContext) -> None:
    stream, peer = open_stream(far)
    sent = bytes(range(256)) * 20_000
    got = bytearray()

    def read() -> None:
        while len(got) < len(sent):
            got.extend(stream.recv(65536))

    def echo() -> None:
        left = len(sent)
        while left:
            data = peer.recv(65536)
            left -= len(data)
            peer.sendall(data)

    threads = [threading.Thread(target=read), threading.Thread(target=echo)]
    for thread in threads:
        thread.start()
    for start in range(0, len(sent), 100_000):
        stream.sendall(sent[start : start + 100_000])
    for thread in threads:
        thread.join(WAIT * 2)
    assert bytes(got) == sent
    stream.close()
    peer.close()


@pytest.mark.usefixtures("trusted")
def test_the_end_of_the_stream_is_the_end(far: ssl.SSLContext) -> None:
    stream, peer = open_stream(far)
    peer.sendall(b"last")

    def end() -> None:
        with suppress(OSError):
            peer.unwrap()

    thread = threading.Thread(target=end)
    thread.start()
    assert stream.recv(100) == b"last"
    assert stream.recv(100) == b""
    stream.close()
    thread.join(WAIT)
    peer.close()


@pytest.mark.usefixtures("trusted")
def test_a_broker_is_spoken_to_under_tls(far: ssl.SSLContext) -> None:
    stream, peer = open_stream(far)
    broker = FakeBroker()
    greet = broker.on[T.CONNECT]

    def greet_and_ping(side: Side, command: Any, payload: bytes) -> None:
        greet(side, command, payload)
        side.send(T.PING, ping=pb.CommandPing())

    broker.on[T.CONNECT] = greet_and_ping
    Side(broker, peer)
    connection = shake_hands(stream, time.monotonic() + WAIT)
    broker.wait_for(T.PONG)
    connection.close()
    assert connection.error is not None


def test_a_certificate_that_nobody_vouches_for_is_refused(far: ssl.SSLContext) -> None:
    near = serve(far, [])
    with pytest.raises(ssl.SSLError, match="verify"):
        secured(near, "localhost", WAIT)
    assert near.fileno() == -1


@pytest.mark.usefixtures("trusted")
def test_a_certificate_for_another_host_is_refused(far: ssl.SSLContext) -> None:
    with pytest.raises(ssl.SSLError, match="verify"):
        secured(serve(far, []), "example.org", WAIT)
