"""Owns tenants and namespaces: which there are, and what their topics inherit from them.

Theory of operation. All of them are in memory, read from the registry once at the start; a change
is written there first and seen when it is on disk. A namespace in which topics are found at the
start exists from then on, so that folders keep working in which topics were made before there were
namespaces. The namespace of the topics with a local name, and its tenant, are always there.

A policy is looked up where it is needed, from the topic over its namespace to the settings. The
alternative, writing what is inherited down with each topic, would have to find them all again when
the namespace changes.
"""

from __future__ import annotations

import asyncio
import dataclasses
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Final

import orjson

from router.errors import (
    BadRequestError,
    ConflictError,
    NamespaceNotFoundError,
    NotAllowedError,
)
from router.errors.quoting import quoted
from router.model import TopicName, check_namespace
from router.model.administration import INHERITED, Namespace, NamespacePolicies, Tenant
from router.model.policies import CLEANUP_POLICIES, LONG_MAX
from router.sharing.registry import AsyncRegistry, all_records

TENANT: Final = "tenant"
NAMESPACE: Final = "namespace"
MAX_ROLES: Final = 100
MAX_ROLE: Final = 256
MAX_BOUND: Final = 2**62
MAX_AUTO_PARTITIONS: Final = 1_000
SCHEMA_COMPATIBILITIES: Final = frozenset(
    {
        "UNDEFINED",
        "ALWAYS_INCOMPATIBLE",
        "ALWAYS_COMPATIBLE",
        "BACKWARD",
        "FORWARD",
        "FULL",
        "BACKWARD_TRANSITIVE",
        "FORWARD_TRANSITIVE",
        "FULL_TRANSITIVE",
    }
)
_SIZES: Final = ("retention_ms", "retention_bytes", "backlog_bytes")
_LIMITS: Final = tuple(
    name for name in INHERITED if name.startswith("max_") or name == "ttl_seconds"
)
_LAGS: Final = {
    "delete_retention_ms": 0,
    "min_compaction_lag_ms": 0,
    "max_compaction_lag_ms": 1,
}
"""Milliseconds, with their least values."""
MAX_LIMIT: Final = 2**31 - 1


NO_POLICIES: Final = NamespacePolicies()


def check_policies(policies: Mapping[str, Any]) -> None:
    """Raise BadRequestError unless these values may be policies of a topic or a namespace."""
    for name in _SIZES:
        value = policies.get(name)
        if value is not None and not -1 <= value <= MAX_BOUND:
            raise BadRequestError(f"{name} = {value}: expected a size, or -1 for no bound")
    for name in _LIMITS:
        if not 0 <= (policies.get(name) or 0) <= MAX_LIMIT:
            raise BadRequestError(f"{name} = {policies[name]}: expected 0 to {MAX_LIMIT}")
    threshold = policies.get("compaction_threshold")
    if threshold is not None and not 0 <= threshold <= LONG_MAX:
        raise BadRequestError(f"compaction_threshold = {threshold}: expected 0 to {LONG_MAX}")
    _check_cleanup(policies)
    strategy = policies.get("schema_compatibility")
    if strategy is not None and strategy not in SCHEMA_COMPATIBILITIES:
        raise BadRequestError(f"there is no schema compatibility strategy {quoted(strategy)}")
    if (policies.get("auto_partitions") or 0) > MAX_AUTO_PARTITIONS:
        raise BadRequestError(f"a topic has at most {MAX_AUTO_PARTITIONS} partitions")


def _check_cleanup(policies: Mapping[str, Any]) -> None:
    cleanup = policies.get("cleanup_policy")
    if cleanup is not None and cleanup not in CLEANUP_POLICIES:
        raise BadRequestError(
            f"cleanup_policy = {quoted(cleanup)}: expected {', '.join(CLEANUP_POLICIES[:3])}"
        )
    for name, least in _LAGS.items():
        value = policies.get(name)
        if value is not None and not least <= value <= LONG_MAX:
            raise BadRequestError(f"{name} = {value}: expected {least} to {LONG_MAX}")
    shortest, longest = (policies.get(f"{end}_compaction_lag_ms") for end in ("min", "max"))
    if (shortest or 0) > (LONG_MAX if longest is None else longest):
        raise BadRequestError(f"min_compaction_lag_ms = {shortest} is over the maximum, {longest}")
    ratio = policies.get("min_cleanable_dirty_ratio")
    if ratio is not None and not 0 <= ratio <= 1:
        raise BadRequestError(f"min_cleanable_dirty_ratio = {ratio}: expected 0 to 1")


