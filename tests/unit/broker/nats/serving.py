"""The NATS side of a broker in memory: its streams and consumers on a real store, and clients."""

from __future__ import annotations

import asyncio
import json
import shutil
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import replace
from inspect import isawaitable
from pathlib import Path
from typing import Any

from router.broker.context import BrokerContext
from router.broker.disk.files import Disk
from router.broker.entries import ENTRY_FORMATS
from router.broker.nats.opening import join_streams
from router.broker.nats.protocol.api import ApiCall, JetStreamApi, _settled
from router.broker.nats.protocol.authorization import NatsCaller, RequestIdentity
from router.broker.nats.protocol.failures import FAILURES
from router.broker.nats.protocol.hub import Subscriber
from router.broker.nats.server import NatsServer
from router.broker.node.registry import FileRegistry
from router.broker.storage import Store, StoreOptions
from router.broker.topics.topics import TopicOptions, Topics
from router.broker.transport.authentication import ListenerAuthorizer
from router.broker.transport.context import TransportContext
from router.model import Principal
from router.settings import Settings
from router.wire.nats.headers import status_code
from router.wire.nats.jetstream.errors import JetStreamError
from router.wire.nats.jetstream.replies import ApiReply
from router.wire.nats.message import NatsMessage
from tests.unit.broker.pulsar.serving import NO_SETTINGS, context_of

DEADLINE = 10.0
CALLER = NatsCaller(RequestIdentity(Principal("test"), True, None))
STREAM = "persistent://public/default/S"


class Inbox(Subscriber):
    """A client's subscription: what came is in `messages`."""

    def __init__(self) -> None:
        self.messages: list[NatsMessage] = []
        self.full = False
        self.waited_for = asyncio.Event()
        self._came = asyncio.Event()
        self._resume: list[Callable[[], None]] = []

    def deliver(self, message: NatsMessage) -> None:
        self.messages.append(message)
        self._came.set()

    @property
    def writable(self) -> bool:
        return not self.full

    def when_writable(self, resume: Callable[[], None]) -> None:
        self._resume.append(resume)
        self.waited_for.set()

    def drain(self) -> None:
        """Take more again."""
        self.full = False
        resume, self._resume = self._resume, []
        for call in resume:
            call()

    async def until(self, count: int) -> list[NatsMessage]:
        """Return the messages once there are so many."""
        async with asyncio.timeout(DEADLINE):
            while len(self.messages) < count:
                self._came.clear()
                await self._came.wait()
        return self.messages


class Serving:
    """A server of NATS on a folder."""

    def __init__(self, server: NatsServer, topics: Topics, broker: BrokerContext) -> None:
        self.broker = broker
        self.server = server
        self.topics = topics
        self.store = topics.store
        self.hub = server.hub

    async def call(self, subject: str, **body: Any) -> dict[str, Any]:
        """Return the reply to a call of the API."""
        payload = json.dumps(body).encode() if body else b""
        reply = await answer(self.server.api, CALLER, subject, payload)
        assert reply is not None
        return reply.to_json()

    async def stream(self, *subjects: str, **config: Any) -> None:
        """Make the stream `S`."""
        given = {"name": "S", "subjects": subjects or ("s.>",), **config}
        reply = await self.call("STREAM.CREATE.S", **given)
        assert "error" not in reply, reply

    async def consumer(self, name: str, **config: Any) -> dict[str, Any]:
        """Make a durable consumer of the stream `S`, with explicit acknowledgements."""
        given = {"durable_name": name, "ack_policy": "explicit", **config}
        reply = await self.call(f"CONSUMER.CREATE.S.{name}", stream_name="S", config=given)
        assert "error" not in reply, reply
        return reply

    async def info(self, name: str) -> dict[str, Any]:
        """Return what the API says of a consumer."""
        return await self.call(f"CONSUMER.INFO.S.{name}")

    async def publish(self, *payloads: bytes, subject: str = "s.a") -> None:
        """Store messages, all in one entry."""
        inbox = Inbox()
        subscription = self.hub.subscribe("acks", inbox)
        stream = self.server.streams.for_subject(subject)
        publisher = self.server.streams.publisher(_ignore, _ignore)
        assert stream is not None
        for payload in payloads:
            publisher.publish(stream, NatsMessage(subject, "acks", b"", payload))
        publisher.flush()
        acks = await inbox.until(len(payloads))
        assert all(b"error" not in ack.payload for ack in acks), acks
        subscription.unsubscribe()

    async def pull(self, name: str, batch: int = 100, **request: Any) -> list[NatsMessage]:
        """Return the messages that are there, at most so many; statuses are left out."""
        body = json.dumps({"batch": batch, "no_wait": True} | request).encode()
        subject = f"$JS.API.CONSUMER.MSG.NEXT.S.{name}"
        message = NatsMessage(subject, payload=body)
        found = await self.request(CALLER, message, batch, DEADLINE)
        return [one for one in found if not status_code(one.headers)]

    async def request(
        self, caller: NatsCaller, message: NatsMessage, max_replies: int, seconds: float
    ) -> list[NatsMessage]:
        """Publish a message and return the replies; see `NatsServer.begin_request`."""
        complete: asyncio.Future[list[NatsMessage]] = asyncio.get_running_loop().create_future()

        def done(found: list[NatsMessage]) -> None:
            if not complete.done():
                complete.set_result(found)

        cancel = self.server.begin_request(caller, message, max_replies, seconds, done)
        try:
            return await complete
        finally:
            cancel()

    def ask(self, name: str, inbox: str, **request: Any) -> None:
        """Request messages to an inbox that has a subscriber."""
        subject = f"$JS.API.CONSUMER.MSG.NEXT.S.{name}"
        message = NatsMessage(subject, inbox, b"", json.dumps(request).encode())
        self.hub.publish(message, caller=CALLER)

    def say(self, message: NatsMessage, payload: bytes = b"") -> None:
        """Acknowledge a message without waiting for an answer."""
        self.hub.publish(NatsMessage(message.reply, payload=payload), caller=CALLER)

    async def acknowledge(self, message: NatsMessage, payload: bytes = b"") -> NatsMessage:
        """Acknowledge a message, and return the answer."""
        request = NatsMessage(message.reply, payload=payload)
        [answer] = await self.request(CALLER, request, 1, DEADLINE)
        return answer

    async def stored(self) -> None:
        """Return when all that was appended is on disk."""
        done = asyncio.Event()
        self.store.after_sync(done.set)
        await done.wait()


