"""A broker process with a second listener, of a protocol of words; run as a module.

A frame is a netstring (`7:GET a b,`). `AUTH TOKEN` tells who the client is, `PUB TOPIC VALUE`
stores a message, `GET TOPIC` sends all messages of a topic from the first, `PING` is answered by
`PONG`. What is here is what another protocol has to write: its frames and its commands. Sockets,
TLS, authentication, budgets, liveness and the end are the transport's.
"""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Callable, Coroutine, Sequence
from functools import partial
from typing import Any, cast

from router import settings
from router.access.permissions import Right
from router.broker import listeners, process
from router.broker.__main__ import main
from router.broker.consume import ClientConsumer, PartitionSubscription, SubscriptionType
from router.broker.context import BrokerContext
from router.broker.entries import ENTRY_FORMATS, EntryFormats, Transcoder
from router.broker.storage import Entry, StoreError
from router.broker.topics.topics import Topics
from router.broker.transport.connection import ClientConnection
from router.broker.transport.listening import Endpoint, ListenerSpec
from router.broker.transport.session import NO_FAREWELLS
from router.errors import RouterError
from router.model import Message
from router.settings.parsing import text
from router.settings.setting import Setting
from router.settings.table import BY_NAME
from router.wire import ProtocolError
from tests.unit.broker.entries import tiny

MAX_FRAME = 1 << 20
MAX_PENDING = 1 << 20
SETTINGS = (
    Setting("broker.line", text, "", "Where the broker serves clients that speak in words."),
    Setting("broker.line_tls", text, "", "Where it serves them over TLS."),
)
LINE = ListenerSpec(
    name="line",
    protocol="Line",
    endpoints=(
        Endpoint("line", "broker.line"),
        Endpoint("line+ssl", "broker.line_tls", tls=True),
    ),
    sessions="tests.broker.line_broker:sessions",
)


def encode(frame: str) -> bytes:
    content = frame.encode()
    return b"%d:%s," % (len(content), content)


class LineDecoder:
    """Cuts netstrings; `wanted` is the size of the one that has begun to arrive."""

    def __init__(self) -> None:
        self.expected_bytes = 1
        self._held = b""

    def receive(self, data: bytes) -> Sequence[str]:
        self._held += data
        found = []
        while (frame := self._next()) is not None:
            found.append(frame)
        return found

    def _next(self) -> str | None:
        size, colon, rest = self._held.partition(b":")
        if not colon:
            self.expected_bytes = len(self._held) + 1
            return None
        if not size.isdigit() or int(size) > MAX_FRAME:
            raise ProtocolError("a frame begins with its size")
        self.expected_bytes = len(size) + 1 + int(size) + 1
        if len(self._held) < self.expected_bytes:
            return None
        self._held = self._held[self.expected_bytes :]
        return rest[: int(size)].decode()


def sessions(broker: BrokerContext) -> Callable[[ClientConnection], LineSession]:
    """Return what opens a session on a connection."""
    topics = broker.topics
    assert topics is not None
    return lambda connection: LineSession(connection, topics, broker.transcoder)


