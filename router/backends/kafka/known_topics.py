"""Registry records of Kafka's topics and their groups, for topics that are deleted in Kafka.

Theory of operation. A topic that is deleted in Kafka, not through the router, takes the offsets of
its groups along. Without a record, the next publish would create it with another number of
partitions, and a group that read it would begin at the newest message and never get what was
acknowledged before its next poll. The registry, which all nodes share, keeps two records of a topic
under its name in Kafka. `kafka-topic` holds what Kafka has no place for, the number of partitions,
and the topic's id: a topic that is not there, or has another id, was deleted behind the router.
`kafka-groups` holds the id that the groups read, a digest of each group's name with the day on
which it was last noted, and the groups that are *owed* a start: they read an earlier topic of the
name and have not begun on this one. Deleting a topic through the router deletes both records.

Groups that come while a worker writes a topic's record leave their names with that write, so that
many new groups cost few writes. A group that was not noted for MAX_GROUP_DAYS is dropped, as Kafka
drops its offsets. The alternatives: a copy of each commit in a topic of the router's own would have
to be read whole; a record for each group would never be deleted.

One lock guards the caches and is never held over I/O.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from hashlib import blake2b
from threading import Lock
from typing import Any, Final

import orjson
import structlog

from router.backends.kafka.names import Names
from router.clocks import seconds_left
from router.errors import ConflictError, RouterError
from router.model import TopicInfo, TopicName
from router.model.policies import Policies
from router.sharing.registry import Registry, RegistryRecord

TOPICS: Final = "kafka-topic"
GROUPS: Final = "kafka-groups"
REGISTRY_SECONDS: Final = 2.0
RETRY_SECONDS: Final = 30.0
"""How long a worker does without records after the registry failed."""
MAX_GROUPS: Final = 1_000
"""Groups in a topic's record, and as many that are owed a start; those noted longest ago go."""
MAX_GROUP_DAYS: Final = 8
MAX_CACHED: Final = 20_000
MAX_ATTEMPTS: Final = 10
_DAY_MS: Final = 86_400_000

_log = structlog.get_logger(__name__)


def topic_record(info: TopicInfo, topic_id: str, now_ms: int, former: str | None = None) -> bytes:
    """Return the record of a topic; `former` is the id of the one that was deleted before it."""
    policies = info.policies
    return orjson.dumps(
        {
            "id": topic_id,
            "former": former,
            "topic": str(info.topic),
            "partitions": max(1, info.partitions),
            "properties": dict(info.properties),
            "retention_ms": policies.retention_ms,
            "retention_bytes": policies.retention_bytes,
            "backlog_bytes": policies.backlog_bytes,
            "deduplication": policies.deduplication,
            "cleanup_policy": policies.cleanup_policy,
            "created_ms": now_ms,
        }
    )


def _info(kept: dict[str, Any]) -> TopicInfo:
    policies = Policies(
        kept.get("retention_ms"),
        kept.get("retention_bytes"),
        kept.get("backlog_bytes"),
        kept.get("deduplication"),
        cleanup_policy=kept.get("cleanup_policy"),
    )
    topic = TopicName.parse(kept["topic"])
    return TopicInfo(topic, kept.get("partitions", 1), policies, kept.get("properties", {}))


@dataclass(frozen=True, slots=True)
class GroupsRecord:
    """The groups of a topic: digests of names, each with the day on which it was noted."""

    id: str
    former: str | None = None
    groups: dict[str, int] = field(default_factory=dict)
    owed: dict[str, int] = field(default_factory=dict)

    @classmethod
    def load(cls, record: RegistryRecord | None, topic_id: str) -> GroupsRecord:
        """Return the record as it is for the topic that has this id now."""
        if record is None:
            return cls(topic_id)
        kept = orjson.loads(record.value)
        found = cls(kept["id"], kept["former"], kept["groups"], kept["owed"])
        # A broker that lags behind may still show the id before.
        if topic_id in {found.id, found.former}:
            return found
        return cls(topic_id, found.id, {}, _newest(found.owed | found.groups))

    def dump(self) -> bytes:
        """Return the value of the record."""
        return orjson.dumps(self)

    def joined(self, digests: Iterable[str], day: int) -> GroupsRecord:
        """Return the record with these groups begun on this topic, without those long unused."""
        added = dict.fromkeys(digests, day)
        oldest = day - MAX_GROUP_DAYS
        owed = {d: at for d, at in self.owed.items() if at > oldest and d not in added}
        kept = {d: at for d, at in self.groups.items() if at > oldest} | added
        return GroupsRecord(self.id, self.former, _newest(kept), owed)

    def left(self, digest: str) -> GroupsRecord:
        """Return the record without a group."""
        return GroupsRecord(
            self.id,
            self.former,
            {d: at for d, at in self.groups.items() if d != digest},
            {d: at for d, at in self.owed.items() if d != digest},
        )


