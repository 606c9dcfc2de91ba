"""The groups of the listener: their state machines, timers, names on topics, and who may use them.

Theory of operation. A group's state is in memory (`groups.py`) as long as it has members; its
offsets are the positions of subscriptions (`topics/offsets.py`). A request that waits is a callback
of its group; each group has one timer, and no task stands behind either. When a connection closes
its callbacks are dropped.

What a completed rebalance decided, and a static member's new id, is stored before any member gets
it as an answer (`group_records.py`): answers wait for the newest record of their group. If that
cannot be stored they become errors with which members join again. The record of a group whose last
member is gone is deleted.

A consumer's metadata names the topics that it reads. Each of them with the group's name there, as
`kafka.group` says, is a subscription that consumers and polls of other protocols may use as well:
while it has members here they are refused (`consume/membership/live_members.py`), and while it has
consumers or live ids there no member is admitted here (INCONSISTENT_GROUP_PROTOCOL). An id that
the form of `kafka.group` does not lead to is stored as `kafka:<id>`, so that it meets no group.
"""

from __future__ import annotations

import asyncio
import math
import uuid
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Final, NamedTuple

from router.broker.consume import LiveMember
from router.broker.context import BrokerContext
from router.broker.kafka import consumer_metadata
from router.broker.kafka.consumer_metadata import assigned_partitions, subscribed_topics
from router.broker.kafka.group_records import GroupRecords
from router.broker.kafka.group_values import (
    Caller,
    GroupLimits,
    GroupState,
    JoinRequest,
    JoinResult,
    Member,
    SyncRequest,
    SyncResult,
)
from router.broker.kafka.groups import Group
from router.broker.storage import TopicRecord
from router.broker.topics.offsets import GroupOffsets
from router.broker.topics.topics import Topics
from router.kafka.group_names import GroupNames
from router.model import NOT_PARTITIONED, TopicName
from router.wire.kafka.error_codes import ErrorCode

MAX_GROUPS: Final = 10_000
"""Groups with members."""
MAX_METADATA_BYTES: Final = 128 << 20
"""Of metadata and assignments of all groups."""
TOPICS_PER_YIELD: Final = 200
UNMAPPED: Final = "kafka:"
"""Before the id of a group for which `kafka.group` has no name on a topic."""

Waiter = Callable[[JoinResult | SyncResult], None]
SubscriptionKey = tuple[str, str]
"""A topic's full name and the group's name there."""


class StoredPosition(NamedTuple):
    """Where a group has a position: topic in Kafka, its record, the partition, the name there."""

    topic: str
    record: TopicRecord
    number: int
    name: str


@dataclass(slots=True, eq=False)
class HeldGroup:
    """A group that is in memory: its timer, its size, and the topics that its members read.

    `stored`: the registry has a record of it. `saving` is the task that stores the newest record;
    `answers` wait for it. `failed`: the newest record was not stored.
    """

    id: str
    group: Group[Waiter]
    stored: bool = False
    failed: bool = False
    saving: asyncio.Task[None] | None = None
    answers: list[tuple[Waiter, JoinResult | SyncResult]] = field(default_factory=list)
    timer: asyncio.TimerHandle | None = None
    fires_at: float = math.inf
    size_bytes: int = 0
    noted: tuple[int, GroupState, tuple[str, ...]] = (-1, GroupState.EMPTY, ())
    subscriptions: set[SubscriptionKey] = field(default_factory=set)


