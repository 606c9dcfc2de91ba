"""Administration of tenants and namespaces."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Mapping
from contextlib import suppress
from typing import Any, Final, TypeVar

from router.broker.topics.namespaces import NO_POLICIES, changed
from router.broker.topics.topics import Topics
from router.errors import TopicNotFoundError
from router.model import TopicName
from router.model.administration import Namespace, Tenant

MAX_NAMES_PER_PAGE: Final = 1_000

_Named = TypeVar("_Named", Tenant, Namespace)


class NamespaceAdmin:
    """Tenants and namespaces; `delete_topic` deletes a topic with all it has.

    Calls raise BadRequestError, ConflictError, NamespaceNotFoundError, NotAllowedError, and what
    the registry raises.
    """

    def __init__(
        self, topics: Topics, delete_topic: Callable[[TopicName], Awaitable[None]]
    ) -> None:
        self._topics = topics
        self._namespaces = topics.namespaces
        self._delete_topic = delete_topic

    def tenants(self, after: str) -> tuple[list[Tenant], bool]:
        """Return a page of the tenants behind a name, and whether there are more."""
        return _page(self._namespaces.tenants(), after)

    async def put_tenant(self, tenant: Tenant, *, exists: bool | None) -> None:
        """Create or change a tenant; `exists`: whether it must be there, None: either way."""
        await self._namespaces.put_tenant(tenant, exists=exists)

    async def delete_tenant(self, name: str) -> None:
        """Delete a tenant without namespaces."""
        await self._namespaces.delete_tenant(name)

    def namespaces(self, tenant: str | None, after: str) -> tuple[list[Namespace], bool]:
        """Return a page of the namespaces of a tenant or of all, and whether there are more."""
        return _page(self._namespaces.namespaces(tenant), after)

    def namespace(self, name: str) -> Namespace:
        """Return one namespace."""
        return self._namespaces.namespace(name)

    async def create(self, name: str, policies: Mapping[str, Any]) -> None:
        """Create a namespace."""
        await self._namespaces.create(name, changed(NO_POLICIES, policies, ()))

    async def delete(self, name: str, *, force: bool) -> None:
        """Delete a namespace, with `force` with all its topics."""
        # Before the first topic goes.
        self._namespaces.check_deletable(name)
        if force:
            for topic in self._topics.in_namespace(name):
                with suppress(TopicNotFoundError):  # another request deleted it, or its users left
                    await self._delete_topic(topic)
        await self._namespaces.delete(name, lambda: not self._topics.in_namespace(name))

    async def change_policies(
        self, name: str, new: Mapping[str, Any], clear: Iterable[str]
    ) -> None:
        """Set some policies of a namespace and clear others."""
        await self._namespaces.change(name, new, clear)


def _page(found: Iterable[_Named], after: str) -> tuple[list[_Named], bool]:
    behind = [named for named in found if named.name > after]
    return behind[:MAX_NAMES_PER_PAGE], len(behind) > MAX_NAMES_PER_PAGE
