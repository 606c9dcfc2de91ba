"""A group that goes on from its record answers as the one that was not restarted."""

from __future__ import annotations

from typing import Any, TypeVar

from hypothesis import settings
from hypothesis.stateful import precondition, rule

from router.broker.kafka.group_records import GroupRecord
from router.broker.kafka.group_values import (
    GroupCaller,
    GroupLimits,
    GroupState,
    JoinRequest,
    JoinResult,
    KafkaMember,
    SyncRequest,
    SyncResult,
)
from router.broker.kafka.groups import KafkaGroup
from router.wire.kafka.error_codes import ErrorCode
from tests.unit.broker.kafka.test_group_model import INITIAL, MEMBERS, GroupModel, Waiter

T = TypeVar("T")


class Ids:
    """Ids of members by their number, which two groups can count alike."""

    def __init__(self, given: int = 0) -> None:
        self.given = given

    def __call__(self, client: str) -> str:
        self.given += 1
        return f"{client}-{self.given}"


class Twins(KafkaGroup[Waiter]):
    """A group, and from the first restart on its twin, which was restored from its record."""

    def __init__(self, delay: float) -> None:
        self.ids, self.delay = Ids(), delay
        self.twin: KafkaGroup[Waiter] | None = None
        super().__init__(self.ids, delay, GroupLimits(members=MEMBERS))

    def restart(self, now: float) -> None:
        """Make the twin; the sessions of both begin again."""
        record = self.record()
        assert record is not None
        loaded = GroupRecord.load(record.dump())
        self.twin = KafkaGroup(Ids(self.ids.given), self.delay, GroupLimits(members=MEMBERS))
        self.twin.restore(loaded, now)
        for member in self.members.values():
            member.extend(now)

    def answers(self) -> list[tuple[Waiter, JoinResult | SyncResult]]:
        return self._same(super().answers(), "answers")

    def join(self, request: JoinRequest, waiter: Waiter, now: float) -> None:
        super().join(request, waiter, now)
        self._same(None, "join", request, waiter, now)

    def sync(self, request: SyncRequest, waiter: Waiter, now: float) -> None:
        super().sync(request, waiter, now)
        self._same(None, "sync", request, waiter, now)

    def heartbeat(self, caller: GroupCaller, now: float) -> ErrorCode:
        return self._same(super().heartbeat(caller, now), "heartbeat", caller, now)

    def leave(self, caller: GroupCaller, now: float) -> ErrorCode:
        return self._same(super().leave(caller, now), "leave", caller, now)

    def check_commit(self, caller: GroupCaller, now: float) -> ErrorCode:
        return self._same(super().check_commit(caller, now), "check_commit", caller, now)

    def abandon(self, waiter: Waiter, now: float) -> None:
        super().abandon(waiter, now)
        self._same(None, "abandon", waiter, now)

    def tick(self, now: float) -> None:
        # A join of the twin ticks by itself.
        super().tick(now)
        if self.twin is not None:
            self.twin.tick(now)

    def next_deadline(self) -> float | None:
        return self._same(super().next_deadline(), "next_deadline")

    def _same(self, result: T, name: str, *arguments: Any) -> T:
        if self.twin is not None:
            assert getattr(self.twin, name)(*arguments) == result
            assert self.twin.state is self.state
            assert self.twin.generation == self.generation
            assert self.twin.leader == self.leader
            assert _states(self.twin) == _states(self)
        return result


def _states(group: KafkaGroup[Waiter]) -> list[tuple[object, ...]]:
    waits = {"joining", "syncing"}
    names = [slot for slot in KafkaMember.__slots__ if slot not in waits]
    return [tuple(getattr(one, name) for name in names) for one in group.members.values()]


class RestartModel(GroupModel):
    """The clients of a group and of its twin."""

    def new_group(self) -> KafkaGroup[Waiter]:
        return Twins(self.delay)

    @rule()
    def all_join_and_sync(self) -> None:
        for _ in range(3):
            for client in self._idle():
                self._join(client)
            self.time_passes(INITIAL)
        for client in sorted(self._idle(), key=lambda client: not client.leads):
            self._sync(client)

    @precondition(lambda self: self._settled())
    @rule()
    def restart(self) -> None:
        assert isinstance(self.group, Twins)
        self.group.restart(self.now)

    def _settled(self) -> bool:
        group = self.group
        return (
            group.state is GroupState.STABLE
            and not self.waiters
            and not group._pending
            and all(member.synced for member in group.members.values())
        )


TestGroupRestart = RestartModel.TestCase
TestGroupRestart.settings = settings(max_examples=60, stateful_step_count=40, deadline=None)
