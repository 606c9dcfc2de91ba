"""Kafka's group protocol, step by step, on a clock of the test's own."""

from __future__ import annotations

from dataclasses import replace
from itertools import count
from typing import Any, cast

import pytest

from router.broker.kafka.group_values import (
    GroupCaller,
    GroupLimits,
    GroupState,
    JoinRequest,
    JoinResult,
    SyncRequest,
    SyncResult,
)
from router.broker.kafka.groups import KafkaGroup
from router.wire.kafka.error_codes import ErrorCode

REQUEST = JoinRequest(
    "", None, "app", "host", 10.0, 60.0, "consumer", (("range", b"r"), ("sticky", b"s"))
)


class Members:
    """A group and what its waiters, named by text, were answered."""

    def __init__(self, delay: float = 0.0, limits: GroupLimits | None = None) -> None:
        ids = count(1)
        self.group: KafkaGroup[str] = KafkaGroup(
            lambda name: f"{name}-{next(ids)}", delay, limits or GroupLimits()
        )
        self.now = 0.0
        self.answers: dict[str, Any] = {}

    def join(self, waiter: str, member_id: str = "", **changes: Any) -> JoinResult | None:
        self.group.join(replace(REQUEST, member_id=member_id, **changes), waiter, self.now)
        return cast("JoinResult | None", self.answer(waiter))

    def sync(self, waiter: str, member: str, generation: int, **given: bytes) -> SyncResult | None:
        assignments = {name.replace("_", "-"): data for name, data in given.items()}
        request = SyncRequest(GroupCaller(member, None, generation), assignments=assignments)
        self.group.sync(request, waiter, self.now)
        return cast("SyncResult | None", self.answer(waiter))

    def answer(self, waiter: str) -> Any:
        self.answers.update(self.group.answers())
        return self.answers.pop(waiter, None)

    def wait(self, seconds: float) -> None:
        end = self.now + seconds
        while (due := self.group.next_deadline()) is not None and due <= end:
            self.now = due
            self.group.tick(due)
        self.now = end

    def pair(self, **changes: Any) -> None:
        """Have app-1, who leads, and app-2 in a stable generation 2."""
        self.join("a", **changes)
        self.sync("a", "app-1", 1, app_1=b"all")
        self.join("b", **changes)
        self.join("a", "app-1", **changes)
        self.answer("b")
        self.sync("b", "app-2", 2)
        self.sync("a", "app-1", 2, app_1=b"one", app_2=b"two")
        self.answer("b")


def test_the_first_member_leads_and_assigns() -> None:
    members = Members()
    joined = members.join("a")
    assert joined is not None
    assert (joined.generation, joined.leader, joined.protocol) == (1, "app-1", "range")
    assert [(m.member_id, m.metadata) for m in joined.members] == [("app-1", b"r")]
    synced = members.sync("a", "app-1", 1, app_1=b"all")
    assert synced == SyncResult(ErrorCode.NONE, "consumer", "range", b"all")
    assert members.group.state is GroupState.STABLE


def test_a_client_that_can_is_given_an_id_first() -> None:
    members = Members()
    given = members.join("a", id_required=True)
    assert given == JoinResult(ErrorCode.MEMBER_ID_REQUIRED, "app-1")
    assert not members.group.members
    static = members.join("a", "app-1", instance_id="one")
    assert static == JoinResult(ErrorCode.UNKNOWN_MEMBER_ID, "app-1")
    joined = members.join("a", "app-1", id_required=True)
    assert joined is not None
    assert joined.error is ErrorCode.NONE


def test_an_id_that_is_not_used_is_forgotten_after_a_session() -> None:
    members = Members()
    members.join("a", id_required=True)
    members.wait(10)
    assert members.group.unused
    joined = members.join("a", "app-1")
    assert joined is not None
    assert joined.error is ErrorCode.UNKNOWN_MEMBER_ID


def test_an_empty_group_waits_for_more_members_and_no_longer_than_a_rebalance() -> None:
    members = Members(delay=3.0)
    assert members.join("a", rebalance_seconds=5.0) is None
    members.wait(2.5)
    members.join("b", rebalance_seconds=5.0)
    members.wait(1.0)
    assert members.answer("a") is None
    members.wait(1.5)
    first, second = members.answer("a"), members.answer("b")
    assert (first.generation, second.generation) == (1, 1)


