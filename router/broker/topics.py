"""The node's topics at run time: finding them by name, making and deleting them, tending them.

Theory of operation. The names of all topics are in memory; a partition is loaded when somebody
first produces to it or subscribes, so that a restart with many topics is quick. Whatever changes
the set of topics is done by one task a name at a time, which others wait for: two clients that
create the same topic together make one.

`<topic>-partition-<n>` is the name of a partition wherever a partitioned topic of that name exists,
and of nothing at all where none does. Pulsar lets such a topic come into being by itself, and then
it stands in the way of the real one.
"""

from __future__ import annotations

import asyncio
import re
from bisect import bisect_right
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Final, TypeVar

import structlog

from router.broker.descriptions import Place, topic_info, topic_stats
from router.broker.dispatch import Whence
from router.broker.dispatch.partition import Broker, Partition, Tally
from router.broker.dispatch.subscription import Subscription
from router.broker.ledger import Store, SubscriptionRecord, TopicRecord
from router.errors import (
    BadNameError,
    BadRequestError,
    NotAllowedError,
    SubscriptionBusyError,
    SubscriptionNotFoundError,
    TopicExistsError,
    TopicNotFoundError,
)
from router.model import (
    NO_PROPERTIES,
    NOT_PARTITIONED,
    Policies,
    TopicInfo,
    TopicName,
    TopicStats,
    check_name,
)
from router.settings import Settings

MAX_PARTITIONS: Final = 1_000
MAX_PROPERTIES: Final = 100
MAX_PROPERTY: Final = 4_096
TEND_EVERY: Final = 60.0
TEND_AT_ONCE: Final = 200

_PARTITION: Final = re.compile(r"(.+)-partition-(0|[1-9]\d{0,5})")
_log = structlog.get_logger(__name__)
_T = TypeVar("_T")


@dataclass(frozen=True, slots=True)
class TopicOptions:
    """What settings say about topics and their groups."""

    auto_create: bool = True
    auto_partitions: int = 0
    max_groups: int = 1_000
    groups_ms: int = 7 * 86_400_000
    tenant: str = "public"
    namespace: str = "default"

    @classmethod
    def from_settings(cls, settings: Settings) -> TopicOptions:
        """Return the options that the settings in force ask for."""
        return cls(
            auto_create=settings.flag("topics.auto_create"),
            auto_partitions=settings.number("topics.auto_partitions"),
            max_groups=settings.number("retention.max_groups"),
            groups_ms=round(settings.seconds("retention.groups") * 1000),
            tenant=settings.text("names.tenant"),
            namespace=settings.text("names.namespace"),
        )


