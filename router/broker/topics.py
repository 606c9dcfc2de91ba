"""The node's topics at run time: finding them by name, making, growing and deleting them.

Theory of operation. The names of all topics are in memory; a partition is loaded when somebody
first produces to it or subscribes, so that a restart with many topics is quick. Whatever changes
the set of topics is done by one task a name at a time, which others wait for: two clients that
create the same topic together make one.

`<topic>-partition-<n>` is the name of a partition wherever a partitioned topic of that name exists,
and of nothing at all where none does. Pulsar lets such a topic come into being by itself, and then
it stands in the way of the real one.

What topics inherit from their namespace is asked for whenever it is needed (`policies`). Who wants
to know which topics come and go is told at once, after the change.
"""

from __future__ import annotations

import asyncio
from bisect import bisect_right
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import TypeVar

from router.broker.advertised import NOWHERE, Advertised
from router.broker.descriptions import Place, topic_info, topic_stats
from router.broker.dispatch.partition import Broker, Partition, Tally
from router.broker.fleeting import FleetingTopics
from router.broker.ledger import Store, TopicRecord
from router.broker.namespaces import NamespacePolicies, Namespaces, check_policies, namespace_of
from router.broker.topic_names import check_new, parent_of, partition_names
from router.errors import (
    NotAllowedError,
    TopicExistsError,
    TopicNotFoundError,
    too_many_topics,
)
from router.model import (
    NO_PROPERTIES,
    NOT_PARTITIONED,
    Policies,
    TopicInfo,
    TopicName,
    TopicStats,
)
from router.settings import Settings

_T = TypeVar("_T")

Listener = Callable[[str, Sequence[str], Sequence[str]], None]
"""Is told a topic's name, and the names of its partitions that came and that went."""


@dataclass(frozen=True, slots=True)
class TopicOptions:
    """What settings say about topics and their groups, and where lookups send clients."""

    auto_create: bool = True
    auto_partitions: int = 0
    auto_max_topics: int = 0
    max_groups: int = 1_000
    groups_ms: int = 7 * 86_400_000
    tenant: str = "public"
    namespace: str = "default"
    auto_namespaces: bool = False
    advertised: Advertised = NOWHERE

    @classmethod
    def from_settings(cls, settings: Settings) -> TopicOptions:
        """Return the options that the settings in force ask for."""
        return cls(
            auto_create=settings.flag("topics.auto_create"),
            auto_partitions=settings.number("topics.auto_partitions"),
            auto_max_topics=settings.number("topics.auto_max_topics"),
            max_groups=settings.number("retention.max_groups"),
            groups_ms=round(settings.seconds("retention.groups") * 1000),
            tenant=settings.text("names.tenant"),
            namespace=settings.text("names.namespace"),
            auto_namespaces=settings.flag("namespaces.auto_create"),
            advertised=Advertised.parse(settings.text("broker.advertised")),
        )