def test_a_second_member_has_the_first_join_again() -> None:
    members = Members()
    members.join("a")
    members.sync("a", "app-1", 1, app_1=b"all")
    assert members.join("b") is None
    beat = members.group.heartbeat(GroupCaller("app-1", None, 1), members.now)
    assert beat is ErrorCode.REBALANCE_IN_PROGRESS
    joined = members.join("a", "app-1")
    assert joined is not None
    assert [m.member_id for m in joined.members] == ["app-1", "app-2"]
    follower = members.answer("b")
    assert (follower.members, follower.leader) == ((), "app-1")
    assert members.sync("b", "app-2", 2) is None
    members.sync("a", "app-1", 2, app_1=b"one", app_2=b"two")
    assert members.answer("b").assignment == b"two"


def test_the_protocol_is_one_that_all_speak_and_most_prefer() -> None:
    members = Members()
    members.join("a", protocols=(("range", b""), ("sticky", b"")))
    members.join("b", protocols=(("robin", b""), ("sticky", b"")))
    joined = members.join("a", "app-1", protocols=(("range", b""), ("sticky", b"")))
    assert joined is not None
    assert joined.protocol == "sticky"


@pytest.mark.parametrize(
    "changes",
    [
        {"protocols": (("robin", b""),)},
        {"protocol_type": "connect"},
        {"protocols": ()},
        {"protocol_type": ""},
    ],
)
def test_a_member_that_shares_no_protocol_is_refused(changes: dict[str, Any]) -> None:
    members = Members()
    members.join("a")
    joined = members.join("b", **changes)
    assert joined is not None
    assert joined.error is ErrorCode.INCONSISTENT_GROUP_PROTOCOL


def test_a_silent_member_is_removed_and_the_others_rebalance() -> None:
    members = Members()
    members.pair()
    members.wait(6)
    assert members.group.heartbeat(GroupCaller("app-1", None, 2), members.now) is ErrorCode.NONE
    members.wait(6)
    assert list(members.group.members) == ["app-1"]
    beat = members.group.heartbeat(GroupCaller("app-1", None, 2), members.now)
    assert beat is ErrorCode.REBALANCE_IN_PROGRESS


def test_a_member_that_does_not_join_again_is_left_out() -> None:
    members = Members()
    members.pair(session_seconds=100.0)
    members.join("c", session_seconds=100.0)
    members.join("a", "app-1", session_seconds=100.0)
    members.wait(60)
    assert members.answer("a").generation == 3
    assert list(members.group.members) == ["app-1", "app-3"]


def test_a_leader_that_does_not_assign_is_removed() -> None:
    members = Members()
    members.pair(session_seconds=100.0)
    members.join("c", session_seconds=100.0)
    members.join("b", "app-2", session_seconds=100.0)
    members.join("a", "app-1", session_seconds=100.0)
    assert members.answer("b").generation == members.answer("c").generation == 3
    assert members.sync("b", "app-2", 3) is None
    assert members.sync("c", "app-3", 3) is None
    members.wait(60)
    assert members.answer("b").error is ErrorCode.REBALANCE_IN_PROGRESS
    assert list(members.group.members) == ["app-2", "app-3"]


def test_requests_of_another_generation_or_member_are_refused() -> None:
    members = Members()
    members.pair()
    group, now = members.group, members.now
    assert group.heartbeat(GroupCaller("app-1", None, 1), now) is ErrorCode.ILLEGAL_GENERATION
    assert group.heartbeat(GroupCaller("other", None, 2), now) is ErrorCode.UNKNOWN_MEMBER_ID
    refused = members.sync("x", "app-1", 1)
    assert refused == SyncResult(ErrorCode.ILLEGAL_GENERATION)
    assert group.check_commit(GroupCaller("app-1", None, 1), now) is ErrorCode.ILLEGAL_GENERATION
    assert group.check_commit(GroupCaller(), now) is ErrorCode.UNKNOWN_MEMBER_ID
    assert group.check_commit(GroupCaller("app-1", None, 2), now) is ErrorCode.NONE


