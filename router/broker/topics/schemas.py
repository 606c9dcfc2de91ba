"""Owns the schemas of the log's topics: all versions on disk, recently used ones in memory.

Theory of operation. Each version is a record of the registry, named by the id of its topic, which
no other topic ever gets, and its number from 0. A version is on disk before a client is sent it.
Requests for a topic are served one after the other, so that partitions that are opened together
with the same schema get the same version of it. What takes long, reading a definition and comparing
it, runs in a thread, because the event loop has other clients to serve, and in one at a time,
because all threads share one interpreter.

How many versions each topic has is known from the start, so that topics without schemas cost no
read. The versions themselves are read when they are needed, and cached up to MAX_CACHED_BYTES.
Records of a deleted topic are deleted some time later, when its deletion is certainly on disk:
the two are in different files, and a topic that is still there after a crash must have its schemas.
The alternative, naming records by the topic, would give a new topic the schemas of an old one.

A deleted schema leaves a mark, with a version of its own: messages that were written by older
versions stay readable, and nothing is compared with these any more.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, replace
from typing import Final, TypeVar, TypeVarTuple
from weakref import WeakValueDictionary

import structlog

from router import schemas
from router.broker.storage import TopicRecord
from router.broker.topics.schema_records import (
    KIND,
    Version,
    decoded,
    encoded,
    is_mark,
    record_name,
)
from router.errors import IncompatibleSchemaError, NotAllowedError, SchemaNotFoundError
from router.model import Schema, TopicName
from router.schemas import Strategy
from router.sharing.registry import NEW, AsyncRegistry, all_records

MAX_VERSIONS: Final = 1_000
MAX_BYTES: Final = 1 << 20
"""Of all definitions of a topic."""
MAX_CACHED_BYTES: Final = 32 << 20
"""Of definitions that are not in use."""
SWEEP_INTERVAL_SECONDS: Final = 60.0

_VERSION: Final = 8
# What a version takes in memory besides its definition.
_VERSION_OVERHEAD_BYTES: Final = 1_000
_log = structlog.get_logger(__name__)
T = TypeVar("T")
Ts = TypeVarTuple("Ts")


@dataclass(frozen=True, slots=True)
class SchemaPolicy:
    """What holds for a topic's schemas.

    `auto_update`: clients may bring new ones. `enforced`: where there is one, producers need one.
    """

    strategy: Strategy = Strategy.BACKWARD
    auto_update: bool = True
    enforced: bool = False


@dataclass(slots=True, eq=False, weakref_slot=True)
class _TopicVersions:
    """A topic's versions, once they are read."""

    id: int
    changing: asyncio.Lock = field(default_factory=asyncio.Lock)
    versions: list[Version] | None = None

    def weight(self) -> int:
        return sum(_size(version) for version in self.versions or ())