class Topics:
    """All topics of the node; `clock` counts seconds since 1970. One object for the process."""

    def __init__(self, store: Store, options: TopicOptions, clock: Callable[[], float]) -> None:
        self.store = store
        self.tally = Tally()
        self.options = options
        self._clock = clock
        self._broker = Broker(store, self.tally, options.max_groups, self.now_ms)
        self._records: dict[str, TopicRecord] = {}
        self._kafka_names: dict[str, str] = {}
        self._partitions: dict[str, Partition] = {}
        self._busy: dict[str, asyncio.Future[None]] = {}
        for record in store.topics():
            self._remember(record)

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
            match = _PARTITION.fullmatch(name.local)
            if match is None:
                return None
            parent = TopicName(name.tenant, name.namespace, match[1])
            record, index = self._records.get(str(parent)), int(match[2])
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
            if not (create and self.options.auto_create):
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

    async def create_missing(self, name: TopicName) -> TopicRecord:
        """Return the topic, created as settings say if it is not there."""
        full = str(name)
        if full not in self._records:
            try:
                await self.create(name, self.options.auto_partitions)
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
        """Create a topic; raise TopicExistsError, BadNameError, BadRequestError."""
        _check_new(name, partitions, properties)
        full, kafka_name = str(name), self._kafka_name(name)

        async def make() -> TopicRecord:
            taken = full if full in self._records else self._kafka_names.get(kafka_name)
            if taken is not None:
                raise TopicExistsError(
                    f"the topic {taken} exists already"
                    + ("" if taken == full else f"; Kafka would know both as {kafka_name}")
                )
            record = await self.store.create_topic(full, partitions, policies, properties)
            self._remember(record)
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
            await self.store.delete_topic(record.id)
            del self._kafka_names[self._kafka_name(name)]

        await self._alone(self._kafka_name(name), unmake)

    def known(self, name: TopicName) -> TopicRecord:
        """Return the topic; raise TopicNotFoundError."""
        record = self._records.get(str(name))
        if record is None:
            raise TopicNotFoundError(f"there is no topic {name}")
        return record

    def list(self, tenant: str | None = None, namespace: str | None = None) -> list[TopicInfo]:
        """Return the topics by name, of one namespace or of all."""
        infos = [topic_info(record) for _, record in sorted(self._records.items())]
        if tenant is None:
            return infos
        return [i for i in infos if (i.topic.tenant, i.topic.namespace) == (tenant, namespace)]

    def listed_after(self, name: str) -> Iterator[TopicInfo]:
        """Yield the topics by name, beginning after this one; none may come or go meanwhile."""
        names = sorted(self._records)
        for place in range(bisect_right(names, name), len(names)):
            yield topic_info(self._records[names[place]])

    async def describe(self, name: TopicName, after: Place | None = None) -> TopicStats:
        """Return a page of what a topic holds, see `topic_stats`; raise TopicNotFoundError."""
        record = self.known(name)
        return await topic_stats(record, self.partitions(record), after)

    async def subscribe(self, name: TopicName, subscription: str, whence: Whence) -> None:
        """Make a subscription exist on all partitions of a topic; raise TopicNotFoundError.

        One that exists is left as it is. Raises DamagedError, OSError as `Whence.entry` does.
        """
        partitions = self.partitions(self.known(name))
        missing = [p for p in partitions if subscription not in p.subscriptions]
        for partition in missing:
            partition.check_room()
        entries = {partition: await whence.entry(partition.ledger) for partition in missing}
        for partition in partitions:
            await partition.subscribe(subscription, entries.get(partition, 0))

    async def reset(self, name: TopicName, subscription: str, whence: Whence) -> None:
        """Move a topic's subscription on each partition that has it; its consumers are let go.

        Raises TopicNotFoundError, SubscriptionNotFoundError, and DamagedError, OSError as
        `Whence.entry` does; then nothing was moved.
        """
        found = self.subscriptions(name, subscription)
        entries = [await whence.entry(moving.ledger) for moving in found]
        # All at once, so that nobody sees one partition moved and another not; what went while
        # files were read is left out.
        self.subscriptions(name, subscription)
        moved = [
            moving.reset_durably(entry)
            for moving, entry in zip(found, entries, strict=True)
            if moving.partition.subscriptions.get(subscription) is moving
        ]
        await asyncio.gather(*moved)

    async def unsubscribe(self, name: TopicName, subscription: str) -> None:
        """Delete a topic's subscription that nobody reads.

        Raises TopicNotFoundError, SubscriptionNotFoundError, SubscriptionBusyError.
        """
        found = self.subscriptions(name, subscription)
        if consumers := sum(len(ending.consumers) for ending in found):
            raise SubscriptionBusyError(
                f"{subscription} is read by {consumers} consumers", retry_after=1
            )
        for ending in found:
            await ending.partition.delete(ending)

    def subscriptions(self, name: TopicName, subscription: str) -> Sequence[Subscription]:
        """Return a topic's subscription on each partition that has it.

        Raises TopicNotFoundError, SubscriptionNotFoundError.
        """
        found = [
            partition.subscriptions[subscription]
            for partition in self.partitions(self.known(name))
            if subscription in partition.subscriptions
        ]
        if not found:
            raise SubscriptionNotFoundError(f"{name} has no subscription {subscription!r}")
        return found

    async def tend(self) -> None:
        """Apply retention, and forget the groups that nobody used for long."""
        now = self.now_ms()
        await self.store.retain(now)
        for partition in list(self._partitions.values()):
            partition.drop_unread()
        for count, record in enumerate(list(self._records.values())):
            for index, ledger_id in enumerate(record.ledger_ids):
                for known in list(self.store.subscriptions(ledger_id)):
                    await self._look_at_group(record, index, known, now)
            if count % TEND_AT_ONCE == 0:
                await asyncio.sleep(0)

    async def tend_for_ever(self, every: float = TEND_EVERY) -> None:
        """Tend again and again until cancelled; a failure is logged and tried again."""
        while True:
            await asyncio.sleep(every)
            try:
                await self.tend()
            except Exception:  # noqa: BLE001 - the rim of a task: retention must go on
                _log.exception("tending-failed")

    async def _look_at_group(
        self, record: TopicRecord, place: int, known: SubscriptionRecord, now_ms: int
    ) -> None:
        index = place if record.partitions else NOT_PARTITIONED
        partition = self._partitions.get(str(TopicName.parse(record.name).partition(index)))
        subscription = partition.subscriptions.get(known.name) if partition else None
        if subscription is not None and subscription.consumers:
            known.last_used_ms = now_ms
        elif known.last_used_ms <= now_ms - self.options.groups_ms:
            _log.info("group-expired", topic=record.name, partition=index, group=known.name)
            if partition is not None and subscription is not None:
                await partition.delete(subscription)
            else:
                await self.store.delete_subscription(known.id)

    def _load(self, full: str, record: TopicRecord, index: int) -> Partition:
        partition = self._partitions.get(full)
        if partition is None:
            partition = Partition(self._broker, record, index)
            self._partitions[full] = partition
        return partition

    def _remember(self, record: TopicRecord) -> None:
        self._records[record.name] = record
        self._kafka_names[self._kafka_name(TopicName.parse(record.name))] = record.name

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


def _check_new(name: TopicName, partitions: int, properties: Mapping[str, str]) -> None:
    if _PARTITION.fullmatch(name.local):
        raise BadNameError(f"{name.local}: names that end in -partition-<n> are partitions")
    if not 0 <= partitions <= MAX_PARTITIONS:
        raise BadRequestError(f"a topic has 0 to {MAX_PARTITIONS} partitions")
    if partitions:
        check_name(name.partition(partitions - 1).local, "partition")
    if len(properties) > MAX_PROPERTIES or any(
        len(key) + len(value) > MAX_PROPERTY for key, value in properties.items()
    ):
        raise BadRequestError("too many or too large properties")
