"""A Kafka listener over a transport in memory, and a client that speaks by the router's codec."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from router.broker.disk.files import Disk
from router.broker.entries import ENTRY_FORMATS, keep_messages, latest_time
from router.broker.kafka.session import sessions
from router.broker.node.registry import FileRegistry
from router.broker.storage import LatestTime, Store, StoreOptions
from router.broker.topics.topics import TopicOptions, Topics
from router.broker.transport.context import TransportContext
from router.kafka.definitions import definition_texts
from router.settings import Settings
from router.wire.kafka.engine import Messages, request_header_version, response_header_version
from router.wire.kafka.frames import SIZE, KafkaFrameReader
from tests.unit.broker.pulsar.serving import NO_SETTINGS, Context, context_of
from tests.unit.broker.pulsar.test_connection import MemoryTransport

MESSAGES: Any = Messages(definition_texts())
DEADLINE = 20.0
MAX_RESPONSE = 64 << 20
SMALL_CACHE = StoreOptions(cache=1 << 20)


class TcpPeer:
    """The socket of a client that connected by TCP."""

    def setsockopt(self, level: int, option: int, value: int) -> None:
        """Take an option of keep-alive."""


class KafkaTransport(MemoryTransport):
    """Tells when something was written."""

    def __init__(self, peer: object) -> None:
        super().__init__(peer)
        self.written = asyncio.Event()

    def get_extra_info(self, name: str, default: Any = None) -> Any:
        return TcpPeer() if name == "socket" else super().get_extra_info(name, default)

    def write(self, data: Any) -> None:
        super().write(data)
        self.written.set()


class KafkaClient:
    """The other end of a connection; `ask` sends a request and returns its response."""

    def __init__(self, context: Context, peer: object = ("127.0.0.1", 1)) -> None:
        self.transport = KafkaTransport(peer)
        self.connection = context.connection()
        self.connection.connection_made(self.transport)
        self.correlation = 0
        self._frames = KafkaFrameReader(MAX_RESPONSE)
        self._received: list[bytes] = []
        self._asked: list[tuple[str, int, int]] = []

    async def ask(self, name: str, version: int, **fields: Any) -> Any:
        """Send a request of named fields and return the next response."""
        self.send(name, version, **fields)
        return await self.receive()

    def send(self, name: str, version: int, **fields: Any) -> None:
        """Send a request."""
        self.connection.data_received(self.request(name, version, **fields))

    def request(self, name: str, version: int, **fields: Any) -> bytes:
        """Return the frame of the request that is sent next."""
        message = MESSAGES.message(f"{name}Request")(**fields)
        self.correlation += 1
        self._asked.append((name, version, self.correlation))
        return self.frame(name, version, message.write(version))

    def frame(self, name: str, version: int, body: bytes) -> bytes:
        """Return the frame of a request."""
        definition = MESSAGES.definition(f"{name}Request")
        header = MESSAGES.message("RequestHeader")(
            request_api_key=definition.api_key,
            request_api_version=version,
            correlation_id=self.correlation,
            client_id="test",
        ).write(request_header_version(definition, version))
        return SIZE.pack(len(header) + len(body)) + bytes(header) + body

    def unanswered(self) -> None:
        """Expect no response to the request that was sent last."""
        self._asked.pop()

    async def receive(self) -> Any:
        """Return the next response; its correlation id must be that of the oldest request."""
        frame = await self.receive_frame()
        name, version, correlation = self._asked.pop(0)
        definition = MESSAGES.definition(f"{name}Response")
        header, start = MESSAGES.message("ResponseHeader").read_from(
            frame, response_header_version(definition, version)
        )
        assert header.correlation_id == correlation
        body, end = MESSAGES.message(f"{name}Response").read_from(frame, version, start)
        assert end == len(frame)
        return body

    async def receive_frame(self) -> bytes:
        """Wait for the next frame and return it."""
        async with asyncio.timeout(DEADLINE):
            while not self._received:
                await self.transport.written.wait()
                self.take()
        return self._received.pop(0)

    def take(self) -> list[bytes]:
        """Return the frames that have come and that no call has returned."""
        self.transport.written.clear()
        data, self.transport.writes = b"".join(self.transport.writes), []
        self._received += self._frames.receive(data)
        return self._received

    def struct(self, name: str, struct: str, /, **fields: Any) -> Any:
        """Return a struct of a message."""
        return MESSAGES.message(name).STRUCTS[struct](**fields)

    def leave(self) -> None:
        """End the connection."""
        self.connection.connection_lost(None)


@dataclass
class KafkaServer:
    """A listener on a store."""

    context: Context
    store: Store
    topics: Topics
    clients: list[KafkaClient] = field(default_factory=list)

    def client(self, peer: object = ("127.0.0.1", 1)) -> KafkaClient:
        """Return a client that has connected."""
        self.clients.append(KafkaClient(self.context, peer))
        return self.clients[-1]

    async def synced(self) -> None:
        """Wait until all that was appended is on disk."""
        done = asyncio.Event()
        self.store.after_sync(done.set)
        await done.wait()


@asynccontextmanager
async def serving(
    folder: Path,
    *,
    settings: Settings = NO_SETTINGS,
    disk: Disk | None = None,
    clock: Callable[[], float] = lambda: 1_700_000_000.0,
    transport: TransportContext | None = None,
    options: StoreOptions = SMALL_CACHE,
    latest: LatestTime = latest_time,
) -> AsyncIterator[KafkaServer]:
    """Serve a folder until the block ends."""
    (folder / "data").mkdir(exist_ok=True)
    store = await Store.open(folder / "data", options, clock, disk, latest, keep_messages)
    topics = Topics(store, TopicOptions.from_settings(settings), clock, ENTRY_FORMATS)
    registry = await FileRegistry.open(folder / "data")
    later = asyncio.get_running_loop().call_later
    found = context_of(topics, registry, later, transport or TransportContext(), settings)
    assert found.broker.transactions is not None
    await found.broker.transactions.transactions.load()
    found.broker.transactions.load()
    opened = await sessions(found.broker)
    context = Context(found.broker, found.transport, open_sessions=lambda _: opened)
    server = KafkaServer(context, store, topics)
    try:
        yield server
    finally:
        for client in server.clients:
            if not client.connection.closed:
                client.leave()
        await found.broker.transactions.transactions.close()
        await registry.close()
        await store.close()


def with_server(
    folder: Path, test: Callable[[KafkaServer], Awaitable[None]], **options: Any
) -> None:
    """Run a test against a server of a folder."""

    async def run() -> None:
        async with serving(folder, **options) as server:
            await test(server)

    asyncio.run(run())
