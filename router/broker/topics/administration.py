"""Administration of topics and their schemas: made, listed, described, changed and deleted."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterator, Mapping
from contextlib import suppress
from typing import Protocol

from router.broker.consume.dispatch.non_persistent import NonPersistentPartition
from router.broker.topics.calls import AdminCalls
from router.broker.topics.cursor_administration import CursorAdmin, Forgetting
from router.broker.topics.descriptions import (
    Place,
    clients,
    non_persistent_stats,
)
from router.broker.topics.extents import Extents
from router.broker.topics.non_persistent import is_non_persistent
from router.broker.topics.schema_records import Version
from router.broker.topics.schemas import BrokerSchemas
from router.broker.topics.topics import Topics
from router.errors import TopicNotFoundError
from router.metrics import Sample
from router.model import Schema, TopicName, TopicStats
from router.model.administration import ClientInfo
from router.model.policies import Policies


class AdministrationMetrics(Protocol):
    """The node's metrics, as the administration of topics adds to them."""

    def watch(self, name: str, read: Callable[[], float]) -> None:
        """Have a gauge read whenever metrics are shown."""
        ...

    def observe(self, collect: Callable[[], Awaitable[list[Sample]]]) -> None:
        """Have samples collected whenever metrics are shown."""
        ...


class TopicAdmin:
    """The topics of the log as administration changes and describes them.

    What it has besides is about their subscriptions, namespaces, schemas and extents. Names of
    topics are given as text. Calls raise BadNameError, NotAllowedError, TopicNotFoundError, and
    what the store raises.
    """

    def __init__(
        self,
        topics: Topics,
        metrics: AdministrationMetrics,
        leases: Forgetting,
        schemas: BrokerSchemas | None = None,
        calls: AdminCalls | None = None,
    ) -> None:
        self.topics = topics
        self._leases = leases
        self.live_members = topics.live_members
        self.cursors = CursorAdmin(topics, leases)
        self.namespaces = topics.namespaces
        self.schemas = SchemaAdmin(topics, schemas or BrokerSchemas())
        self.extents = Extents(topics)
        self.calls = calls or AdminCalls(topics)
        metrics.watch("router_broker_topics", lambda: topics.count)
        metrics.observe(self._samples)

    async def create(
        self, text: str, partitions: int, policies: Policies, properties: Mapping[str, str]
    ) -> None:
        """Create a topic; partitions = 0: not partitioned. Raises TopicExistsError besides."""
        await self.topics.create(self.topics.parse(text), partitions, policies, properties)

    async def delete(self, text: str) -> None:
        """Delete a topic with all it holds."""
        non_persistent = is_non_persistent(text)
        await self.delete_topic(
            TopicName.parse(text) if non_persistent else self.topics.parse(text)
        )

    async def delete_topic(self, name: TopicName) -> None:
        """Delete a topic, with the positions that polls left; raise TopicNotFoundError."""
        if is_non_persistent(str(name)):
            self._non_persistent(str(name)).close()
            return
        await self.topics.delete(name)
        self._leases.forget(str(name))

    async def delete_namespace(self, name: str, *, force: bool) -> None:
        """Delete a namespace, with `force` with all its topics; raise what `Namespaces` raises."""
        # Before the first topic goes.
        self.namespaces.check_deletable(name)
        if force:
            for topic in self.topics.in_namespace(name):
                with suppress(TopicNotFoundError):  # another request deleted it, or its users left
                    await self.delete_topic(topic)
        await self.namespaces.delete(name, lambda: not self.topics.in_namespace(name))

    async def describe(self, text: str, after: Place | None = None) -> TopicStats:
        """Return a page of what a topic holds; see `descriptions.topic_stats`."""
        if is_non_persistent(text):
            return non_persistent_stats(self._non_persistent(text))
        return await self.topics.describe(self.topics.parse(text), after)

    def clients(self, text: str) -> Iterator[ClientInfo]:
        """Return the producers and consumers of a topic or a partition."""
        if is_non_persistent(text):
            return clients([self._non_persistent(text)])
        return clients(self.topics.pieces(self.topics.parse(text)))

    def _non_persistent(self, text: str) -> NonPersistentPartition:
        found = self.topics.non_persistent.find(TopicName.parse(text))
        if found is None:
            raise TopicNotFoundError(f"there is no topic {text}")
        return found

    async def _samples(self) -> list[Sample]:
        tally = self.topics.tally
        return [
            ("router_broker_entries_total", (), float(tally.entries)),
            ("router_broker_bytes_total", (), float(tally.bytes)),
            ("router_broker_dispatched_total", (), float(tally.dispatched)),
            ("router_broker_damaged_entries_total", (), float(tally.damaged)),
        ]


class SchemaAdmin:
    """The schemas of topics; where a partition is named, those of its topic.

    Calls raise BadNameError, NotAllowedError, TopicNotFoundError, and what the registry raises.
    """

    def __init__(self, topics: Topics, schemas: BrokerSchemas) -> None:
        self._topics = topics
        self._schemas = schemas

    async def versions(self, topic: str, first: int) -> Iterator[tuple[int, Version]]:
        """Return a topic's versions since the last deletion, from this number on."""
        versions = await self._schemas.versions(self._topics.whole(topic))
        marks = [number for number, version in enumerate(versions) if version.schema is None]
        begin = max(first, marks[-1] + 1 if marks else 0)
        return ((number, versions[number]) for number in range(begin, len(versions)))

    async def put(self, topic: str, schema: Schema, *, try_only: bool) -> int:
        """Give a topic a schema and return its version; a missing topic is made if it may be.

        `try_only`: return the version that it would have. Raises IncompatibleSchemaError.
        """
        name = self._topics.parse(topic)
        record, _ = self._topics.holding(name)
        if record is None:
            if try_only or self._topics.creation(name) is None:
                raise TopicNotFoundError(f"there is no topic {name}")
            record = await self._topics.create_missing(name)
        version = await self._schemas.register(record, schema, by_admin=True, try_only=try_only)
        return int.from_bytes(version)

    async def delete(self, topic: str) -> int:
        """Let a topic have no schema from now on; return the version of the mark that says so.

        Raises SchemaNotFoundError.
        """
        return int.from_bytes(await self._schemas.delete(self._topics.whole(topic)))
