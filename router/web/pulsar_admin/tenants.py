"""`/admin/v2/tenants`: listed, made, changed, deleted."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import structlog
from flask import Blueprint, Response

from router.backends.embedded.administration import Administration
from router.errors import BadRequestError, ConflictError, NamespaceNotFoundError
from router.model import Principal
from router.web.names import decode
from router.web.openapi.description import (
    answers_json,
    answers_nothing,
    operation,
)
from router.web.openapi.description import flag as flag_of
from router.web.pulsar_admin import shapes
from router.web.pulsar_admin.brokers import CLUSTER
from router.web.pulsar_admin.door import Door
from router.web.pulsar_admin.errors import RefusedError
from router.web.pulsar_admin.paths import TENANT, answer, done, flag, given_object
from router.wire.pulsar import pulsar_pb2 as pb

_log = structlog.get_logger(__name__)


class TenantViews:
    """The views of tenants."""

    def __init__(self, door: Door, administration: Administration) -> None:
        self._door = door
        self._administration = administration

    def add(self, routes: Blueprint) -> None:
        """Add the routes."""
        routes.get(TENANT)(self.tenants)
        routes.get(f"{TENANT}/<tenant>")(self.tenant)
        routes.put(f"{TENANT}/<tenant>")(self.create_tenant)
        routes.post(f"{TENANT}/<tenant>")(self.update_tenant)
        routes.delete(f"{TENANT}/<tenant>")(self.delete_tenant)

    @operation(answers=answers_json(shapes.NAMES, "The names."), fails=shapes.POLICY)
    def tenants(self) -> Response:
        """Answer the names of all tenants."""
        self._door.administrator()
        return answer([tenant.name for tenant in self._all()])

    @operation(answers=answers_json(shapes.TENANT, "The tenant."), fails=shapes.POLICY)
    def tenant(self, tenant: str) -> Response:
        """Answer a tenant's roles and clusters."""
        self._door.administrator()
        name = decode(tenant)
        found = next((one for one in self._all() if one.name == name), None)
        if found is None:
            raise NamespaceNotFoundError("Tenant does not exist")
        clusters = list(found.allowed_clusters) or [CLUSTER]
        return answer({"adminRoles": list(found.admin_roles), "allowedClusters": clusters})

    @operation(
        body=shapes.body(shapes.TENANT),
        answers=answers_nothing(),
        fails=shapes.POLICY,
        refuses=shapes.REFUSED | {412: "The clusters are not `standalone`."},
    )
    def create_tenant(self, tenant: str) -> Response:
        """Make a tenant."""
        principal = self._door.administrator()
        try:
            self._put(tenant, exists=False)
        except ConflictError:
            raise RefusedError(409, "Tenant already exist") from None
        return self._changed("tenant-created", tenant, principal)

    @operation(
        body=shapes.body(shapes.TENANT),
        answers=answers_nothing(),
        fails=shapes.POLICY,
        refuses={412: "The clusters are not `standalone`."},
    )
    def update_tenant(self, tenant: str) -> Response:
        """Change a tenant."""
        principal = self._door.administrator()
        self._put(tenant, exists=True)
        return self._changed("tenant-updated", tenant, principal)

    @operation(
        flag_of("force", "Delete its namespaces as well."),
        answers=answers_nothing(),
        fails=shapes.POLICY,
        refuses=shapes.IN_USE,
    )
    def delete_tenant(self, tenant: str) -> Response:
        """Delete a tenant, by force with all its namespaces."""
        principal = self._door.administrator()
        if flag("force"):
            for name in namespaces(self._administration, decode(tenant)):
                gone = pb.DeleteNamespace(namespace=name, force=True)
                self._administration.ask(pb.CommandAdmin(delete_namespace=gone), again=False)
        self._administration.ask(pb.CommandAdmin(delete_tenant=decode(tenant)), again=False)
        return self._changed("tenant-deleted", tenant, principal)

    def _put(self, tenant: str, *, exists: bool) -> None:
        body = given_object()
        clusters = _names(body, "allowedClusters")
        if clusters is None or not clusters:
            raise RefusedError(412, "Clusters cannot be null")
        if clusters != [CLUSTER]:
            raise RefusedError(412, f"Clusters do not exist: there is {CLUSTER} alone")
        made = pb.Tenant(
            name=decode(tenant),
            admin_roles=_names(body, "adminRoles") or [],
            allowed_clusters=clusters,
        )
        command = pb.CommandAdmin(put_tenant=pb.PutTenant(tenant=made, exists=exists))
        self._administration.ask(command, again=exists)

    def _changed(self, event: str, tenant: str, principal: Principal) -> Response:
        _log.info(event, tenant=decode(tenant), user=principal.name)
        return done()

    def _all(self) -> Iterator[Any]:
        asked, more = pb.ListNames(), True
        while more:
            page = self._administration.ask(pb.CommandAdmin(list_tenants=asked))
            yield from page.tenants
            if more := page.more:
                asked.after = page.tenants[-1].name


def namespaces(administration: Administration, tenant: str) -> list[str]:
    """Return the namespaces of a tenant; raise NamespaceNotFoundError."""
    asked, more, found = pb.ListNames(under=tenant), True, list[str]()
    while more:
        page = administration.ask(pb.CommandAdmin(list_namespaces=asked))
        found += [namespace.namespace for namespace in page.namespaces]
        if more := page.more:
            asked.after = found[-1]
    return found


def _names(body: dict[str, Any], field: str) -> list[str] | None:
    value = body.get(field)
    if value is None:
        return None
    if not isinstance(value, list) or not all(isinstance(name, str) for name in value):
        raise BadRequestError(f"{field}: expected a list of names")
    return sorted(set(value))
