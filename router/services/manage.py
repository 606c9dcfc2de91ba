"""Managing topics: list, describe, create, delete."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final

from router.backends import Backend, Capabilities
from router.errors import BadRequestError, NotAllowedError, TopicExistsError, TopicNotFoundError
from router.model import NO_PROPERTIES, TopicInfo, TopicName, TopicStats
from router.model.policies import Policies
from router.services import compaction
from router.services.topic_metadata import TopicMetadataCache

MAX_PARTITIONS: Final = 1_000
MAX_PROPERTY: Final = 4_096


@dataclass(frozen=True, slots=True)
class NewTopic:
    """A topic to be created; `partitions` None: as settings say, 0 or 1: not partitioned."""

    topic: TopicName
    partitions: int | None = None
    policies: Policies = field(default_factory=Policies)
    properties: Mapping[str, str] = field(default_factory=lambda: NO_PROPERTIES)


@dataclass(eq=False)
class TopicManagement:
    """The topics of one namespace, as administrators see them."""

    _backend: Backend
    _topics_cache: TopicMetadataCache
    _auto_partitions: int
    _timeout: float

    def listed(self, tenant: str, namespace: str, *, internal: bool = False) -> list[TopicInfo]:
        """Return the topics of the namespace, by name; internal ones only with `internal`."""
        return [
            info
            for info in self._backend.list_topics(self._timeout, internal=internal)
            if (info.topic.tenant, info.topic.namespace) == (tenant, namespace)
        ]

    def described(self, topic: TopicName) -> TopicStats:
        """Return what a topic holds; raise TopicNotFoundError."""
        try:
            return self._backend.describe_topic(topic, self._timeout)
        except TopicNotFoundError:
            raise TopicNotFoundError(f"[{topic.local}]") from None

    def exists(self, topic: TopicName) -> bool:
        """Return whether a topic is there; one that was deleted may be for a few seconds more."""
        try:
            self._topics_cache.partitions(topic)
        except TopicNotFoundError:
            return False
        return True

    def forget(self, topic: TopicName) -> None:
        """Ask the store for a topic the next time, after it was created, changed or deleted."""
        self._topics_cache.forget(topic)

    def check(self, new: NewTopic) -> None:
        """Raise BadRequestError for a topic that cannot be as it is requested."""
        partitions = new.partitions
        if partitions is not None and not 0 <= partitions <= MAX_PARTITIONS:
            raise BadRequestError(
                f"a topic has at most {MAX_PARTITIONS} partitions, not {partitions}"
            )
        cleanup = new.policies.cleanup_policy
        if cleanup is not None:
            compaction.check(cleanup)
        for key, value in new.properties.items():
            if len(value) > MAX_PROPERTY:
                raise BadRequestError(f"{key} has more than {MAX_PROPERTY} characters")

    def create(self, new: NewTopic) -> bool:
        """Create a topic; return False if it exists already, with the requested partitions.

        Raises TopicExistsError if it has another number of partitions, and BadRequestError.
        """
        self.check(new)
        requested = new.partitions
        partitions = self._auto_partitions if requested is None else requested
        if requested == 1:
            partitions = 0
        info = TopicInfo(new.topic, partitions, new.policies, dict(new.properties))
        try:
            self._backend.create_topic(info, self._timeout)
        except TopicExistsError:
            try:
                has = self._backend.describe_topic(new.topic, self._timeout).info.partitions
            except TopicNotFoundError:  # deleted in between
                self._backend.create_topic(info, self._timeout)
                return True
            if requested is not None and max(requested, 1) != max(has, 1):
                raise TopicExistsError(
                    f"topic {new.topic.local} exists already, with {max(has, 1)} partitions"
                ) from None
            return False
        finally:
            self._topics_cache.forget(new.topic)
        return True

    def capabilities(self) -> Capabilities:
        """Return what the store can do; raise what it raises."""
        return self._backend.capabilities(self._timeout)

    def grow(self, topic: TopicName, partitions: int) -> None:
        """Give a partitioned topic more partitions; raise TopicNotFoundError, NotAllowedError."""
        has = self.described(topic).info.partitions
        if has < 2:
            raise NotAllowedError(
                f"topic {topic.local} was made without partitions: it cannot get more"
            )
        if not has < partitions <= MAX_PARTITIONS:
            raise BadRequestError(
                f"partitions: expected {has + 1} to {MAX_PARTITIONS}, not {partitions}."
            )
        try:
            self._backend.grow_topic(topic, partitions, self._timeout)
        finally:
            self._topics_cache.forget(topic)

    def set_retention(self, topic: TopicName, ms: int | None, max_bytes: int | None) -> None:
        """Change how long, and how much of each partition, is kept; -1: without bound.

        None: as settings say. Raises TopicNotFoundError, NotAllowedError.
        """
        self._backend.set_retention(topic, ms, max_bytes, self._timeout)

    def delete(self, topic: TopicName) -> None:
        """Delete a topic with its messages and groups; raise TopicNotFoundError."""
        try:
            self._backend.delete_topic(topic, self._timeout)
        except TopicNotFoundError:
            raise TopicNotFoundError(f"[{topic.local}]") from None
        finally:
            self._topics_cache.forget(topic)