def test_offsets_of_an_empty_group_are_committed_without_a_generation() -> None:
    group = Members().group
    assert group.check_commit(GroupCaller(), 0.0) is ErrorCode.NONE
    assert group.check_commit(GroupCaller("app-1", None, 1), 0.0) is ErrorCode.UNKNOWN_MEMBER_ID


def test_the_last_member_that_leaves_empties_the_group() -> None:
    members = Members()
    members.pair()
    assert members.group.leave(GroupCaller("app-2"), members.now) is ErrorCode.NONE
    assert members.group.leave(GroupCaller("app-1"), members.now) is ErrorCode.NONE
    assert members.group.state is GroupState.EMPTY
    assert members.group.unused
    assert members.group.leave(GroupCaller("app-1"), members.now) is ErrorCode.UNKNOWN_MEMBER_ID


def test_a_static_member_that_restarts_keeps_its_assignment_without_a_rebalance() -> None:
    members = Members()
    members.join("a")
    members.sync("a", "app-1", 1, app_1=b"all")
    members.join("b", instance_id="two")
    members.join("a", "app-1")
    members.sync("a", "app-1", 2, app_1=b"one", two_2=b"two")
    members.answer("b")
    back = members.join("b again", instance_id="two")
    assert back is not None
    assert (back.error, back.generation, back.leader) == (ErrorCode.NONE, 2, "app-1")
    assert back.member_id == "two-3"
    assert members.group.state is GroupState.STABLE
    request = SyncRequest(GroupCaller(back.member_id, "two", 2))
    members.group.sync(request, "b again", members.now)
    assert members.answer("b again").assignment == b"two"
    earlier = GroupCaller("two-2", "two", 2)
    assert members.group.heartbeat(earlier, members.now) is ErrorCode.FENCED_INSTANCE_ID


@pytest.mark.parametrize("may_skip", [False, True])
def test_a_static_leader_that_restarts_does_not_assign_again(may_skip: bool) -> None:
    members = Members()
    members.join("a", instance_id="one", may_skip_assignment=may_skip)
    members.sync("a", "x", 1)
    request = SyncRequest(GroupCaller("one-1", "one", 1), assignments={"one-1": b"all"})
    members.group.sync(request, "a", members.now)
    back = members.join("b", instance_id="one", may_skip_assignment=may_skip)
    assert back is not None
    assert back.skip_assignment is may_skip
    assert (back.leader == back.member_id) is may_skip
    assert bool(back.members) is may_skip


def test_a_static_member_is_fenced_while_it_waits() -> None:
    members = Members(delay=3.0)
    members.join("a", instance_id="one")
    members.join("b", instance_id="one")
    assert members.answer("a").error is ErrorCode.FENCED_INSTANCE_ID
    assert list(members.group.members) == ["one-2"]


def test_a_static_member_leaves_by_its_instance() -> None:
    members = Members()
    members.join("a", instance_id="one")
    group, now = members.group, members.now
    assert group.leave(GroupCaller("", "two"), now) is ErrorCode.UNKNOWN_MEMBER_ID
    assert group.leave(GroupCaller("other", "one"), now) is ErrorCode.FENCED_INSTANCE_ID
    assert group.leave(GroupCaller("", "one"), now) is ErrorCode.NONE
    assert group.unused


def test_a_member_whose_connection_closes_before_it_knows_its_id_is_forgotten() -> None:
    members = Members(delay=3.0)
    members.join("a")
    members.group.abandon("a", members.now)
    assert members.group.unused


def test_a_member_whose_connection_closes_has_a_session_to_come_back() -> None:
    members = Members()
    members.pair()
    members.join("c")
    members.join("b", "app-2")
    members.group.abandon("b", members.now)
    members.wait(9)
    assert "app-2" in members.group.members
    members.wait(1)
    assert "app-2" not in members.group.members