class BrokerSchemas:
    """The schemas of all topics; without a registry they are kept in memory only.

    All calls raise BackendUnavailableError, DiskFullError, where the registry does.
    """

    def __init__(
        self,
        registry: AsyncRegistry | None = None,
        policy: Callable[[TopicRecord], SchemaPolicy] = lambda _: SchemaPolicy(),
        now_ms: Callable[[], int] = lambda: 0,
    ) -> None:
        self._registry = registry
        self._policy = policy
        self._now_ms = now_ms
        self._counts: dict[int, int] = {}
        self._deleted: set[int] = set()
        self._orphaned: set[int] = set()
        # Those in use, and of these the ones that are cached beyond that, the oldest first.
        self._topics: WeakValueDictionary[int, _TopicVersions] = WeakValueDictionary()
        self._cached: dict[int, tuple[_TopicVersions, int]] = {}
        self._cached_bytes = 0
        self._thread_lock = asyncio.Lock()

    async def load(self) -> None:
        """Read which topics have schemas."""
        if self._registry is not None:
            async for record in all_records(self._registry, KIND):
                topic = int(record.name.partition("/")[0])
                self._note(topic, mark=is_mark(record.value))

    def has(self, topic: TopicRecord) -> bool:
        """Return whether a topic has a schema now."""
        return topic.id in self._counts and topic.id not in self._deleted

    def check_without(self, topic: TopicRecord) -> None:
        """Raise IncompatibleSchemaError if a producer without a schema may not be opened."""
        if self.has(topic) and self._policy(topic).enforced:
            raise IncompatibleSchemaError(
                "the topic has a schema, and its namespace lets no producer do without one"
            )

    async def register(
        self, topic: TopicRecord, schema: Schema, *, by_admin: bool = False, try_only: bool = False
    ) -> bytes:
        """Return the version of a schema that a client brought, stored now if it is new.

        An administrator may bring new ones where clients may not; with `try_only` none is stored.
        Raises InvalidSchemaError, IncompatibleSchemaError, NotAllowedError.
        """
        found, policy = self._topic(topic.id), self._policy(topic)
        if by_admin:
            policy = replace(policy, auto_update=True)
        async with found.changing:
            versions = await self._versions(found)
            live = _live(versions)
            first = len(versions) - len(live)
            place = _place(live, schema)
            if place is None:
                place = await self._in_thread(_decide, live, schema, policy)
            if place == len(live) and not try_only:
                _check_limits(found, versions, schema)
                await self._append(found, versions, Version(schema, self._now_ms()))
            return (first + place).to_bytes(_VERSION)

    async def admit_reader(
        self, topic: TopicRecord, schema: Schema, idle: Callable[[], bool]
    ) -> None:
        """Return if a consumer may read a topic by a schema, which an idle topic gets.

        `idle`: the topic has no clients and no entries. Raises InvalidSchemaError,
        IncompatibleSchemaError, NotAllowedError.
        """
        if not self.has(topic):
            if not idle():
                raise IncompatibleSchemaError(
                    "a topic that is in use without a schema gets none from a consumer: this one's"
                    f" type is {schema.type.name}"
                )
            await self.register(topic, schema)
            return
        found = self._topic(topic.id)
        async with found.changing:
            live = _live(await self._versions(found))
            strategy = self._policy(topic).strategy
            if live and not _brings(live[-1], schema):
                await self._in_thread(schemas.check_consumer, live, schema, strategy)

    async def find(self, topic: TopicRecord, version: bytes | None = None) -> Schema:
        """Return a version of a topic's schema, None: the newest; raise SchemaNotFoundError."""
        versions = await self.versions(topic)
        number = len(versions) - 1
        if version is not None:
            number = int.from_bytes(version) if len(version) == _VERSION else -1
        schema = versions[number].schema if 0 <= number < len(versions) else None
        if schema is None:
            raise SchemaNotFoundError(f"{topic.name} has no such schema")
        name = TopicName.parse(topic.name)
        return replace(
            schema,
            name=f"{name.tenant}/{name.namespace}/{name.local}",
            version=number.to_bytes(_VERSION),
        )

    async def versions(self, topic: TopicRecord) -> list[Version]:
        """Return all versions of a topic's schema, from 0 on."""
        if topic.id not in self._counts:
            return []
        found = self._topic(topic.id)
        async with found.changing:
            return list(await self._versions(found))

    async def delete(self, topic: TopicRecord) -> bytes:
        """Delete the schema of a topic; return the version of the mark that says so.

        Raises SchemaNotFoundError.
        """
        found = self._topic(topic.id)
        async with found.changing:
            versions = await self._versions(found)
            if not _live(versions):
                raise SchemaNotFoundError(f"{topic.name} has no schema")
            await self._append(found, versions, Version(None, self._now_ms()))
            return (len(versions) - 1).to_bytes(_VERSION)

    async def sweep(self, alive: Iterable[int]) -> None:
        """Delete the records of topics that are not `alive`, and were not in the last sweep."""
        orphaned = self._counts.keys() - set(alive)
        for topic in sorted(orphaned & self._orphaned):
            found = self._topic(topic)
            async with found.changing:
                # The newest first: what is left when this fails is still found from 0 on.
                for number in reversed(range(self._counts[topic])):
                    if self._registry is not None:
                        await self._registry.delete(KIND, record_name(topic, number))
                self._forget(topic)
        self._orphaned = orphaned & self._counts.keys()

    async def run_sweeps(
        self, alive: Callable[[], Iterable[int]], every: float = SWEEP_INTERVAL_SECONDS
    ) -> None:
        """Sweep periodically until cancelled; a failure is logged and tried again."""
        while True:
            await asyncio.sleep(every)
            try:
                await self.sweep(alive())
            except Exception:  # noqa: BLE001 - the boundary of a task: the next sweep tries again
                _log.exception("schemas-not-swept")

    async def _in_thread(self, work: Callable[[*Ts], T], *given: *Ts) -> T:
        async with self._thread_lock:
            return await asyncio.to_thread(work, *given)

    def _topic(self, topic: int) -> _TopicVersions:
        found = self._topics.get(topic)
        if found is None:
            found = self._topics[topic] = _TopicVersions(topic)
        return found

    async def _versions(self, topic: _TopicVersions) -> list[Version]:
        """Return a topic's versions, read if need be; its lock is held."""
        if topic.versions is None:
            registry = self._registry
            topic.versions = [] if registry is None else await self._read(registry, topic.id)
        self._cache(topic)
        return topic.versions

    async def _read(self, registry: AsyncRegistry, topic: int) -> list[Version]:
        versions: list[Version] = []
        # Until there is no other: after a failed write it is not known how many there are.
        while (record := await registry.get(KIND, record_name(topic, len(versions)))) is not None:
            versions.append(decoded(record.value))
        if len(versions) > self._counts.get(topic, 0):
            self._counts[topic] = len(versions) - 1
            self._note(topic, mark=versions[-1].schema is None)
        return versions

    async def _append(
        self, topic: _TopicVersions, versions: list[Version], version: Version
    ) -> None:
        number = len(versions)
        try:
            if self._registry is not None:
                name = record_name(topic.id, number)
                await self._registry.put(KIND, name, encoded(version), NEW)
        except BaseException:
            # It is unknown what the disk has now.
            topic.versions = None
            raise
        versions.append(version)
        self._note(topic.id, mark=version.schema is None)
        self._cache(topic)

    def _note(self, topic: int, *, mark: bool) -> None:
        self._counts[topic] = self._counts.get(topic, 0) + 1
        if mark:
            self._deleted.add(topic)
        else:
            self._deleted.discard(topic)

    def _cache(self, topic: _TopicVersions) -> None:
        """Cache a topic as the one used last, and drop the oldest ones over the limit."""
        weight = topic.weight()
        _, before = self._cached.pop(topic.id, (topic, 0))
        self._cached[topic.id] = topic, weight
        self._cached_bytes += weight - before
        while (
            self._registry is not None
            and self._cached_bytes > MAX_CACHED_BYTES
            and len(self._cached) > 1
        ):
            self._drop(next(iter(self._cached)))

    def _drop(self, topic: int) -> None:
        self._cached_bytes -= self._cached.pop(topic, (None, 0))[1]

    def _forget(self, topic: int) -> None:
        self._drop(topic)
        self._counts.pop(topic, None)
        self._deleted.discard(topic)


