"""How long a stranger may take, and what becomes of a token that ends; over memory."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest

from router.access import tokens
from router.broker.node.counters import NodeCounters
from router.broker.node.registry import FileRegistry
from router.broker.transport import identity
from router.broker.transport.authentication import ListenerAuthorizer
from router.broker.transport.context import TransportContext, TransportOptions
from router.broker.transport.topic_rights import TopicRightsRegistry
from router.settings import load
from router.wire.pulsar import PulsarFrameReader, command, encode
from router.wire.pulsar import pulsar_pb2 as pb
from tests.unit.broker.pulsar.serving import Context, context_of
from tests.unit.broker.pulsar.test_connection import MemoryTransport

SECRET = b"s" * 32
NOW = 1_000.0
TURNS = 10
Test = Callable[[Context], Awaitable[None]]


class ManualLoop(asyncio.SelectorEventLoop):
    """An event loop whose time passes only when a test says so."""

    def __init__(self) -> None:
        self._now = NOW
        super().__init__()

    def time(self) -> float:
        """Return the time."""
        return self._now

    def advance(self, seconds: float) -> None:
        """Let time pass; what is due then happens in the next turns of the loop."""
        self._now += seconds


async def idle() -> None:
    """Wait until everything is done that is due."""
    for _ in range(TURNS):
        await asyncio.sleep(0)


async def later(seconds: float) -> None:
    """Let time pass, and what is due then happen."""
    loop = asyncio.get_running_loop()
    assert isinstance(loop, ManualLoop)
    loop.advance(seconds)
    await idle()


class Client:
    """The other end of a connection in memory."""

    def __init__(self, context: Context, peer: object = ("10.0.0.1", 1)) -> None:
        self.transport = MemoryTransport(peer)
        self.connection = context.connection()
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
        await idle()
        data, self.transport.writes = b"".join(self.transport.writes), []
        return [
            pb.BaseCommand.Type.Name(frame.command.type)
            for frame in PulsarFrameReader().receive(data)
        ]

    def ended(self) -> bool:
        """Whether the broker closed the connection."""
        return self.transport.ended


def token(lasts: float | None, name: str = "anna") -> str:
    claims = {"sub": name} | ({} if lasts is None else {"exp": NOW + lasts})
    return tokens.signed(tokens.TokenKey("HS256", SECRET), claims)


def guarded(folder: Path, test: Test) -> None:
    (folder / "secret").write_bytes(SECRET)
    settings = load(None, {}, {"auth.token_secret_file": str(folder / "secret")})

    async def run() -> None:
        registry = await FileRegistry.open(folder)
        loop = asyncio.get_running_loop()
        counters = NodeCounters(time.monotonic)
        authorizer = ListenerAuthorizer(
            settings, TopicRightsRegistry(registry), counters, lambda: NOW, time.monotonic
        )
        transport = TransportContext(TransportOptions(1_000, 10.0), authorizer)
        context = context_of(None, registry, loop.call_later, transport, settings)
        try:
            await test(context)
        finally:
            for connection in list(context.members):
                connection.connection_lost(None)
            assert not context.transport.unauthenticated
            await registry.close()

    with asyncio.Runner(loop_factory=ManualLoop) as runner:
        runner.run(run())


def test_stranger_is_let_go_when_it_does_not_say_who_it_is_in_time(folder: Path) -> None:
    async def test(context: Context) -> None:
        silent, known, local = Client(context), Client(context), Client(context, "")
        known.connect(token(None))
        await later(identity.HANDSHAKE_SECONDS - 1)
        assert not silent.ended()
        await later(1)
        assert silent.ended()
        await later(10 * identity.HANDSHAKE_SECONDS)
        assert (known.ended(), local.ended()) == (False, False)

    guarded(folder, test)


def test_oldest_stranger_makes_room_for_a_newcomer(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(identity, "MAX_UNAUTHENTICATED_CONNECTIONS", 2)

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
    folder: Path,
) -> None:
    async def test(context: Context) -> None:
        client = Client(context)
        client.connect(token(50))
        await later(49)
        assert await client.kinds() == ["CONNECTED"]
        await later(1)
        assert await client.kinds() == ["AUTH_CHALLENGE"]
        await later(identity.REFRESH_SECONDS - 1)
        client.send(pb.BaseCommand.PING)
        assert await client.kinds() == ["PONG"]
        assert not client.ended()
        await later(1)
        assert client.ended()
        assert await client.kinds() == ["ERROR"]

    guarded(folder, test)


@pytest.mark.parametrize("nap", [0.5, identity.MAX_TIMER_SECONDS])
def test_renewed_token_lasts_as_long_as_it_says(
    folder: Path, monkeypatch: pytest.MonkeyPatch, nap: float
) -> None:
    monkeypatch.setattr(identity, "MAX_TIMER_SECONDS", nap)

    def renew(client: Client, lasts: float) -> None:
        fresh = pb.AuthData(auth_method_name="token", auth_data=token(lasts).encode())
        client.send(pb.BaseCommand.AUTH_RESPONSE, response=fresh)

    async def test(context: Context) -> None:
        client = Client(context)
        client.connect(token(20))
        await later(20)
        assert await client.kinds() == ["CONNECTED", "AUTH_CHALLENGE"]
        renew(client, 50)
        await later(identity.REFRESH_SECONDS + 1)  # it is not waited for any more
        await later(49 - identity.REFRESH_SECONDS - 1)
        assert await client.kinds() == []
        await later(1)
        assert await client.kinds() == ["AUTH_CHALLENGE"]
        renew(client, 10_000)
        renew(client, 10)  # comes unasked, and changes nothing
        await later(9_999)
        assert await client.kinds() == []
        assert not client.ended()
        await later(1)
        assert await client.kinds() == ["AUTH_CHALLENGE"]

    guarded(folder, test)


def test_client_that_cannot_renew_its_token_ends_with_it(folder: Path) -> None:
    async def test(context: Context) -> None:
        client = Client(context)
        client.connect(token(50), refreshes=False)
        await later(49)
        assert await client.kinds() == ["CONNECTED"]
        assert not client.ended()
        await later(1)
        assert client.ended()
        assert await client.kinds() == ["ERROR"]

    guarded(folder, test)


def test_unix_socket_is_trusted(folder: Path) -> None:
    async def test(context: Context) -> None:
        client, stranger = Client(context, ""), Client(context)
        client.send(pb.BaseCommand.CONNECT, client_version="ours")
        assert await client.kinds() == ["CONNECTED"]
        assert client.connection.identity.administers
        stranger.connect(token(None))
        assert await stranger.kinds() == ["CONNECTED"]
        assert not stranger.connection.identity.administers

    guarded(folder, test)
