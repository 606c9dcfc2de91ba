"""`/admin/v2/tenants` and `/admin/v2/namespaces`: both, policies, and the topics of namespaces."""

from __future__ import annotations

from typing import Any

import structlog
from flask import Response, request

from router.errors import BadRequestError, ConflictError, NamespaceNotFoundError
from router.model import Principal
from router.model.administration import Tenant
from router.node.administration import MODES
from router.web.forms import answer
from router.web.openapi import description as api
from router.web.pulsar_admin import shapes
from router.web.pulsar_admin.brokers import CLUSTER
from router.web.pulsar_admin.context import ResourceViews
from router.web.pulsar_admin.policies import pulsar_policies, read_all
from router.web.pulsar_admin.shapes import POLICY_FAILS, changes, reads
from router.web.pulsar_admin.views import (
    ADMIN,
    NAMESPACE,
    TENANT,
    AdminRefusedError,
    body_object,
    done,
    flag,
    namespace_name,
)
from router.web.requests import Query, decode

_log = structlog.get_logger(__name__)


class NamespaceViews(ResourceViews):
    """The views of namespaces."""

    @reads(f"{ADMIN}/namespaces/<tenant>", shapes.NAMES, "The names.", fails=POLICY_FAILS)
    def namespaces(self, tenant: str) -> Response:
        """Answer the namespaces of a tenant."""
        self._authorizer.administrator()
        return answer(self._administration.namespaces(decode(tenant)))

    @reads(NAMESPACE, dict, "The policies.", fails=POLICY_FAILS)
    def namespace(self, **path: str) -> Response:
        """Answer all policies of a namespace."""
        self._authorizer.administrator()
        found = self._administration.namespace(namespace_name(**path))
        return answer(pulsar_policies(found.policies, self._context.defaults))

    @changes(f"PUT {NAMESPACE}", body=shapes.POLICIES, fails=POLICY_FAILS, refuses=shapes.REFUSED)
    def create_namespace(self, **path: str) -> Response:
        """Make a namespace of a tenant that exists."""
        principal, name = self._authorizer.administrator(), namespace_name(**path)
        try:
            self._administration.create_namespace(name, read_all(body_object()))
        except ConflictError:
            raise AdminRefusedError(409, "Namespace already exists") from None
        _log.info("namespace-created", namespace=name, user=principal.name)
        return done()

    @changes(
        f"DELETE {NAMESPACE}",
        api.flag("force", "Delete its topics as well."),
        fails=POLICY_FAILS,
        refuses=shapes.IN_USE,
    )
    def delete_namespace(self, **path: str) -> Response:
        """Delete a namespace, by force with all its topics."""
        principal, name = self._authorizer.administrator(), namespace_name(**path)
        self._administration.delete_namespace(name, force=flag("force"))
        _log.info("namespace-deleted", namespace=name, user=principal.name)
        return done()

    @reads(
        f"{NAMESPACE}/topics",
        shapes.NAMES,
        "The names.",
        api.choice("mode", MODES, "Which topics."),
        fails=POLICY_FAILS,
    )
    def namespace_topics(self, **path: str) -> Response:
        """Answer the topics of a namespace that the caller may see, partitions by their names."""
        principal, name = self._authorizer.principal(), namespace_name(**path)
        mode = Query(request.environ).choice("mode", MODES, "PERSISTENT")
        names = self._administration.names(name, mode)
        return answer(self._authorizer.visible(principal, names))


class TenantViews(ResourceViews):
    """The views of tenants."""

    @reads(TENANT, shapes.NAMES, "The names.", fails=POLICY_FAILS)
    def tenants(self) -> Response:
        """Answer the names of all tenants."""
        self._authorizer.administrator()
        return answer([tenant.name for tenant in self._administration.tenants()])

    @reads(f"{TENANT}/<tenant>", shapes.TENANT, "The tenant.", fails=POLICY_FAILS)
    def tenant(self, tenant: str) -> Response:
        """Answer a tenant's roles and clusters."""
        self._authorizer.administrator()
        name = decode(tenant)
        found = next((one for one in self._administration.tenants() if one.name == name), None)
        if found is None:
            raise NamespaceNotFoundError("Tenant does not exist")
        clusters = found.allowed_clusters or [CLUSTER]
        return answer({"adminRoles": found.admin_roles, "allowedClusters": clusters})

    @changes(
        f"PUT {TENANT}/<tenant>",
        body=shapes.NEW_TENANT,
        fails=POLICY_FAILS,
        refuses=shapes.REFUSED | shapes.NO_CLUSTER,
    )
    def create_tenant(self, tenant: str) -> Response:
        """Make a tenant."""
        principal = self._authorizer.administrator()
        try:
            self._administration.put_tenant(_tenant(tenant, body_object()), exists=False)
        except ConflictError:
            raise AdminRefusedError(409, "Tenant already exist") from None
        return self._changed("tenant-created", tenant, principal)

    @changes(
        f"POST {TENANT}/<tenant>",
        body=shapes.NEW_TENANT,
        fails=POLICY_FAILS,
        refuses=shapes.NO_CLUSTER,
    )
    def update_tenant(self, tenant: str) -> Response:
        """Change a tenant."""
        principal = self._authorizer.administrator()
        self._administration.put_tenant(_tenant(tenant, body_object()), exists=True)
        return self._changed("tenant-updated", tenant, principal)

    @changes(
        f"DELETE {TENANT}/<tenant>",
        api.flag("force", "Delete its namespaces as well."),
        fails=POLICY_FAILS,
        refuses=shapes.IN_USE,
    )
    def delete_tenant(self, tenant: str) -> Response:
        """Delete a tenant, by force with all its namespaces."""
        principal = self._authorizer.administrator()
        if flag("force"):
            for name in self._administration.namespaces(decode(tenant)):
                self._administration.delete_namespace(name, force=True)
        self._administration.delete_tenant(decode(tenant))
        return self._changed("tenant-deleted", tenant, principal)

    def _changed(self, event: str, tenant: str, principal: Principal) -> Response:
        _log.info(event, tenant=decode(tenant), user=principal.name)
        return done()


def _tenant(segment: str, body: dict[str, Any]) -> Tenant:
    """Return the tenant of Pulsar's TenantInfo; raise RefusedError, BadRequestError."""
    clusters = _names(body, "allowedClusters")
    if not clusters:
        raise AdminRefusedError(412, "Clusters cannot be null")
    if clusters != (CLUSTER,):
        raise AdminRefusedError(412, f"Clusters do not exist: there is {CLUSTER} alone")
    return Tenant(decode(segment), _names(body, "adminRoles"), clusters)


def _names(body: dict[str, Any], field: str) -> tuple[str, ...]:
    value = body.get(field)
    if value is None:
        return ()
    if not isinstance(value, list) or not all(isinstance(name, str) for name in value):
        raise BadRequestError(f"{field}: expected a list of names")
    return tuple(sorted(set(value)))
