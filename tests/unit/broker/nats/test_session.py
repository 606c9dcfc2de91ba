"""NATS clients over a transport in memory: what the listener answers, refuses, and ends."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from structlog.testing import capture_logs

from router.broker.nats import server as nats_server
from router.broker.nats.opening import greetings, sessions
from router.broker.node.counters import NodeCounters
from router.broker.node.registry import FileRegistry
from router.broker.transport import connection, identity
from router.broker.transport.authentication import ListenerAuthorizer
from router.broker.transport.connection import ClientConnection
from router.broker.transport.context import TransportContext
from router.broker.transport.topic_rights import TopicRightsRegistry
from router.cli.user import hashed
from router.errors import BlacklistedError, ForbiddenError
from router.model import Principal
from router.settings import Settings, load
from router.wire.nats.message import NatsMessage
from tests.unit.broker.kafka.serving import KafkaTransport
from tests.unit.broker.nats.serving import DEADLINE, Serving, serving

QUIET = 'CONNECT {"verbose":false,"pedantic":false,"headers":true,"no_responders":true}'
Connect = Callable[[], "NatsClient"]


class NatsClient:
    """The other end of a connection in memory."""

    def __init__(
        self, open_session: Callable[[ClientConnection], Any], context: TransportContext
    ) -> None:
        self.transport = KafkaTransport(("127.0.0.1", 1))
        self.connection = ClientConnection(context, open_session, {}, "nats")
        self.connection.connection_made(self.transport)

    def send(self, *lines: str) -> None:
        """Send lines, each with its end."""
        self.connection.data_received("".join(f"{line}\r\n" for line in lines).encode())

    async def receive(self, last: str = "PONG") -> list[str]:
        """Return the lines that have come when a last one is there, without INFO and that one."""
        async with asyncio.timeout(DEADLINE):
            while not (shown := self.lines()) or last not in shown:
                self.transport.written.clear()
                await self.transport.written.wait()
        self.transport.writes.clear()
        return shown[: shown.index(last)]

    async def ask(self, *lines: str) -> list[str]:
        """Send lines and a PING, and return what is answered before the PONG."""
        self.send(*lines, "PING")
        return await self.receive()

    def lines(self) -> list[str]:
        """Return the lines that have come, without INFO."""
        lines = b"".join(self.transport.writes).decode().split("\r\n")[:-1]
        return [line for line in lines if not line.startswith("INFO ")]

    def is_read(self) -> bool:
        """Return whether the listener reads from the client."""
        return self.transport.reading

    @property
    def info(self) -> dict[str, Any]:
        """What INFO said."""
        first = b"".join(self.transport.writes).partition(b"\r\n")[0]
        return dict(json.loads(first.removeprefix(b"INFO ")))


@asynccontextmanager
async def listening(folder: Path, **settings: str) -> AsyncIterator[tuple[Serving, Connect]]:
    """Serve a folder with a listener in memory."""
    found = load(None, {name.upper(): text for name, text in settings.items()})
    authorizer = await _authorizer(folder, found) if found.text("auth.users") else None
    transport = TransportContext(authorizer=authorizer)
    clients: list[NatsClient] = []
    async with serving(folder, settings=found, authorizer=authorizer) as server:
        open_session = sessions(server.broker)

        def connect() -> NatsClient:
            clients.append(NatsClient(open_session, transport))
            return clients[-1]

        yield server, connect
        for client in clients:
            client.connection.connection_lost(None)
        assert server.server.metrics.connections == 0
    if authorizer is not None:
        authorizer.close()


async def _authorizer(folder: Path, settings: Settings) -> ListenerAuthorizer:
    (folder / "rights").mkdir()
    registry = await FileRegistry.open(folder / "rights")
    rights = TopicRightsRegistry(registry)
    counters = NodeCounters(time.monotonic)
    made = ListenerAuthorizer(settings, rights, counters, lambda: 1_000.0, time.monotonic)
    await registry.close()
    return made


def users(folder: Path) -> dict[str, str]:
    """Return settings of a listener with the user anna."""
    (folder / "users").write_text(f"anna:{hashed('secret')}\n")
    (folder / "permissions").write_text("anna  orders.*  publish, subscribe\n")
    return {
        "router_auth_users": str(folder / "users"),
        "router_auth_permissions": str(folder / "permissions"),
    }


def login(password: str = "secret") -> str:
    return QUIET[:-1] + f',"user":"anna","pass":"{password}"}}'


async def test_a_client_is_greeted_and_served(tmp_path: Path) -> None:
    async with listening(tmp_path) as (server, connect):
        client = connect()
        assert client.transport.writes == []
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        info = client.info
        assert (info["port"], info["client_id"], info["jetstream"]) == (2, 1, True)
        assert len(info["server_id"]) == 56
        assert await client.ask("SUB a.* 1", "PUB a.b 1", "x", "PONG", "UNSUB 1", "UNSUB 7") == [
            *("+OK", "+OK", "MSG a.b 1 1", "x", "+OK", "+OK")
        ]
        assert client.connection.session.name == "a NATS client at 127.0.0.1:1"
        named = QUIET[:-1] + ',"name":"worker","lang":"c","version":"1"}'
        assert await client.ask(named, named) == []
        assert client.connection.session.name == "worker at 127.0.0.1:1"
        server.broker.counters.render()
        await server.broker.counters.refresh()
        shown = server.broker.counters.render()
        assert "router_nats_connections 1" in shown
        assert "router_nats_received_messages_total 1" in shown
        assert "router_nats_sent_messages_total 1" in shown


async def test_operations_are_answered_as_the_protocol_has_it(tmp_path: Path) -> None:
    async with listening(tmp_path, router_nats_max_subscriptions="4") as (server, connect):
        client = connect()
        assert await client.ask("PUB a.* 1", "x") == ["-ERR 'Invalid Publish Subject'"]
        assert await client.ask(QUIET, "SUB a..b 1") == ["-ERR 'Invalid Subject'"]
        assert await client.ask("SUB m q 1", "UNSUB 1 2", "SUB m 1") == []
        sent = ["PUB m 1", "x"] * 3
        assert await client.ask(*sent) == ["MSG m 1 1", "x"] * 2
        assert await client.ask("SUB r 2", "PUB none r 0", "") == [
            *("HMSG r 2 36 36", "NATS/1.0 503", "Nats-Subject: none", "", "")
        ]
        assert server.hub.subscriptions == 1
        shown = await client.ask(*(f"SUB s.{number} x{number}" for number in range(5)))
        assert shown == ["-ERR 'maximum subscriptions exceeded'"] * 2
        deaf = connect()
        assert (
            await deaf.ask('CONNECT {"verbose":false,"echo":false}', "SUB h 1", "PUB h 0", "") == []
        )
        await client.ask("HPUB h 12 14", "NATS/1.0\r\n\r\nhi")
        assert await deaf.ask() == ["MSG h 1 2", "hi"]


@pytest.mark.parametrize(
    ("line", "error"),
    [
        ("NOP", "Unknown Protocol Operation"),
        ('CONNECT {"no_responders":true}', "no responders requires headers support"),
        ('CONNECT {"user":"a:b","pass":"c"}', "Authorization Violation"),
        ('CONNECT {"echo":"yes"}', "Parser Error"),
        ('CONNECT {"user":7}', "Parser Error"),
    ],
)
async def test_a_client_that_breaks_the_protocol_learns_why(
    tmp_path: Path, line: str, error: str
) -> None:
    async with listening(tmp_path) as (server, connect):
        client = connect()
        client.send(line)
        assert await client.receive(f"-ERR '{error}'") == []
        assert client.connection.closed
        await server.broker.counters.refresh()
        assert f'router_nats_errors_total{{error="{error}"}} 1' in server.broker.counters.render()


async def test_stored_messages_are_acknowledged_in_their_order(tmp_path: Path) -> None:
    async with listening(tmp_path) as (server, connect):
        await server.stream("s.>")
        client = connect()
        lines = [line for number in range(3) for line in (f"PUB s.{number} in 1", "x")]
        client.send(QUIET, "SUB in 1", *lines)
        shown = await client.receive('{"stream":"S","seq":3}')
        assert shown[1:-1:2] == ['{"stream":"S","seq":1}', '{"stream":"S","seq":2}']
        found = await server.server.streams.open("S")
        assert found.log.last_sequence == 3
        # One read became one entry.
        one, other = await found.read(1), await found.read(3)
        assert one is not None
        assert other is not None
        assert one.entry == other.entry


async def test_a_client_that_does_not_read_is_cut_off(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(connection, "FAREWELL_SECONDS", 0.01)
    async with listening(tmp_path, router_nats_max_pending="64K") as (server, connect):
        slow, quick = connect(), connect()
        for client in (slow, quick):
            assert await client.ask(QUIET, "SUB f 1") == []
        slow.connection.pause_writing()
        slow.transport.waiting = 70_000
        assert await quick.ask("PUB f 1", "x") == ["MSG f 1 1", "x"]
        assert slow.lines()[-1] == "-ERR 'Slow Consumer'"
        assert slow.connection.closed
        assert server.hub.subscriptions == 1
        assert server.server.metrics.slow_consumers == 1
        slow.transport.ended = False
        await asyncio.sleep(0.03)
        assert slow.transport.ended


async def test_many_clients_may_have_less_waiting(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(nats_server, "MAX_PENDING_BYTES", 40 << 20)
    async with listening(tmp_path) as (server, connect):
        assert server.server.max_pending == 32 << 20
        for _ in range(10):
            connect()
        assert server.server.max_pending == 4 << 20
        for _ in range(90):
            connect()
        assert server.server.max_pending == 1 << 20


async def test_a_silent_client_is_asked_and_let_go(tmp_path: Path) -> None:
    async with listening(tmp_path) as (_, connect):
        client = connect()
        await client.ask(QUIET)
        now = asyncio.get_running_loop().time()
        client.connection.check_liveness(now + 31)
        await client.receive("PING")
        client.connection.check_liveness(now + 62)
        await client.receive("-ERR 'Stale Connection'")
        assert client.connection.closed


async def test_a_client_that_does_not_say_who_it_is_runs_out_of_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(identity, "HANDSHAKE_SECONDS", 0.01)
    async with listening(tmp_path) as (_, connect):
        client = connect()
        await client.receive("-ERR 'Authentication Timeout'")
        assert client.connection.closed


async def test_what_follows_a_password_waits_for_its_check(tmp_path: Path) -> None:
    async with listening(tmp_path, **users(tmp_path)) as (_, connect):
        client = connect()
        client.send(login(), "SUB orders.a 1", "PUB orders.a 1", "x", "PUB other 0", "", "PING")
        assert not client.is_read()
        assert await client.receive() == [
            *("MSG orders.a 1 1", "x", "-ERR 'Permissions Violation for Publish to \"other\"'")
        ]
        assert client.is_read()
        client.connection.identity.refuse(BlacklistedError())
        await client.receive("-ERR 'Authorization Violation'")
        assert client.connection.closed


async def test_a_wrong_password_and_silence_are_refused(tmp_path: Path) -> None:
    async with listening(tmp_path, **users(tmp_path)) as (_, connect):
        for line in (login("wrong"), QUIET, "PING", 'CONNECT {"auth_token":"x"}'):
            client = connect()
            with capture_logs() as logs:
                client.send(line, "PUB orders.a 0", "")
                await client.receive("-ERR 'Authorization Violation'")
            assert client.connection.closed
            refused = [(one["event"], one["protocol"], one["user"]) for one in logs]
            assert refused == [("client-refused", "nats", "anna" if "anna" in line else None)]
            assert "wrong" not in str([{**one, "reason": ""} for one in logs])


async def test_http_asks_with_the_rights_of_its_principal(tmp_path: Path) -> None:
    async with listening(tmp_path, **users(tmp_path)) as (server, connect):
        client = connect()
        assert await client.ask(login(), "SUB orders.echo 1") == []
        found: list[list[NatsMessage]] = []

        def ask(subject: str, max_replies: int) -> None:
            message = NatsMessage(subject, payload=b"q")
            server.server.begin_request_for(
                Principal("anna"), False, message, max_replies, DEADLINE, found.append
            )

        ask("orders.echo", 2)
        inbox = (await client.receive("q"))[0].split()[3]
        assert server.server.id not in inbox
        client.send(f"PUB {inbox} 1", "1", f"HPUB {inbox} 16 16", "NATS/1.0 100\r\n\r\n")
        client.send(f"PUB {inbox} 1", "2", f"PUB {inbox} 1", "3")
        assert [message.payload for message in found.pop()] == [b"1", b"2"]
        with pytest.raises(ForbiddenError):
            ask("no", 1)
        ask("orders.none", 1)
        assert found[0][0].headers.startswith(b"NATS/1.0 503")
        await server.stream("orders.>")


async def test_a_greeting_before_tls_says_that_tls_follows(tmp_path: Path) -> None:
    class Socket:
        def getsockname(self) -> tuple[str, int]:
            return "127.0.0.1", 4222

        def getpeername(self) -> tuple[str, int]:
            return "10.0.0.1", 5

    advertised = "nats://nats.example:4222,nats+ssl://nats.example:4223"
    async with listening(tmp_path, router_broker_nats_advertised=advertised) as (server, _):
        greet: Any = greetings(server.broker)
        greeting = greet(Socket())
        info = json.loads(greeting.data.removeprefix(b"INFO "))
        assert info["tls_required"] is True
        assert info["client_ip"] == "10.0.0.1"
        assert info["connect_urls"] == ["nats.example:4223"]
        assert info["client_id"] == greeting.known


async def test_subscriptions_need_rights_and_receive_only_what_they_may(tmp_path: Path) -> None:
    async with listening(tmp_path, **users(tmp_path)) as (server, connect):
        client = connect()
        assert await client.ask(login(), "SUB > 1", "SUB other 2", "SUB _INBOX.> 3") == [
            "-ERR 'Permissions Violation for Subscription to \"other\"'",
            "-ERR 'Permissions Violation for Subscription to \"_INBOX.>\"'",
        ]
        for subject in ("other", "_INBOX.secret.1", "$JS.EVENT.x", "orders.a"):
            server.hub.publish(NatsMessage(subject, payload=b"x"))
        assert await client.ask() == ["MSG orders.a 1 1", "x"]


async def test_subscriptions_take_a_bounded_memory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with listening(tmp_path, router_nats_max_subscriptions="4") as (_, connect):
        refused = "-ERR 'maximum subscriptions exceeded'"
        long = ".".join("a" * 20)
        client = connect()
        assert await client.ask(QUIET, *(f"SUB {long} {place}" for place in range(3))) == [refused]
        assert await client.ask("UNSUB 0", "UNSUB 1", f"SUB {long} 4") == []
        monkeypatch.setattr("router.broker.nats.protocol.hub.MAX_SUBSCRIPTIONS_BYTES", 100)
        assert await connect().ask(QUIET, "SUB a 1") == [refused]
