"""Who may use the administration.

Tenants and namespaces are for administrators, as `/admin` of the DMaaP Message Router is: who may
manage every topic, and where nobody has to say who they are, whoever asks from this machine. For
topics everybody has the rights that they have elsewhere; lists leave out what they may not see.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import NamedTuple

from flask import request

from router.errors import ForbiddenError
from router.model import Principal, TopicName
from router.services.blacklist import Blacklist
from router.web.access import Access, Right
from router.web.front import check_address
from router.web.pulsar_admin.paths import topic_name


class Entered(NamedTuple):
    """Who asks for which topic, and may."""

    principal: Principal
    topic: TopicName


class Door:
    """Lets requests in, or raises UnauthenticatedError, ForbiddenError and its kin."""

    def __init__(self, access: Access, blacklist: Blacklist) -> None:
        self._access = access
        self._blacklist = blacklist

    def principal(self) -> Principal:
        """Return who asks; only administrators may from an address that is blacklisted."""
        principal = self._access.principal(request.environ)
        if not self._access.administers(principal):
            check_address(self._blacklist, request.environ)
        return principal

    def administrator(self) -> Principal:
        """Return the administrator who asks."""
        principal = self._access.principal(request.environ)
        if self._access.may_administer(principal, request.environ):
            return principal
        check_address(self._blacklist, request.environ)
        name = principal.name or "(no user)"
        raise ForbiddenError(f"Access denied for {name}: this is for administrators.")

    def topic(self, right: Right, path: Mapping[str, str]) -> Entered:
        """Return the topic of a path, whose parts have names, and who asks for it."""
        principal, name = self.principal(), topic_name(**path)
        self._access.demand(principal, name, right)
        return Entered(principal, name)

    def shown(self, principal: Principal, names: Iterable[str]) -> list[str]:
        """Return those of the topics that somebody may see."""
        return [
            name
            for name in names
            if self._access.allows(principal, TopicName.parse(name), Right.VIEW)
        ]
