"""Pulsar's administration over HTTP, `/admin/v2` and `/lookup/v2`, in Pulsar's own paths.

It is the part that people and programs of Pulsar use to look after topics, enough for the official
administration clients; docs/pulsar-admin.md lists it. It administers the node's own broker. Where
messages live in another server, that one's own administration is the place to go.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from flask import Blueprint, Response, request

from router.backends.embedded.administration import Administration
from router.services.blacklist import Blacklist
from router.services.manage import Topics
from router.services.rights import Rights
from router.settings import Settings
from router.web.access import Access
from router.web.openapi.description import operation
from router.web.pulsar_admin import paths
from router.web.pulsar_admin.brokers import BrokerViews
from router.web.pulsar_admin.door import Door
from router.web.pulsar_admin.errors import Failures, RefusedError
from router.web.pulsar_admin.lookup import Addresses, LookupViews
from router.web.pulsar_admin.messages import MessageViews
from router.web.pulsar_admin.namespaces import NamespaceViews
from router.web.pulsar_admin.policies import Defaults
from router.web.pulsar_admin.schemas import SchemaViews
from router.web.pulsar_admin.subscriptions import SubscriptionViews
from router.web.pulsar_admin.tenants import TenantViews
from router.web.pulsar_admin.topics import TopicViews

METHODS: Final = ["GET", "POST", "PUT", "DELETE"]
ROOTS: Final = ("/admin/v2", "/lookup/v2")


@dataclass(frozen=True, slots=True)
class Keepers:
    """What the front knows of who may do what, and of topics."""

    access: Access
    blacklist: Blacklist
    rights: Rights
    topics: Topics


class PulsarAdmin:
    """The views of the administration; without an `administration` all are refused."""

    def __init__(
        self,
        settings: Settings,
        keepers: Keepers,
        administration: Administration | None,
        wall_ms: Callable[[], int],
    ) -> None:
        self._failures = Failures(int(settings.text("auth.forbidden_status")))
        self._here = administration is not None
        if administration is None:
            self._views: tuple[_Views, ...] = ()
            return
        door = Door(keepers.access, keepers.blacklist)
        addresses, defaults = Addresses(settings), Defaults.of(settings)
        self._views = (
            TenantViews(door, administration),
            NamespaceViews(door, administration, defaults),
            TopicViews(door, administration, keepers.rights, keepers.topics),
            SubscriptionViews(door, administration, wall_ms),
            MessageViews(door, administration),
            SchemaViews(door, administration, defaults),
            BrokerViews(door, administration, addresses),
            LookupViews(door, administration, addresses),
        )

    def blueprint(self) -> Blueprint:
        """Return the routes."""
        routes = Blueprint("pulsar_admin", __name__)
        paths.converters(routes)
        for views in self._views:
            views.add(routes)
        for root in ROOTS:
            routes.add_url_rule(f"{root}/<path:rest>", "other", self.other, methods=METHODS)
        self._failures.register(routes)
        return routes

    @operation(hidden=True)
    def other(self, rest: str) -> Response:
        """Refuse what is not served."""
        del rest
        if not self._here:
            raise RefusedError(
                404,
                "This router administers its own broker only, and messages live elsewhere (see"
                " backend.url): use that server's own administration, such as Apache Pulsar's",
            )
        asked = f"{request.method} {request.path}"[:200]
        raise RefusedError(
            405, f"{asked} is no part of Pulsar's administration that is served here"
        )


_Views = (
    TenantViews
    | NamespaceViews
    | TopicViews
    | SubscriptionViews
    | MessageViews
    | SchemaViews
    | BrokerViews
    | LookupViews
)
