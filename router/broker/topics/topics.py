"""The node's topics at run time: finding them by name, creating, growing and deleting them.

Theory of operation. The names of all topics are in memory; a partition is loaded when a client
first produces to it or subscribes, so that a restart with many topics is quick. Changes of the set
of topics run one at a time for each name: two clients that create the same topic create one.
Observers are called right after a change. Inherited policies are looked up when they are needed.

`<topic>-partition-<n>` is the name of a partition if a partitioned topic of that name exists, and
of nothing if none does. Pulsar creates such a topic on first use, and then it is in the way of the
partitioned one.
"""

from __future__ import annotations

import asyncio
from bisect import bisect_left, bisect_right, insort
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import TypeVar

from router.broker.consume import DeliveryContext, Partition, Tally
from router.broker.consume.dispatch.non_persistent import NonPersistentPartition
from router.broker.consume.entry_info import EntryFormat
from router.broker.storage import Store, TopicRecord
from router.broker.topics.descriptions import Place, topic_info, topic_stats
from router.broker.topics.kafka_names import KafkaNames
from router.broker.topics.names import check_new, partition_names
from router.broker.topics.namespaces import (
    Namespaces,
    check_policies,
    namespace_in,
    namespace_of,
)
from router.broker.topics.non_persistent import NonPersistentTopics, is_non_persistent
from router.errors import (
    NotAllowedError,
    TopicExistsError,
    TopicNotFoundError,
    too_many_topics,
)
from router.model import (
    NO_PROPERTIES,
    NOT_PARTITIONED,
    PERSISTENT,
    TopicInfo,
    TopicName,
    TopicStats,
)
from router.model.policies import Policies
from router.settings.options import SettingsOptions, from_setting, milliseconds

_T = TypeVar("_T")

TopicObserver = Callable[[str, Sequence[str], Sequence[str]], None]
"""Called with a topic's name, and the names of its partitions that were created and deleted."""


@dataclass(frozen=True, slots=True)
class TopicOptions(SettingsOptions):
    """What settings say about topics and their groups."""

    auto_create: bool = from_setting("topics.auto_create", default=True)
    auto_partitions: int = from_setting("topics.auto_partitions", default=0)
    auto_max_topics: int = from_setting("topics.auto_max_topics", default=0)
    max_groups: int = from_setting("retention.max_groups", default=1_000)
    groups_ms: int = from_setting("retention.groups", milliseconds, default=7 * 86_400_000)
    offsets_ms: int = from_setting("retention.offsets", milliseconds, default=7 * 86_400_000)
    tenant: str = from_setting("names.tenant", default="public")
    namespace: str = from_setting("names.namespace", default="default")
    auto_namespaces: bool = from_setting("namespaces.auto_create", default=False)


