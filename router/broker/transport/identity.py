"""Who the client of one connection is: known before it is served, and checked again over time.

Theory of operation. A client on the node's own unix socket is trusted, because only the owner of
the socket can connect to it. Every other client is unauthenticated until it presents credentials.
It has HANDSHAKE_SECONDS for that. Of more than MAX_UNAUTHENTICATED_CONNECTIONS such connections the
oldest is closed, so that idle connections do not keep other clients out. Passwords are checked
beside the event loop; `welcome` is called when the client is known.

A token that ends does not cut off its client at once. A protocol that can ask for a new one
(`Session.request_credentials`) does so, and the client has REFRESH_SECONDS to present a token of
the same name; other clients are closed and connect again. Rights are the protocol's own matter: it
asks the authorizer when something is opened, and never for a message.

The line of the log about a client that is refused names the user that it claims to be, as sent with
a password or in SCRAM; the name in a token counts only once the token is verified.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import TYPE_CHECKING, Final

import structlog

from router.access.addresses import refusal
from router.access.authorizer import ANONYMOUS
from router.access.permissions import Right
from router.broker.transport.authentication import TOKEN, ClientCredentials, Login
from router.broker.transport.context import TransportContext
from router.broker.transport.peer import Peer
from router.errors import RouterError, UnauthenticatedError
from router.model import TopicName
from router.wire import ProtocolError

if TYPE_CHECKING:
    from router.broker.transport.connection import ClientConnection

HANDSHAKE_SECONDS: Final = 10.0
REFRESH_SECONDS: Final = 30.0
MAX_UNAUTHENTICATED_CONNECTIONS: Final = 500
MAX_UNAUTHENTICATED_BYTES: Final = 64 * 1024
"""What an unauthenticated client may send: names and credentials are short."""
MAX_USER_CHARACTERS: Final = 100
"""Of a name in a line of the log."""
MAX_TIMER_SECONDS: Final = 3_600.0
"""The wall clock is compared again after this time at most, because it may be set."""

_log = structlog.get_logger(__name__)


class ConnectionIdentity:
    """The principal of one connection; `known` once it is authenticated."""

    def __init__(self, connection: ClientConnection, peer: Peer, context: TransportContext) -> None:
        self.principal = ANONYMOUS
        self.known = False
        self.authorizer = context.authorizer
        self.trusted = peer.trusted
        self._connection = connection
        self._peer = peer
        self._blacklist = context.blacklist
        self._unauthenticated = context.unauthenticated
        self._loop = asyncio.get_running_loop()
        self._timer: asyncio.TimerHandle | None = None
        self._claimed: str | None = None
        self._renewable = False
        self._challenged = False
        self._received = 0

    @property
    def address(self) -> str:
        """Return the client's address and port, empty for one on the node's own socket."""
        return "" if self.trusted else self._peer.name

    @property
    def administers(self) -> bool:
        """Return whether the client may administer this node."""
        authorizer = self.authorizer
        if self.trusted or authorizer is None or not authorizer.authentication_required:
            return self._peer.local
        return authorizer.administers(self.principal)

    @property
    def owner_name(self) -> str | None:
        """The name under which the client owns what it begins; None: it may use all there is."""
        authorizer = self.authorizer
        if authorizer is None or self.trusted or authorizer.open:
            return None
        return None if self.administers else self.principal.name

    def authorize(self, topic: str, right: Right) -> None:
        """Return if the client has the right on the topic of a full name.

        Raises ForbiddenError, BadNameError.
        """
        if self.authorizer is not None and not self.trusted:
            self.authorizer.authorize_name(self.principal, topic, right)

    def visible(self, names: list[str]) -> list[str]:
        """Return those full names of topics that the client may see."""
        authorizer = self.authorizer
        if authorizer is None or self.trusted or authorizer.sees_all(self.principal):
            return names
        return [name for name in names if authorizer.sees(self.principal, TopicName.parse(name))]

    def begin(self) -> None:
        """Start the time within which a client that just connected has to present credentials."""
        if self.trusted:
            return
        self._timer = self._loop.call_later(HANDSHAKE_SECONDS, self._late)
        self._unauthenticated[self._connection] = None
        if len(self._unauthenticated) > MAX_UNAUTHENTICATED_CONNECTIONS:
            next(iter(self._unauthenticated)).abort("too-many-unauthenticated-connections")

    def count_received(self, size: int) -> None:
        """Count bytes of an unauthenticated client; raise ProtocolError for too many."""
        self._received += size
        if self._received > MAX_UNAUTHENTICATED_BYTES:
            raise ProtocolError("too much to come before it is known who this is")

    def authenticate(
        self, method: str, data: bytes, welcome: Callable[[], None], *, renewable: bool = False
    ) -> None:
        """Call `welcome` once the client is known, or send the failure and close.

        `renewable`: the client understands a request for a new token.
        """
        self._renewable = renewable and method == TOKEN
        if self.check_address():
            return
        if self.authorizer is None or self.trusted:
            self._admit(Login(ANONYMOUS), welcome)
            return
        credentials = self._credentials(method, data)
        self._claimed = credentials.user_name()
        try:
            login = self.authorizer.known(credentials)
        except RouterError as failure:
            self.refuse(failure)
            return
        if login is not None:
            self._admit(login, welcome)
        else:
            self._connection.spawn(self._check(credentials, welcome))

    def admit_proved(self, name: str, proved: bool, welcome: Callable[[], None]) -> None:
        """Call `welcome` if the client proved a user's password, or send the failure and close."""
        assert self.authorizer is not None
        self._claimed = name
        if self.check_address():
            return
        try:
            login = self.authorizer.judge_proof(name, self._peer.address, proved)
        except RouterError as failure:
            self.refuse(failure)
        else:
            self._admit(login, welcome)

    def check_address(self) -> bool:
        """Refuse the client if its address is on the blacklist; return whether it is."""
        address, listed = self._peer.address, self._blacklist
        if listed is None or not listed.holds(address):
            return False
        self.refuse(refusal(address))
        return True

    def renew(self, token: bytes) -> None:
        """Take the new token that the client was asked for; one that was not is ignored."""
        if not self._challenged or self.authorizer is None:
            return
        try:
            login = self.authorizer.known(self._credentials(TOKEN, token))
        except RouterError as failure:
            self.refuse(failure)
            return
        if login is None or login.principal != self.principal:
            self.refuse(UnauthenticatedError("A new token must be of the same name."))
            return
        self._challenged = False
        self._watch(login)

    def refuse(self, failure: RouterError) -> None:
        """Send the failure, close, and log it unless too many are logged already."""
        left_out = {} if self.authorizer is None else self.authorizer.refusals.admit()
        if left_out is not None:
            user = self.principal.name if self.known else self._claimed
            _log.warning(
                "client-refused",
                **self._connection.origin,
                user=user[:MAX_USER_CHARACTERS] if user else None,
                reason=str(failure),
                **left_out,
            )
        self._stop()
        self._connection.fail(failure)

    def close(self) -> None:
        """Stop all timers; the connection is closed."""
        self._unauthenticated.pop(self._connection, None)
        self._stop()

    async def _check(self, credentials: ClientCredentials, welcome: Callable[[], None]) -> None:
        assert self.authorizer is not None
        try:
            login = await self.authorizer.check(credentials, lambda: self._connection.closed)
        except RouterError as failure:
            self.refuse(failure)
        else:
            if not self._connection.closed:
                self._admit(login, welcome)

    def _admit(self, login: Login, welcome: Callable[[], None]) -> None:
        self._unauthenticated.pop(self._connection, None)
        self.principal = login.principal
        self.known = True
        self._watch(login)
        welcome()

    def _watch(self, login: Login) -> None:
        """Note when the token ends."""
        self._stop()
        if login.lasts is not None:
            self._wait_for_end(self._loop.time() + login.lasts)

    def _wait_for_end(self, ends: float) -> None:
        left = ends - self._loop.time()
        if left > 0:
            delay = min(left, MAX_TIMER_SECONDS)
            self._timer = self._loop.call_later(delay, self._wait_for_end, ends)
        elif self._renewable:
            self._challenged = True
            self._timer = self._loop.call_later(REFRESH_SECONDS, self._late)
            self._connection.session.request_credentials()
        else:
            self.refuse(UnauthenticatedError("The token has expired."))

    def _late(self) -> None:
        if self._challenged:
            self.refuse(UnauthenticatedError("No new token came in time."))
        else:
            self._connection.abort("client-not-known-in-time")

    def _credentials(self, method: str, data: bytes) -> ClientCredentials:
        return ClientCredentials(method, data, self._peer.address, self._peer.certificate)

    def _stop(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
