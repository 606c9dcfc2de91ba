"""One NATS client from its first operation to its end: operations in, messages out.

Theory of operation. The server speaks first: INFO. Operations are served in their order; those that
come while the client's password is checked wait, and nothing is read meanwhile. What one read
brought for streams is appended together, at the end of the turn.

A client that does not take what it is sent is cut off when more than `nats.max_pending` bytes wait
for it, because a publisher must not wait for a subscriber.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType
from typing import Any, Final

from router.access.permissions import Right
from router.broker.nats.protocol.acks import ACK_PREFIX
from router.broker.nats.protocol.authorization import NatsCaller, SubjectRights
from router.broker.nats.protocol.connect import (
    AUTHORIZATION_VIOLATION,
    DEFAULT_OPTIONS,
    ConnectOptions,
    ConnectOptionsError,
    credentials,
)
from router.broker.nats.protocol.hub import HubSubscription, Subscriber
from router.broker.nats.server import NatsServer
from router.broker.nats.streams.publishing import StreamPublisher
from router.broker.nats.streams.streams import SERVICES
from router.broker.nats.system import duration
from router.broker.transport.connection import ClientConnection
from router.errors import RouterError, UnauthenticatedError
from router.model.publish_source import encode_source
from router.wire.nats import encode
from router.wire.nats.jetstream.times import format_time
from router.wire.nats.message import NatsMessage
from router.wire.nats.parser import (
    AckBatch,
    ClientParser,
    Connect,
    NatsProtocolError,
    Ping,
    Pong,
    Publish,
    Subscribe,
    Unsubscribe,
)
from router.wire.nats.subjects import is_literal, is_valid

MAX_CONTROL_LINE_BYTES: Final = 4096
MAX_SUBSCRIPTION_BYTES: Final = 1_024
"""What the subscriptions of a client may take in memory, about, on average."""
MAX_RUN: Final = 256
"""Messages of a consumer that are sent together."""
SLOW_CONSUMER: Final = "slow-consumer"
_AUTHENTICATING: Final = "authenticating"
_STREAMS: Final = "storing"


class ClientSubscription(Subscriber):
    """A client's subscription: `sid` is its name; it ends after `max_messages`, if that is not 0.

    `checked`: the right to receive a message is checked by its subject.
    """

    __slots__ = ("checked", "delivered", "max_messages", "session", "sid", "subscription")

    subscription: HubSubscription

    def __init__(self, session: NatsSession, sid: bytes, *, checked: bool) -> None:
        self.session = session
        self.sid = sid
        self.checked = checked
        self.delivered = self.max_messages = 0

    def deliver(self, message: NatsMessage) -> None:
        """Send a message to the client."""
        session = self.session
        if self.checked and not session.rights.may(Right.SUBSCRIBE, message.subject):
            return
        self.delivered += 1
        session.send(self.sid, message)
        if self.max_messages and self.delivered >= self.max_messages:
            session.end_subscription(self)

    @property
    def max_run(self) -> int:
        """Return how many messages the client is sent at once: none if each is checked."""
        if self.checked:
            return 0
        return min(MAX_RUN, self.max_messages - self.delivered) if self.max_messages else MAX_RUN

    def deliver_run(self, messages: Sequence[NatsMessage]) -> None:
        """Send messages to the client."""
        self.delivered += len(messages)
        self.session.send_run(self.sid, messages)
        if self.max_messages and self.delivered >= self.max_messages:
            self.session.end_subscription(self)

    @property
    def writable(self) -> bool:
        """Return whether the client takes what it is sent."""
        return self.session.connection.writable

    def when_writable(self, resume: Callable[[], None]) -> None:
        """Call `resume` once when the client takes more."""
        self.session.connection.when_writable(resume)


class NatsSession:
    """The session of one NATS client; see router.broker.transport.session.ProtocolSession."""

    keep_alive = encode.PING
    farewells: Mapping[str, bytes] = MappingProxyType(
        {
            SLOW_CONSUMER: encode.err("Slow Consumer"),
            "client-silent": encode.err("Stale Connection"),
            "client-not-known-in-time": encode.err("Authentication Timeout"),
        }
    )

    def __init__(self, connection: ClientConnection, server: NatsServer) -> None:
        self.connection = connection
        self.frames = ClientParser(MAX_CONTROL_LINE_BYTES, server.options.max_payload)
        self.caller = NatsCaller(connection.identity)
        self.rights = SubjectRights(self.caller, server.streams.topic_of, time.monotonic)
        self._server = server
        self._hub = server.hub
        self._metrics = server.metrics
        self._options = DEFAULT_OPTIONS
        self._subscriptions: dict[bytes, ClientSubscription] = {}
        self._subscriptions_size = 0
        self._literal = ""
        self._publisher: StreamPublisher | None = None
        self._published = False
        self._waiting: deque[Any] = deque()
        self._authenticating = False
        self._handlers: dict[type, Callable[[Any], None]] = {
            Publish: self._publish,
            AckBatch: self._acknowledge,
            Subscribe: self._subscribe,
            Unsubscribe: self._unsubscribe,
            Ping: self._ping,
            Pong: self._pong,
            Connect: self._connect,
            NatsProtocolError: self._broken,
        }
        self._metrics.connections += 1
        self._received_messages = self._received_bytes = 0
        self._sent_messages = self._sent_bytes = 0
        self._since_ns = time.time_ns()
        if connection.greeting is not None:
            self.id: int = connection.greeting.known
        else:
            self.id = server.new_client_id()
            connection.call_soon(self._greet)
        server.clients[self.id] = self

    @property
    def name(self) -> str:
        """Return the client's name for people."""
        client = self._options.name or self._options.software or "a NATS client"
        return f"{client} at {self.connection.peer.name}"

    def describe(self) -> dict[str, Any]:
        """Return the connection as nats-server lists it."""
        address, _, port = self.connection.peer.name.rpartition(":")
        return {
            "cid": self.id,
            "kind": "Client",
            "type": "nats",
            "ip": self.connection.peer.address or address,
            "port": int(port) if port.isdecimal() else 0,
            "start": format_time(self._since_ns),
            "uptime": duration(time.time_ns() - self._since_ns),
            "pending_bytes": self.connection.unsent,
            "in_msgs": self._received_messages,
            "out_msgs": self._sent_messages,
            "in_bytes": self._received_bytes,
            "out_bytes": self._sent_bytes,
            "subscriptions": len(self._subscriptions),
            "name": self._options.name,
            "lang": self._options.lang,
            "version": self._options.version,
            "authorized_user": self.caller.name,
        }

    # What the connection calls.

    def handle(self, frame: Any) -> None:
        """Serve an operation, or keep it until it is known who the client is."""
        if self._authenticating:
            self._waiting.append(frame)
        elif self.connection.identity.known or type(frame) in {Connect, NatsProtocolError}:
            self._handlers[type(frame)](frame)
        else:
            self._authenticate("none", b"")
            self.handle(frame)

    def frames_handled(self) -> None:
        """Have what was published stored; read nothing while it is found out who the client is."""
        if self._authenticating:
            self.connection.hold_reading(_AUTHENTICATING)
        if self._published and self._publisher is not None:
            self._published = False
            self._publisher.flush()

    def encode_failure(self, failure: RouterError) -> bytes:
        """Return the error before the end of a client that is refused, or whose token ended."""
        known = self.connection.identity.known
        expired = known and isinstance(failure, UnauthenticatedError)
        return self._error("User Authentication Expired" if expired else AUTHORIZATION_VIOLATION)

    def request_credentials(self) -> None:
        """Do nothing: the protocol has no request for a new token."""

    def connection_lost(self) -> None:
        """Release all that the client had."""
        self._metrics.connections -= 1
        self._server.clients.pop(self.id, None)
        self._waiting.clear()
        self._end_subscriptions()
        if self._publisher is not None:
            self._publisher.close()

    # What subscriptions call.

    def send(self, sid: bytes, message: NatsMessage) -> None:
        """Send a message for a subscription."""
        connection = self.connection
        if connection.closed:
            return
        if not connection.writable and connection.unsent > self._server.max_pending:
            self._metrics.slow_consumers += 1
            connection.abort(SLOW_CONSUMER)
            self._end_subscriptions()
            return
        if message.headers and not self._options.headers:
            message = message._replace(headers=b"")
        head, tail = self._server.encoder.parts(message)
        self._write(1, head, sid, tail)

    def send_run(self, sid: bytes, messages: Sequence[NatsMessage]) -> None:
        """Send messages for a subscription whose client takes them."""
        if self.connection.closed:
            return
        if not self._options.headers:
            messages = [message._replace(headers=b"") for message in messages]
        self._write(len(messages), *encode.run_parts(sid, messages))

    def _write(self, count: int, *parts: bytes) -> None:
        self.connection.write(*parts)
        size, metrics = sum(map(len, parts)), self._metrics
        metrics.sent_messages += count
        metrics.sent_bytes += size
        self._sent_messages += count
        self._sent_bytes += size

    def end_subscription(self, one: ClientSubscription) -> None:
        """Forget a subscription."""
        if self._subscriptions.pop(one.sid, None) is not None:
            self._subscriptions_size -= len(one.sid) + one.subscription.size
            one.subscription.unsubscribe()

    def _end_subscriptions(self) -> None:
        for one in list(self._subscriptions.values()):
            one.subscription.unsubscribe()
        self._subscriptions.clear()

    # Operations.

    def _greet(self) -> None:
        """Send INFO, the first of all."""
        connection = self.connection
        if not connection.closed:
            address = connection.local_address or ("", 0)
            info = self._server.info(
                self.id, connection.peer.address, address, secure=connection.secure
            )
            connection.write(encode.info(info))

    def _connect(self, operation: Connect) -> None:
        try:
            options = ConnectOptions(operation.options)
            presented = credentials(operation.options)
        except ConnectOptionsError as error:
            self._end(str(error))
            return
        self._options = options
        self.caller.no_responders = options.no_responders
        if self.connection.identity.known:
            self._confirm()
        else:
            self._authenticate(*presented, welcome=self._confirm)

    def _authenticate(
        self, method: str, data: bytes, welcome: Callable[[], None] | None = None
    ) -> None:
        """Have what follows wait until it is known who the client is."""

        def admitted() -> None:
            self._authenticating = False
            if welcome is not None:
                welcome()
            self.connection.guard(self._resume)

        self._authenticating = True
        self.connection.identity.authenticate(method, data, admitted)

    def _resume(self) -> None:
        """Serve what came while the client was not known."""
        waiting = self._waiting
        while waiting and not (self._authenticating or self.connection.closed):
            self.handle(waiting.popleft())
        if not self._authenticating:
            self.frames_handled()
            self.connection.release_reading(_AUTHENTICATING)

    def _publish(self, operation: Publish) -> None:
        message = operation.message
        subject = message.subject
        metrics = self._metrics
        metrics.received_messages += 1
        metrics.received_bytes += len(message.payload)
        self._received_messages += 1
        self._received_bytes += len(message.payload)
        options = self._options
        service = subject.startswith(SERVICES)  # calls name filters, which may have wildcards
        # Clients publish to the same subject again and again, but each acknowledgement has its own.
        literal = subject == self._literal
        if not literal and (options.pedantic or not service):
            literal = is_literal(subject)
            if literal:
                self._literal = subject
            elif options.pedantic:
                self._complain("Invalid Publish Subject")
                return
        publishable = literal or service
        if not (
            self.caller.unrestricted or (publishable and self.rights.may(Right.PUBLISH, subject))
        ):
            self._complain(f'Permissions Violation for Publish to "{subject}"')
            return
        if options.verbose:
            self._confirm()
        origin = None if options.echo else self
        count = self._hub.publish(message, origin=origin, caller=self.caller)
        # Calls and acknowledgements are stored nowhere, nor are subjects with wildcards.
        stored = literal and not service
        stream = self._server.stream_for(subject) if stored else None
        if stream is not None:
            self._published = True
            (self._publisher or self._open_publisher()).publish(stream, message)
        elif not count and options.no_responders:
            self._hub.no_responders(message)

    def _acknowledge(self, operation: AckBatch) -> None:
        """Hand acknowledgements to their consumer, or publish them if others may see them too."""
        stream, consumer, deliveries, _ = operation
        direct = not (self._options.verbose or self._hub.may_see_services)
        if (
            direct
            and self.rights.may(Right.PUBLISH, f"{ACK_PREFIX}{stream}.{consumer}")
            and self._server.consumers.services.acknowledge_run(self.caller, operation)
        ):
            metrics, size = self._metrics, operation.payload_bytes
            metrics.received_messages += len(deliveries)
            metrics.received_bytes += size
            self._received_messages += len(deliveries)
            self._received_bytes += size
        else:
            for message in operation.messages():
                self._publish(Publish(message))

    def _open_publisher(self) -> StreamPublisher:
        """Return what stores the client's messages, made with the first."""
        connection, identity = self.connection, self.connection.identity
        client = ", ".join(filter(None, (self._options.name, self._options.software)))
        self._publisher = self._server.streams.publisher(
            lambda: connection.hold_reading(_STREAMS),
            lambda: connection.release_reading(_STREAMS),
            encode_source("nats", identity.principal.name, identity.address, client),
        )
        return self._publisher

    def _subscribe(self, operation: Subscribe) -> None:
        subject, queue, sid = operation.subject, operation.queue, operation.sid
        if not is_valid(subject):
            self._complain("Invalid Subject")
            return
        if sid in self._subscriptions:
            self._confirm()
            return
        if not self.rights.may_subscribe(subject):
            using = f' using queue "{queue}"' if queue else ""
            self._complain(f'Permissions Violation for Subscription to "{subject}"{using}')
            return
        one = ClientSubscription(self, sid, checked=self.rights.checks_messages(subject))
        limit = self._server.options.max_subscriptions
        large = self._subscriptions_size > limit * MAX_SUBSCRIPTION_BYTES
        if len(self._subscriptions) >= limit or large or self._hub.full:
            self._complain("maximum subscriptions exceeded")
            return
        self._subscriptions[sid] = one
        one.subscription = self._hub.subscribe(subject, one, queue, owner=self)
        self._subscriptions_size += len(sid) + one.subscription.size
        self._confirm()

    def _unsubscribe(self, operation: Unsubscribe) -> None:
        one = self._subscriptions.get(operation.sid)
        if one is not None:
            one.max_messages = operation.max
            if one.delivered >= operation.max:
                self.end_subscription(one)
        self._confirm()

    def _ping(self, _operation: Ping) -> None:
        self.connection.write(encode.PONG)

    def _pong(self, _operation: Pong) -> None:
        """Do nothing: that the client sent anything is enough."""

    def _broken(self, error: NatsProtocolError) -> None:
        if error.fatal:
            self._end(error.text)
        else:
            self._complain(error.text)

    # Answers.

    def _confirm(self) -> None:
        """Confirm an operation to a verbose client."""
        if self._options.verbose:
            self.connection.write(encode.OK)

    def _complain(self, text: str) -> None:
        """Send an error after which the connection goes on."""
        self.connection.write(self._error(text))

    def _end(self, text: str) -> None:
        """Send an error and close."""
        self.connection.write(self._error(text))
        self.connection.refuse(text)

    def _error(self, text: str) -> bytes:
        self._metrics.errors[text.partition(" for ")[0]] += 1
        return encode.err(text)
