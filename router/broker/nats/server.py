"""What all NATS clients of a broker share: subjects, streams, and who the server is.

It is made with every broker that has a log, because HTTP uses it too, and loads what it needs when
it is first used.
"""

from __future__ import annotations

import asyncio
import base64
import hashlib
import secrets
import socket
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, Protocol
from urllib.parse import urlsplit

from router.access.authorizer import Authorizer
from router.access.permissions import Right
from router.broker.entries import Transcoder
from router.broker.nats.archives.restores import Restores
from router.broker.nats.archives.snapshots import Snapshots
from router.broker.nats.consumers.consumers import JetStreamConsumers
from router.broker.nats.consumers.services import NEXT_PREFIX
from router.broker.nats.other_dialects import OtherDialects
from router.broker.nats.protocol.acks import ACK_PREFIX
from router.broker.nats.protocol.api import JetStreamApi
from router.broker.nats.protocol.authorization import NatsCaller, RequestIdentity, SubjectRights
from router.broker.nats.protocol.hub import Hub, Subscriber
from router.broker.nats.protocol.metrics import NatsMetrics
from router.broker.nats.protocol.spec import NATS
from router.broker.nats.streams.stream import Stream
from router.broker.nats.streams.streams import Streams
from router.broker.node.counters import NodeCounters
from router.broker.topics.topics import Topics
from router.errors import ForbiddenError
from router.model import Principal
from router.model.publish_source import encode_source
from router.settings import Settings
from router.settings.options import SettingsOptions, from_setting
from router.sharing.registry import AsyncRegistry
from router.wire.nats.encode import MessageEncoder
from router.wire.nats.headers import status, status_code
from router.wire.nats.jetstream.replies import API_LEVEL
from router.wire.nats.message import AckResult, NatsMessage

PROTOCOL_VERSION: Final = "2.11.0"
"""The version of nats-server whose features clients may use."""
HEARTBEAT: Final = 100
NO_RESPONDERS: Final = 503
RepliesTaker = Callable[[list[NatsMessage]], object]
MAX_PENDING_BYTES: Final = 512 << 20
"""Of all clients together, as long as each may have MIN_PENDING_BYTES."""
MIN_PENDING_BYTES: Final = 1 << 20
INBOX_BYTES: Final = 16
_SERVER_ID_BYTES: Final = 35


@dataclass(frozen=True, slots=True)
class NatsOptions(SettingsOptions):
    """Limits of NATS clients: bytes of a payload, subscriptions of one, unsent bytes of one.

    `max_subjects`: of all streams together.
    """

    max_payload: int = from_setting("nats.max_payload", default=1 << 20)
    max_subscriptions: int = from_setting("nats.max_subscriptions", default=10_000)
    max_pending: int = from_setting("nats.max_pending", default=32 << 20)
    max_subjects: int = from_setting("nats.max_subjects", default=500_000)


class ListedClient(Protocol):
    """A client of the listener."""

    @property
    def caller(self) -> NatsCaller:
        """Return who it is."""
        ...

    def describe(self) -> dict[str, Any]:
        """Return the connection as nats-server lists it."""
        ...


