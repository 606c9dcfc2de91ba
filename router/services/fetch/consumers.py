"""The consumers of subscriptions that REST calls create and delete, the same on every node.

One record of the registry holds the consumers of one subscription, so that their names stay unique
and their number bounded on whichever node they are created. A consumer that was silent for too long
does not count any more, and is dropped when the record is written the next time; a record without
consumers is deleted.
"""

from __future__ import annotations

import uuid
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Final

import orjson

from router.backends import Start
from router.clocks.ttl_cache import TTLMap
from router.errors import (
    ConflictError,
    ConsumerExistsError,
    ConsumerNotFoundError,
    SubscriptionLimitError,
)
from router.model import Subscription
from router.services.fetch import in_flight as given
from router.settings.options import SettingsOptions, from_setting
from router.sharing.registry import RecordVersion, Registry, RegistryRecord

KIND: Final = "pip64-consumer"
MAX_WRITE_ATTEMPTS: Final = 20
# How much of the idle time may pass before a fetch is noted: not every one costs a write.
SEEN_WRITE_FRACTION: Final = 0.25
KNOWN_SECONDS: Final = 30.0
MAX_KNOWN: Final = 1_000
"""Records that a worker remembers, for stores that say whether they still hold."""


@dataclass(frozen=True, slots=True)
class FetchOptions(SettingsOptions):
    """The settings that fetching reads; times in seconds."""

    ack_timeout: float = from_setting("pip64.ack_timeout")
    max_unacknowledged: int = from_setting("pip64.max_unacknowledged")
    max_consumers: int = from_setting("pip64.max_consumers")
    max_subscriptions: int = from_setting("pip64.max_subscriptions")
    idle: float = from_setting("pip64.consumer_idle")
    backend_timeout: float = from_setting("backend.timeout")
    max_bytes: int = from_setting("consume.max_bytes")
    create_topics: bool = from_setting("pip64.auto_create")


@dataclass(frozen=True, slots=True)
class ReadSchema:
    """The schema that a consumer named when it was created: a version of the topic's, or bytes.

    Neither: it named none.
    """

    version: int | None = None
    as_bytes: bool = False


NO_SCHEMA: Final = ReadSchema()


@dataclass(frozen=True, slots=True)
class FetchMember:
    """A consumer: its id and name, when it was last heard of (ms), where its group began."""

    id: str
    name: str
    seen: int
    start: str | int
    schema: ReadSchema = NO_SCHEMA

    def begins(self) -> Start | int:
        """Return where its subscription is to begin if it has to be created again."""
        return Start(self.start) if isinstance(self.start, str) else self.start


@dataclass(frozen=True, slots=True)
class NewConsumer:
    """A consumer to be added; without a `name` or an `id` it gets one.

    `start` is where its subscription begins if it is created with it.
    """

    name: str | None
    id: str | None
    start: Start | int
    schema: ReadSchema | None = None


