"""Which connection leads to the broker that serves a topic.

A broker of ours serves every topic it knows on the connection one has. Apache Pulsar spreads topics
over brokers: a lookup names the broker, and says whether it is reached directly or through the
service address (a proxy, a port map). Answers are remembered as long as the connection lives, and
until a topic turns out to be gone from there.
"""

from __future__ import annotations

import socket
import ssl
import time
from collections.abc import Callable
from threading import Lock
from typing import Any, Final, Protocol, TypeVar

from router.backends.pulsar.address import PulsarAddress
from router.backends.pulsar.system_topics import check_not_system
from router.clocks.backoff import Backoff
from router.errors import (
    BackendTimeoutError,
    BackendUnavailableError,
    ConsumerClosedError,
    CredentialsRefusedError,
    NotServedError,
    SettingError,
    SubscriptionBusyError,
)
from router.errors.quoting import failure_text
from router.model import TopicName
from router.pulsar_client.connection import PulsarConnection, PulsarConnectionLostError
from router.pulsar_client.credentials import NO_CREDENTIALS, PulsarCredentials
from router.pulsar_client.handshake import shake_hands
from router.pulsar_client.link import MIN_PAUSE_SECONDS, Dial, PulsarLink
from router.pulsar_client.refusals import ElsewhereError, refusal
from router.pulsar_client.tls import secured
from router.wire.pulsar import pulsar_pb2 as pb

T = TypeVar("T")

DIAL_SECONDS: Final = 5.0
MAX_HOPS: Final = 10
MAX_CACHED_LOOKUPS: Final = 100_000
MOVED_PAUSE_SECONDS: Final = 0.02
"""Before another try at a topic whose broker or consumer changes; each pause is twice the last."""
MAX_MOVED_PAUSE_SECONDS: Final = 0.1

Where = tuple[PulsarAddress, str]
"""An address, and the broker that its proxy is asked for (empty: itself)."""


class AwayError(BackendUnavailableError):
    """The broker that a lookup named cannot be reached."""


def moved_pauses() -> Backoff:
    """Return the pauses between tries at a topic that moves."""
    return Backoff(MOVED_PAUSE_SECONDS, MAX_MOVED_PAUSE_SECONDS)


Recall = Callable[[TopicName, str | None, float], None]
"""Ends what workers retain of a subscription, None: of a topic; waits for so many seconds."""


def recall_nothing(_topic: TopicName, _subscription: str | None, _timeout: float) -> None:
    """Do nothing: there is no node whose workers retain something."""


def wait_on() -> None:
    """Do nothing: the other consumer leaves by itself."""


def at_broker(
    routes: Routes,
    topic: str,
    use: Callable[[PulsarConnection], T],
    deadline: float,
    *,
    when_busy: Callable[[], None] | None = None,
) -> T:
    """Return what is made of a connection to a topic's broker; again while the topic moves.

    Again too where the broker closed the consumer that `use` opened.

    `when_busy`: again also while there is another consumer, each time after this call. Raises the
    last failure, and SubscriptionBusyError where only the try after it was not answered in time.
    """
    pauses = moved_pauses()
    busy: SubscriptionBusyError | None = None
    while True:
        try:
            return use(routes.connection(topic, deadline))
        except SubscriptionBusyError as error:
            busy = error
            if when_busy is None or not pauses.sleep(deadline):
                raise
            when_busy()
        except (PulsarConnectionLostError, ElsewhereError, ConsumerClosedError):
            if not pauses.sleep(deadline):
                raise
            routes.forget(topic)
        except BackendTimeoutError:
            if busy is None:
                raise
            raise busy from None


class Routes(Protocol):
    """Finds the connection to the broker that serves a topic."""

    service: PulsarLink
    """Where to ask what belongs to no topic."""

    def connection(self, topic: str, deadline: float) -> PulsarConnection:
        """Return a live connection; raise BackendUnavailableError, TopicNotFoundError."""
        ...

    def forget(self, topic: str) -> None:
        """Look the topic up next time: it is not where it was."""
        ...

    def close(self) -> None:
        """Close what these routes opened."""
        ...


class OneBroker:
    """Every topic is served on one connection: the node's own broker."""

    def __init__(self, link: PulsarLink, *, own: bool = False) -> None:
        self.service = link
        self._own = own

    def connection(self, topic: str, deadline: float) -> PulsarConnection:
        """Return the connection; raise BackendUnavailableError."""
        del topic
        return self.service.connection(deadline)

    def forget(self, topic: str) -> None:
        """Have nothing to forget."""

    def close(self) -> None:
        """Close the connection if it is this backend's own."""
        if self._own:
            self.service.close()


