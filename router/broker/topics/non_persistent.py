"""The topics of a node that are not persistent, by name; each exists while it has clients."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Final

from router.broker.consume.dispatch.non_persistent import NonPersistentPartition
from router.broker.consume.entry_info import EntryFormat
from router.broker.topics.namespaces import namespace_of
from router.errors import TopicNotFoundError
from router.model import TopicName

_PREFIX: Final = "non-persistent://"


def is_non_persistent(text: str) -> bool:
    """Return whether a name is that of a topic that is not persistent."""
    return text.startswith(_PREFIX)


class NonPersistentTopics:
    """All topics of the node that are not persistent."""

    def __init__(self, formats: Mapping[int, EntryFormat], max_subscriptions: int) -> None:
        self._formats = formats
        self._max_subscriptions = max_subscriptions
        self._topics: dict[str, NonPersistentPartition] = {}

    def find(self, name: TopicName) -> NonPersistentPartition | None:
        """Return a topic that has clients, else None."""
        return self._topics.get(str(name))

    def open(
        self, name: TopicName, may_create: Callable[[TopicName], bool] = lambda _: True
    ) -> NonPersistentPartition:
        """Return a topic; a missing one is created if it may be, and goes if no client attaches.

        Raises TopicNotFoundError, and what `may_create` raises.
        """
        found = self._topics.get(str(name))
        if found is None:
            if not may_create(name):
                raise TopicNotFoundError(f"there is no topic {name}")
            found = self._topics[str(name)] = NonPersistentPartition(
                name, self._formats, self._max_subscriptions, self._forget
            )
        return found

    def names(self, namespace: str, matches: Callable[[str], bool] | None = None) -> list[str]:
        """Return the names of the topics of a namespace, or of those that match."""
        return [
            name
            for name, topic in sorted(self._topics.items())
            if namespace_of(topic.name) == namespace and (matches is None or matches(name))
        ]

    def _forget(self, topic: NonPersistentPartition) -> None:
        if self._topics.get(str(topic.name)) is topic:
            del self._topics[str(topic.name)]
