"""What a principal may do with a topic: the file of permissions, owners, and access lists.

A topic with an owner is open to the owner and to the principals on its lists if access lists are
enforced. If there is a file of permissions, it must grant the right as well. Each works without the
other, and neither opens what the other closes. The name of a partition, `orders-partition-0`, leads
to messages of `orders` in some stores, so it needs the rights on `orders` too.

The decisions need no I/O of their own: the shells (router/web/access, router/broker/transport) hand
in what reads the records of topics.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Final, Protocol

import orjson

from router.access import aaf
from router.access.permissions import Permissions, Right
from router.errors import AccessDeniedError, ForbiddenError, SettingError
from router.model import PARTITION_INFIX, Principal, TopicName
from router.settings import Settings
from router.sharing.registry import RegistryRecord

if TYPE_CHECKING:
    from router.access.tokens import Tokens

ANONYMOUS: Final = Principal()
TOPIC_RECORDS: Final = "topic"
"""The kind of the registry's records of topics; a record is named by its topic's full name."""
_TOKEN_KEYS: Final = ("auth.token_secret_file", "auth.token_public_key")
# In the words of the original Message Router.
_AAF_ACTIONS: Final = {Right.PUBLISH: "publish", Right.SUBSCRIBE: "read"}


@dataclass(frozen=True, slots=True)
class TopicRights:
    """Owner and access lists of one topic, as its record has them.

    Every principal may use a topic without an owner (""); a topic without a record has none.
    """

    owner: str = ""
    readers: frozenset[str] = frozenset()
    writers: frozenset[str] = frozenset()
    description: str = ""
    transactional: bool = False

    @classmethod
    def load(cls, record: RegistryRecord) -> TopicRights:
        """Return what a record holds."""
        found = orjson.loads(record.value)
        return cls(
            found.get("owner", ""),
            frozenset(found.get("readers", ())),
            frozenset(found.get("writers", ())),
            found.get("description", ""),
            found.get("transactional", False),
        )

    def dump(self) -> bytes:
        """Return the content of a record."""
        return orjson.dumps(
            {
                "owner": self.owner,
                "readers": sorted(self.readers),
                "writers": sorted(self.writers),
                "description": self.description,
                "transactional": self.transactional,
            }
        )

    def owned_by(self, name: str) -> bool:
        """Return whether the topic has this owner, or none."""
        return self.owner in {"", name}

    def may_publish(self, name: str) -> bool:
        """Return whether owner and list let this principal publish."""
        return self.owned_by(name) or (name != "" and name in self.writers)

    def may_read(self, name: str) -> bool:
        """Return whether owner and list let this principal read."""
        return self.owned_by(name) or (name != "" and name in self.readers)

    def with_listed(self, name: str, *, reader: bool, listed: bool) -> TopicRights:
        """Return the same rights with a name added to a list, or removed from it."""
        names = self.readers if reader else self.writers
        changed = names | {name} if listed else names - {name}
        return replace(self, readers=changed) if reader else replace(self, writers=changed)


NO_OWNER: Final = TopicRights()


class TopicRightsSource(Protocol):
    """Reads the records of topics; the broker has them in memory, HTTP workers cache them."""

    def cached(self, topic: TopicName, /) -> TopicRights:
        """Return the rights of a topic as they were at most a second ago."""
        ...

    def read(self, topic: TopicName, /) -> TopicRights:
        """Return the rights of a topic as they are now."""
        ...


class Authorizer:
    """Decides what principals may do with topics; callable from many threads or greenlets.

    `authentication_required`: anonymous clients are refused. `enforced`: owners and lists of topics
    count. `open`: every request is allowed. With `whole_topics` the file of permissions is asked
    about the topic that a name may be a partition of, and not about the partition.
    """

    def __init__(
        self,
        settings: Settings,
        rights: TopicRightsSource,
        clock: Callable[[], float],
        *,
        whole_topics: bool = False,
    ) -> None:
        self._permissions = open_permissions(settings, clock)
        self._rights = rights
        self._whole_topics = whole_topics
        self._aaf = bool(settings.text("auth.aaf"))
        self.authentication_required = requires_authentication(settings)
        enforce = settings.text("acl.enforce")
        self.enforced = self.authentication_required if enforce == "auto" else enforce == "true"
        self.open = self._permissions is None and not self.enforced

    def authorize(self, principal: Principal, topic: TopicName, right: Right) -> None:
        """Raise ForbiddenError unless the principal has the right on the topic."""
        if self.open or principal.admin:
            return
        while True:
            part = topic.parent() if PARTITION_INFIX in topic.local else None
            whole = None if part is None else part[0]
            if (whole is None or not self._whole_topics) and not self.allows(
                principal, topic, right
            ):
                raise self._no_right(principal, topic, right)
            if self.enforced:
                self._authorize_listed(principal, topic, right)
            if whole is None:
                return
            topic = whole

    def authorize_owner(self, principal: Principal, rights: TopicRights) -> None:
        """Raise AccessDeniedError unless the principal owns the topic, or the topic has no owner.

        Administrators count as owners of every topic.
        """
        if not (rights.owned_by(principal.name) or self.administers(principal)):
            raise _not_owner(principal, "an administrator")

    def allows(self, principal: Principal, topic: TopicName, right: Right) -> bool:
        """Return whether the file of permissions grants the right; True if there is no file."""
        granted = self._permissions
        return (
            granted is None or principal.admin or granted.allows(principal.name, topic.local, right)
        )

    def administers(self, principal: Principal) -> bool:
        """Return whether the principal may manage every topic, and the router itself.

        These are the key `admin`, and principals with the right to manage `*` in a file of
        permissions.
        """
        if self._permissions is None:
            return principal.admin
        return self.allows_all(principal, Right.MANAGE)

    def allows_all(self, principal: Principal, right: Right) -> bool:
        """Return whether the file of permissions grants a right on every possible topic."""
        granted = self._permissions
        return granted is None or principal.admin or granted.allows_all(principal.name, right)

    def rules(self) -> list[tuple[str, str]] | None:
        """Return user and text of each rule of the file of permissions, None without a file."""
        granted = self._permissions
        return None if granted is None else [(rule.user, rule.written) for rule in granted.rules()]

    def users(self, topic: TopicName, right: Right) -> list[str]:
        """Return the users with this right on the topic, as the file of permissions names them."""
        return self._permissions.users(topic.local, right) if self._permissions else []

    def _authorize_listed(self, principal: Principal, topic: TopicName, right: Right) -> None:
        if right is Right.PUBLISH:
            allowed = self._rights.cached(topic).may_publish(principal.name)
            admitted = "on its list of producers"
        elif right in {Right.SUBSCRIBE, Right.BROWSE}:
            allowed = self._rights.cached(topic).may_read(principal.name)
            admitted = "on its list of consumers"
        elif right in {Right.DELETE, Right.MANAGE}:
            # Read again, not from a cache: the change may be final.
            self.authorize_owner(principal, self._rights.read(topic))
            return
        else:
            return
        if not allowed:
            raise _not_owner(principal, admitted)

    def _no_right(self, principal: Principal, topic: TopicName, right: Right) -> ForbiddenError:
        if not self._aaf:
            return ForbiddenError(
                f"Access denied for {_named(principal)}: no right to {right.value} {topic.local}."
            )
        return AccessDeniedError(
            "Access Denied. User does not have permission to perform"
            f" {_AAF_ACTIONS.get(right, right.value)} operation on Topic: {topic.local}"
        )


def requires_authentication(settings: Settings) -> bool:
    """Return whether anonymous clients are refused: there are users, or keys of tokens."""
    return bool(settings.text("auth.users")) or accepts_tokens(settings)


def accepts_tokens(settings: Settings) -> bool:
    """Return whether there is a key to check tokens with."""
    return any(settings.text(name) for name in _TOKEN_KEYS)


def open_permissions(settings: Settings, clock: Callable[[], float]) -> Permissions | None:
    """Return the file of permissions, None if settings name none; raise SettingError."""
    own, as_aaf = settings.text("auth.permissions"), settings.text("auth.aaf")
    if own and as_aaf:
        raise SettingError("auth.permissions and auth.aaf: one file of permissions, not both")
    for name, file in (("auth.permissions", own), ("auth.aaf", as_aaf)):
        if file and not requires_authentication(settings):
            raise SettingError(
                f"{name}: grants nothing without a users file (auth.users) or the key of tokens"
                " (auth.token_secret_file, auth.token_public_key)"
            )
    if as_aaf:
        return Permissions(Path(as_aaf), clock, aaf.parse)
    return Permissions(Path(own), clock) if own else None


def open_tokens(
    settings: Settings, clock: Callable[[], float], ticks: Callable[[], float]
) -> Tokens | None:
    """Return what checks tokens, None if settings name no key for it; raise SettingError."""
    if not accepts_tokens(settings):
        return None
    # Imported late: it takes long, and a process without tokens does not need it.
    from router.access.tokens import Tokens  # noqa: PLC0415

    return Tokens(settings, clock, ticks)


def _not_owner(principal: Principal, admitted: str) -> AccessDeniedError:
    """Return the failure of a principal that the owner of a topic does not admit."""
    client = principal.name or "an anonymous client"
    return AccessDeniedError(
        f"Access denied for {_named(principal)}: the topic has an owner, and {client} is neither"
        f" the owner nor {admitted}.{unproven(principal)}"
    )


def unproven(principal: Principal) -> str:
    """Return what a refusal adds for a client whose signature makes it anonymous."""
    return f" Its signature is refused: {principal.unproven}" if principal.unproven else ""


def _named(principal: Principal) -> str:
    return principal.name or "(no user)"