class Coordinator:
    """The groups of a broker; used on the event loop."""

    def __init__(self, broker: BrokerContext, topics: Topics) -> None:
        self.names = GroupNames(broker.settings.text("kafka.group"))
        self.offsets = GroupOffsets(topics, broker.leases.forget)
        self.topics = topics
        self._leases = broker.leases
        self._records = GroupRecords(broker.registry)
        self._saving: set[asyncio.Task[None]] = set()
        self._ending = broker.ending
        self._delay = broker.settings.seconds("broker.kafka_rebalance_delay")
        self._loop = asyncio.get_running_loop()
        self._groups: dict[str, HeldGroup] = {}
        self._size_bytes = 0
        watch = broker.counters.watch
        watch("router_kafka_groups", lambda: len(self._groups))
        watch("router_kafka_group_members", self._count_members)

    async def load(self) -> None:
        """Go on with the groups as the broker before stored them; once, before clients are served.

        Raises BackendUnavailableError.
        """
        async for group_id, record in self._records.load():
            held = self._hold(group_id)
            held.group.restore(record, self._loop.time())
            held.stored = True
            self._observe(held)
            self._watch(held)

    def join(self, group_id: str, request: JoinRequest, waiter: Waiter) -> None:
        """Have a member join; the waiter is called with its JoinResult."""
        held = self._groups.get(group_id)
        error = self._admit(held, group_id, request)
        if error is not ErrorCode.NONE:
            waiter(JoinResult(error, request.member_id))
            return
        if held is None:
            held = self._hold(group_id)
        held.group.join(request, waiter, self._loop.time())
        if any(member.joining is waiter for member in held.group.members.values()):
            self._reserve(held, request)
        self._settle(held)

    def sync(self, group_id: str, request: SyncRequest, waiter: Waiter) -> None:
        """Have a member wait for its assignment; the waiter is called with its SyncResult."""
        held = self._groups.get(group_id)
        if held is None:
            waiter(SyncResult(ErrorCode.UNKNOWN_MEMBER_ID))
            return
        held.group.sync(request, waiter, self._loop.time())
        self._settle(held)

    def abandon(self, group_id: str, waiter: Waiter) -> None:
        """Drop a waiter whose connection is closed, unless the broker closed it to end."""
        if (held := self._groups.get(group_id)) is not None and not self._ending.is_set():
            held.group.abandon(waiter, self._loop.time())
            self._settle(held)

    def leave(self, group_id: str, caller: Caller) -> ErrorCode:
        """End a membership."""
        held = self._groups.get(group_id)
        if held is None:
            return ErrorCode.UNKNOWN_MEMBER_ID
        error = held.group.leave(caller, self._loop.time())
        self._settle(held)
        return error

    def heartbeat(self, group_id: str, caller: Caller) -> ErrorCode:
        """Extend a session."""
        held = self._groups.get(group_id)
        if held is None:
            return ErrorCode.UNKNOWN_MEMBER_ID
        return held.group.heartbeat(caller, self._loop.time())

    def check_commit(self, group_id: str, caller: Caller) -> ErrorCode:
        """Return whether a caller may commit offsets of a group now."""
        held = self._groups.get(group_id)
        if held is None:
            return ErrorCode.NONE if caller.generation < 0 else ErrorCode.ILLEGAL_GENERATION
        return held.group.check_commit(caller, self._loop.time())

    def find(self, group_id: str) -> Group[Waiter] | None:
        """Return a group that has members."""
        held = self._groups.get(group_id)
        return None if held is None else held.group

    def ids(self) -> list[str]:
        """Return the groups that have members."""
        return list(self._groups)

    def topics_read(self, group_id: str) -> set[str]:
        """Return the full names of the topics that members of a group read."""
        held = self._groups.get(group_id)
        return set() if held is None else {topic for topic, _ in held.subscriptions}

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
        indexes = range(record.partitions) or (NOT_PARTITIONED,)
        loaded = (self.topics.loaded_partition(record, index) for index in indexes)
        found = (one.subscriptions.get(name) for one in loaded if one is not None)
        return any(one is not None and one.consumers for one in found)

    async def stored_groups(self) -> dict[str, list[StoredPosition]]:
        """Return the positions of all groups that have some, by the ids of the groups."""
        found: dict[str, list[StoredPosition]] = {}
        for count, record in enumerate(self.topics.records(), 1):
            topic = self.topics.kafka_names.of(TopicName.parse(record.name))
            for number, ledger_id in enumerate(record.ledger_ids):
                for name in self.topics.store.group_names(ledger_id):
                    place = StoredPosition(topic, record, number, name)
                    found.setdefault(self.id_on(name, topic), []).append(place)
            if count % TOPICS_PER_YIELD == 0:
                await asyncio.sleep(0)
        return found

    def _mapped(self, group_id: str, topic: str) -> str | None:
        name = self.names.name(group_id, topic)
        return None if name is None or self._is_unmapped(name, topic) else name

    def _is_unmapped(self, name: str, topic: str) -> bool:
        """Return whether a name stands for an id without a form: two ids never share one."""
        if not name.startswith(UNMAPPED):
            return False
        return self._mapped(name.removeprefix(UNMAPPED), topic) is None

    def _admit(self, held: HeldGroup | None, group_id: str, request: JoinRequest) -> ErrorCode:
        if held is None:
            if request.member_id:
                return ErrorCode.UNKNOWN_MEMBER_ID
            if len(self._groups) >= MAX_GROUPS or self._size_bytes > MAX_METADATA_BYTES:
                return ErrorCode.GROUP_MAX_SIZE_REACHED
        elif self._size_bytes > MAX_METADATA_BYTES and request.member_id not in held.group.members:
            return ErrorCode.GROUP_MAX_SIZE_REACHED
        if any(len(data) > consumer_metadata.MAX_METADATA_BYTES for _, data in request.protocols):
            return ErrorCode.GROUP_MAX_SIZE_REACHED
        for record, name in self._read_by(group_id, request):
            noted = held is not None and (record.name, name) in held.subscriptions
            if not noted and self.is_read(record, name):
                return ErrorCode.INCONSISTENT_GROUP_PROTOCOL
        return ErrorCode.NONE

    def _read_by(
        self, group_id: str, request: JoinRequest | Member[Waiter], kind: str | None = None
    ) -> Iterator[tuple[TopicRecord, str]]:
        """Yield the topics that a member reads, with the group's name there."""
        for topic in topics_of(request, kind):
            if (record := self.topics.find_kafka(topic)) is not None:
                yield record, self.name_on(group_id, topic)

    def _reserve(self, held: HeldGroup, request: JoinRequest) -> None:
        """Keep consumers of other protocols out of the topics that a new member reads."""
        for record, name in self._read_by(held.id, request):
            key = record.name, name
            if key not in held.subscriptions:
                held.subscriptions.add(key)
                member = LiveMember(request.client_id, request.client_host, frozenset())
                self.topics.live_members.replace(*key, [member])

    def _hold(self, group_id: str) -> HeldGroup:
        group = Group[Waiter](_new_id, self._delay, GroupLimits())
        held = self._groups[group_id] = HeldGroup(group_id, group)
        return held

    def _settle(self, held: HeldGroup) -> None:
        """Note and store what changed, then answer what is answered."""
        group = held.group
        kept = group.state is GroupState.STABLE or (group.state is GroupState.EMPTY and held.stored)
        if self._observe(held) and kept:
            self._save(held)
        answers = group.answers()
        if held.failed and answers and group.state is GroupState.STABLE:
            self._save(held)
        if held.saving is not None:
            held.answers += answers
        else:
            for waiter, result in answers:
                waiter(result)
        self._watch(held)

    def _observe(self, held: HeldGroup) -> bool:
        """Note which members there are and what they take; return whether anything changed."""
        group = held.group
        state = group.generation, group.state, tuple(group.members)
        if state == held.noted:
            return False
        held.noted = state
        if group.state is not GroupState.PREPARING:
            self._note_members(held)
        size = group.size_bytes
        self._size_bytes += size - held.size_bytes
        held.size_bytes = size
        return True

    def _save(self, held: HeldGroup) -> None:
        """Begin to store a group as it is now; records are stored in the order of their tasks."""
        record = held.group.record()
        held.stored, held.failed = record is not None, False
        value = None if record is None else record.dump()
        held.saving = self._loop.create_task(self._finish_save(held, value))
        self._saving.add(held.saving)
        held.saving.add_done_callback(self._saving.discard)

    async def _finish_save(self, held: HeldGroup, record: bytes | None) -> None:
        error = await self._records.save(held.id, record)
        if held.saving is not asyncio.current_task():
            return  # the answers wait for a newer record
        held.saving = None
        held.failed = error is not ErrorCode.NONE and record is not None
        answers, held.answers = held.answers, []
        for waiter, result in answers:
            waiter(_failed(result, error) if held.failed else result)

    def _watch(self, held: HeldGroup) -> None:
        """Let a group go that is not used, or look at it again when something is due."""
        if held.group.unused:
            self._drop(held)
        elif (due := held.group.next_deadline()) is not None and due < held.fires_at:
            self._arm(held, due)

    def _arm(self, held: HeldGroup, due: float) -> None:
        if held.timer is not None:
            held.timer.cancel()
        held.fires_at = due
        held.timer = self._loop.call_at(due, self._fire, held)

    def _fire(self, held: HeldGroup) -> None:
        held.timer, held.fires_at = None, math.inf
        if self._ending.is_set():
            return  # the next broker begins the sessions again
        held.group.tick(self._loop.time())
        self._settle(held)

    def _drop(self, held: HeldGroup) -> None:
        if self._groups.get(held.id) is not held:
            return
        if held.timer is not None:
            held.timer.cancel()
        self._size_bytes -= held.size_bytes
        self._release(held.subscriptions)
        del self._groups[held.id]

    def _note_members(self, held: HeldGroup) -> None:
        """Note which members read which partitions of which topics."""
        found: dict[SubscriptionKey, list[LiveMember]] = {}
        for member in held.group.members.values():
            assigned = assigned_partitions(member.assignment)
            for record, name in self._read_by(held.id, member, held.group.protocol_type):
                numbers = assigned.get(self.topics.kafka_names.of(TopicName.parse(record.name)), ())
                live = LiveMember(
                    member.id,
                    f"{member.client_id} at {member.client_host}",
                    frozenset(numbers if record.partitions else (NOT_PARTITIONED,) * len(numbers)),
                )
                found.setdefault((record.name, name), []).append(live)
        self._release(held.subscriptions - found.keys())
        held.subscriptions = set(found)
        for key, members in found.items():
            self.topics.live_members.replace(*key, members)

    def _release(self, subscriptions: set[SubscriptionKey]) -> None:
        for key in subscriptions:
            self.topics.live_members.replace(*key, ())

    def _count_members(self) -> float:
        return float(sum(len(held.group.members) for held in self._groups.values()))


def topics_of(member: JoinRequest | Member[Waiter], kind: str | None = None) -> Sequence[str]:
    """Return the topics that a consumer's metadata names, in all of its protocols."""
    protocol_type = member.protocol_type if isinstance(member, JoinRequest) else kind
    if protocol_type != "consumer":
        return ()
    found: dict[str, None] = {}
    for _, metadata in member.protocols:
        found.update(dict.fromkeys(subscribed_topics(metadata)))
    return tuple(found)


def _failed(result: JoinResult | SyncResult, error: ErrorCode) -> JoinResult | SyncResult:
    """Return the answer instead of one that depends on a record that was not stored."""
    if result.error is not ErrorCode.NONE:
        return result
    if isinstance(result, JoinResult):
        return JoinResult(error, result.member_id)
    return SyncResult(error)


def _new_id(name: str) -> str:
    return f"{name}-{uuid.uuid4()}"
