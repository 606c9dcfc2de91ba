"""The gate: from a request to a principal, and from a principal to yes or no.

A topic with an owner is open to the owner and those on its lists, once access lists count; a file
of permissions, where there is one, must agree as well. So each can be used without the other, and
neither opens what the other closes. The name of a partition, `orders-partition-0`, leads to
messages of `orders` in some stores, so that it needs the rights on `orders` as well.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Final

from router.errors import AccessDeniedError, ForbiddenError, SettingError, UnauthenticatedError
from router.model import Principal, TopicName
from router.services.rights import Rights, TopicRights
from router.settings import Settings
from router.web.access import aaf
from router.web.access.passwords import Passwords
from router.web.access.permissions import Permissions, Right
from router.web.access.signatures import Signatures

if TYPE_CHECKING:
    from _typeshed.wsgi import WSGIEnvironment

ANONYMOUS: Final = Principal()
# What the server of the router leaves for a request whose client showed a certificate.
CERTIFIED: Final = "router.client_name"
_NO_CREDENTIALS: Final = "This server needs a name and a password."
_PARTITION: Final = re.compile(r"(.+)-partition-[0-9]+")
# In the original's words.
_ACTIONS: Final = {Right.PUBLISH: "publish", Right.SUBSCRIBE: "read"}


class Access:
    """Answers who makes a request and whether they may; callable from many threads or greenlets."""

    def __init__(
        self,
        settings: Settings,
        passwords: Passwords | None,
        signatures: Signatures,
        rights: Rights,
        clock: Callable[[], float],
    ) -> None:
        self._passwords = passwords
        self._signatures = signatures
        self._rights = rights
        self._aaf = bool(settings.text("auth.aaf"))
        self._permissions = _permissions(settings, clock)
        enforce = settings.text("acl.enforce")
        self.enforced = passwords is not None if enforce == "auto" else enforce == "true"
        # Where nobody is refused anything, nothing is looked up either.
        self._open = self._permissions is None and not self.enforced

    def principal(self, environ: WSGIEnvironment) -> Principal:
        """Return who makes a request: whose signature, password or certificate comes with it.

        Raises UnauthenticatedError where users are demanded, TooManyRequestsError after too many
        passwords. Without users a wrong signature is nobody's, as in the original.
        """
        failure: UnauthenticatedError | None = None
        if "HTTP_X_CAMBRIAAUTH" in environ or "HTTP_X_AUTH" in environ:
            try:
                return self._signatures.principal(environ)
            except UnauthenticatedError as error:
                failure = error
        if self._passwords is not None and (authorization := environ.get("HTTP_AUTHORIZATION")):
            return self._passwords.principal(authorization, environ.get("REMOTE_ADDR", ""))
        if CERTIFIED in environ:
            return Principal(environ[CERTIFIED])
        if self._passwords is None:
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
        if "-partition-" in topic.local and (part := _PARTITION.fullmatch(topic.local)):
            self.demand(principal, replace(topic, local=part[1]), right)

    def allows(self, principal: Principal, topic: TopicName, right: Right) -> bool:
        """Return whether the file of permissions grants the right; everything where is none."""
        granted = self._permissions
        return (
            granted is None or principal.admin or granted.allow(principal.name, topic.local, right)
        )

    def demand_owner(self, principal: Principal, rights: TopicRights) -> None:
        """Raise AccessDeniedError unless a topic is the principal's, or nobody's."""
        if not (rights.owned_by(principal.name) or self.administers(principal)):
            raise _denied(principal)

    def administers(self, principal: Principal) -> bool:
        """Return whether somebody may manage every topic, whosever it is, and the router itself.

        That is the key `admin`, and who has the right to manage on `*` in a file of permissions.
        """
        granted = self._permissions
        return principal.admin or (granted is not None and granted.administers(principal.name))

    def users(self, topic: TopicName, right: Right) -> list[str]:
        """Return whom the file of permissions names as having the right."""
        return self._permissions.users(topic.local, right) if self._permissions else []

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


def _permissions(settings: Settings, clock: Callable[[], float]) -> Permissions | None:
    own, as_aaf = settings.text("auth.permissions"), settings.text("auth.aaf")
    if own and as_aaf:
        raise SettingError("auth.permissions and auth.aaf: one file of permissions, not both")
    for name, file in (("auth.permissions", own), ("auth.aaf", as_aaf)):
        if file and not settings.text("auth.users"):
            raise SettingError(f"{name}: grants nothing without a users file (auth.users)")
    if as_aaf:
        return Permissions(Path(as_aaf), clock, aaf.parse)
    return Permissions(Path(own), clock) if own else None


def _denied(principal: Principal) -> AccessDeniedError:
    return AccessDeniedError(f"Access denied for {principal.name or '(no user)'}.")
