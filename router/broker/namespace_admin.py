"""Administration of tenants and namespaces, as CommandAdmin asks for it."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable
from contextlib import suppress
from typing import Any, Final, TypeVar

from router.broker.namespaces import Namespace, NamespacePolicies, Tenant, namespace_of
from router.broker.topic_changes import change_policies
from router.broker.topics import Topics
from router.errors import BadRequestError, TopicNotFoundError
from router.model import TopicName
from router.wire.pulsar import pulsar_pb2 as pb

PAGE: Final = 1_000

_Named = TypeVar("_Named", Tenant, Namespace)


class NamespaceAdmin:
    """Answers requests about tenants and namespaces; `delete_topic` deletes one with all it has."""

    def __init__(
        self, topics: Topics, delete_topic: Callable[[TopicName], Awaitable[None]]
    ) -> None:
        self._topics = topics
        self._namespaces = topics.namespaces
        self._delete_topic = delete_topic

    async def tenants(self, asked: pb.ListNames, response: pb.CommandAdminResponse) -> None:
        """Answer a page of tenants."""
        page, response.more = _page(self._namespaces.tenants(), asked.after)
        response.tenants.extend(
            pb.Tenant(
                name=tenant.name,
                admin_roles=tenant.admin_roles,
                allowed_clusters=tenant.allowed_clusters,
            )
            for tenant in page
        )

    async def put_tenant(self, asked: pb.PutTenant, _: pb.CommandAdminResponse) -> None:
        """Create or change a tenant."""
        given = asked.tenant
        tenant = Tenant(given.name, tuple(given.admin_roles), tuple(given.allowed_clusters))
        exists = asked.exists if asked.HasField("exists") else None
        await self._namespaces.put_tenant(tenant, exists=exists)

    async def delete_tenant(self, asked: str, _: pb.CommandAdminResponse) -> None:
        """Delete a tenant."""
        await self._namespaces.delete_tenant(asked)

    async def namespaces(self, asked: pb.ListNames, response: pb.CommandAdminResponse) -> None:
        """Answer a page of the namespaces of a tenant, or of all."""
        under = asked.under if asked.HasField("under") else None
        page, response.more = _page(self._namespaces.namespaces(under), asked.after)
        response.namespaces.extend(map(_info, page))

    async def namespace(self, asked: str, response: pb.CommandAdminResponse) -> None:
        """Answer one namespace."""
        response.namespaces.append(_info(self._namespaces.namespace(asked)))

    async def create(self, asked: pb.CreateNamespace, _: pb.CommandAdminResponse) -> None:
        """Create a namespace."""
        policies = NamespacePolicies().changed(given_policies(asked.policies), ())
        await self._namespaces.create(asked.namespace, policies)

    async def delete(self, asked: pb.DeleteNamespace, _: pb.CommandAdminResponse) -> None:
        """Delete a namespace, with all its topics if that is asked for."""
        name = asked.namespace
        # Before the first topic goes.
        self._namespaces.check_deletable(name)
        fleeting = self._topics.fleeting
        if asked.force:
            parsed = [TopicName.parse(record.name) for record in self._topics.records()]
            found = [topic for topic in parsed if namespace_of(topic) == name]
            for topic in (*found, *map(TopicName.parse, fleeting.names(name))):
                with suppress(TopicNotFoundError):  # somebody else deleted it, or its users left
                    await self._delete_topic(topic)
        await self._namespaces.delete(
            name, lambda: not self._topics.has_topics(name) and not fleeting.names(name)
        )

    async def change_policies(self, asked: pb.ChangePolicies, _: pb.CommandAdminResponse) -> None:
        """Change policies of a namespace or of a topic."""
        if asked.HasField("namespace") == asked.HasField("topic"):
            raise BadRequestError("exactly one of a namespace and a topic is needed")
        new = given_policies(asked.policies)
        if asked.HasField("namespace"):
            await self._namespaces.change(asked.namespace, new, asked.clear)
        else:
            name = self._topics.parse(asked.topic)
            await change_policies(self._topics, name, new, asked.clear)


def given_policies(asked: pb.Policies) -> dict[str, Any]:
    """Return the policies that are set."""
    return {field.name: value for field, value in asked.ListFields()}


def _page(found: Iterable[_Named], after: str) -> tuple[list[_Named], bool]:
    behind = [named for named in found if named.name > after]
    return behind[:PAGE], len(behind) > PAGE


def _info(namespace: Namespace) -> pb.NamespaceInfo:
    policies = namespace.policies
    return pb.NamespaceInfo(
        namespace=namespace.name,
        created_ms=namespace.created_ms,
        policies=pb.Policies(
            retention_ms=policies.retention_ms,
            retention_bytes=policies.retention_bytes,
            backlog_bytes=policies.backlog_bytes,
            deduplication=policies.deduplication,
            schema_compatibility=policies.schema_compatibility,
            schema_validation_enforced=policies.schema_validation_enforced,
            schema_auto_update=policies.schema_auto_update,
            auto_create=policies.auto_create,
            auto_partitions=policies.auto_partitions,
        ),
    )
