"""How long a stranger may take, and what becomes of a token that ends; over memory."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest

from router.access import tokens
from router.broker.admin import Admin
from router.broker.counters import Counters
from router.broker.gate import Gate
from router.broker.keeping import NoLog
from router.broker.leases import Leases
from router.broker.owners import Owners
from router.broker.pulsar import ListenerOptions, NoMessages, authentication
from router.broker.pulsar.connection import Connection
from router.broker.pulsar.context import Context
from router.broker.registry import FileRegistry
from router.coordination.single import SingleNode
from router.settings import load
from router.wire.pulsar import FrameReader, command, encode
from router.wire.pulsar import pulsar_pb2 as pb
from tests.unit.broker.test_pulsar_connection import MemoryTransport

SECRET = b"s" * 32
NOW = 1_000.0
Test = Callable[[Context], Awaitable[None]]


class Client:
    """The other end of a connection in memory."""

    def __init__(self, context: Context, peer: object = ("10.0.0.1", 1)) -> None:
        self.transport = MemoryTransport(peer)
        self.connection = Connection(context)
        self.connection.connection_made(self.transport)

    def connect(self, token: str, *, refreshes: bool = True) -> None:
        features = pb.FeatureFlags(supports_auth_refresh=refreshes)
        self.send(
            pb.BaseCommand.CONNECT,
            client_version="test",
            auth_method_name="token",
            auth_data=token.encode(),
            feature_flags=features,
        )

    def send(self, kind: pb.BaseCommand.Type, **fields: object) -> None:
        self.connection.data_received(encode(command(kind, **fields)))

    async def kinds(self) -> list[str]:
        """What was written since the last call."""
        await asyncio.sleep(0.01)
        data, self.transport.writes = b"".join(self.transport.writes), []
        return [
            pb.BaseCommand.Type.Name(frame.command.type) for frame in FrameReader().receive(data)
        ]

    async def ended(self) -> bool:
        for _ in range(1_000):
            if self.transport.ended:
                return True
            await asyncio.sleep(0.01)
        return False


def token(lasts: float | None, name: str = "anna") -> str:
    claims = {"sub": name} | ({} if lasts is None else {"exp": NOW + lasts})
    return tokens.signed(tokens.Key("HS256", SECRET), claims)


def guarded(folder: Path, test: Test) -> None:
    (folder / "secret").write_bytes(SECRET)
    settings = load(None, {}, {"auth.token_secret_file": str(folder / "secret")})

    async def run() -> None:
        registry = await FileRegistry.open(folder)
        counters = Counters(time.monotonic)
        later = asyncio.get_running_loop().call_later
        leases = Leases(1, 5.0, SingleNode(), counters, time.monotonic, later)
        admin = Admin(NoLog(1, "elsewhere"), registry, counters, leases, lambda: None)
        options = ListenerOptions("message-router test", 1_000, 10.0)
        gate = Gate(settings, Owners(registry), counters, lambda: NOW, time.monotonic)
        context = Context(NoMessages("elsewhere"), admin, leases, options, gate)
        try:
            await test(context)
        finally:
            for connection in list(context.connections):
                connection.connection_lost(None)
            assert not context.strangers
            await registry.close()

    asyncio.run(run())


def test_stranger_is_let_go_when_it_does_not_say_who_it_is_in_time(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(authentication, "HANDSHAKE", 0.2)

    async def test(context: Context) -> None:
        silent, known, local = Client(context), Client(context), Client(context, "")
        known.connect(token(None))
        assert await silent.ended()
        await asyncio.sleep(0.3)
        assert not known.transport.ended
        assert not local.transport.ended

    guarded(folder, test)


def test_oldest_stranger_makes_room_for_a_newcomer(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(authentication, "MOST_STRANGERS", 2)

    async def test(context: Context) -> None:
        known = Client(context)
        known.connect(token(None))
        clients = [Client(context) for _ in range(3)]
        ended = [client.transport.ended for client in [known, *clients]]
        assert ended == [False, True, False, False]

    guarded(folder, test)


def test_stranger_that_sends_much_is_let_go(folder: Path) -> None:
    async def test(context: Context) -> None:
        client = Client(context)
        # The beginning of a frame that may be as large as a message.
        client.connection.data_received((1 << 20).to_bytes(4) + (1 << 19).to_bytes(4))
        for _ in range(8):
            assert not client.transport.ended
            client.connection.data_received(b"\0" * 8_000)
        client.connection.data_received(b"\0" * 8_000)
        assert client.transport.ended

    guarded(folder, test)


def test_client_that_can_renew_its_token_is_asked_and_closed_when_it_does_not(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(authentication, "REFRESH", 0.2)

    async def test(context: Context) -> None:
        client = Client(context)
        client.connect(token(0.05))
        assert await client.kinds() == ["CONNECTED"]
        await asyncio.sleep(0.1)
        assert await client.kinds() == ["AUTH_CHALLENGE"]
        client.send(pb.BaseCommand.PING)
        assert await client.kinds() == ["PONG"]
        assert await client.ended()
        assert await client.kinds() == ["ERROR"]

    guarded(folder, test)


def test_renewed_token_lasts_as_long_as_it_says(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(authentication, "LONGEST_NAP", 0.01)

    async def test(context: Context) -> None:
        client = Client(context)
        # The last one comes unasked, and changes nothing.
        client.connect(token(0.02))
        await asyncio.sleep(0.1)
        assert await client.kinds() == ["CONNECTED", "AUTH_CHALLENGE"]
        for lasts, asked in ((0.05, ["AUTH_CHALLENGE"]), (60, []), (0.01, [])):
            fresh = pb.AuthData(auth_method_name="token", auth_data=token(lasts).encode())
            client.send(pb.BaseCommand.AUTH_RESPONSE, response=fresh)
            await asyncio.sleep(0.1)
            assert await client.kinds() == asked
        assert not client.transport.ended

    guarded(folder, test)


def test_client_that_cannot_renew_its_token_ends_with_it(folder: Path) -> None:
    async def test(context: Context) -> None:
        client = Client(context)
        client.connect(token(0.05), refreshes=False)
        assert await client.ended()
        assert await client.kinds() == ["CONNECTED", "ERROR"]

    guarded(folder, test)


def test_unix_socket_is_trusted(folder: Path) -> None:
    async def test(context: Context) -> None:
        client, stranger = Client(context, ""), Client(context)
        client.send(pb.BaseCommand.CONNECT, client_version="ours")
        assert await client.kinds() == ["CONNECTED"]
        assert client.connection.who.administers
        stranger.connect(token(None))
        assert await stranger.kinds() == ["CONNECTED"]
        assert not stranger.connection.who.administers

    guarded(folder, test)
