"""The gate: from a request to a principal, and from a principal to yes or no.

What files and lists grant, and how they go together, is in router/access/grants.py.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Final, Protocol

from router.access.grants import Grants, whole
from router.access.permissions import Right
from router.errors import AccessDeniedError, ForbiddenError, UnauthenticatedError
from router.model import Principal, TopicName
from router.services.rights import Rights, TopicRights
from router.settings import Settings
from router.web.access.signatures import Signatures
from router.web.addresses import is_local
from router.web.transaction import USER

if TYPE_CHECKING:
    import socket

    from _typeshed.wsgi import WSGIEnvironment

ANONYMOUS: Final = Principal()
# What the server of the router leaves for a request whose client showed a certificate.
CERTIFIED: Final = "router.client_name"
_NO_CREDENTIALS: Final = "This server needs to know who you are: a name and a password, or a token."
# In the original's words.
_ACTIONS: Final = {Right.PUBLISH: "publish", Right.SUBSCRIBE: "read"}


class Credentials(Protocol):
    """Who may be told by the header Authorization."""

    def principal(
        self, authorization: str, address: str, client: socket.socket | None
    ) -> Principal:
        """Return who sent it from this address, over this connection (None: unknown).

        Raises UnauthenticatedError, TooManyRequestsError.
        """
        ...


class Access:
    """Answers who makes a request and whether they may; callable from many threads or greenlets.

    `credentials` is None where nobody has to say who they are; `asks` says so.
    """

    def __init__(
        self,
        settings: Settings,
        credentials: Credentials | None,
        signatures: Signatures,
        rights: Rights,
        clock: Callable[[], float],
    ) -> None:
        self._credentials = credentials
        self.asks = credentials is not None
        self._signatures = signatures
        self._rights = rights
        self._aaf = bool(settings.text("auth.aaf"))
        self._grants = Grants(settings, clock)
        self.enforced = self._grants.enforced
        self._open = self._grants.open

    def principal(self, environ: WSGIEnvironment) -> Principal:
        """Return who makes a request: whose signature, password, token or certificate it has.

        The name is left in the environment, for the log. Raises UnauthenticatedError where users
        are demanded, TooManyRequestsError after too many passwords. Without users a wrong signature
        makes an anonymous request, as in the original.
        """
        found = self._principal(environ)
        if found.name:
            environ[USER] = found.name
        return found

    def _principal(self, environ: WSGIEnvironment) -> Principal:
        failure: UnauthenticatedError | None = None
        if "HTTP_X_CAMBRIAAUTH" in environ or "HTTP_X_AUTH" in environ:
            try:
                return self._signatures.principal(environ)
            except UnauthenticatedError as error:
                failure = error
        if self._credentials is not None and (authorization := environ.get("HTTP_AUTHORIZATION")):
            address, client = environ.get("REMOTE_ADDR", ""), environ.get("gunicorn.socket")
            return self._credentials.principal(authorization, address, client)
        if CERTIFIED in environ:
            return Principal(environ[CERTIFIED])
        if self._credentials is None:
            return ANONYMOUS
        raise failure or UnauthenticatedError(_NO_CREDENTIALS)

    def demand(self, principal: Principal, topic: TopicName, right: Right) -> None:
        """Raise ForbiddenError unless the principal has the right on the topic."""
        if self._open or principal.admin:
            return
        if not self.allows(principal, topic, right):
            raise self._refusal(principal, topic, right)
        if self.enforced:
            self._demand_listed(principal, topic, right)
        if (parent := whole(topic)) is not None:
            self.demand(principal, parent, right)

    def allows(self, principal: Principal, topic: TopicName, right: Right) -> bool:
        """Return whether the file of permissions grants the right; everything where is none."""
        return self._grants.allows(principal, topic, right)

    def demand_owner(self, principal: Principal, rights: TopicRights) -> None:
        """Raise AccessDeniedError unless a topic is the principal's, or nobody's."""
        if not (rights.owned_by(principal.name) or self.administers(principal)):
            raise _denied(principal)

    def administers(self, principal: Principal) -> bool:
        """Return whether somebody may manage every topic, whosever it is, and the router itself.

        That is the key `admin`, and who has the right to manage on `*` in a file of permissions.
        """
        return self._grants.administers(principal)

    def may_administer(self, principal: Principal, environ: WSGIEnvironment) -> bool:
        """Return whether one who makes this request may use the router's administration.

        That is who `administers`, and where nobody has to say who they are, this machine.
        """
        return self.administers(principal) or (principal == ANONYMOUS and is_local(environ))

    def rules(self) -> list[tuple[str, str]] | None:
        """Return user and text of each rule of the file of permissions, None: there is none."""
        rules = self._grants.rules()
        return None if rules is None else [(rule.user, rule.written) for rule in rules]

    def users(self, topic: TopicName, right: Right) -> list[str]:
        """Return whom the file of permissions names as having the right."""
        return self._grants.users(topic, right)

    def _demand_listed(self, principal: Principal, topic: TopicName, right: Right) -> None:
        if right is Right.PUBLISH:
            allowed = self._rights.known(topic).may_publish(principal.name)
        elif right is Right.SUBSCRIBE:
            allowed = self._rights.known(topic).may_read(principal.name)
        elif right in {Right.DELETE, Right.MANAGE}:
            # Not from memory: what is asked for may be final.
            self.demand_owner(principal, self._rights.read(topic))
            return
        else:
            return
        if not allowed:
            raise _denied(principal)

    def _refusal(self, principal: Principal, topic: TopicName, right: Right) -> ForbiddenError:
        if not self._aaf:
            return ForbiddenError(
                f"Access denied for {principal.name}: no right to {right.value} {topic.local}."
            )
        return AccessDeniedError(
            "Access Denied. User does not have permission to perform"
            f" {_ACTIONS.get(right, right.value)} operation on Topic: {topic.local}"
        )


def _denied(principal: Principal) -> AccessDeniedError:
    return AccessDeniedError(f"Access denied for {principal.name or '(no user)'}.")