class NatsServer:
    """The NATS side of a broker; used on its event loop."""

    def __init__(
        self,
        settings: Settings,
        topics: Topics,
        counters: NodeCounters,
        registry: AsyncRegistry,
        transcoder: Transcoder,
        authorizer: Authorizer | None,
    ) -> None:
        self.settings = settings
        self.topics = topics
        self.counters = counters
        self.registry = registry
        self.transcoder = transcoder
        self.authorizer = authorizer
        self.options = NatsOptions.from_settings(settings)
        self.jetstream = settings.flag("jetstream.enabled")
        self.hub = Hub()
        self.metrics = NatsMetrics(counters, self.hub)
        self.streams: Streams
        self.consumers: JetStreamConsumers
        self.api: JetStreamApi
        self.other_dialects: OtherDialects
        self.snapshots: Snapshots
        self.restores: Restores
        self.name = socket.gethostname()
        self.id = _server_id(f"{self.name}:{Path(settings.text('data.dir')).absolute()}")
        self._addresses = NATS.addresses(settings)
        self.encoder = MessageEncoder()
        # The stream that stores what clients publish to a literal subject; none without JetStream.
        self.stream_for: Callable[[str], Stream | None] = lambda _subject: None
        # Clients must not guess it: they could read the replies, and write their own.
        self._inbox = f"_INBOX.{secrets.token_hex(INBOX_BYTES)}"
        self._inboxes = 0
        self.last_client_id = 0
        self.clients: dict[int, ListedClient] = {}

    @property
    def max_pending(self) -> int:
        """Return how many bytes may wait for a client; fewer if there are many clients."""
        share = MAX_PENDING_BYTES // max(1, self.metrics.connections)
        return min(self.options.max_pending, max(MIN_PENDING_BYTES, share))

    def new_client_id(self) -> int:
        """Return a number that no other client of this process has."""
        self.last_client_id += 1
        return self.last_client_id

    def info(
        self, client_id: int, client_ip: str, address: tuple[str, int], *, secure: bool
    ) -> dict[str, Any]:
        """Return what INFO says to a client that reached the broker at an address."""
        url = self._addresses.tls if secure else self._addresses.plain
        required = self.authorizer is not None and self.authorizer.authentication_required
        return {
            "server_id": self.id,
            "server_name": self.name,
            "version": PROTOCOL_VERSION,
            "proto": 1,
            "host": address[0],
            "port": address[1],
            "headers": True,
            "max_payload": self.options.max_payload,
            **({"jetstream": True, "api_lvl": API_LEVEL} if self.jetstream else {}),
            "client_id": client_id,
            "client_ip": client_ip,
            **({"auth_required": True} if required else {}),
            **({"tls_required": True} if secure else {}),
            **({"connect_urls": [urlsplit(url).netloc]} if url else {}),
        }

    def begin_request_for(
        self,
        principal: Principal,
        administers: bool,
        message: NatsMessage,
        max_replies: int,
        seconds: float,
        done: RepliesTaker,
    ) -> Callable[[], None]:
        """Publish a message for a principal of HTTP and wait for replies; see `begin_request`.

        Raises ForbiddenError for a message that the principal may not publish.
        """
        caller = NatsCaller(RequestIdentity(principal, administers, self.authorizer))
        if not SubjectRights(caller, self.streams.topic_of, time.monotonic).may(
            Right.PUBLISH, message.subject
        ):
            raise ForbiddenError(f"Access denied: no right to publish to {message.subject}.")
        if not caller.unrestricted and (name := _pulled_stream(message.subject)):
            # What serves these subjects does not answer a client without rights.
            topic = self.streams.stream_topics.topic_name(name)
            if topic is None or not caller.may(topic, Right.VIEW):
                done([NatsMessage("", headers=status(NO_RESPONDERS))])
                return _ignore
            caller.authorize(topic, Right.SUBSCRIBE)
        return self.begin_request(caller, message, max_replies, seconds, done)

    async def acknowledge_for(
        self, principal: Principal, subjects: Sequence[str], payload: bytes
    ) -> AckResult:
        """Take acknowledgements of a principal of HTTP; see `ConsumerServices.acknowledge`."""
        caller = NatsCaller(RequestIdentity(principal, False, self.authorizer))
        return await self.consumers.services.acknowledge(caller, subjects, payload)

    def begin_request(
        self,
        caller: NatsCaller,
        message: NatsMessage,
        max_replies: int,
        seconds: float,
        done: RepliesTaker,
    ) -> Callable[[], None]:
        """Publish a message, and call `done` once with the replies that came within some seconds.

        The wait ends after `max_replies`, or after a status other than a heartbeat, which is the
        last of the list then; heartbeats are left out. A request that none receives is answered
        with the status 503. Rights are checked before, but for services. `done` may be called
        before this returns. What is returned ends the wait without a call of `done`.
        """
        self._inboxes += 1
        inbox = f"{self._inbox}.{self._inboxes}"
        replies = _Replies(self.hub, inbox, max_replies, seconds, done)
        request = message._replace(reply=inbox)
        try:
            received = self.hub.publish(request, caller=caller)
            stream = self.stream_for(request.subject)
            if stream is not None:
                source = encode_source("http", caller.name, caller.identity.address, "JetStream")
                publisher = self.streams.publisher(_ignore, _ignore, source)
                publisher.publish(stream, request)
                publisher.flush()
            elif not received:
                self.hub.no_responders(request)
        except BaseException:
            replies.close()
            raise
        return replies.close


def _pulled_stream(subject: str) -> str:
    """Return the stream whose messages a subject pulls, "" if it pulls none."""
    return (
        subject.removeprefix(NEXT_PREFIX).partition(".")[0]
        if subject.startswith(NEXT_PREFIX)
        else ""
    )


def _ignore() -> None:
    """Do nothing."""


class _Replies(Subscriber):
    """The replies that come to an inbox until the last, or for some seconds."""

    __slots__ = ("_done", "_hub", "_inbox", "_max_replies", "_received", "_timer")

    def __init__(
        self, hub: Hub, inbox: str, max_replies: int, seconds: float, done: RepliesTaker
    ) -> None:
        self._hub = hub
        self._inbox = inbox
        self._max_replies = max_replies
        self._done = done
        self._received: list[NatsMessage] = []
        self._timer = asyncio.get_running_loop().call_later(seconds, self._end)
        hub.open_inbox(inbox, self)

    def deliver(self, message: NatsMessage) -> None:
        # Headers of a stored message may have a status as well; it has what acknowledges it.
        code = 0 if message.reply.startswith(ACK_PREFIX) else status_code(message.headers)
        if code == HEARTBEAT:
            return
        self._received.append(message)
        if code or len(self._received) >= self._max_replies:
            self._end()

    def close(self) -> None:
        """Take no more replies; callable twice."""
        self._timer.cancel()
        self._hub.close_inbox(self._inbox)

    def _end(self) -> None:
        self.close()
        self._done(self._received)


def _server_id(place: str) -> str:
    """Return an id in the form of nats-server's, the same at each start of a broker."""
    digest = hashlib.blake2b(place.encode(), digest_size=_SERVER_ID_BYTES).digest()
    return "N" + base64.b32encode(digest).decode("ascii")[:55]
