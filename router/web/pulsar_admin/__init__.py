"""Pulsar's administration over HTTP, `/admin/v2` and `/lookup/v2`, in Pulsar's own paths.

It is the part that Pulsar's users and tools need for their topics, enough for the official
administration clients; docs/pulsar-admin.md lists it. It administers the node's own broker. A
server of another kind that stores the messages has an administration of its own.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from flask import Blueprint, Response, request

from router.node.administration import Administration
from router.services.blacklist import WorkerBlacklist
from router.services.manage import TopicManagement
from router.services.rights import Rights
from router.settings import Settings, shown
from router.web.access import RequestAuthorizer
from router.web.openapi.description import add_converters, add_routes, operation
from router.web.pulsar_admin.brokers import BrokerViews
from router.web.pulsar_admin.calls import CallViews, not_served
from router.web.pulsar_admin.context import Addresses, AdminAuthorizer, AdminContext, ResourceViews
from router.web.pulsar_admin.messages import AdminMessageViews
from router.web.pulsar_admin.namespaces import NamespaceViews, TenantViews
from router.web.pulsar_admin.policies import Defaults
from router.web.pulsar_admin.policy_views import PolicyViews
from router.web.pulsar_admin.schemas import SchemaViews
from router.web.pulsar_admin.subscriptions import SubscriptionViews
from router.web.pulsar_admin.topics import AdminTopicViews
from router.web.pulsar_admin.views import CONVERTERS, AdminRefusedError, PulsarAdminFailures

ROOTS: Final = ("/admin/v2", "/admin/v3", "/lookup/v2")
_EVERYTHING: Final = [
    f"{method} {root}/<path:rest>" for root in ROOTS for method in ("GET", "POST", "PUT", "DELETE")
]
_RESOURCES: Final[tuple[type[ResourceViews], ...]] = (
    TenantViews,
    NamespaceViews,
    AdminTopicViews,
    SubscriptionViews,
    AdminMessageViews,
    SchemaViews,
    BrokerViews,
    PolicyViews,
    CallViews,
)


@dataclass(frozen=True, slots=True)
class AccessContext:
    """What the front knows of rights and of topics."""

    access: RequestAuthorizer
    blacklist: WorkerBlacklist
    rights: Rights
    topics: TopicManagement


class PulsarAdmin:
    """The views of the administration; without an `administration` all are refused."""

    def __init__(
        self,
        settings: Settings,
        context: AccessContext,
        administration: Administration | None,
        wall_ms: Callable[[], int],
    ) -> None:
        self._failures = PulsarAdminFailures(int(settings.text("auth.forbidden_status")))
        self._serves = administration is not None
        if administration is None:
            self._views: tuple[ResourceViews, ...] = ()
            return
        shared = AdminContext(
            AdminAuthorizer(context.access, context.blacklist),
            administration,
            Addresses(settings),
            Defaults.from_settings(settings),
            context.rights,
            context.topics,
            wall_ms,
            {name: shown(name, value.text) for name, value in settings.values.items()},
        )
        self._views = tuple(views(shared) for views in _RESOURCES)

    def blueprint(self) -> Blueprint:
        """Return the routes."""
        routes = Blueprint("pulsar_admin", __name__)
        add_converters(routes, CONVERTERS)
        for views in self._views:
            views.add(routes)
        add_routes(routes, self)
        self._failures.register(routes)
        return routes

    @operation(*_EVERYTHING, hidden=True)
    def other(self, rest: str) -> Response:
        """Refuse what is not served."""
        del rest
        if not self._serves:
            raise AdminRefusedError(
                404,
                "This router administers its own broker only, and messages live elsewhere (see"
                " backend.url): use that server's own administration, such as Apache Pulsar's",
            )
        route = f"{request.method} {request.path}"[:200]
        raise AdminRefusedError(405, f"{route} is not served: {not_served(request.path)}")