class Topics:
    """All topics of the node; `clock` counts seconds since 1970. One object for the process.

    Without `namespaces`, there are those that topics are in and that topics are made in. Those in
    `listeners` are told which topics come and go.
    """

    def __init__(
        self,
        store: Store,
        options: TopicOptions,
        clock: Callable[[], float],
        namespaces: Namespaces | None = None,
    ) -> None:
        self.store = store
        self.tally = Tally()
        self.options = options
        self.namespaces = namespaces or Namespaces(auto_create=True)
        self.namespaces.changed = self._namespace_changed
        self.fleeting = FleetingTopics(options.max_groups)
        self.listeners: set[Listener] = set()
        self._clock = clock
        self._broker = Broker(
            store, self.tally, options.max_groups, self.now_ms, policies=self.policies
        )
        self._records: dict[str, TopicRecord] = {}
        self._kafka_names: dict[str, str] = {}
        self._partitions: dict[str, Partition] = {}
        self._busy: dict[str, asyncio.Future[None]] = {}
        for record in store.topics():
            self._remember(record)
        store.resolve(self.policies)

    @property
    def count(self) -> int:
        """Return how many topics there are."""
        return len(self._records)

    def now_ms(self) -> int:
        """Return the time in milliseconds since 1970."""
        return int(self._clock() * 1000)

    def find(self, text: str) -> TopicRecord | None:
        """Return the topic of this name, if there is one; raise BadNameError, NotAllowedError."""
        return self._records.get(str(self.parse(text)))

    def parse(self, text: str) -> TopicName:
        """Read a topic's name; raise BadNameError, and NotAllowedError if it is not persistent."""
        name = TopicName.parse(text, self.options.tenant, self.options.namespace)
        if name.domain != "persistent":
            raise NotAllowedError(f"{text}: only persistent topics are served")
        return name

    def check_namespace(self, text: str) -> None:
        """Raise NamespaceNotFoundError where a topic neither is nor may be; see also `parse`."""
        name = self.parse(text)
        if str(name) not in self._records:
            self.namespaces.check(name)

    def opened(self, text: str) -> Partition | None:
        """Return a partition, or the only one of a topic without partitions; None: no such topic.

        Raises NotAllowedError for a topic that has partitions, and TopicNotFoundError for a
        partition that it does not have.
        """
        name = self.parse(text)
        full = str(name)
        if (partition := self._partitions.get(full)) is not None:
            return partition
        record, index = self._records.get(full), NOT_PARTITIONED
        if record is not None and record.partitions:
            raise NotAllowedError(
                f"Found partitioned metadata for non-partitioned topic: {full}; name a partition"
            )
        if record is None:
            found = parent_of(name)
            if found is None:
                return None
            parent, index = found
            record = self._records.get(str(parent))
            if record is None or index >= record.partitions:
                raise TopicNotFoundError(f"there is no topic {parent} with a partition {index}")
        return self._load(full, record, index)

    async def open(self, text: str, *, create: bool) -> Partition:
        """Return a partition as `opened` does; a missing topic is created if it may be.

        Raises TopicNotFoundError besides.
        """
        partition = self.opened(text)
        while partition is None:
            name = self.parse(text)
            if not create or self.creation(name) is None:
                raise TopicNotFoundError(f"there is no topic {name}")
            await self.create_missing(name)
            partition = self.opened(text)
        return partition

    def partitions(self, record: TopicRecord) -> list[Partition]:
        """Return all partitions of a topic, loaded."""
        name = TopicName.parse(record.name)
        if record.partitions == 0:
            return [self._load(record.name, record, NOT_PARTITIONED)]
        return [
            self._load(str(name.partition(index)), record, index)
            for index in range(record.partitions)
        ]

    def pieces(self, name: TopicName) -> list[Partition]:
        """Return a topic's partitions, or the one that is named; raise TopicNotFoundError."""
        if (record := self._records.get(str(name))) is not None:
            return self.partitions(record)
        if (partition := self.opened(str(name))) is None:
            raise TopicNotFoundError(f"there is no topic {name}")
        return [partition]

    def loaded(self) -> list[Partition]:
        """Return the partitions in use."""
        return list(self._partitions.values())

    def loaded_partition(self, record: TopicRecord, index: int) -> Partition | None:
        """Return a partition if it is in use."""
        return self._partitions.get(str(TopicName.parse(record.name).partition(index)))

    def records(self) -> list[TopicRecord]:
        """Return all topics."""
        return list(self._records.values())

    def policies(self, record: TopicRecord) -> Policies:
        """Return what holds for a topic: its own policies, else its namespace's."""
        return self._inherited(TopicName.parse(record.name)).over(record.policies)

    def creation(self, name: TopicName) -> int | None:
        """Return how many partitions a missing topic would get by being used; None: it is missing.

        Raises NamespaceNotFoundError, and NotAllowedError where there are too many topics for it.
        """
        self.namespaces.check(name)
        inherited = self._inherited(name)
        auto = self.options.auto_create if inherited.auto_create is None else inherited.auto_create
        if not auto:
            return None
        if 0 < self.options.auto_max_topics <= self.count:
            raise too_many_topics(self.options.auto_max_topics)
        given = inherited.auto_partitions
        return self.options.auto_partitions if given is None else given

    async def create_missing(self, name: TopicName) -> TopicRecord:
        """Return the topic, created as settings say if it is not there."""
        full = str(name)
        if full not in self._records:
            try:
                await self.create(name, self.creation(name) or 0)
            except TopicExistsError:
                if full not in self._records:
                    raise
        return self._records[full]

    async def create(
        self,
        name: TopicName,
        partitions: int = 0,
        policies: Policies = Policies(),  # noqa: B008 - a frozen value
        properties: Mapping[str, str] = NO_PROPERTIES,
    ) -> TopicRecord:
        """Create a topic.

        Raises TopicExistsError, BadNameError, BadRequestError, NamespaceNotFoundError.
        """
        check_new(name, partitions, properties)
        check_policies(asdict(policies))
        full, kafka_name = str(name), self._kafka_name(name)

        async def make() -> TopicRecord:
            taken = full if full in self._records else self._kafka_names.get(kafka_name)
            if taken is not None:
                raise TopicExistsError(
                    f"the topic {taken} exists already"
                    + ("" if taken == full else f"; Kafka would know both as {kafka_name}")
                )
            await self.namespaces.check_or_create(name)
            record = await self.store.create_topic(full, partitions, policies, properties)
            self._remember(record)
            # Back again, should it have been deleted for having no topics meanwhile.
            await self.namespaces.ensure(namespace_of(name))
            self._tell(full, partition_names(record), ())
            return record

        return await self._alone(kafka_name, make)

    async def delete(self, name: TopicName) -> None:
        """Delete a topic with all it holds, letting its clients go; raise TopicNotFoundError."""

        async def unmake() -> None:
            record = self._records.pop(str(name), None)
            if record is None:
                raise TopicNotFoundError(f"there is no topic {name}")
            for index in range(record.partitions) or (NOT_PARTITIONED,):
                partition = self._partitions.pop(str(name.partition(index)), None)
                if partition is not None:
                    partition.close()
            self._tell(record.name, (), partition_names(record))
            await self.store.delete_topic(record.id)
            del self._kafka_names[self._kafka_name(name)]

        await self._alone(self._kafka_name(name), unmake)

    async def change(
        self, name: TopicName, change: Callable[[TopicRecord], Awaitable[TopicRecord]]
    ) -> TopicRecord:
        """Change a topic while nobody else does; return it as it was. Raises TopicNotFoundError."""

        async def alone() -> TopicRecord:
            before = self.known(name)
            changed = await change(before)
            self._records[changed.name] = changed
            for index in range(changed.partitions) or (NOT_PARTITIONED,):
                if (partition := self.loaded_partition(changed, index)) is not None:
                    partition.topic = changed
                    self._deduplicate(partition)
            if added := partition_names(changed)[max(1, before.partitions) :]:
                self._tell(changed.name, added, ())
            return before

        return await self._alone(self._kafka_name(name), alone)

    def known(self, name: TopicName) -> TopicRecord:
        """Return the topic; raise TopicNotFoundError."""
        record = self._records.get(str(name))
        if record is None:
            raise TopicNotFoundError(f"there is no topic {name}")
        return record

    def names(self, namespace: str, matches: Callable[[str], bool] | None = None) -> list[str]:
        """Return the names of all partitions of a namespace's topics, or of those that match."""
        prefix = f"persistent://{namespace}/"
        return [
            name
            for full in sorted(self._records)
            if full.startswith(prefix) and (matches is None or matches(full))
            for name in partition_names(self._records[full])
        ]

    def listed_after(self, name: str) -> Iterator[TopicInfo]:
        """Yield the topics by name, beginning after this one; none may come or go meanwhile."""
        names = sorted(self._records)
        for place in range(bisect_right(names, name), len(names)):
            yield topic_info(self._records[names[place]])

    def has_topics(self, namespace: str) -> bool:
        """Return whether topics are in a namespace."""
        return any(namespace_of(TopicName.parse(name)) == namespace for name in self._records)

    async def describe(self, name: TopicName, after: Place | None = None) -> TopicStats:
        """Return a page of what a topic holds, see `topic_stats`; raise TopicNotFoundError."""
        record = self.known(name)
        return await topic_stats(record, self.partitions(record), after)

    def _load(self, full: str, record: TopicRecord, index: int) -> Partition:
        partition = self._partitions.get(full)
        if partition is None:
            partition = Partition(self._broker, record, index)
            self._partitions[full] = partition
        return partition

    def _remember(self, record: TopicRecord) -> None:
        self._records[record.name] = record
        self._kafka_names[self._kafka_name(TopicName.parse(record.name))] = record.name

    def _namespace_changed(self, namespace: str) -> None:
        for partition in self.loaded():
            if namespace_of(TopicName.parse(partition.topic.name)) == namespace:
                self._deduplicate(partition)

    def _deduplicate(self, partition: Partition) -> None:
        """Have producers that are there deduplicated; a policy that ends is for those to come."""
        if self.policies(partition.topic).deduplication:
            for producer in partition.producers:
                producer.deduplicated = True

    def _inherited(self, name: TopicName) -> NamespacePolicies:
        return self.namespaces.policies(namespace_of(name))

    def _tell(self, name: str, created: Sequence[str], deleted: Sequence[str]) -> None:
        for listener in tuple(self.listeners):
            listener(name, created, deleted)

    def _kafka_name(self, name: TopicName) -> str:
        if (name.tenant, name.namespace) == (self.options.tenant, self.options.namespace):
            return name.local
        return f"{name.tenant}.{name.namespace}.{name.local}"

    async def _alone(self, key: str, change: Callable[[], Awaitable[_T]]) -> _T:
        """Make a change while no other one of the same key is under way."""
        while key in self._busy:
            await self._busy[key]
        done = self._busy[key] = asyncio.get_running_loop().create_future()
        try:
            return await change()
        finally:
            del self._busy[key]
            done.set_result(None)
