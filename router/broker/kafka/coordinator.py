"""The groups of the listener: requests of their members, names on topics, and who may use them.

Theory of operation. A group's state is in memory (`held_groups.py`) as long as it has members; its
offsets are the positions of subscriptions (`topics/offsets.py`). A request that waits is a callback
of its group, and no task stands behind it. When a connection closes its callbacks are dropped.

A group is of the protocol of its members: classic ones join, sync and beat (`groups.py`), others
send the heartbeats of KIP-848 (`consumer_group.py`). One with both is of the latter, as long as one
of these is there (`mixed_group.py`). One that has no members is of none.

A consumer's metadata names the topics that it reads. Each of them with the group's name there, as
`kafka.group` says, is a subscription that consumers and polls of other protocols may use as well:
while it has members here they are refused (`consume/membership/live_members.py`), and while it has
consumers or live ids there no member is admitted here (INCONSISTENT_GROUP_PROTOCOL). An id that
the form of `kafka.group` does not lead to is stored as `kafka:<id>`, so that it meets no group.
"""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import Callable, Iterable
from typing import Final, NamedTuple

from router.broker.consume import LiveMember
from router.broker.context import BrokerContext
from router.broker.kafka import consumer_metadata
from router.broker.kafka.consumer_group_records import ConsumerGroupRecord
from router.broker.kafka.consumer_group_values import (
    JOINING,
    ConsumerMember,
    Heartbeat,
    HeartbeatResult,
)
from router.broker.kafka.consumer_metadata import topics_of
from router.broker.kafka.group_values import (
    GroupCaller,
    GroupLimits,
    JoinRequest,
    JoinResult,
    KafkaMember,
    SyncRequest,
    SyncResult,
)
from router.broker.kafka.groups import KafkaGroup
from router.broker.kafka.held_groups import HeldGroup, HeldGroups, Waiter
from router.broker.kafka.mixed_group import MixedGroup
from router.broker.kafka.topic_catalog import TopicCatalog
from router.broker.storage import TopicRecord
from router.broker.topics.offsets import GroupOffsets
from router.broker.topics.steps import in_steps
from router.broker.topics.topics import Topics
from router.kafka.group_names import GroupNames
from router.model import TopicName
from router.wire.kafka.error_codes import ErrorCode

SHARED: Final = "consumers or polls of another protocol read one of the topics as this group"
UNMAPPED: Final = "kafka:"
"""Before the id of a group for which `kafka.group` has no name on a topic."""


class StoredPosition(NamedTuple):
    """Where a group has a position: topic in Kafka, its record, the partition, the name there."""

    topic: str
    record: TopicRecord
    number: int
    name: str