class FetchConsumers:
    """The consumers of all subscriptions; callable from many threads or greenlets."""

    def __init__(
        self,
        registry: Registry,
        options: FetchOptions,
        clock: Callable[[], float],
        wall_ms: Callable[[], int],
    ) -> None:
        self._registry = registry
        self._options = options
        self._wall_ms = wall_ms
        self._known: TTLMap[Subscription, RegistryRecord] = TTLMap(KNOWN_SECONDS, MAX_KNOWN, clock)

    def create(self, subscription: Subscription, new: NewConsumer) -> FetchMember:
        """Add a consumer; one of this id that is still there is returned.

        It is returned as it is, unless a schema is given that it does not read by: then it reads
        by this one from now on. Raises ConsumerExistsError, SubscriptionLimitError.
        """
        identity, schema = new.id or uuid.uuid4().hex, new.schema
        start = new.start.value if isinstance(new.start, Start) else new.start
        name = new.name or identity
        made = FetchMember(identity, name, self._wall_ms(), start, schema or NO_SCHEMA)
        for _ in range(MAX_WRITE_ATTEMPTS):
            record, members, found = self._admitted(subscription, made.name, identity)
            if found is not None:
                if schema is None or schema == found.schema:
                    return found
                made = replace(found, schema=schema)
            try:
                self._write(subscription, record, {**members, identity: made})
            except ConflictError:
                continue
            return made
        raise ConflictError

    def check(self, subscription: Subscription, new: NewConsumer) -> None:
        """Raise what `create` would raise now."""
        self._admitted(subscription, new.name or new.id, new.id)

    def _admitted(
        self, subscription: Subscription, name: str | None, identity: str | None
    ) -> tuple[RegistryRecord | None, dict[str, FetchMember], FetchMember | None]:
        """Return the record, its consumers, and the one of this id; raise if none may be added."""
        record, members = self._read(subscription)
        found = None if identity is None else members.get(identity)
        if found is None:
            if any(name in {member.name, member.id} for member in members.values()):
                raise ConsumerExistsError(
                    f"{subscription.name} has a consumer named {name} already."
                )
            self._check_room(record, len(members))
        return record, members, found

    def live(self, subscription: Subscription) -> frozenset[str]:
        """Return the ids of all consumers."""
        return frozenset(self._read(subscription)[1])

    def get(self, subscription: Subscription, identity: str) -> tuple[FetchMember, frozenset[str]]:
        """Return a consumer that fetches now, and the ids of all; raise ConsumerNotFoundError."""
        record, members = self._read(subscription)
        member = members.get(identity)
        if member is None:
            raise _missing(subscription, identity)
        if record is not None:
            self._known.put(subscription, record)
        now = self._wall_ms()
        if self._is_to_be_noted(member, now):
            members[identity] = replace(member, seen=now)
            try:
                self._write(subscription, record, members)
            except ConflictError:
                pass  # another writer was first; the next fetch notes it
        return member, frozenset(members)

    def known(
        self, subscription: Subscription, identity: str
    ) -> tuple[FetchMember, frozenset[str], RecordVersion] | None:
        """Return what `get` returned lately of a consumer, and the version by which it may hold.

        None: it has to be asked for.
        """
        record = self._known.get(subscription)
        members = {} if record is None else self._members(record)
        member = members.get(identity)
        if record is None or member is None or self._is_to_be_noted(member, self._wall_ms()):
            return None
        return member, frozenset(members), RecordVersion(KIND, record.name, record.version)

    def _is_to_be_noted(self, member: FetchMember, now_ms: int) -> bool:
        """Return whether so much time has passed that a fetch is noted in the record."""
        return now_ms - member.seen > self._options.idle * 1000 * SEEN_WRITE_FRACTION

    def delete(self, subscription: Subscription, identity: str) -> None:
        """Remove a consumer; raise ConsumerNotFoundError."""
        for _ in range(MAX_WRITE_ATTEMPTS):
            record, members = self._read(subscription)
            if members.pop(identity, None) is None:
                raise _missing(subscription, identity)
            try:
                self._write(subscription, record, members)
            except ConflictError:
                continue
            return
        raise ConflictError

    def _check_room(self, record: RegistryRecord | None, members: int) -> None:
        options = self._options
        if members >= options.max_consumers:
            raise SubscriptionLimitError(
                f"The subscription has {members} consumers already (pip64.max_consumers)."
            )
        if record is not None:
            return
        kept = len(self._registry.list(KIND, options.backend_timeout))
        if kept >= options.max_subscriptions and kept - self.sweep() >= options.max_subscriptions:
            raise SubscriptionLimitError(
                f"{kept} subscriptions have consumers already (pip64.max_subscriptions)."
            )

    def sweep(self) -> int:
        """Delete the records all of whose consumers are gone; return how many that were."""
        timeout = self._options.backend_timeout
        gone = [
            f"{record.name}|"
            for record in self._registry.list(KIND, timeout)
            if not self._members(record) and self._registry.delete(KIND, record.name, timeout)
        ]
        for left in self._registry.list(given.KIND, timeout) if gone else ():
            if left.name.startswith(tuple(gone)):
                self._registry.delete(given.KIND, left.name, timeout)
        return len(gone)

    def _read(
        self, subscription: Subscription
    ) -> tuple[RegistryRecord | None, dict[str, FetchMember]]:
        record = self._registry.get(KIND, key(subscription), self._options.backend_timeout)
        return record, {} if record is None else self._members(record)

    def _members(self, record: RegistryRecord) -> dict[str, FetchMember]:
        since = self._wall_ms() - self._options.idle * 1000
        found = (
            FetchMember(identity, name, seen, start, ReadSchema(*schema))
            for identity, name, seen, start, schema in orjson.loads(record.value)
        )
        return {member.id: member for member in found if member.seen >= since}

    def _write(
        self,
        subscription: Subscription,
        record: RegistryRecord | None,
        members: dict[str, FetchMember],
    ) -> None:
        # A record stays when its last consumer goes, empty, for the next one; `sweep` takes it.
        value = orjson.dumps(
            [
                [m.id, m.name, m.seen, m.start, [m.schema.version, m.schema.as_bytes]]
                for m in members.values()
            ]
        )
        version = 0 if record is None else record.version
        timeout = self._options.backend_timeout
        self._registry.put(KIND, key(subscription), value, version, timeout)


def key(subscription: Subscription) -> str:
    """Return the name of a subscription's record."""
    return f"{subscription.topic}|{subscription.name}"


def _missing(subscription: Subscription, identity: str) -> ConsumerNotFoundError:
    return ConsumerNotFoundError(f"{subscription.name} has no consumer {identity}.")
