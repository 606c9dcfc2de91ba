"""Who one connection's client is: found out before anything else is served, and again in time.

Theory of operation. A client on the node's own socket is trusted, whose mode lets nobody else in.
Every other one is a stranger until CONNECT names it: it has HANDSHAKE seconds for that, and there
are at most MOST_STRANGERS of them, of which the oldest is let go for a newcomer, so that whoever
opens connections and says nothing keeps nobody out. Passwords are checked beside the event loop;
what comes meanwhile breaks the protocol, for a client waits for CONNECTED.

A token that ends does not cut off its client at once: one that can is asked for a new token
(AUTH_CHALLENGE) and has REFRESH seconds to bring one of the same name, others are closed and come
again. Rights are asked for whenever something is opened (authorisation.py).
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import TYPE_CHECKING, Final

import structlog

from router.access.blacklist import refusal
from router.broker.gate import ANONYMOUS, TOKEN, Login, Shown
from router.broker.pulsar.failures import request_failed
from router.errors import RouterError, UnauthenticatedError
from router.model import TopicName
from router.wire.pulsar import Frame, ProtocolError
from router.wire.pulsar import pulsar_pb2 as pb

if TYPE_CHECKING:
    from router.broker.pulsar.connection import Connection
    from router.broker.pulsar.context import Context

HANDSHAKE: Final = 10.0
REFRESH: Final = 30.0
MOST_STRANGERS: Final = 500
# What one of them may send: names and credentials are short.
MOST_BYTES: Final = 64 * 1024
# How long to sleep at most before the clock is looked at again: somebody may set it.
LONGEST_NAP: Final = 3_600.0
NO_REQUEST: Final = 2**64 - 1
_CHALLENGE: Final = b"PulsarAuthRefresh"

_log = structlog.get_logger(__name__)


class Authentication:
    """Tells who is at the other end of one connection."""

    def __init__(self, connection: Connection, context: Context) -> None:
        self.principal = ANONYMOUS
        self._connection = connection
        self._blacklist = context.blacklist
        self._gate = context.gate
        self._strangers = context.strangers
        self._server_version = context.options.server_version
        self._loop = asyncio.get_running_loop()
        self._timer: asyncio.TimerHandle | None = None
        self._method = ""
        self._refreshes = False
        self._challenged = False
        self._heard = 0

    @property
    def administers(self) -> bool:
        """Tell whether the client may administer this node."""
        connection, gate = self._connection, self._gate
        if connection.trusted or gate is None or not gate.demanded:
            return connection.local
        return gate.administers(self.principal)

    def shown(self, names: list[str]) -> list[str]:
        """Return those of the full names of topics that the client may know of."""
        gate = self._gate
        if gate is None or self._connection.trusted or gate.sees_all(self.principal):
            return names
        return [name for name in names if gate.sees(self.principal, TopicName.parse(name))]

    def begin(self) -> None:
        """Have a client that just connected say who it is, in time."""
        if self._connection.trusted:
            return
        self._timer = self._loop.call_later(HANDSHAKE, self._late)
        self._strangers[self._connection] = None
        if len(self._strangers) > MOST_STRANGERS:
            next(iter(self._strangers)).abort("too-many-strangers")

    def wait(self, size: int) -> None:
        """Note that so much came of a client that is not known yet; raise ProtocolError."""
        self._heard += size
        if self._heard > MOST_BYTES:
            raise ProtocolError("too much to come before it is known who this is")

    def connect(self, asked: pb.CommandConnect, welcome: Callable[[], None]) -> None:
        """Call `welcome` once the client is known, or refuse it and close."""
        self._method = asked.auth_method_name
        self._refreshes = asked.feature_flags.supports_auth_refresh
        gate = self._gate
        if self.check_address():
            return
        if gate is None or self._connection.trusted:
            self._admit(Login(ANONYMOUS), welcome)
            return
        if gate.demanded and asked.original_principal:
            # Whom a proxy speaks for would have the proxy's rights instead of their own.
            self._refuse(UnauthenticatedError("No proxy may speak for others here."))
            return
        shown = self._shown(asked.auth_method_name, asked.auth_data)
        try:
            login = gate.known(shown)
        except RouterError as failure:
            self._refuse(failure)
            return
        if login is not None:
            self._admit(login, welcome)
        else:
            self._connection.spawn(self._check(shown, welcome))

    def check_address(self) -> bool:
        """Refuse the client if its address is on the blacklist; return whether it is."""
        address, listed = self._connection.address, self._blacklist
        if listed is None or not listed.holds(address):
            return False
        self._refuse(refusal(address))
        return True

    def respond(self, frame: Frame) -> None:
        """Take the new token that the client was asked for; one that was not is ignored."""
        if not self._challenged or self._gate is None:
            return
        response = frame.command.authResponse.response
        try:
            login = self._gate.known(self._shown(TOKEN, response.auth_data))
        except RouterError as failure:
            self._refuse(failure)
            return
        if login is None or login.principal != self.principal:
            self._refuse(UnauthenticatedError("A new token must be of the same name."))
            return
        self._challenged = False
        self._watch(login)

    def gone(self) -> None:
        """Forget the client: the connection is closed."""
        self._strangers.pop(self._connection, None)
        self._stop()

    async def _check(self, shown: Shown, welcome: Callable[[], None]) -> None:
        assert self._gate is not None
        try:
            login = await self._gate.check(shown, lambda: self._connection.closed)
        except RouterError as failure:
            self._refuse(failure)
        else:
            if not self._connection.closed:
                self._admit(login, welcome)

    def _admit(self, login: Login, welcome: Callable[[], None]) -> None:
        self._strangers.pop(self._connection, None)
        self.principal = login.principal
        self._stop()
        self._watch(login)
        welcome()

    def _watch(self, login: Login) -> None:
        """Note when the token ends."""
        self._stop()
        if login.lasts is not None:
            ends = self._loop.time() + login.lasts
            self._nap(ends)

    def _nap(self, ends: float) -> None:
        left = ends - self._loop.time()
        if left <= 0:
            self._ended()
        else:
            self._timer = self._loop.call_later(min(left, LONGEST_NAP), self._nap, ends)

    def _ended(self) -> None:
        """Ask for a new token, or close on a client that would not know how to answer."""
        if not self._refreshes or self._method != TOKEN:
            self._refuse(UnauthenticatedError("The token has expired."))
            return
        self._challenged = True
        self._timer = self._loop.call_later(REFRESH, self._late)
        challenge = pb.CommandAuthChallenge(
            server_version=self._server_version,
            challenge=pb.AuthData(auth_method_name=self._method, auth_data=_CHALLENGE),
            protocol_version=self._connection.protocol,
        )
        self._connection.send(
            pb.BaseCommand(type=pb.BaseCommand.AUTH_CHALLENGE, authChallenge=challenge)
        )

    def _late(self) -> None:
        if self._challenged:
            self._refuse(UnauthenticatedError("No new token came in time."))
        else:
            self._connection.abort("client-not-known-in-time")

    def _refuse(self, failure: RouterError) -> None:
        left_out = {} if self._gate is None else self._gate.refusals.admit()
        if left_out is not None:
            peer, reason = self._connection.peer, str(failure)
            _log.warning("client-refused", peer=peer, reason=reason, **left_out)
        self._stop()
        self._connection.send(request_failed(NO_REQUEST, failure))
        self._connection.close()

    def _shown(self, method: str, data: bytes) -> Shown:
        connection = self._connection
        return Shown(method, data, connection.address, connection.certificate)

    def _stop(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