@dataclass(eq=False, slots=True)
class KnownTopics:
    """The records of topics and their groups; calls may be made from many threads."""

    _registry: Registry
    _names: Names
    _wall_ms: Callable[[], int]
    _lock: Lock = field(default_factory=Lock, init=False)
    _topics: dict[str, tuple[str, int]] = field(default_factory=dict, init=False)
    _groups: dict[tuple[str, str], tuple[str, int]] = field(default_factory=dict, init=False)
    _joining: dict[str, list[tuple[str, str]]] = field(default_factory=dict, init=False)
    _retry_at: float = field(default=0.0, init=False)

    def saw(self, name: str, topic_id: str, partitions: int, deadline: float) -> None:
        """Keep a topic's record as the topic is now, and say so once if it is another topic."""
        seen = topic_id, partitions
        if self._topics.get(name) == seen or time.monotonic() < self._retry_at:
            return
        try:
            self._keep(name, topic_id, partitions, deadline)
        except ConflictError:
            return  # another worker keeps it; the next call reads what that wrote
        except RouterError as error:
            self._retry_at = time.monotonic() + RETRY_SECONDS
            _log.info("the record of a topic is not kept", topic=name, reason=str(error))
            return
        with self._lock:
            if len(self._topics) >= MAX_CACHED:
                self._topics.clear()
            self._topics[name] = seen

    def _keep(self, name: str, topic_id: str, partitions: int, deadline: float) -> None:
        record = self._registry.get(TOPICS, name, _left(deadline))
        if record is None:
            value = topic_record(TopicInfo(self._names.local(name), partitions), topic_id, 0)
            self._registry.put(TOPICS, name, value, 0, _left(deadline))
            return
        kept = orjson.loads(record.value)
        if topic_id == kept.get("former"):
            return
        if kept["id"] == topic_id:
            if kept.get("partitions") != partitions:
                value = orjson.dumps(kept | {"partitions": partitions})
                self._registry.put(TOPICS, name, value, record.version, _left(deadline))
            return
        info = TopicInfo(self._names.local(name), partitions)
        value = topic_record(info, topic_id, 0, kept["id"])
        self._registry.put(TOPICS, name, value, record.version, _left(deadline))
        _log.warning(
            "topic-replaced-in-kafka",
            topic=name,
            partitions=partitions,
            partitions_before=kept.get("partitions"),
            effect="groups that read it begin at its first message",
        )

    def former(self, name: str, deadline: float) -> TopicInfo | None:
        """Return what a topic was that is not in Kafka any more; None: it is not known."""
        try:
            record = self._registry.get(TOPICS, name, _left(deadline))
        except RouterError as error:
            _log.warning("whether a topic was deleted is unknown", topic=name, reason=str(error))
            seen = self._topics.get(name)
            return None if seen is None else TopicInfo(self._names.local(name), seen[1])
        return None if record is None else _info(orjson.loads(record.value))

    def created(self, name: str, info: TopicInfo, topic_id: str, deadline: float) -> None:
        """Keep what Kafka cannot keep of a new topic; raises RouterError."""
        record = self._registry.get(TOPICS, name, _left(deadline))
        former = None if record is None else orjson.loads(record.value)["id"]
        value = topic_record(info, topic_id, self._wall_ms(), former)
        self._registry.put(TOPICS, name, value, None, _left(deadline))

    def deleted(self, name: str, deadline: float) -> None:
        """Forget a topic that the router deleted, and its groups; raises RouterError."""
        with self._lock:
            self._topics.pop(name, None)
            for key in [key for key in self._groups if key[0] == name]:
                del self._groups[key]
        self._registry.delete(GROUPS, name, _left(deadline))
        self._registry.delete(TOPICS, name, _left(deadline))

    def is_noted(self, name: str, topic_id: str | None, group: str) -> bool:
        """Tell whether this worker noted today that the group reads the topic with this id."""
        return self._groups.get((name, group)) == (topic_id, self._day())

    def is_owed(self, name: str, topic_id: str, group: str, deadline: float) -> bool:
        """Tell whether a group read an earlier topic of the name, and has not begun on this one."""
        found = GroupsRecord.load(self._registry.get(GROUPS, name, _left(deadline)), topic_id)
        digest = _digest(group)
        if digest in found.owed:
            return True
        if found.id == topic_id and found.groups.get(digest) == self._day():
            self._remember(name, [group], topic_id)  # another worker noted it
        return False

    def joined(self, name: str, topic_id: str, group: str, deadline: float) -> None:
        """Note that a group reads a topic; a failure is logged, and the next call notes it."""
        with self._lock:
            waiting = self._joining.get(name)
            if waiting is not None:
                waiting.append((topic_id, group))
                return
            waiting = self._joining[name] = [(topic_id, group)]
        try:
            while some := self._next(name, waiting):
                self._write(name, some, deadline)
        except RouterError as error:
            _log.info("the groups of a topic are not noted", topic=name, reason=str(error))
        finally:
            with self._lock:
                if self._joining.get(name) is waiting:
                    del self._joining[name]

    def _next(self, name: str, waiting: list[tuple[str, str]]) -> list[tuple[str, str]]:
        with self._lock:
            some = waiting[:]
            waiting.clear()
            if not some:
                del self._joining[name]
            return some

    def _write(self, name: str, joined: list[tuple[str, str]], deadline: float) -> None:
        day, topic_id = self._day(), joined[-1][0]
        digests = [_digest(group) for _, group in joined]
        self._change(name, topic_id, lambda found: found.joined(digests, day), deadline)
        self._remember(name, [group for _, group in joined], topic_id)

    def _remember(self, name: str, groups: list[str], topic_id: str) -> None:
        """Have `is_noted` say so of these groups for today."""
        with self._lock:
            if len(self._groups) >= MAX_CACHED:
                self._groups.clear()
            for group in groups:
                self._groups[name, group] = topic_id, self._day()

    def left(self, name: str, topic_id: str, group: str, deadline: float) -> None:
        """Forget a group of a topic; raises RouterError."""
        with self._lock:
            self._groups.pop((name, group), None)
        self._change(name, topic_id, lambda found: found.left(_digest(group)), deadline)

    def _change(
        self,
        name: str,
        topic_id: str,
        change: Callable[[GroupsRecord], GroupsRecord],
        deadline: float,
    ) -> None:
        for _ in range(MAX_ATTEMPTS):
            record = self._registry.get(GROUPS, name, _left(deadline))
            found = GroupsRecord.load(record, topic_id)
            if found.id != topic_id:
                return
            changed = change(found)
            if record is not None and changed.dump() == record.value:
                return
            version = 0 if record is None else record.version
            try:
                self._registry.put(GROUPS, name, changed.dump(), version, _left(deadline))
            except ConflictError:
                continue
            return
        raise ConflictError(f"the groups of {name} are being changed by others all the time")

    def _day(self) -> int:
        return self._wall_ms() // _DAY_MS


def _newest(groups: dict[str, int]) -> dict[str, int]:
    newest = sorted(groups, key=groups.__getitem__, reverse=True)[:MAX_GROUPS]
    return {digest: groups[digest] for digest in newest}


def _digest(group: str) -> str:
    return blake2b(group.encode(), digest_size=8).hexdigest()


def _left(deadline: float) -> float:
    return min(REGISTRY_SECONDS, seconds_left(deadline))
