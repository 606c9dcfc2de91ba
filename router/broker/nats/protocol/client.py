"""A NATS client: the options of its CONNECT, and its subscriptions."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Final, Protocol

from router.access.permissions import Right
from router.broker.nats.protocol.authorization import SubjectRights
from router.broker.nats.protocol.hub import HubSubscription, Subscriber
from router.broker.transport.authentication import BASIC, TOKEN
from router.broker.transport.connection import Connection
from router.wire.nats.message import NatsMessage

MAX_NAME: Final = 100
AUTHORIZATION_VIOLATION: Final = "Authorization Violation"
MAX_RUN: Final = 256
"""Messages of a consumer that are sent together."""


class ConnectOptionsError(Exception):
    """The options of a CONNECT have other types than they should, or do not go together."""


def _flag(options: dict[str, Any], name: str, *, default: bool) -> bool:
    value = options.get(name, default)
    if not isinstance(value, bool):
        raise ConnectOptionsError("Parser Error")
    return value


def _text(options: dict[str, Any], name: str) -> str:
    value = options.get(name) or ""
    if not isinstance(value, str):
        raise ConnectOptionsError("Parser Error")
    return value


class ConnectOptions:
    """The options of a CONNECT; before it, the defaults of the protocol hold."""

    __slots__ = (
        *("echo", "headers", "lang", "name", "no_responders", "pedantic", "verbose", "version"),
    )

    def __init__(self, options: dict[str, Any]) -> None:
        self.verbose = _flag(options, "verbose", default=True)
        self.pedantic = _flag(options, "pedantic", default=True)
        self.echo = _flag(options, "echo", default=True)
        self.headers = _flag(options, "headers", default=False)
        self.no_responders = _flag(options, "no_responders", default=False)
        self.name = _text(options, "name")[:MAX_NAME]
        self.lang = _text(options, "lang")[:MAX_NAME]
        self.version = _text(options, "version")[:MAX_NAME]
        if self.no_responders and not self.headers:
            raise ConnectOptionsError("no responders requires headers support")

    @property
    def software(self) -> str:
        """Return the library that the client uses."""
        return f"{self.lang} {self.version}".strip()


DEFAULT_OPTIONS: Final = ConnectOptions({})


def credentials(options: dict[str, Any]) -> tuple[str, bytes]:
    """Return the method and data of what a client presents in CONNECT; raise ConnectOptionsError.

    That is a name and password, or a token; a name alone is a token, as clients send one.
    """
    user, password = _text(options, "user"), _text(options, "pass")
    token = _text(options, "auth_token")
    if ":" in user:
        raise ConnectOptionsError(AUTHORIZATION_VIOLATION)
    if password:
        return BASIC, f"{user}:{password}".encode()
    if token or user:
        return TOKEN, (token or user).encode("latin-1", "replace")
    return "none", b""


class ClientSession(Protocol):
    """The connection of a client, as its subscriptions use it."""

    @property
    def rights(self) -> SubjectRights:
        """Return what the client may do."""
        ...

    @property
    def connection(self) -> Connection:
        """Return the connection."""
        ...

    def send(self, sid: bytes, message: NatsMessage) -> None:
        """Send a message for a subscription."""
        ...

    def send_run(self, sid: bytes, messages: Sequence[NatsMessage]) -> None:
        """Send messages for a subscription whose client takes them."""
        ...

    def end_subscription(self, one: ClientSubscription) -> None:
        """Forget a subscription."""
        ...


class ClientSubscription(Subscriber):
    """A client's subscription: `sid` is its name; it ends after `max_messages`, if that is not 0.

    `checked`: the right to receive a message is checked by its subject.
    """

    __slots__ = ("checked", "delivered", "max_messages", "session", "sid", "subscription")

    subscription: HubSubscription

    def __init__(self, session: ClientSession, sid: bytes, *, checked: bool) -> None:
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