class LineSession:
    """The session of one client."""

    name = "a line client"
    keep_alive = encode("PING")
    farewells = NO_FAREWELLS

    def __init__(
        self, connection: ClientConnection, topics: Topics, transcoder: Transcoder
    ) -> None:
        self.frames = LineDecoder()
        self.connection = connection
        self._topics = topics
        self._transcoder = transcoder
        self._pending = 0
        self._consumers: list[tuple[PartitionSubscription, ClientConsumer]] = []

    # What the connection calls.

    def handle(self, frame: str) -> None:
        word, _, rest = frame.partition(" ")
        identity = self.connection.identity
        if word == "AUTH":
            # Renewed, where it was asked for; else who the client is.
            if identity.known:
                identity.renew(rest.encode())
            else:
                welcome = partial(self.say, "OK")
                identity.authenticate("token", rest.encode(), welcome, renewable=True)
        elif not identity.known:
            raise ProtocolError("the first frame must be AUTH")
        elif word == "PUB":
            topic, _, value = rest.partition(" ")
            self._open(self._publish(topic, value), topic, Right.PUBLISH)
        elif word == "GET":
            self._open(self._get(rest), rest, Right.SUBSCRIBE)
        elif word == "PING":
            self.say("PONG")
        elif word != "PONG":
            raise ProtocolError(f"no such word: {word}")

    def frames_handled(self) -> None:
        if self._pending > MAX_PENDING:
            self.connection.hold_reading("storing")

    def encode_failure(self, failure: RouterError) -> bytes:
        return encode(f"ERROR {failure.code} {failure}")

    def request_credentials(self) -> None:
        self.say("RENEW")

    def connection_lost(self) -> None:
        for subscription, consumer in self._consumers:
            subscription.detach(consumer)

    def say(self, frame: str) -> None:
        self.connection.write(encode(frame))

    # What the commands do.

    def _open(self, work: Coroutine[Any, Any, None], topic: str, right: Right) -> None:
        identity = self.connection.identity
        try:
            if identity.authorizer is not None:
                identity.authorizer.authorize_name(identity.principal, topic, right)
        except RouterError as failure:
            work.close()
            self.connection.write(self.encode_failure(failure))
        else:
            self.connection.spawn(work)

    async def _publish(self, topic: str, value: str) -> None:
        payload = tiny.from_messages([Message(value.encode())], 0)
        self._pending += len(payload)
        try:
            ledger = (await self._topics.open(topic, create=True)).ledger
            stored = partial(self._stored, len(payload))
            ledger.append(payload, tiny.TAG, 1, self._topics.now_ms(), stored)
        except (RouterError, StoreError) as failure:
            self._pending -= len(payload)
            self.say(f"ERROR {failure}")

    def _stored(self, size: int, entry: int) -> None:
        self._pending -= size
        self.say(f"STORED {entry}")
        if self._pending < MAX_PENDING // 2:
            self.connection.release_reading("storing")

    async def _get(self, topic: str) -> None:
        partition = await self._topics.open(topic, create=True)
        subscription = partition.read_from(f"line-{id(self)}", partition.ledger.first_entry)
        number = len(self._consumers)
        consumer = ClientConsumer(self, number, f"line-{number}")
        subscription.attach(consumer, SubscriptionType.EXCLUSIVE)
        self._consumers.append((subscription, consumer))
        subscription.flow(consumer, 1 << 30)

    # What delivery calls.

    entry_format = tiny.TAG

    def prepare(self, ledger_id: int, entries: Sequence[Entry]) -> asyncio.Future[Any] | None:
        return self._transcoder.prepare(ledger_id, entries, tiny.TAG)

    @property
    def writable(self) -> bool:
        return self.connection.writable

    def when_writable(self, resume: Callable[[], None]) -> None:
        self.connection.when_writable(resume)

    def deliver(self, consumer: ClientConsumer, entry: Entry, *_redelivered: object) -> None:
        payload = self._transcoder.payload(consumer.ledger_id, entry, tiny.TAG)
        for message in tiny.to_messages(payload):
            self.say(f"MSG {message.value.decode()}")

    def consumer_closed(self, _consumer: ClientConsumer) -> None:
        self.connection.close()

    def activity_changed(self, _consumer: ClientConsumer, active: bool) -> None:
        """A client of its own subscription is always the active one."""

    def reached_end(self, _consumer: ClientConsumer) -> None:
        self.say("END")

    def probe(self, *, soon: bool = False) -> None:
        self.connection.probe(soon=soon)


if __name__ == "__main__":
    cast("EntryFormats", ENTRY_FORMATS)[tiny.TAG] = tiny.FORMATS[tiny.TAG]
    cast("dict[str, Setting]", BY_NAME).update((setting.name, setting) for setting in SETTINGS)
    changed: Any = settings
    changed.SETTINGS = (*settings.SETTINGS, *SETTINGS)
    table: Any = (listeners, process)
    for module in table:
        module.LISTENERS = (*listeners.LISTENERS[:1], LINE)
    sys.exit(main())