def _place(live: list[Schema], schema: Schema) -> int | None:
    """Return which of some schemas a client brings again, if that needs no reading."""
    return next((p for p in range(len(live) - 1, -1, -1) if _brings(live[p], schema)), None)


def _decide(live: list[Schema], schema: Schema, policy: SchemaPolicy) -> int:
    if policy.auto_update:
        return schemas.place(live, schema, policy.strategy)
    found = schemas.index_of(live, schema)
    if found is None:
        raise IncompatibleSchemaError("the topic's namespace lets clients bring no new schemas")
    return found


def _brings(known: Schema, schema: Schema) -> bool:
    """Return whether a client brings just what was brought before, which needs no reading."""
    return (known.type, known.data, known.properties) == (
        schema.type,
        schema.data,
        schema.properties,
    )


def _live(versions: list[Version]) -> list[Schema]:
    """Return the schemas since the last ones were deleted."""
    live: list[Schema] = []
    for version in reversed(versions):
        if version.schema is None:
            break
        live.append(version.schema)
    return live[::-1]


def _check_limits(topic: _TopicVersions, versions: list[Version], schema: Schema) -> None:
    if len(versions) >= MAX_VERSIONS or topic.weight() + len(schema.data) > MAX_BYTES:
        raise NotAllowedError(
            f"the topic has {len(versions)} schemas, of {topic.weight()} bytes: it takes no more"
        )


def _size(version: Version) -> int:
    return _VERSION_OVERHEAD_BYTES + (0 if version.schema is None else len(version.schema.data))
