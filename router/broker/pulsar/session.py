"""One Pulsar client from CONNECT to its end: which commands it is served, and by what."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Final

from router.broker.context import BrokerContext
from router.broker.node.rpc import NodeSession
from router.broker.pulsar import answers
from router.broker.pulsar.authorization import authorized_handlers
from router.broker.pulsar.client import Handler, PulsarClient
from router.broker.pulsar.consuming import Consuming
from router.broker.pulsar.context import LogContext
from router.broker.pulsar.failures import refusal_of, request_failed
from router.broker.pulsar.lookups import PulsarLookups
from router.broker.pulsar.producing import PulsarPublisher
from router.broker.pulsar.schemas import SchemaRequests
from router.broker.pulsar.transactions import TransactionCommands
from router.broker.pulsar.watching import Watching
from router.broker.transport.connection import ClientConnection
from router.broker.transport.session import NO_FAREWELLS
from router.errors import RouterError, UnauthenticatedError
from router.wire.pulsar import Frame, PulsarFrameReader, command, encode
from router.wire.pulsar import pulsar_pb2 as pb

MAX_PROTOCOL: Final = 21
MAX_VERSION_CHARACTERS: Final = 200

_PING: Final = encode(pb.BaseCommand(type=pb.BaseCommand.PING, ping=pb.CommandPing()))
_PONG: Final = encode(pb.BaseCommand(type=pb.BaseCommand.PONG, pong=pb.CommandPong()))
_CHALLENGE: Final = b"PulsarAuthRefresh"
# What clients begin with. A command for a producer or consumer that never was closes a connection.
_MESSAGE_REQUESTS: Final = (
    pb.BaseCommand.PARTITIONED_METADATA,
    pb.BaseCommand.LOOKUP,
    pb.BaseCommand.GET_TOPICS_OF_NAMESPACE,
    pb.BaseCommand.GET_SCHEMA,
    pb.BaseCommand.PRODUCER,
    pb.BaseCommand.SUBSCRIBE,
)


def sessions(broker: BrokerContext) -> Callable[[ClientConnection], PulsarSession]:
    """Return what opens a Pulsar session on a connection."""
    log = None if broker.topics is None else LogContext(broker, broker.topics)
    return lambda connection: PulsarSession(connection, broker, log)


class PulsarSession(PulsarClient):
    """The session of one Pulsar client; see router.broker.transport.session.ProtocolSession."""

    def __init__(
        self, connection: ClientConnection, broker: BrokerContext, log: LogContext | None
    ) -> None:
        super().__init__(connection)
        self.frames = PulsarFrameReader()
        self.keep_alive, self.farewells = _PING, NO_FAREWELLS
        self._broker = broker
        self._log = None if log is None else _LogCommands(self, log)
        self.frames_handled: Callable[[], None] = lambda: None
        if self._log is not None:
            self.frames_handled = self._log.producing.pause
        self._node = NodeSession(self, broker.rpc)
        self.handlers = {pb.BaseCommand.CONNECT: self._connect}

    def encode_failure(self, failure: RouterError) -> bytes:
        """Return an ERROR that belongs to no request."""
        return encode(request_failed(answers.NO_REQUEST, failure))

    def request_credentials(self) -> None:
        """Send an AUTH_CHALLENGE."""
        self.send(
            command(
                pb.BaseCommand.AUTH_CHALLENGE,
                server_version=self._broker.server_version,
                challenge=pb.AuthData(auth_method_name="token", auth_data=_CHALLENGE),
                protocol_version=self.protocol,
            )
        )

    def connection_lost(self) -> None:
        """Release all that the client had."""
        self.frames = PulsarFrameReader()  # what it held need not wait for the garbage collector
        if self._log is not None:
            self._log.close()
        self._node.close()

    def _connect(self, frame: Frame) -> None:
        connect = frame.command.connect
        self.protocol = min(max(connect.protocol_version, 0), MAX_PROTOCOL)
        self.handlers = {}  # nothing is served until the client is authenticated
        identity, authorizer = self.identity, self.identity.authorizer
        required = authorizer is not None and authorizer.authentication_required
        if required and connect.original_principal and not identity.trusted:
            # The client that a proxy speaks for would have the proxy's rights instead of its own.
            identity.refuse(UnauthenticatedError("No proxy may speak for others here."))
            return
        identity.authenticate(
            connect.auth_method_name,
            connect.auth_data,
            partial(self._welcome, connect),
            renewable=connect.feature_flags.supports_auth_refresh,
        )

    def _welcome(self, connect: pb.CommandConnect) -> None:
        self.version = connect.client_version[:MAX_VERSION_CHARACTERS] or "unnamed"
        self.wants_broker_entry = connect.feature_flags.supports_broker_entry_metadata
        self.handlers = {
            pb.BaseCommand.PING: self._pong,
            pb.BaseCommand.PONG: lambda _: None,
            pb.BaseCommand.AUTH_RESPONSE: self._renew,
            **authorized_handlers(self._message_handlers(), self),
            pb.BaseCommand.EXTENSION: self._node.handle,
        }
        version = self._broker.server_version
        self.send(answers.connected(version, self.protocol, ours=self.ours))

    def _message_handlers(self) -> dict[int, Handler]:
        if self._log is not None:
            return self._log.handlers()
        return dict.fromkeys(_MESSAGE_REQUESTS, self._refuse)

    def _refuse(self, frame: Frame) -> None:
        self.send(refusal_of(frame.command, self._broker.refusal))

    def _renew(self, frame: Frame) -> None:
        self.identity.renew(frame.command.authResponse.response.auth_data)

    def _pong(self, _frame: Frame) -> None:
        self.connection.write(_PONG)


class _LogCommands:
    """What one client does with the log."""

    def __init__(self, client: PulsarClient, log: LogContext) -> None:
        self.producing = PulsarPublisher(client, log)
        self._consuming = Consuming(client, log)
        self._lookups = PulsarLookups(client, log)
        self._schemas = SchemaRequests(client, log)
        self._watching = Watching(client, log.lists)
        self._transactions = TransactionCommands(client, log)

    def handlers(self) -> dict[int, Handler]:
        """Return the commands served."""
        return {
            **self.producing.handlers(),
            **self._consuming.handlers(),
            **self._lookups.handlers(),
            **self._schemas.handlers(),
            **self._watching.handlers(),
            **self._transactions.handlers(),
        }

    def close(self) -> None:
        """Close all producers and consumers."""
        self.producing.close()
        self._consuming.close_all()
        self._watching.close_all()
