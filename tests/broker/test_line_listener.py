"""A second listener beside Pulsar's: what it does not write itself is the transport's."""

from __future__ import annotations

import os
import socket
import ssl
from collections.abc import Iterator
from pathlib import Path

import pulsar
import pytest

from tests.broker.guarded import cli
from tests.broker.line_broker import LineDecoder, encode
from tests.ports import free_port
from tests.processes import BrokerProcess, wait_until
from tests.servers.certificates import Authority

DEADLINE = 20.0
CONNECTIONS = 20
PERMISSIONS = "anna  orders*  publish, subscribe\nreader  orders*  subscribe\n"


class LineClient:
    """A client of words."""

    def __init__(self, port: int, context: ssl.SSLContext | None = None) -> None:
        self._socket = socket.create_connection(("127.0.0.1", port), DEADLINE)
        if context is not None:
            self._socket = context.wrap_socket(self._socket, server_hostname="localhost")
        self._decoder = LineDecoder()
        self._frames: list[str] = []

    def say(self, *frames: str) -> None:
        self._socket.sendall(b"".join(map(encode, frames)))

    def send_bytes(self, data: bytes) -> None:
        self._socket.sendall(data)

    def read(self) -> str:
        """Return the next frame, empty: the broker closed the connection."""
        while not self._frames:
            try:
                data = self._socket.recv(1 << 16)
            except ConnectionResetError:
                data = b""
            if not data:
                return ""
            self._frames += self._decoder.receive(data)
        return self._frames.pop(0)

    def ask(self, frame: str) -> str:
        self.say(frame)
        return self.read()

    def closed(self) -> bool:
        """Read to the end of the connection."""
        while self.read():
            pass
        return True

    def close(self) -> None:
        self._socket.close()


class LineBroker(BrokerProcess):
    """A broker with both listeners, which asks its clients who they are."""

    arguments = ("tests.broker.line_broker", "--stay")

    def __init__(self, folder: Path, **settings: str) -> None:
        folder.mkdir()
        self._clients: list[LineClient] = []
        self.line, self.tls = free_port(), free_port()
        self.authority = Authority(folder / "tls")
        pair = self.authority.issue("server")
        self.secret = folder / "token.key"
        cli("token", "key", "--secret-file", str(self.secret))
        (folder / "permissions").write_text(PERMISSIONS)
        super().__init__(
            folder / "data",
            free_port(),
            broker_line=f"127.0.0.1:{self.line}",
            broker_line_tls=f"127.0.0.1:{self.tls}",
            broker_cert=str(pair.cert),
            broker_key=str(pair.key),
            broker_connections=str(CONNECTIONS),
            auth_token_secret_file=str(self.secret),
            auth_permissions=str(folder / "permissions"),
            **settings,
        )
        self._environ["PYTHONPATH"] = str(Path(__file__).parents[2])

    def token(self, role: str, ttl: str = "1h") -> str:
        key = ("--secret-file", str(self.secret))
        return cli("token", "create", "--role", role, "--ttl", ttl, *key)

    def stranger(self, *, secure: bool = False) -> LineClient:
        """Return a client that has said nothing; it is closed after the test."""
        context = ssl.create_default_context(cafile=str(self.authority.ca)) if secure else None
        self._clients.append(LineClient(self.tls if secure else self.line, context))
        return self._clients[-1]

    def hang_up(self) -> None:
        """Close all clients."""
        for client in self._clients:
            client.close()
        self._clients.clear()

    def client(self, role: str, ttl: str = "1h", *, secure: bool = False) -> LineClient:
        made = self.stranger(secure=secure)
        assert made.ask(f"AUTH {self.token(role, ttl)}") == "OK"
        return made

    def log(self) -> str:
        return (self.folder / "broker.log").read_text()


@pytest.fixture
def broker(shared: LineBroker) -> Iterator[LineBroker]:
    yield shared
    shared.hang_up()


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LineBroker]:
    process = LineBroker(tmp_path_factory.mktemp("line") / "broker")
    process.start()
    yield process
    process.stop()


