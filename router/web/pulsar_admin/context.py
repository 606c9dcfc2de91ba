"""What the views of the administration share: who may, what is administered, and defaults."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import NamedTuple
from urllib.parse import urlsplit
from wsgiref.types import WSGIEnvironment

from flask import Blueprint, request

from router.model import Principal, Subscription, TopicName
from router.node.administration import Administration
from router.services.blacklist import WorkerBlacklist
from router.services.manage import TopicManagement
from router.services.rights import Rights
from router.settings import Settings
from router.web.access import RequestAuthorizer, Right
from router.web.addresses import root
from router.web.front import check_address, check_administrator
from router.web.openapi.description import add_routes
from router.web.pulsar_admin.policies import Defaults
from router.web.pulsar_admin.stats import TopicInspection
from router.web.pulsar_admin.views import subscription_name, topic_name

_LISTENERS = {"pulsar": "broker.pulsar", "pulsar+ssl": "broker.pulsar_tls"}
_EVERYWHERE = {"", "0.0.0.0", "::"}  # noqa: S104 - what settings may say


class AuthorizedTopic(NamedTuple):
    """A topic, and the principal who has the right on it that the request needs."""

    principal: Principal
    topic: TopicName


class AdminAuthorizer:
    """Authorizes requests; raises UnauthenticatedError, ForbiddenError, or a subclass of these."""

    def __init__(self, access: RequestAuthorizer, blacklist: WorkerBlacklist) -> None:
        self._access = access
        self._blacklist = blacklist

    def principal(self) -> Principal:
        """Return who makes the request.

        Raises BlacklistedError for a blacklisted address, unless its client is an administrator.
        """
        principal = self._access.principal(request.environ)
        if not self._access.administers(principal):
            check_address(self._blacklist, request.environ)
        return principal

    def administrator(self) -> Principal:
        """Return the administrator who makes the request; raise ForbiddenError for others."""
        return check_administrator(self._access, self._blacklist, request.environ)

    def topic(self, right: Right, path: Mapping[str, str]) -> AuthorizedTopic:
        """Return the topic that a path names; raise ForbiddenError without the right."""
        principal, name = self.principal(), topic_name(**path)
        self._access.authorize(principal, name, right)
        return AuthorizedTopic(principal, name)

    def visible(self, principal: Principal, names: Iterable[str]) -> list[str]:
        """Return those of the topics that the principal may see."""
        return [
            name
            for name in names
            if self._access.allows(principal, TopicName.parse(name), Right.VIEW)
        ]


class Addresses:
    """Where Pulsar clients find the broker."""

    def __init__(self, settings: Settings) -> None:
        self._advertised = [url.strip() for url in settings.text("broker.advertised").split(",")]
        self._listeners = {scheme: settings.text(name) for scheme, name in _LISTENERS.items()}

    def urls(self, environ: WSGIEnvironment) -> dict[str, str]:
        """Return the URL for each scheme that is served, as the client can reach it."""
        fields = {url.partition("://")[0]: url for url in self._advertised if url}
        if fields:
            return fields
        return {
            scheme: url
            for scheme, listener in self._listeners.items()
            if (url := _url(scheme, listener, environ))
        }


@dataclass(frozen=True, slots=True)
class AdminContext:
    """What the views use; `wall_ms` is the time in milliseconds since 1970.

    `settings` are the settings in force by their names, without secrets.
    """

    authorizer: AdminAuthorizer
    administration: Administration
    addresses: Addresses
    defaults: Defaults
    rights: Rights
    topics: TopicManagement
    wall_ms: Callable[[], int]
    settings: Mapping[str, str]


class ResourceViews:
    """The views of one kind of resource."""

    def __init__(self, context: AdminContext) -> None:
        self._context = context
        self._authorizer = context.authorizer
        self._administration = context.administration
        self._inspection = TopicInspection(context.administration)

    def add(self, routes: Blueprint) -> None:
        """Add the routes of the views."""
        add_routes(routes, self)

    def _topic(self, right: Right, path: Mapping[str, str]) -> TopicName:
        """Return the topic that a path names; raise ForbiddenError without the right."""
        return self._authorizer.topic(right, path).topic

    def _managed(
        self, path: Mapping[str, str], subscription: str
    ) -> tuple[Principal, Subscription]:
        """Return the caller, who may manage the topic, and the subscription that a path names."""
        principal, topic = self._authorizer.topic(Right.MANAGE, path)
        return principal, Subscription(topic, subscription_name(subscription))


def _url(scheme: str, listener: str, environ: WSGIEnvironment) -> str:
    """Return where a listener is reached, empty: it is off, or its port is not known yet."""
    host, _, port = listener.rpartition(":")
    if port in {"", "0"}:
        return ""
    if host.strip("[]") in _EVERYWHERE:
        host = urlsplit(root(environ)).hostname or "localhost"
        host = f"[{host}]" if ":" in host else host
    return f"{scheme}://{host}:{port}"