class LookupRoutes:
    """Topics are where a lookup says."""

    def __init__(
        self, address: PulsarAddress, credentials: PulsarCredentials = NO_CREDENTIALS
    ) -> None:
        self._address = address
        self._credentials = credentials
        self._lock = Lock()
        self._links: dict[Where, PulsarLink] = {}
        self._known: dict[str, PulsarConnection] = {}
        self._closed = False
        self.service = self._link((address, ""))

    def connection(self, topic: str, deadline: float) -> PulsarConnection:
        """Return a connection to the topic's broker; raise what the lookup answers."""
        known = self._known.get(topic)
        if known is not None and known.error is None:
            # Also while the service address does not answer.
            return known
        connection = self.service.connection(deadline)
        if connection.ours:
            return connection
        check_not_system(TopicName.parse(topic))
        # A broker that went and came back serves nothing before it was looked up again.
        known = self._found(topic, deadline)
        if len(self._known) >= MAX_CACHED_LOOKUPS:
            self._known.clear()
        self._known[topic] = known
        return known

    def forget(self, topic: str) -> None:
        """Look the topic up next time."""
        self._known.pop(topic, None)

    def close(self) -> None:
        """Close all connections."""
        with self._lock:
            self._closed = True
            links = list(self._links.values())
        for link in links:
            link.close()

    def _link(self, where: Where) -> PulsarLink:
        with self._lock:
            link = self._links.get(where)
            if link is None:
                link = self._links[where] = PulsarLink(self._dial(where))
                if self._closed:
                    link.close()
            return link

    def _dial(self, where: Where) -> Dial:
        return lambda deadline: dial(*where, deadline, self._credentials)

    def _found(self, topic: str, deadline: float) -> PulsarConnection:
        """Return a connection to the broker that a lookup names, asked again while it is away.

        Others go on naming a broker that died until they notice, and then name its successor.
        """
        while True:
            try:
                return self._look_up(topic, deadline)
            except AwayError:
                # The same one is not dialled again sooner.
                if time.monotonic() + MIN_PAUSE_SECONDS >= deadline:
                    raise

    def _look_up(self, topic: str, deadline: float) -> PulsarConnection:
        link, authoritative = self.service, False
        for _hop in range(MAX_HOPS):
            answer = self._ask(link, topic, authoritative, deadline)
            if answer.response == pb.CommandLookupTopicResponse.Failed:
                raise refusal(answer.error, answer.message)
            link = self._link(self._named(answer))
            connection = _reached(link, deadline)
            if answer.response == pb.CommandLookupTopicResponse.Connect:
                return connection
            authoritative = answer.authoritative
        raise BackendUnavailableError(f"the lookup of {topic} goes in circles")

    def _ask(self, link: PulsarLink, topic: str, authoritative: bool, deadline: float) -> Any:
        return link.call(
            lambda request_id: pb.BaseCommand(
                type=pb.BaseCommand.LOOKUP,
                lookupTopic=pb.CommandLookupTopic(
                    topic=topic, request_id=request_id, authoritative=authoritative
                ),
            ),
            deadline,
        )

    def _named(self, answer: Any) -> Where:
        url = answer.brokerServiceUrlTls if self._address.tls else answer.brokerServiceUrl
        try:
            broker = PulsarAddress.parse(url)
        except SettingError as error:
            kind = "pulsar+ssl" if self._address.tls else "pulsar"
            raise BackendUnavailableError(f"the lookup names no broker for {kind}://") from error
        if not answer.proxy_through_service_url:
            return broker, ""
        if broker.hosts[0] in self._address.hosts:
            return self._address, ""
        host, port = broker.hosts[0]
        return self._address, f"{host}:{port}"


def _reached(link: PulsarLink, deadline: float) -> PulsarConnection:
    """Return the connection of a link; raise AwayError if it cannot be opened now."""
    try:
        return link.connection(deadline, again=False)
    except NotServedError:
        raise
    except BackendUnavailableError as error:
        raise AwayError(str(error), retry_after=error.retry_after) from error


def dial(
    address: PulsarAddress,
    proxy_to: str,
    deadline: float,
    credentials: PulsarCredentials = NO_CREDENTIALS,
) -> PulsarConnection:
    """Open a connection to the first host that answers.

    Raises BackendUnavailableError, and CredentialsRefusedError if a host refuses the credentials:
    all hosts have the same users.
    """
    failure: Exception | None = None
    reason = "it names no host"
    for host, port in address.hosts:
        left = min(DIAL_SECONDS, max(0.05, deadline - time.monotonic()))
        try:
            context = credentials.context() if address.tls else None
            peer = socket.create_connection((host, port), timeout=left)
            peer.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            stream = secured(peer, host, left, context) if address.tls else peer
            return shake_hands(stream, time.monotonic() + left, proxy_to, credentials)
        except CredentialsRefusedError as error:
            raise CredentialsRefusedError(
                f"{address} refuses {credentials.shown}: {error}"
            ) from error
        except BackendUnavailableError as error:
            failure, reason = error, str(error)
        except (OSError, ssl.SSLError) as error:
            failure, reason = error, failure_text(error)
    raise BackendUnavailableError(f"{address} cannot be reached: {reason}") from failure
