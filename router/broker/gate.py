"""The gate of the broker's listeners: who a client is, and what they may do with which topic.

Clients are known by a token, by a name and a password, or by the certificate that they showed for
TLS, and have the rights that the same name has over HTTP. Where there are neither users nor keys of
tokens everybody is anonymous, and known by a certificate at most. A partition is part of its topic,
so that the rights on the topic decide.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final, Protocol

from router.access.grants import Grants, takes_tokens, whole
from router.access.owners import TopicRights
from router.access.permissions import Right
from router.errors import AccessDeniedError, ForbiddenError, UnauthenticatedError
from router.log import LineLimit
from router.model import Principal, TopicName
from router.quoting import quoted
from router.settings import Settings

if TYPE_CHECKING:
    from router.access.tokens import Tokens
    from router.broker.passwords import Passwords, Rationing

TOKEN: Final = "token"  # noqa: S105 - the name of a method
BASIC: Final = "basic"
# Methods that bring nothing of their own: the certificate tells, if there is one.
_BARE: Final = frozenset({"", "none", "tls"})
ANONYMOUS: Final = Principal()


class Owning(Protocol):
    """Knows whose topics are."""

    def rights(self, topic: TopicName) -> TopicRights:
        """Return what is written down about a topic."""
        ...


@dataclass(frozen=True, slots=True)
class Shown:
    """What a client shows of itself; `certificate` is the common name of a verified one."""

    method: str
    data: bytes
    address: str
    certificate: str = ""


@dataclass(frozen=True, slots=True)
class Login:
    """Whom a client was found to be, and for how many seconds; None: as long as it stays."""

    principal: Principal
    lasts: float | None = None


class Gate:
    """Answers for all listeners; `clock` counts seconds since 1970, `ticks` is monotonic."""

    def __init__(
        self,
        settings: Settings,
        owners: Owning,
        counters: Rationing,
        clock: Callable[[], float],
        ticks: Callable[[], float],
    ) -> None:
        self._grants = Grants(settings, ticks)
        self._clock = clock
        self._tokens = _tokens(settings, clock, ticks)
        self._passwords = _passwords(settings, counters, ticks)
        self._owners = owners
        self._tenant = settings.text("names.tenant")
        self._namespace = settings.text("names.namespace")
        self.refusals = LineLimit(ticks)
        self.demanded = self._grants.demanded
        self.enforced = self._grants.enforced
        self.open = self._grants.open

    def known(self, shown: Shown) -> Login | None:
        """Return whose this is; None: `check` finds out. Raises UnauthenticatedError."""
        if not self.demanded or shown.method in _BARE:
            return Login(self._bare(shown))
        if shown.method == TOKEN and self._tokens is not None:
            identity = self._tokens.identity(shown.data.decode("latin-1"))
            expires = identity.expires
            return Login(identity.principal, None if expires is None else expires - self._clock())
        if shown.method == BASIC and self._passwords is not None:
            principal = self._passwords.known(shown.data)
            return None if principal is None else Login(principal)
        raise UnauthenticatedError(
            f"Clients are not known by the method {quoted(shown.method, 40)}."
        )

    async def check(self, shown: Shown, gone: Callable[[], bool] = lambda: False) -> Login:
        """Return whose name and password this is; `gone` tells whether the client has left.

        Raises UnauthenticatedError, TooManyRequestsError.
        """
        if self._passwords is None:
            raise UnauthenticatedError("There are no users with passwords.")
        return Login(await self._passwords.check(shown.data, shown.address, gone))

    def demand(self, principal: Principal, text: str, right: Right) -> None:
        """Raise ForbiddenError unless the principal has the right on the topic of this name.

        Raises BadNameError for what is no name of a topic.
        """
        if self.open or principal.admin:
            return
        names = _guarding(TopicName.parse(text, self._tenant, self._namespace))
        if not self._grants.allows(principal, names[-1], right):
            who = principal.name or "an anonymous client"
            raise ForbiddenError(f"{who} has no right to {right.value} {names[-1]}")
        for topic in names if self.enforced else ():
            if not self._listed(principal, topic, right):
                who = principal.name or "(no user)"
                raise AccessDeniedError(
                    f"Access denied for {who}: {topic} has an owner and a list."
                )

    def sees(self, principal: Principal, topic: TopicName) -> bool:
        """Return whether the principal may be told that there is such a topic."""
        return self.open or self._grants.allows(principal, _guarding(topic)[-1], Right.VIEW)

    def sees_all(self, principal: Principal) -> bool:
        """Return whether the principal may be told of every topic that there can be."""
        return self.open or self._grants.everywhere(principal, Right.VIEW)

    def administers(self, principal: Principal) -> bool:
        """Return whether the principal may manage every topic, and the router itself."""
        return self._grants.administers(principal)

    def close(self) -> None:
        """Check no more passwords."""
        if self._passwords is not None:
            self._passwords.close()

    def _bare(self, shown: Shown) -> Principal:
        if shown.certificate:
            return Principal(shown.certificate)
        if self.demanded:
            raise UnauthenticatedError("This broker needs to know who you are.")
        return ANONYMOUS

    def _listed(self, principal: Principal, topic: TopicName, right: Right) -> bool:
        rights = self._owners.rights(topic)
        if right is Right.PUBLISH:
            return rights.may_publish(principal.name)
        return right is not Right.SUBSCRIBE or rights.may_read(principal.name)


def _guarding(topic: TopicName) -> list[TopicName]:
    """Return a name and those of the topics that it may be a partition of, the last of no other.

    A name as of a partition may be that of a topic with an owner of its own, too.
    """
    names = [topic]
    while (parent := whole(names[-1])) is not None:
        names.append(parent)
    return names


def check_files(settings: Settings, ticks: Callable[[], float]) -> None:
    """Raise SettingError where a gate could not be made of what settings name."""
    Grants(settings, ticks)
    _tokens(settings, ticks, ticks)
    if file := settings.text("auth.users"):
        from router.access.users import Users  # noqa: PLC0415 - as below

        Users(Path(file), ticks)


def _tokens(
    settings: Settings, clock: Callable[[], float], ticks: Callable[[], float]
) -> Tokens | None:
    if not takes_tokens(settings):
        return None
    # Imported where it is wanted: it brings much along, and a broker starts fast.
    from router.access.tokens import Tokens  # noqa: PLC0415

    return Tokens(settings, clock, ticks)


def _passwords(
    settings: Settings, counters: Rationing, ticks: Callable[[], float]
) -> Passwords | None:
    if not settings.text("auth.users"):
        return None
    from router.broker.passwords import Passwords  # noqa: PLC0415 - as above

    return Passwords(settings, counters, ticks)
