"""What settings say about access: whether anybody is asked who they are, and what files grant.

A topic with an owner is open to the owner and those on its lists, once access lists count; a file
of permissions, where there is one, must agree as well. So each can be used without the other, and
neither opens what the other closes. The name of a partition, `orders-partition-0`, leads to
messages of `orders` in some stores, so that it needs the rights on `orders` as well.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Final

from router.access import aaf
from router.access.permissions import Permissions, Right, Rule
from router.errors import SettingError
from router.model import Principal, TopicName
from router.settings import Settings

KEYS: Final = ("auth.token_secret_file", "auth.token_public_key")
_PARTITION: Final = re.compile(r"(.+)-partition-[0-9]+")


class Grants:
    """The file of permissions, if there is one; everything is granted where there is none.

    `demanded`: nobody is served anonymously. `enforced`: owners and lists of topics count. `open`:
    nobody is refused anything.
    """

    def __init__(self, settings: Settings, clock: Callable[[], float]) -> None:
        self._permissions = _permissions(settings, clock)
        self.demanded = known(settings)
        enforce = settings.text("acl.enforce")
        self.enforced = self.demanded if enforce == "auto" else enforce == "true"
        self.open = self._permissions is None and not self.enforced

    def allows(self, principal: Principal, topic: TopicName, right: Right) -> bool:
        """Return whether the file of permissions grants the right; everything where is none."""
        granted = self._permissions
        return (
            granted is None or principal.admin or granted.allow(principal.name, topic.local, right)
        )

    def administers(self, principal: Principal) -> bool:
        """Return whether somebody may manage every topic, whosever it is, and the router itself.

        That is the key `admin`, and who has the right to manage on `*` in a file of permissions.
        """
        if self._permissions is None:
            return principal.admin
        return self.everywhere(principal, Right.MANAGE)

    def everywhere(self, principal: Principal, right: Right) -> bool:
        """Return whether somebody has a right on every topic that there can be."""
        granted = self._permissions
        return granted is None or principal.admin or granted.everywhere(principal.name, right)

    def rules(self) -> Sequence[Rule] | None:
        """Return the rules of the file of permissions, None: there is no such file."""
        return None if self._permissions is None else self._permissions.rules()

    def users(self, topic: TopicName, right: Right) -> list[str]:
        """Return whom the file of permissions names as having the right."""
        return self._permissions.users(topic.local, right) if self._permissions else []


def known(settings: Settings) -> bool:
    """Return whether clients have to say who they are: there are users, or keys of tokens."""
    return bool(settings.text("auth.users")) or takes_tokens(settings)


def takes_tokens(settings: Settings) -> bool:
    """Return whether there is a key that tokens are checked by."""
    return any(settings.text(name) for name in KEYS)


def whole(topic: TopicName) -> TopicName | None:
    """Return the topic that a name may be a partition of; None: it is no name of a partition."""
    if "-partition-" in topic.local and (part := _PARTITION.fullmatch(topic.local)):
        return replace(topic, local=part[1])
    return None


def _permissions(settings: Settings, clock: Callable[[], float]) -> Permissions | None:
    own, as_aaf = settings.text("auth.permissions"), settings.text("auth.aaf")
    if own and as_aaf:
        raise SettingError("auth.permissions and auth.aaf: one file of permissions, not both")
    for name, file in (("auth.permissions", own), ("auth.aaf", as_aaf)):
        if file and not known(settings):
            raise SettingError(
                f"{name}: grants nothing without a users file (auth.users) or the key of tokens"
                " (auth.token_secret_file, auth.token_public_key)"
            )
    if as_aaf:
        return Permissions(Path(as_aaf), clock, aaf.parse)
    return Permissions(Path(own), clock) if own else None
