"""The groups that are in memory: their records on disk, their timers, and what their members read.

Theory of operation. A group of either protocol is a pure state machine (`groups.py`,
`mixed_group.py`) that is in memory as long as it has members. It has one timer, and no task
stands behind it. After each change `settle` stores what is to last, in turns: what changes while a
record is written is in the next one. Answers wait for the record that was begun after them; if it
cannot be stored they become errors with which members try again. The record of a group whose last
member is gone is deleted.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import AsyncIterator, Callable, Collection
from dataclasses import dataclass, field
from typing import Final

import structlog

from router.access.principal_shares import PrincipalShares
from router.broker.consume import LiveMember
from router.broker.kafka.consumer_group_records import CONSUMER_VERSION, ConsumerGroupRecord
from router.broker.kafka.consumer_group_values import HeartbeatResult
from router.broker.kafka.group_records import GroupRecord
from router.broker.kafka.group_values import JoinResult, SyncResult
from router.broker.kafka.groups import KafkaGroup
from router.broker.kafka.mixed_group import MixedGroup
from router.broker.topics.topics import Topics
from router.errors import BadRequestError, RouterError
from router.model import NOT_PARTITIONED
from router.sharing.registry import ANY, GROUP_RECORDS, AsyncRegistry, all_records
from router.wire.kafka.error_codes import ErrorCode

Result = JoinResult | SyncResult | HeartbeatResult
Waiter = Callable[[Result], None]
SubscriptionKey = tuple[str, str]
"""A topic's full name and the group's name there."""
MAX_GROUPS: Final = 10_000
"""Shared by principals."""
MAX_METADATA_BYTES: Final = 128 << 20
"""Of the members of all groups, with metadata and assignments; shared by principals."""
NEVER: Final = object()
_log = structlog.get_logger(__name__)


@dataclass(slots=True, eq=False)
class HeldGroup:
    """A group that is in memory: its timer, its size, and the topics that its members read.

    `stored`: the registry has a record of it, or will have. `saving` is the task that stores
    records; `unsaved` makes the next one. `answers` wait for it. `failed`: the newest record was
    not stored. `noted` is the revision of the group that was noted last. `topics` are those of the
    subscriptions: while they are the same, so is the object. `owner` is the name of the principal
    whose member came first, after a restart too, "": it is not known.
    """

    id: str
    group: KafkaGroup[Waiter] | MixedGroup[Waiter]
    stored: bool = False
    failed: bool = False
    saving: asyncio.Task[None] | None = None
    unsaved: Callable[[], bytes | None] | None = None
    answers: list[tuple[Waiter, Result]] = field(default_factory=list)
    timer: asyncio.TimerHandle | None = None
    fires_at: float = math.inf
    size_bytes: int = 0
    noted: object = NEVER
    subscriptions: frozenset[SubscriptionKey] = frozenset()
    topics: frozenset[str] = frozenset()
    owner: str = ""


class HeldGroups:
    """The groups by their ids; used on the event loop.

    `name_on` returns the name of a group on a topic, by the id and the topic's Kafka name;
    `new_classic` a classic group without members.
    """

    def __init__(
        self,
        registry: AsyncRegistry,
        topics: Topics,
        name_on: Callable[[str, str], str],
        ending: asyncio.Event,
        new_classic: Callable[[], KafkaGroup[Waiter]],
    ) -> None:
        self.by_id: dict[str, HeldGroup] = {}
        self._shares = PrincipalShares(MAX_GROUPS)
        self._memory = PrincipalShares(MAX_METADATA_BYTES)
        self._registry = registry
        self._topics = topics
        self._name_on = name_on
        self._ending = ending
        self._new_classic = new_classic
        self._tasks: set[asyncio.Task[None]] = set()
        self._loop = asyncio.get_running_loop()

    async def records(self) -> AsyncIterator[tuple[str, GroupRecord | ConsumerGroupRecord]]:
        """Yield the records by the ids of their groups; one that is damaged is logged and deleted.

        Raises BackendUnavailableError.
        """
        async for one in all_records(self._registry, GROUP_RECORDS):
            kind = (
                ConsumerGroupRecord if one.value[:1] == bytes([CONSUMER_VERSION]) else GroupRecord
            )
            try:
                yield one.name, kind.load(one.value)
            except ValueError as error:
                _log.warning("kafka-group-damaged", group=one.name, reason=str(error))
                await self._registry.delete(GROUP_RECORDS, one.name)

    def hold(self, group_id: str, group: KafkaGroup[Waiter] | MixedGroup[Waiter]) -> HeldGroup:
        """Keep a group in memory, in the place of one that has no members."""
        before = self.by_id.get(group_id)
        if before is None:
            held = self.by_id[group_id] = HeldGroup(group_id, group)
            self._shares.add(held.owner, 1)
            return held
        before.group, before.noted = group, NEVER
        return before

    def claim(self, held: HeldGroup, owner: str) -> None:
        """Have a group that is of no principal be one's from now on."""
        if owner and not held.owner:
            for principal, sign in ((held.owner, -1), (owner, 1)):
                self._shares.add(principal, sign)
                self._memory.add(principal, sign * held.size_bytes)
            held.owner = owner

    def is_full(self, held: HeldGroup | None, owner: str) -> bool:
        """Return whether a group, None: a new one of a principal, may have no other member."""
        if held is None:
            return self._shares.is_full(owner) or self._memory.is_full(owner)
        return self._memory.is_full(held.owner)

    def restored(self, held: HeldGroup) -> None:
        """Note a group whose record was loaded."""
        held.stored = True
        self._observe(held)
        self._watch(held)

    def settle(self, held: HeldGroup) -> None:
        """Note and store what changed, then answer what is answered."""
        group = held.group
        if isinstance(group, MixedGroup) and group.is_classic:
            self._downgrade(held, group)
            return
        kept = group.storable and (held.stored or bool(group.members))
        if self._observe(held) and kept:
            self._save(held)
        answers = group.answers()
        if held.failed and answers and kept and held.unsaved is None:
            self._save(held)
        held.answers += answers
        if held.saving is None:
            _answer(held)
        self._watch(held)

    def _downgrade(self, held: HeldGroup, group: MixedGroup[Waiter]) -> None:
        """Have the classic members that are left of a group be one of their protocol."""
        held.answers += group.answers()
        now = self._loop.time()
        held.group, held.noted = self._new_classic(), NEVER
        held.group.restore(group.classic_record(), now)
        self.settle(held)  # stored first: what it rebalances to is stored in the end only
        held.group.rebalance(now)
        self.settle(held)

    def read_by(self, group_id: str, topics: Collection[str]) -> dict[str, SubscriptionKey]:
        """Return the topics of these Kafka names that there are, with the group's name there."""
        return {
            topic: (record.name, self._name_on(group_id, topic))
            for topic in topics
            if (record := self._topics.find_kafka(topic)) is not None
        }

    def reserve(self, held: HeldGroup, topics: Collection[str], reader: LiveMember) -> None:
        """Keep consumers of other protocols out of topics that a new member reads."""
        coming = {*self.read_by(held.id, topics).values()} - held.subscriptions
        _subscribe(held, held.subscriptions | coming)
        for key in coming:
            self._topics.live_members.replace(*key, [reader])

    def _observe(self, held: HeldGroup) -> bool:
        """Note which members there are and what they take; return whether anything changed."""
        group = held.group
        revision = group.revision
        if revision == held.noted:
            return False
        held.noted = revision
        self._note_members(held)
        size = group.size_bytes
        self._memory.add(held.owner, size - held.size_bytes)
        held.size_bytes = size
        return True

    def _save(self, held: HeldGroup) -> None:
        held.unsaved = held.group.recorder()
        if held.saving is None:
            held.saving = self._loop.create_task(self._store(held))
            self._tasks.add(held.saving)
            held.saving.add_done_callback(self._tasks.discard)

    async def _store(self, held: HeldGroup) -> None:
        """Store what is not stored, and answer what waited for it."""
        while (record := held.unsaved) is not None:
            answers, held.answers = held.answers, []
            held.unsaved, value = None, record()
            held.stored = value is not None
            error = await self._write(held.id, value)
            held.failed = error is not ErrorCode.NONE and value is not None
            for waiter, result in answers:
                waiter(_failed(result, error) if held.failed else result)
        held.saving = None
        _answer(held)
        self._watch(held)

    async def _write(self, group_id: str, record: bytes | None) -> ErrorCode:
        """Store the record of a group, None: it has no members; return whether that is on disk.

        The answer is that of Apache Kafka to members whose group cannot be stored.
        """
        try:
            if record is None:
                await self._registry.delete(GROUP_RECORDS, group_id)
            else:
                await self._registry.put(GROUP_RECORDS, group_id, record, ANY)
        except RouterError as error:
            _log.warning("kafka-group-not-stored", group=group_id, reason=str(error))
            if isinstance(error, BadRequestError):
                return ErrorCode.GROUP_MAX_SIZE_REACHED
            return ErrorCode.COORDINATOR_NOT_AVAILABLE
        return ErrorCode.NONE

    def _watch(self, held: HeldGroup) -> None:
        """Let a group go that is not used, or look at it again when something is due."""
        if held.group.unused:
            if held.saving is None:
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
        self.settle(held)

    def _drop(self, held: HeldGroup) -> None:
        if self.by_id.get(held.id) is not held:
            return
        if held.timer is not None:
            held.timer.cancel()
        self._memory.add(held.owner, -held.size_bytes)
        self._release(held.subscriptions)
        del self.by_id[held.id]
        self._shares.add(held.owner, -1)

    def _note_members(self, held: HeldGroup) -> None:
        """Note which members read which partitions of which topics."""
        readings = held.group.readings()
        if readings is None:
            return
        found: dict[SubscriptionKey, list[LiveMember]] = {}
        for reading in readings:
            client = f"{reading.client_id} at {reading.client_host}"
            for topic, key in self.read_by(held.id, reading.topics).items():
                record, numbers = self._topics.find_kafka(topic), reading.topics[topic]
                if record is not None and not record.partitions:
                    numbers = (NOT_PARTITIONED,) * len(numbers)
                live = LiveMember(reading.member_id, client, frozenset(numbers))
                found.setdefault(key, []).append(live)
        self._release(held.subscriptions - found.keys())
        _subscribe(held, frozenset(found))
        for key, members in found.items():
            self._topics.live_members.replace(*key, members)

    def _release(self, subscriptions: frozenset[SubscriptionKey]) -> None:
        for key in subscriptions:
            self._topics.live_members.replace(*key, ())


def _subscribe(held: HeldGroup, subscriptions: frozenset[SubscriptionKey]) -> None:
    if subscriptions != held.subscriptions:
        held.subscriptions = subscriptions
        held.topics = frozenset(topic for topic, _ in subscriptions)


def _answer(held: HeldGroup) -> None:
    """Send the answers that wait for no record."""
    answers, held.answers = held.answers, []
    for waiter, result in answers:
        waiter(result)


def _failed(result: Result, error: ErrorCode) -> Result:
    """Return the answer instead of one that depends on a record that was not stored."""
    if result.error is not ErrorCode.NONE:
        return result
    if isinstance(result, JoinResult):
        return JoinResult(error, result.member_id)
    if isinstance(result, SyncResult):
        return SyncResult(error)
    return HeartbeatResult(error, result.member_id)