@pytest.mark.parametrize("secure", [False, True])
def test_messages_of_one_protocol_are_read_by_the_other(broker: LineBroker, secure: bool) -> None:
    topic = f"orders-{secure}"
    client = broker.client("anna", secure=secure)
    assert [client.ask(f"PUB {topic} {n}") for n in range(3)] == [f"STORED {n}" for n in range(3)]
    authentication = pulsar.AuthenticationToken(broker.token("anna"))
    with_token = pulsar.Client(broker.url, authentication)
    producer = with_token.create_producer(topic)
    producer.send(b"of Pulsar")
    reader = with_token.create_reader(topic, pulsar.MessageId.earliest)
    read = [reader.read_next(10_000).data() for _ in range(4)]
    with_token.close()
    assert read == [b"0", b"1", b"2", b"of Pulsar"]
    client.say(f"GET {topic}")
    assert [client.read() for _ in range(4)] == ["MSG 0", "MSG 1", "MSG 2", "MSG of Pulsar"]
    client.close()


def test_client_is_authenticated_and_authorized_by_the_same_tokens(broker: LineBroker) -> None:
    stranger = broker.stranger()
    assert stranger.ask("AUTH nonsense").startswith("ERROR unauthenticated")
    assert stranger.closed()
    hasty = broker.stranger()
    assert hasty.ask("PUB orders v") == ""
    reader = broker.client("reader")
    assert reader.ask("PUB orders v").startswith("ERROR forbidden")
    assert reader.ask("PING") == "PONG"


def test_token_that_ends_is_renewed_or_ends_the_connection(broker: LineBroker) -> None:
    client = broker.client("anna", "5s")
    assert client.read() == "RENEW"
    client.say(f"AUTH {broker.token('anna')}")
    assert client.ask("PING") == "PONG"
    client.say(f"AUTH {broker.token('reader')}")  # unasked, and ignored
    assert client.ask("PING") == "PONG"
    client.close()
    other = broker.client("anna", "5s")
    assert other.read() == "RENEW"
    assert other.ask(f"AUTH {broker.token('reader')}").startswith("ERROR unauthenticated")
    assert other.closed()


def test_client_that_does_not_read_is_not_sent_more_than_fits(broker: LineBroker) -> None:
    """What waits for it stays on disk; the others go on."""
    writer, slow = broker.client("anna"), broker.client("anna")
    value = "x" * 500_000
    for n in range(60):
        assert writer.ask(f"PUB orders-slow {value}") == f"STORED {n}"
    before = memory_of(broker)
    slow.say("GET orders-slow")
    other = broker.client("anna")
    other.say("GET orders-slow")
    assert [len(other.read()) for _ in range(60)] == [500_004] * 60
    assert memory_of(broker) - before < 60 * len(value)
    assert [len(slow.read()) for _ in range(60)] == [500_004] * 60


def test_silent_client_is_pinged_then_closed(tmp_path: Path) -> None:
    broker = LineBroker(tmp_path / "pinging", broker_ping="3s")
    broker.start()
    client = broker.client("anna")
    assert client.read() == "PING"
    client.say("PONG")
    assert client.read() == "PING"
    assert client.read() == ""
    broker.hang_up()
    broker.stop()


def test_frame_that_breaks_the_protocol_closes_its_connection_only(broker: LineBroker) -> None:
    broken, other = broker.client("anna"), broker.client("anna")
    broken.send_bytes(b"nonsense:")
    assert broken.closed()
    assert other.ask("PING") == "PONG"


def test_connections_of_both_protocols_have_one_limit(broker: LineBroker) -> None:
    clients = [broker.client("anna") for _ in range(CONNECTIONS)]
    refused = broker.url.rpartition(":")[2]
    with socket.create_connection(("127.0.0.1", int(refused)), DEADLINE) as connection:
        try:
            assert connection.recv(1) == b""
        except ConnectionResetError:
            pass
    clients.pop().close()
    wait_until(lambda: '"event": "too-many-connections"' in broker.log())
    assert all(client.ask("PING") == "PONG" for client in clients)


def memory_of(broker: LineBroker) -> int:
    """Return the resident memory of the broker in bytes."""
    pages = Path(f"/proc/{broker.pid}/statm").read_text().split()[1]
    return int(pages) * os.sysconf("SC_PAGE_SIZE")


def test_what_was_sent_is_answered_before_the_broker_ends(tmp_path: Path) -> None:
    broker = LineBroker(tmp_path / "ending")
    broker.start()
    client = broker.client("anna")
    client.say(*(f"PUB orders {n}" for n in range(200)))
    assert client.read() == "STORED 0"
    assert broker.stop() == os.EX_OK
    answered = 1
    while client.read():
        answered += 1
    broker.start()
    again = broker.client("anna")
    again.say("GET orders")
    assert [again.read() for _ in range(answered)] == [f"MSG {n}" for n in range(answered)]
    assert answered == 200
    broker.hang_up()
    broker.stop()