class Topics:
    """All topics of the node; `clock` counts seconds since 1970.

    Without `namespaces` every namespace exists. `observers` are called after topics change.
    """

    def __init__(
        self,
        store: Store,
        options: TopicOptions,
        clock: Callable[[], float],
        formats: Mapping[int, EntryFormat],
        namespaces: Namespaces | None = None,
    ) -> None:
        self.store = store
        self.tally = Tally()
        self.options = options
        self.namespaces = namespaces or Namespaces(auto_create=True)
        self.namespaces.changed = self._namespace_changed
        self.non_persistent = NonPersistentTopics(formats, options.max_groups)
        self.observers: set[TopicObserver] = set()
        self.clock = clock
        self._context = DeliveryContext(
            store, self.tally, options.max_groups, self.now_ms, formats, self.policies
        )
        self.live_members = self._context.live_members
        self._records: dict[str, TopicRecord] = {}
        self.kafka_names = KafkaNames(options.tenant, options.namespace, self._records)
        self._partitions: dict[str, Partition] = {}
        self._busy: dict[str, asyncio.Future[None]] = {}
        for record in store.topics():
            self._records[record.name] = record
            self.kafka_names.add(record.name)
        # Of all topics, in order: sorting 100,000 for each page takes a tenth of a second.
        self._names = sorted(self._records)
        store.resolve(self.policies)

    @property
    def count(self) -> int:
        """Return how many topics there are."""
        return len(self._records)

    def now_ms(self) -> int:
        """Return the time in milliseconds since 1970."""
        return int(self.clock() * 1000)

    def find(self, text: str) -> TopicRecord | None:
        """Return the topic of this name, if there is one; raise BadNameError, NotAllowedError."""
        return self._records.get(str(self.parse(text)))

    def find_kafka(self, kafka_name: str) -> TopicRecord | None:
        """Return the topic that Kafka clients know by this name, if there is one."""
        return self._records.get(self.kafka_names.full(kafka_name) or "")

    def parse(self, text: str) -> TopicName:
        """Read a topic's name; raise BadNameError, and NotAllowedError if it is not persistent."""
        name = TopicName.parse(text, self.options.tenant, self.options.namespace)
        if name.domain != PERSISTENT:
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
        record, index = self.holding(name)
        if record is None:
            return None
        if record.partitions and index == NOT_PARTITIONED:
            raise NotAllowedError(
                f"Found partitioned metadata for non-partitioned topic: {full}; name a partition"
            )
        return self._load(full, record, index)

    def holding(self, name: TopicName) -> tuple[TopicRecord | None, int]:
        """Return the topic of this name, or the one whose partition it names, and which.

        Raises TopicNotFoundError for the name of a partition that there is not.
        """
        record, part = self._records.get(str(name)), name.parent()
        if record is not None or part is None:
            return record, NOT_PARTITIONED
        record = self._records.get(str(part[0]))
        if record is None or part[1] >= record.partitions:
            raise TopicNotFoundError(f"there is no topic {part[0]} with a partition {part[1]}")
        return record, part[1]

    def whole(self, text: str) -> TopicRecord:
        """Return the topic of this name, or the one whose partition it names.

        Raises TopicNotFoundError.
        """
        name = self.parse(text)
        record, _ = self.holding(name)
        if record is None:
            raise TopicNotFoundError(f"there is no topic {name}")
        return record

    def attachable(
        self, text: str, *, create: bool = True
    ) -> Partition | NonPersistentPartition | None:
        """Return what a producer or consumer can attach to at once; None: `open` finds out.

        A topic that is not persistent is created by being used. Raises as `open` does.
        """
        if (partition := self._partitions.get(text)) is not None or not is_non_persistent(text):
            return partition or self.opened(text)
        return self.non_persistent.open(
            TopicName.parse(text), lambda name: self.creation(name) is not None and create
        )

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
        indexes = range(record.partitions) if record.partitions else (NOT_PARTITIONED,)
        return [self._load(str(name.partition(index)), record, index) for index in indexes]

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

    def loaded_of(self, record: TopicRecord) -> Iterator[Partition]:
        """Yield the partitions of a topic that are in use."""
        name = TopicName.parse(record.name)
        for index in range(record.partitions) or (NOT_PARTITIONED,):
            if (partition := self._partitions.get(str(name.partition(index)))) is not None:
                yield partition

    def records(self) -> list[TopicRecord]:
        """Return all topics."""
        return list(self._records.values())

    def policies(self, record: TopicRecord) -> Policies:
        """Return what holds for a topic: its own policies, else its namespace's."""
        return self.namespaces.policies(namespace_in(record.name)).over(record.policies)

    def creation(self, name: TopicName) -> int | None:
        """Return how many partitions a missing topic would get by being used; None: it is missing.

        Raises NamespaceNotFoundError, and NotAllowedError where there are too many topics for it.
        """
        self.namespaces.check(name)
        inherited = self.namespaces.policies(namespace_of(name))
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
        first_number: int = 0,
    ) -> TopicRecord:
        """Create a topic; `first_number`: that of the first message of each partition.

        Raises TopicExistsError, BadNameError, BadRequestError, NamespaceNotFoundError.
        """
        check_new(name, partitions, properties)
        check_policies(asdict(policies))
        return await self._add(
            name,
            lambda full: self.store.create_topic(
                full, partitions, policies, properties, first_number
            ),
        )

    async def finish(self, topic: TopicRecord, name: TopicName) -> TopicRecord:
        """Show a topic that was begun at the store, under a name. Raises as `create` does."""
        check_new(name, topic.partitions, topic.properties)
        return await self._add(name, lambda full: self.store.finish_topic(topic, full))

    async def _add(
        self, name: TopicName, store: Callable[[str], Awaitable[TopicRecord]]
    ) -> TopicRecord:
        full, kafka_name = str(name), self.kafka_names.of(name)

        async def make() -> TopicRecord:
            taken = full if full in self._records else self.kafka_names.full(kafka_name)
            if taken is not None:
                raise TopicExistsError(
                    f"the topic {taken} exists already"
                    + ("" if taken == full else f"; Kafka would know both as {kafka_name}")
                )
            await self.namespaces.check_or_create(name)
            record = self._records[full] = await store(full)
            insort(self._names, full)
            self.kafka_names.add(full)
            # Back again, should it have been deleted for having no topics meanwhile.
            await self.namespaces.ensure(namespace_of(name))
            self._notify(full, partition_names(record), ())
            return record

        return await self._exclusively(kafka_name, make)

    async def delete(self, name: TopicName) -> None:
        """Delete a topic with all it holds, letting its clients go; raise TopicNotFoundError."""

        async def unmake() -> None:
            record = self.known(name)
            await self.store.delete_topic(record.id, lambda: self._forget(name, record))
            self.kafka_names.remove(name)

        await self._exclusively(self.kafka_names.of(name), unmake)

    async def change(
        self, name: TopicName, change: Callable[[TopicRecord], Awaitable[TopicRecord]]
    ) -> TopicRecord:
        """Change a topic, one change at a time; return it as before. Raises TopicNotFoundError."""

        async def alone() -> TopicRecord:
            before = self.known(name)
            changed = await change(before)
            self._records[changed.name] = changed
            for partition in self.loaded_of(changed):
                partition.topic = changed
                self._deduplicate(partition)
            if added := partition_names(changed)[max(1, before.partitions) :]:
                self._notify(changed.name, added, ())
            return before

        return await self._exclusively(self.kafka_names.of(name), alone)

    def known(self, name: TopicName) -> TopicRecord:
        """Return the topic; raise TopicNotFoundError."""
        if (record := self._records.get(str(name))) is None:
            raise TopicNotFoundError(f"there is no topic {name}")
        return record

    def names(self, namespace: str, matches: Callable[[str], bool] | None = None) -> list[str]:
        """Return the names of all partitions of a namespace's topics, or of those that match."""
        return [
            name
            for full in self._names_after("", f"{PERSISTENT}://{namespace}/")
            if matches is None or matches(full)
            for name in partition_names(self._records[full])
        ]

    def listed_after(self, name: str, namespace: str | None = None) -> Iterator[TopicInfo]:
        """Yield the topics of a namespace, or all, by name, beginning after this one.

        None may come or go meanwhile.
        """
        if namespace is not None and namespace.count("/") != 1:
            return
        prefix = "" if namespace is None else f"{PERSISTENT}://{namespace}/"
        for full in self._names_after(name, prefix):
            yield topic_info(self._records[full])

    def in_namespace(self, namespace: str) -> list[TopicName]:
        """Return all topics in a namespace, those that are not persistent included."""
        names = map(TopicName.parse, (*self._records, *self.non_persistent.names(namespace)))
        return [name for name in names if namespace_of(name) == namespace]

    async def describe(self, name: TopicName, after: Place | None = None) -> TopicStats:
        """Return a page of what a topic holds, see `topic_stats`; raise TopicNotFoundError."""
        record = self.known(name)
        return await topic_stats(record, self.partitions(record), after)

    def _load(self, full: str, record: TopicRecord, index: int) -> Partition:
        if (partition := self._partitions.get(full)) is None:
            partition = self._partitions[full] = Partition(self._context, record, index)
        return partition

    def _names_after(self, name: str, prefix: str) -> Iterator[str]:
        """Yield the names of topics with a prefix, in order, that come after this one."""
        names = self._names
        for at in range(max(bisect_right(names, name), bisect_left(names, prefix)), len(names)):
            if not names[at].startswith(prefix):
                return
            yield names[at]

    def _forget(self, name: TopicName, record: TopicRecord) -> None:
        """Let the clients of a topic go that is deleted."""
        del self._records[record.name]
        del self._names[bisect_left(self._names, record.name)]
        for index in range(record.partitions) or (NOT_PARTITIONED,):
            partition = self._partitions.pop(str(name.partition(index)), None)
            if partition is not None:
                partition.close()
        self._notify(record.name, (), partition_names(record))

    def _namespace_changed(self, namespace: str) -> None:
        for partition in self.loaded():
            if namespace_in(partition.topic.name) == namespace:
                self._deduplicate(partition)

    def _deduplicate(self, partition: Partition) -> None:
        """Have producers that are there deduplicated; a policy that ends is for those to come."""
        if self.policies(partition.topic).deduplication:
            for producer in partition.producers:
                producer.deduplicated = True

    def _notify(self, name: str, created: Sequence[str], deleted: Sequence[str]) -> None:
        for listener in tuple(self.observers):
            listener(name, created, deleted)

    async def _exclusively(self, key: str, change: Callable[[], Awaitable[_T]]) -> _T:
        """Make a change while no other one of the same key is under way."""
        while key in self._busy:
            await self._busy[key]
        done = self._busy[key] = asyncio.get_running_loop().create_future()
        try:
            return await change()
        finally:
            del self._busy[key]
            done.set_result(None)