def changed(
    policies: NamespacePolicies, new: Mapping[str, Any], clear: Iterable[str]
) -> NamespacePolicies:
    """Return policies with some set and others cleared; raise BadRequestError."""
    names = {field.name for field in dataclasses.fields(policies)}
    if unknown := {*new, *clear} - names:
        raise BadRequestError(f"there is no policy {quoted(min(unknown))}")
    check_policies(new)
    return dataclasses.replace(policies, **dict.fromkeys(clear), **new)


class Namespaces:
    """All tenants and namespaces; without a registry they are kept in memory only.

    `changed` is called with a namespace's name when its policies were changed.
    """

    def __init__(
        self,
        registry: AsyncRegistry | None = None,
        default: tuple[str, str] = ("public", "default"),
        *,
        auto_create: bool = False,
        now_ms: Callable[[], int] = lambda: 0,
    ) -> None:
        self._registry = registry
        self._default = default
        self._auto_create = auto_create
        self._now_ms = now_ms
        self._changing = asyncio.Lock()
        self._tenants: dict[str, Tenant] = {}
        self._namespaces: dict[str, Namespace] = {}
        self.changed: Callable[[str], None] = lambda _: None
        self._set_default()

    async def load(self) -> None:
        """Read what the registry has; raise BackendUnavailableError, ValueError."""
        if self._registry is None:
            return
        async for record in all_records(self._registry, TENANT):
            value = orjson.loads(record.value)
            roles, clusters = tuple(value["admin_roles"]), tuple(value["allowed_clusters"])
            self._tenants[record.name] = Tenant(record.name, roles, clusters)
        async for record in all_records(self._registry, NAMESPACE):
            value = orjson.loads(record.value)
            known = {f.name for f in dataclasses.fields(NamespacePolicies)}
            # A later release may have had others.
            policies = {k: v for k, v in value["policies"].items() if k in known}
            namespace = Namespace(record.name, value["created_ms"], NamespacePolicies(**policies))
            self._namespaces[record.name] = namespace
        self._set_default()

    async def adopt(self, names: Iterable[str]) -> None:
        """Make these namespaces exist, with their tenants, durably."""
        for name in sorted(set(names) - self._namespaces.keys()):
            await self.ensure(name)

    def exists(self, name: str) -> bool:
        """Return whether there is this namespace."""
        return name in self._namespaces

    def check(self, name: TopicName) -> None:
        """Raise NamespaceNotFoundError if a topic's namespace neither exists nor may be made."""
        full = namespace_of(name)
        if not self._auto_create and full not in self._namespaces:
            raise NamespaceNotFoundError(f"Namespace not found: {full}")

    async def check_or_create(self, name: TopicName) -> None:
        """Make a topic's namespace exist, where settings have it made; raise as `check` does."""
        self.check(name)
        if not self.exists(namespace_of(name)):
            await self.ensure(namespace_of(name))

    def policies(self, name: str) -> NamespacePolicies:
        """Return the policies of a namespace; of one that is not there, none."""
        found = self._namespaces.get(name)
        return NO_POLICIES if found is None else found.policies

    def tenants(self) -> Sequence[Tenant]:
        """Return the tenants by name."""
        return [self._tenants[name] for name in sorted(self._tenants)]

    def namespaces(self, tenant: str | None = None) -> Sequence[Namespace]:
        """Return the namespaces by name, of one tenant or all; raise NamespaceNotFoundError."""
        if tenant is not None and tenant not in self._tenants:
            raise NamespaceNotFoundError(f"there is no tenant {tenant}")
        return [
            self._namespaces[name]
            for name in sorted(self._namespaces)
            if tenant is None or name.partition("/")[0] == tenant
        ]

    def namespace(self, name: str) -> Namespace:
        """Return a namespace; raise NamespaceNotFoundError."""
        if (found := self._namespaces.get(name)) is None:
            raise NamespaceNotFoundError(f"Namespace not found: {name}")
        return found

    async def put_tenant(self, tenant: Tenant, *, exists: bool | None = None) -> None:
        """Store a tenant; `exists`: whether it must be there already.

        Raises BadNameError, BadRequestError, ConflictError, NamespaceNotFoundError.
        """
        _check_tenant(tenant)
        async with self._changing:
            if exists is False and tenant.name in self._tenants:
                raise ConflictError(f"the tenant {tenant.name} exists already")
            if exists and tenant.name not in self._tenants:
                raise NamespaceNotFoundError(f"there is no tenant {tenant.name}")
            await self._store_tenant(tenant)

    async def delete_tenant(self, name: str) -> None:
        """Delete a tenant without namespaces.

        Raises NamespaceNotFoundError, ConflictError, NotAllowedError.
        """
        async with self._changing:
            if self.namespaces(name):
                raise ConflictError(f"the tenant {name} has namespaces")
            if name == self._default[0]:
                raise NotAllowedError(f"the tenant {name} is the settings' own")
            if self._registry is not None:
                await self._registry.delete(TENANT, name)
            del self._tenants[name]

    async def create(self, name: str, policies: NamespacePolicies = NO_POLICIES) -> None:
        """Create a namespace of a tenant that exists.

        Raises BadNameError, BadRequestError, ConflictError, NamespaceNotFoundError.
        """
        tenant = check_namespace(name)[0]
        async with self._changing:
            if name in self._namespaces:
                raise ConflictError(f"the namespace {name} exists already")
            if tenant not in self._tenants:
                raise NamespaceNotFoundError(f"there is no tenant {tenant}")
            await self._store(Namespace(name, self._now_ms(), policies))

    async def ensure(self, name: str) -> None:
        """Make a namespace exist, and its tenant; raise BadNameError."""
        if name in self._namespaces and not self._changing.locked():
            return  # else it may be about to go
        tenant = check_namespace(name)[0]
        async with self._changing:
            if tenant not in self._tenants:
                await self._store_tenant(Tenant(tenant))
            if name not in self._namespaces:
                await self._store(Namespace(name, self._now_ms()))

    async def change(self, name: str, new: Mapping[str, Any], clear: Iterable[str]) -> None:
        """Set some policies of a namespace and clear others.

        Raises NamespaceNotFoundError, BadRequestError.
        """
        async with self._changing:
            found = self.namespace(name)
            policies = changed(found.policies, new, clear)
            await self._store(dataclasses.replace(found, policies=policies))
        self.changed(name)

    def check_deletable(self, name: str) -> None:
        """Raise NamespaceNotFoundError, NotAllowedError for what no request ever deletes."""
        self.namespace(name)
        if name == "/".join(self._default):
            raise NotAllowedError(f"the namespace {name} is the settings' own")

    async def delete(self, name: str, empty: Callable[[], bool]) -> None:
        """Delete a namespace that is `empty`.

        Raises NamespaceNotFoundError, ConflictError, NotAllowedError.
        """
        async with self._changing:
            self.check_deletable(name)
            if not empty():
                raise ConflictError(f"the namespace {name} has topics")
            if self._registry is not None:
                await self._registry.delete(NAMESPACE, name)
            del self._namespaces[name]

    async def _store_tenant(self, tenant: Tenant) -> None:
        if self._registry is not None:
            value = orjson.dumps(
                {"admin_roles": tenant.admin_roles, "allowed_clusters": tenant.allowed_clusters}
            )
            await self._registry.put(TENANT, tenant.name, value, None)
        self._tenants[tenant.name] = tenant

    async def _store(self, namespace: Namespace) -> None:
        if self._registry is not None:
            policies = dataclasses.asdict(namespace.policies)
            given = {name: value for name, value in policies.items() if value is not None}
            value = orjson.dumps({"created_ms": namespace.created_ms, "policies": given})
            await self._registry.put(NAMESPACE, namespace.name, value, None)
        self._namespaces[namespace.name] = namespace

    def _set_default(self) -> None:
        tenant, name = self._default[0], "/".join(self._default)
        self._tenants.setdefault(tenant, Tenant(tenant))
        self._namespaces.setdefault(name, Namespace(name))


def namespace_in(full_name: str) -> str:
    """Return the tenant/namespace of a topic, of its full name."""
    return full_name[full_name.index("//") + 2 : full_name.rindex("/")]


def namespace_of(name: TopicName) -> str:
    """Return the namespace of a topic as `tenant/namespace`."""
    return f"{name.tenant}/{name.namespace}"


def _check_tenant(tenant: Tenant) -> None:
    check_namespace(f"{tenant.name}/x")
    for names in (tenant.admin_roles, tenant.allowed_clusters):
        if len(names) > MAX_ROLES or any(len(name) > MAX_ROLE for name in names):
            raise BadRequestError("too many or too long names of roles or clusters")