@asynccontextmanager
async def serving(
    folder: Path,
    disk: Disk | None = None,
    settings: Settings = NO_SETTINGS,
    authorizer: ListenerAuthorizer | None = None,
) -> AsyncIterator[Serving]:
    """Serve a folder until the block ends."""
    (folder / "data").mkdir(exist_ok=True, parents=True)
    clock = asyncio.get_running_loop().time
    wall = _Wall(clock)
    store = await Store.open(folder / "data", StoreOptions(cache=1 << 20), wall, disk)
    topics = Topics(store, TopicOptions.from_settings(settings), wall, ENTRY_FORMATS)
    registry = await FileRegistry.open(folder / "data")
    later = asyncio.get_running_loop().call_later
    broker = context_of(topics, registry, later, TransportContext()).broker
    server = NatsServer(settings, topics, broker.counters, registry, broker.transcoder, authorizer)
    join_streams(server, broker.schemas, broker.leases, folder / "data")
    await server.streams.load()
    try:
        yield Serving(server, topics, replace(broker, settings=settings, nats=server))
    finally:
        await server.restores.close()
        await server.snapshots.close()
        await server.api.close()
        await server.streams.close()
        await server.consumers.close_all()
        await registry.close()
        await store.close()
        broker.transcoder.close()


class _Wall:
    """The time of day, without its jumps."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock

    def __call__(self) -> float:
        return 1_700_000_000.0 + self._clock()


async def answer(
    api: JetStreamApi, caller: NatsCaller, subject: str, body: bytes
) -> ApiReply | None:
    """Return the reply to a call, by what follows `$JS.API.`; None: no such call, or no JSON."""
    found = api.find(subject)
    if found is None or not found[0].type:
        return None
    row, names = found
    result: object
    try:
        result = row.handler(ApiCall(caller, names, body))
        if isawaitable(result):
            result = await _settled(result)
    except FAILURES as failure:
        result = failure
    reply = api._reply(row, result)
    assert not isinstance(reply, JetStreamError)
    return reply


def crash(folder: Path, to: Path) -> Path:
    """Return a folder with what a crash would leave of another one now."""
    shutil.copytree(folder / "data", to / "data", ignore=shutil.ignore_patterns("*.sock"))
    return to


def run(folder: Path, *tests: Callable[[Serving], Awaitable[None]]) -> None:
    """Run tests one after the other on one folder, with a restart between them."""

    async def run_all() -> None:
        for test in tests:
            async with serving(folder) as found:
                await test(found)

    asyncio.run(run_all())


def payloads(messages: Sequence[NatsMessage]) -> list[bytes]:
    """Return the payloads of messages."""
    return [message.payload for message in messages]


def attempts(messages: Sequence[NatsMessage]) -> list[int]:
    """Return how often messages were delivered, by the subjects of their acknowledgements."""
    return [int(message.reply.split(".")[4]) for message in messages]


def _ignore() -> None:
    """Do nothing."""
