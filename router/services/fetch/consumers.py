"""The consumers of subscriptions that come and go with REST calls: who they are, on every node.

One record of the registry holds the consumers of one subscription, so that their names stay unique
and their number bounded whoever creates them where. Who was silent for too long is dropped when the
record is written the next time, and does not count from then on; a record without consumers goes.
"""

from __future__ import annotations

import uuid
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Final

import orjson

from router.backends import Record, Registry, Start
from router.errors import (
    ConflictError,
    ConsumerExistsError,
    ConsumerNotFoundError,
    SubscriptionLimitError,
)
from router.model import Subscription
from router.services.fetch import given
from router.settings import Settings

KIND: Final = "pip64-consumer"
TRIES: Final = 20
# How much of the idle time may pass before a fetch is noted: not every one costs a write.
NOTED_AFTER: Final = 0.25


@dataclass(frozen=True, slots=True)
class FetchOptions:
    """The settings that fetching reads; times in seconds."""

    ack_timeout: float
    most_unacknowledged: int
    most_consumers: int
    most_subscriptions: int
    idle: float
    backend_timeout: float
    max_bytes: int
    create_topics: bool

    @classmethod
    def of(cls, settings: Settings) -> FetchOptions:
        """Read them."""
        return cls(
            settings.seconds("pip64.ack_timeout"),
            settings.number("pip64.max_unacknowledged"),
            settings.number("pip64.max_consumers"),
            settings.number("pip64.max_subscriptions"),
            settings.seconds("pip64.consumer_idle"),
            settings.seconds("backend.timeout"),
            settings.number("consume.max_bytes"),
            settings.flag("pip64.auto_create"),
        )


@dataclass(frozen=True, slots=True)
class ReadSchema:
    """The schema that a consumer named when it was created: a version of the topic's, or bytes.

    Neither: it named none.
    """

    version: int | None = None
    as_bytes: bool = False


NO_SCHEMA: Final = ReadSchema()


@dataclass(frozen=True, slots=True)
class Member:
    """A consumer: its id and name, when it was last heard of (ms), where its group began."""

    id: str
    name: str
    seen: int
    start: str | int
    schema: ReadSchema = NO_SCHEMA

    def begins(self) -> Start | int:
        """Return where its subscription is to begin if it has to be made anew."""
        return Start(self.start) if isinstance(self.start, str) else self.start


class Consumers:
    """The consumers of all subscriptions; callable from many threads or greenlets."""

    def __init__(
        self, registry: Registry, options: FetchOptions, wall_ms: Callable[[], int]
    ) -> None:
        self._registry = registry
        self._options = options
        self._wall_ms = wall_ms

    def create(
        self,
        subscription: Subscription,
        name: str | None,
        known: str | None,
        start: Start | int,
        schema: ReadSchema | None = None,
    ) -> Member:
        """Add a consumer; one whose id is `known` and still there is returned.

        It is returned as it is, unless a `schema` is given that it does not read by: then it reads
        by this one from now on. Raises ConsumerExistsError, SubscriptionLimitError.
        """
        identity = known or uuid.uuid4().hex
        asked = start.value if isinstance(start, Start) else start
        made = Member(identity, name or identity, self._wall_ms(), asked, schema or NO_SCHEMA)
        for _ in range(TRIES):
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

    def check(self, subscription: Subscription, name: str | None, known: str | None) -> None:
        """Raise what `create` would raise now."""
        self._admitted(subscription, name or known, known)

    def _admitted(
        self, subscription: Subscription, name: str | None, identity: str | None
    ) -> tuple[Record | None, dict[str, Member], Member | None]:
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

    def get(self, subscription: Subscription, identity: str) -> tuple[Member, frozenset[str]]:
        """Return a consumer that fetches now, and the ids of all; raise ConsumerNotFoundError."""
        record, members = self._read(subscription)
        member = members.get(identity)
        if member is None:
            raise _missing(subscription, identity)
        now = self._wall_ms()
        if now - member.seen > self._options.idle * 1000 * NOTED_AFTER:
            members[identity] = replace(member, seen=now)
            try:
                self._write(subscription, record, members)
            except ConflictError:
                pass  # somebody else writes; the next fetch will note it
        return member, frozenset(members)

    def delete(self, subscription: Subscription, identity: str) -> None:
        """Remove a consumer; raise ConsumerNotFoundError."""
        for _ in range(TRIES):
            record, members = self._read(subscription)
            if members.pop(identity, None) is None:
                raise _missing(subscription, identity)
            try:
                self._write(subscription, record, members)
            except ConflictError:
                continue
            return
        raise ConflictError

    def _check_room(self, record: Record | None, members: int) -> None:
        options = self._options
        if members >= options.most_consumers:
            raise SubscriptionLimitError(
                f"The subscription has {members} consumers already (pip64.max_consumers)."
            )
        if record is not None:
            return
        kept = len(self._registry.list(KIND, options.backend_timeout))
        if kept >= options.most_subscriptions and kept - self.sweep() >= options.most_subscriptions:
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

    def _read(self, subscription: Subscription) -> tuple[Record | None, dict[str, Member]]:
        record = self._registry.get(KIND, key(subscription), self._options.backend_timeout)
        return record, {} if record is None else self._members(record)

    def _members(self, record: Record) -> dict[str, Member]:
        since = self._wall_ms() - self._options.idle * 1000
        found = (
            Member(identity, name, seen, start, ReadSchema(*schema))
            for identity, name, seen, start, schema in orjson.loads(record.value)
        )
        return {member.id: member for member in found if member.seen >= since}

    def _write(
        self, subscription: Subscription, record: Record | None, members: dict[str, Member]
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