def test_bounds_of_a_group_hold() -> None:
    members = Members(limits=GroupLimits(members=2, metadata_bytes=40))
    members.join("a")
    given = members.join("b", id_required=True)
    assert given is not None
    full = members.join("c")
    assert full is not None
    assert full.error is ErrorCode.GROUP_MAX_SIZE_REACHED
    large = members.join("b", given.member_id, protocols=(("range", bytes(40)),))
    assert large is not None
    assert large.error is ErrorCode.GROUP_MAX_SIZE_REACHED


@pytest.mark.parametrize("seconds", [0.5, 100_000.0])
def test_sessions_have_bounds(seconds: float) -> None:
    joined = Members().join("a", session_seconds=seconds)
    assert joined is not None
    assert joined.error is ErrorCode.INVALID_SESSION_TIMEOUT


def test_a_join_that_was_waited_for_long_leaves_a_whole_session_to_come_back() -> None:
    members = Members()
    members.pair()
    members.join("c")
    members.join("b", "app-2")
    for _ in range(3):
        members.wait(8)
        members.group.heartbeat(GroupCaller("app-1", None, 2), members.now)
    members.group.abandon("b", members.now)
    members.wait(9)
    assert "app-2" in members.group.members
    members.wait(1)
    assert "app-2" not in members.group.members


def test_what_a_leader_assigns_has_a_bound() -> None:
    members = Members(limits=GroupLimits(metadata_bytes=40))
    members.join("a")
    refused = members.sync("a", "app-1", 1, app_1=bytes(41))
    assert refused == SyncResult(ErrorCode.GROUP_MAX_SIZE_REACHED)
    synced = members.sync("a", "app-1", 1, app_1=bytes(40))
    assert synced is not None
    assert synced.assignment == bytes(40)


def test_a_rebalance_waits_for_ids_that_were_given_out() -> None:
    members = Members()
    members.join("a")
    members.sync("a", "app-1", 1, app_1=b"all")
    members.join("b", id_required=True)
    members.join("c")
    assert members.join("a", "app-1") is None
    assert members.join("b", "app-2") is not None
    assert members.answer("a").generation == members.answer("c").generation == 2
    members.join("d", id_required=True, session_seconds=5.0)
    members.join("e")
    for waiter, member in (("a", "app-1"), ("b", "app-2"), ("c", "app-3")):
        assert members.join(waiter, member) is None
    members.wait(5)
    assert {members.answer(one).generation for one in "abce"} == {3}


def test_a_static_leader_that_restarted_leads_the_next_generation_too() -> None:
    members = Members()
    members.join("a", instance_id="one")
    members.group.sync(SyncRequest(GroupCaller("one-1", "one", 1)), "a", members.now)
    members.join("b")
    members.join("a", "one-1", instance_id="one")
    members.group.sync(SyncRequest(GroupCaller("one-1", "one", 2)), "a", members.now)
    members.sync("b", "app-2", 2)
    members.join("a", instance_id="one", may_skip_assignment=True)
    members.join("c")
    members.join("b", "app-2")
    joined = members.join("a", "one-3", instance_id="one")
    assert joined is not None
    assert (joined.generation, joined.leader) == (3, "one-3")


def test_a_commit_is_taken_before_a_rebalance_and_refused_until_partitions_are_assigned() -> None:
    members = Members()
    members.join("a")
    caller = GroupCaller("app-1", None, 1)
    refused = members.group.check_commit(caller, members.now)
    assert refused is ErrorCode.REBALANCE_IN_PROGRESS
    members.sync("a", "app-1", 1, app_1=b"all")
    members.join("b")
    assert members.group.state is GroupState.PREPARING
    assert members.group.check_commit(caller, members.now) is ErrorCode.NONE


def test_a_rebalance_that_no_static_member_joins_is_looked_at_again_later() -> None:
    members = Members()
    members.join("a", instance_id="one", session_seconds=1_000.0)
    members.group.sync(SyncRequest(GroupCaller("one-1", "one", 1)), "a", members.now)
    members.join("b")
    assert members.group.leave(GroupCaller("app-2"), members.now) is ErrorCode.NONE
    members.group.tick(60.0)
    assert list(members.group.members) == ["one-1"]
    assert members.group.next_deadline() == 120.0