class GroupCoordinator:
    """The groups of a broker; used on the event loop."""

    def __init__(self, broker: BrokerContext, topics: Topics) -> None:
        self.names = GroupNames(broker.settings.text("kafka.group"))
        self.offsets = GroupOffsets(topics, broker.leases.forget)
        self.topics = topics
        self.heartbeat_seconds = broker.settings.seconds("broker.kafka_consumer_heartbeat")
        self._leases = broker.leases
        self.catalog = TopicCatalog(topics)
        self._ending = broker.ending
        self._delay = broker.settings.seconds("broker.kafka_rebalance_delay")
        self._loop = asyncio.get_running_loop()
        self._held = HeldGroups(
            broker.registry, topics, self.name_on, broker.ending, self._new_classic
        )
        watch = broker.counters.watch
        watch("router_kafka_groups", lambda: len(self.ids()))
        watch("router_kafka_group_members", self._count_members)

    async def load(self) -> None:
        """Go on with the groups as the broker before stored them; once, before clients are served.

        Raises BackendUnavailableError.
        """
        async for group_id, record in self._held.records():
            now = self._loop.time()
            group: KafkaGroup[Waiter] | MixedGroup[Waiter]
            if isinstance(record, ConsumerGroupRecord):
                group = self._new_mixed()
                group.restore(record, now)
            else:
                group = self._new_classic()
                group.restore(record, now)
            self._held.restored(self._held.hold(group_id, group))

    def join(self, group_id: str, request: JoinRequest, waiter: Waiter) -> None:
        """Have a member join; the waiter is called with its JoinResult."""
        error = self._admit(group_id, request)
        if error is not ErrorCode.NONE:
            waiter(JoinResult(error, request.member_id))
            return
        group = self.find(group_id)
        if group is None:
            group = self._new_classic()
            self._held.hold(group_id, group)
        group.join(request, waiter, self._loop.time())
        held = self._held.by_id[group_id]
        self._held.claim(held, request.owner)
        waiting = group.members.values() if isinstance(group, KafkaGroup) else ()
        if any(member.joining is waiter for member in waiting):
            reader = LiveMember(request.client_id, request.client_host, frozenset())
            self._held.reserve(held, topics_of(request), reader)
        self._held.settle(held)

    def sync(self, group_id: str, request: SyncRequest, waiter: Waiter) -> None:
        """Have a member wait for its assignment; the waiter is called with its SyncResult."""
        group = self.find(group_id)
        if group is None:
            waiter(SyncResult(ErrorCode.UNKNOWN_MEMBER_ID))
            return
        group.sync(request, waiter, self._loop.time())
        self._settle(group_id)

    def beat(self, group_id: str, request: Heartbeat, waiter: Waiter) -> None:
        """Serve a heartbeat of a consumer group's member; the waiter gets its HeartbeatResult."""
        held = self._held.by_id.get(group_id)
        group = self.find(group_id)
        names = group.new_names(request) if isinstance(group, MixedGroup) else request.names or ()
        error = self._admit_reader(held, group_id, request, names)
        if group is None and request.epoch != JOINING:
            error = ErrorCode.UNKNOWN_MEMBER_ID
        consumers = isinstance(group, KafkaGroup) and group.protocol_type in {"", "consumer"}
        if isinstance(group, KafkaGroup) and (request.epoch != JOINING or not consumers):
            error = ErrorCode.GROUP_ID_NOT_FOUND
        if error is not ErrorCode.NONE:
            shared = error is ErrorCode.INCONSISTENT_GROUP_PROTOCOL
            waiter(HeartbeatResult(error, message=SHARED if shared else None))
            return
        if not isinstance(group, MixedGroup):
            group = self._upgrade(group_id, group)
        group.beat(request, waiter, self._loop.time())
        held = self._held.by_id[group_id]
        self._held.claim(held, request.owner)
        self._held.settle(held)

    def _upgrade(self, group_id: str, before: KafkaGroup[Waiter] | None) -> MixedGroup[Waiter]:
        """Hold a group that takes the heartbeats of KIP-848, with the members of a classic one."""
        group = self._new_mixed()
        if before is not None:
            before.dissolve()
            self._settle(group_id)
            group.take_over(before, self._loop.time())
        self._held.hold(group_id, group)
        return group

    def abandon(self, group_id: str, waiter: Waiter) -> None:
        """Drop a waiter whose connection is closed, unless the broker closed it to end."""
        held = self._held.by_id.get(group_id)
        if held is not None and not self._ending.is_set():
            held.group.abandon(waiter, self._loop.time())
            self._held.settle(held)

    def leave(self, group_id: str, caller: GroupCaller) -> ErrorCode:
        """End a membership of a classic group."""
        group = self.find(group_id)
        if group is None:
            return ErrorCode.UNKNOWN_MEMBER_ID
        error = group.leave(caller, self._loop.time())
        self._settle(group_id)
        return error

    def heartbeat(self, group_id: str, caller: GroupCaller) -> ErrorCode:
        """Extend a session of a classic group."""
        group = self.find(group_id)
        if group is None:
            return ErrorCode.UNKNOWN_MEMBER_ID
        return group.heartbeat(caller, self._loop.time())

    def check_commit(self, group_id: str, caller: GroupCaller) -> ErrorCode:
        """Return whether a caller may commit offsets of a group now."""
        group = self.find(group_id)
        if group is None:
            return ErrorCode.NONE if caller.generation < 0 else ErrorCode.ILLEGAL_GENERATION
        return group.check_commit(caller, self._loop.time())

    def check_fetch(self, group_id: str, caller: GroupCaller) -> ErrorCode:
        """Return whether a caller may learn the offsets of a group: any, but for late members."""
        group = self.find(group_id)
        if caller.generation < 0 or isinstance(group, KafkaGroup):
            return ErrorCode.NONE
        return ErrorCode.UNKNOWN_MEMBER_ID if group is None else group.check_fetch(caller)

    def find(self, group_id: str) -> KafkaGroup[Waiter] | MixedGroup[Waiter] | None:
        """Return a group that has members."""
        held = self._held.by_id.get(group_id)
        return None if held is None or held.group.unused else held.group

    def ids(self) -> list[str]:
        """Return the groups that have members."""
        return [group_id for group_id, held in self._held.by_id.items() if not held.group.unused]

    def topics_read(self, group_id: str) -> frozenset[str]:
        """Return the full names of the topics that members of a group read."""
        held = self._held.by_id.get(group_id)
        return frozenset() if held is None else held.topics

    def revoke(self, group_id: str, owner: str, may_read: Callable[[TopicName], bool]) -> None:
        """Have patterns of a principal's members stand for no topic that it may not read."""
        held = self._held.by_id.get(group_id)
        if held is None or not isinstance(held.group, MixedGroup):
            return

        def readable(topic: str) -> bool:
            record = self.topics.find_kafka(topic)
            return record is None or may_read(TopicName.parse(record.name))

        held.group.revoke(owner, readable)
        self._held.settle(held)

    def are_read_by(self, owner: str, group_id: str, topics: Iterable[str]) -> bool:
        """Return whether members of a principal read all of some topics, by their Kafka names."""
        group, left = self.find(group_id), set(topics)
        if group is None or not owner:
            return not left
        for member in group.members.values():
            if not left:
                break  # most members read the same ones
            if member.owner == owner and isinstance(member, ConsumerMember):
                left -= member.topics
            elif member.owner == owner and isinstance(member, KafkaMember):
                left.difference_update(topics_of(member, group.protocol_type))
        return not left

    def name_on(self, group_id: str, topic: str) -> str:
        """Return the name of a group on a topic, which has its Kafka name here."""
        return self._mapped(group_id, topic) or UNMAPPED + group_id

    def id_on(self, name: str, topic: str) -> str:
        """Return the id of a group of a topic, the other way round."""
        if self._is_unmapped(name, topic):
            return name.removeprefix(UNMAPPED)
        return self.names.id(name, topic)

    def is_read(self, record: TopicRecord, name: str) -> bool:
        """Return whether consumers or polls of another protocol read a group of a topic now."""
        if self._leases.is_live(record.name, name):
            return True
        found = (one.subscriptions.get(name) for one in self.topics.loaded_of(record))
        return any(one is not None and one.consumers for one in found)

    async def stored_groups(self) -> dict[str, list[StoredPosition]]:
        """Return the positions of all groups that have some, by the ids of the groups."""
        found: dict[str, list[StoredPosition]] = {}
        ledgers = (
            (record, number, ledger_id)
            for record in self.topics.records()
            for number, ledger_id in enumerate(record.ledger_ids)
        )
        async for record, number, ledger_id in in_steps(ledgers):
            topic = self.topics.kafka_names.of(TopicName.parse(record.name))
            for name in self.topics.store.group_names(ledger_id):
                place = StoredPosition(topic, record, number, name)
                found.setdefault(self.id_on(name, topic), []).append(place)
        return found

    def _mapped(self, group_id: str, topic: str) -> str | None:
        name = self.names.name(group_id, topic)
        return None if name is None or self._is_unmapped(name, topic) else name

    def _is_unmapped(self, name: str, topic: str) -> bool:
        """Return whether a name stands for an id without a form: two ids never share one."""
        if not name.startswith(UNMAPPED):
            return False
        return self._mapped(name.removeprefix(UNMAPPED), topic) is None

    def may_join(self, group_id: str, record: TopicRecord, topic: str) -> bool:
        """Return whether members of a group may read a topic, by its Kafka name, beside others."""
        held, name = self._held.by_id.get(group_id), self.name_on(group_id, topic)
        noted = held is not None and (record.name, name) in held.subscriptions
        return noted or not self.is_read(record, name)

    def _settle(self, group_id: str) -> None:
        if (held := self._held.by_id.get(group_id)) is not None:
            self._held.settle(held)

    def _admit(self, group_id: str, request: JoinRequest) -> ErrorCode:
        held = self._held.by_id.get(group_id)
        if request.member_id and (held is None or held.group.unused):
            return ErrorCode.UNKNOWN_MEMBER_ID
        if any(len(data) > consumer_metadata.MAX_METADATA_BYTES for _, data in request.protocols):
            return ErrorCode.GROUP_MAX_SIZE_REACHED
        return self._admit_reader(held, group_id, request, topics_of(request))

    def _admit_reader(
        self,
        held: HeldGroup | None,
        group_id: str,
        request: JoinRequest | Heartbeat,
        topics: Iterable[str],
    ) -> ErrorCode:
        """Return whether memory and other protocols let a member read topics."""
        is_member = held is not None and request.member_id in held.group.members
        if not is_member and self._held.is_full(held, request.owner):
            return ErrorCode.GROUP_MAX_SIZE_REACHED
        found = ((topic, self.topics.find_kafka(topic)) for topic in topics)
        known = ((topic, record) for topic, record in found if record is not None)
        if all(self.may_join(group_id, record, topic) for topic, record in known):
            return ErrorCode.NONE
        return ErrorCode.INCONSISTENT_GROUP_PROTOCOL

    def _count_members(self) -> float:
        return float(sum(len(held.group.members) for held in self._held.by_id.values()))

    def _new_mixed(self) -> MixedGroup[Waiter]:
        return MixedGroup(self.catalog, _new_id)

    def _new_classic(self) -> KafkaGroup[Waiter]:
        return KafkaGroup(_new_id, self._delay, GroupLimits())


def _new_id(name: str) -> str:
    return f"{name}-{uuid.uuid4()}"
